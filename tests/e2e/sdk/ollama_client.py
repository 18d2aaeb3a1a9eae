"""Ollama's own client against a gateway: `ollama_client.py http://HOST:PORT`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import ollama

MODEL = "tiny-chat"
MESSAGES = [{"role": "user", "content": "Hello!"}]
OPTIONS = {"num_predict": 8, "temperature": 0, "num_ctx": 512}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather in a city", "parameters": SCHEMA},
}


def catalogue(client: ollama.Client) -> None:
    assert f"{MODEL}:latest" in [model.model for model in client.list().models]
    assert "completion" in client.show(MODEL).capabilities
    assert client.show(f"{MODEL}:latest").modified_at is not None


def know(client: ollama.Client) -> None:
    """What the engine of a loaded model tells of it."""
    shown = client.show(MODEL)
    assert "message" in shown.template, shown
    family = shown.modelinfo["general.architecture"]
    assert shown.details.family == family, shown
    assert shown.modelinfo[f"{family}.context_length"] > 0, shown


def embed(client: ollama.Client) -> None:
    client.generate(model="tiny-embed", keep_alive=0)
    one = client.embed(model="tiny-embed", input="Hello!")
    assert 0 < one.load_duration <= one.total_duration, one
    two = client.embed(model="tiny-embed", input=["Hello!", "Goodbye!"])
    assert two.load_duration == 0, two
    assert len(one.embeddings) == 1 and len(two.embeddings) == 2, two
    assert len(one.embeddings[0]) == len(two.embeddings[1]) > 1
    assert all(abs(a - b) < 1e-3 for a, b in zip(one.embeddings[0], two.embeddings[0], strict=True))
    assert two.prompt_eval_count > one.prompt_eval_count >= 1, two
    older = client.embeddings(model="tiny-embed", prompt="Hello!")
    assert len(older.embedding) == len(one.embeddings[0])


def unload(client: ollama.Client) -> None:
    """Ollama's way to load and unload, and how a cold request tells of its load."""
    gone = client.generate(model=MODEL, keep_alive=0)
    assert gone.done_reason == "unload", gone
    assert f"{MODEL}:latest" not in [model.model for model in client.ps().models]
    cold = client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS)
    assert 0 < cold.load_duration < cold.total_duration, cold
    warm = client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS)
    assert warm.load_duration == 0, warm
    there = client.generate(model=MODEL)
    assert there.done_reason == "load", there


def receive_calls(client: ollama.Client, model: str) -> None:
    """A model that calls tools when they are needed; arguments are objects, whole and streamed."""
    held_out = Path(__file__).parents[2] / "models" / "demo" / "held_out.json"
    entry = json.loads(held_out.read_text())["tools"][0]
    (described,) = entry["tools"]
    properties = {name: {"type": kind} for name, kind in described["parameters"].items()}
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": described["name"], "description": described["description"], "parameters": parameters}
    asked = {"role": "user", "content": entry["question"]}
    more = {
        "model": model,
        "tools": [{"type": "function", "function": function}],
        "think": False,
        "options": {"temperature": 0, "num_predict": 200},
    }
    whole = client.chat(messages=[asked], **more)
    (call,) = whole.message.tool_calls
    assert call.function.name == entry["call"]["name"], whole
    assert call.function.arguments == entry["call"]["arguments"], whole
    pieces = client.chat(messages=[asked], stream=True, **more)
    calls = [call.function for piece in pieces for call in piece.message.tool_calls or []]
    assert calls == [call.function], calls
    result = {"role": "tool", "tool_name": call.function.name, "content": entry["result"]}
    after = client.chat(messages=[asked, whole.message, result], **more)
    assert all(text in after.message.content for text in entry["expect"]), after


def talk(client: ollama.Client) -> None:
    whole = client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS)
    assert whole.done and whole.done_reason in ("stop", "length"), whole
    said = (whole.message.thinking or "") + whole.message.content
    assert said and 1 <= whole.eval_count <= 8, whole
    pieces = list(client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join((piece.message.thinking or "") + piece.message.content for piece in pieces) == said
    assert pieces[-1].done and pieces[-1].eval_count == whole.eval_count, pieces[-1]
    assert f"{MODEL}:latest" in [model.model for model in client.ps().models]

    generated = client.generate(model=MODEL, prompt="Once upon a time", options=OPTIONS, raw=True)
    assert generated.response, generated
    pieces = client.generate(model=MODEL, prompt="Once upon a time", options=OPTIONS, raw=True, stream=True)
    assert "".join(piece.response for piece in pieces) == generated.response


def call_tools(client: ollama.Client) -> None:
    answered = MESSAGES + [
        {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]},
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
    ]
    after = client.chat(model=MODEL, messages=answered, tools=[TOOL], options=OPTIONS)
    assert after.eval_count >= 1, after
    shaped = client.chat(model=MODEL, messages=MESSAGES, format=SCHEMA, think=False, options={"num_predict": 200})
    assert "city" in shaped.message.content, shaped


def refused(status: int, call: Callable[[], object]) -> str:
    """Why something is refused."""
    try:
        call()
    except ollama.ResponseError as error:
        assert error.status_code == status, error
        return error.error
    raise AssertionError("it must be refused")


def refuse(client: ollama.Client) -> None:
    assert "nobody" in refused(404, lambda: client.chat(model="nobody", messages=MESSAGES))


def make(client: ollama.Client, base: str) -> int:
    """A model made from another one, which is known before any of both is loaded: the context that it was trained with."""
    before = client.show(base)
    assert before.modelinfo["general.architecture"] == before.details.family, before
    assert before.template and before.details.parameter_size and before.details.quantization_level, before
    trained = before.modelinfo[f"{before.details.family}.context_length"]
    assert trained > 6000, before
    assert not client.ps().models, "nothing was loaded to know it"

    parameters = {"temperature": 0, "seed": 7, "num_ctx": 256, "num_predict": 4, "stop": ["<never>"]}
    told = client.create("mario", from_=base, system="You are Mario.", parameters=parameters, stream=True)
    assert [step.status for step in told][-1] == "success"
    made = client.show("mario")
    assert "num_ctx                        256" in made.parameters, made
    assert "<never>" in made.parameters and 'SYSTEM """You are Mario."""' in made.modelfile, made
    assert f"FROM {base}\n" in made.modelfile, made
    assert "user.mario:latest" in [model.model for model in client.list().models]
    first = client.chat(model="mario", messages=MESSAGES)
    assert first.eval_count <= 4, "num_predict is the model's"
    assert client.chat(model="mario:latest", messages=MESSAGES).message == first.message, "temperature and seed are too"
    plain = client.chat(model="mario", messages=[{"role": "system", "content": ""}, *MESSAGES])
    assert first.prompt_eval_count > plain.prompt_eval_count, "the system prompt is part of it"
    assert client.ps().models[0].context_length == 256

    again = client.create("luigi", from_="mario", system="You are Luigi.")
    assert again.status == "success"
    second = client.show("luigi")
    assert "You are Luigi." in second.modelfile and "<never>" in second.parameters, second
    assert client.delete("mario").status == "success"
    assert client.chat(model="luigi", messages=MESSAGES).done, "it needs the one that it was made from no more"
    assert client.delete("luigi").status == "success"
    assert client.show(base).template == before.template, "the files are those of the other model"

    for wrong in ("nobody", "/etc/passwd", "./model.gguf"):
        assert wrong in refused(404, lambda wrong=wrong: client.create("bad", from_=wrong))
    go = "{{ if .System }}{{ .System }}{{ end }}"
    assert "Jinja" in refused(400, lambda: client.create("bad", from_=base, template=go))
    assert "another model" in refused(400, lambda: client.create("fixed", from_=base))
    refused(501, lambda: client.create("bad", from_=base, quantize="q4_K_M"))
    return trained


def bring(client: ollama.Client, file: str) -> None:
    """A model made from a file that the client uploads; its size is not known before."""
    digest = client.create_blob(file)
    assert client.create_blob(file) == digest, "once more is as good"
    told = client.create("brought", files={Path(file).name: digest}, parameters={"num_predict": 3}, stream=True)
    assert [step.status for step in told][-1] == "success"
    shown = client.show("brought")
    assert shown.modelinfo["general.architecture"] == shown.details.family, shown
    assert client.chat(model="brought", messages=MESSAGES).eval_count <= 3
    assert client.create("second", from_=f"@{digest}").status == "success"
    assert client.delete("brought").status == "success"
    assert client.chat(model="second", messages=MESSAGES, options=OPTIONS).done, "the file is the second one's too"
    assert client.delete("second").status == "success"
    missing = "sha256:" + 64 * "0"
    assert missing in refused(400, lambda: client.create("bad", files={"m.gguf": missing}))
    assert digest in refused(400, lambda: client.create("bad", files={"m.gguf": digest})), "it went with its last model"


def probable(client: ollama.Client, model: str) -> None:
    """Probabilities of the tokens, as Ollama has them today."""
    asked = {"model": model, "prompt": "Hello", "options": OPTIONS, "logprobs": True, "top_logprobs": 2}
    whole = client.generate(**asked)
    assert len(whole.logprobs) == whole.eval_count and len(whole.logprobs[0].top_logprobs) == 2, whole
    streamed = [one for line in client.generate(**asked, stream=True) for one in line.logprobs or []]
    assert [one.token for one in streamed] == [one.token for one in whole.logprobs]
    assert client.chat(model=model, messages=MESSAGES, options=OPTIONS, logprobs=True).logprobs
    assert client.chat(model=model, messages=MESSAGES, options=OPTIONS).logprobs is None


def vectors(client: ollama.Client, file: str) -> None:
    """An uploaded file says itself that it gives vectors: nobody has to label it."""
    client.create("vectors", files={Path(file).name: client.create_blob(file)})
    assert len(client.embed(model="vectors", input=["a", "b"]).embeddings) == 2
    shown = client.show("vectors")
    assert shown.capabilities == ["embedding"] and not shown.template, shown
    refused(400, lambda: client.chat(model="vectors", messages=MESSAGES))
    assert client.delete("vectors").status == "success"


def grow(client: ollama.Client, base: str, trained: int) -> None:
    """`num_ctx` loads a model with a larger context where nobody set one."""
    client.generate(model=base, keep_alive=0)
    client.chat(model=base, messages=MESSAGES, options={"num_ctx": 6000, "num_predict": 1})
    (loaded,) = [model for model in client.ps().models if model.model == f"{base}:latest"]
    assert loaded.context_length == 6000, loaded
    same = client.chat(model=base, messages=MESSAGES, options={"num_ctx": 512, "num_predict": 1})
    assert same.load_duration == 0, "a larger context serves too"
    anew = client.chat(model=base, messages=MESSAGES, options={"num_ctx": 2 * trained, "num_predict": 1})
    assert anew.load_duration > 0, anew
    (loaded,) = [model for model in client.ps().models if model.model == f"{base}:latest"]
    assert loaded.context_length == trained, loaded
    options = {"num_ctx": 4096}
    assert "1024" in refused(400, lambda: client.chat(model="fixed", messages=MESSAGES, options=options))


def manage(client: ollama.Client, name: str) -> None:
    """Models from a hub by Ollama's way to name them: they come, can be asked by that name, get another one, and go."""
    told = [progress.status for progress in client.pull(name, stream=True)]
    assert told[0] == "pulling manifest" and told[-1] == "success", told
    assert client.pull(name).status == "success"
    assert client.chat(model=name, messages=MESSAGES, options=OPTIONS).done
    client.copy(name, "mine")
    assert client.chat(model="mine:latest", messages=MESSAGES, options=OPTIONS).done
    assert client.delete("mine:latest").status == "success"
    assert client.chat(model=name, messages=MESSAGES, options=OPTIONS).done, "only the further name went"
    assert client.delete(name).status == "success"
    assert not client.list().models
    refused(501, lambda: client.push("mine"))


def main(host: str, engine: str, *files: str) -> None:
    client = ollama.Client(host=host, timeout=60)
    if engine.startswith("hf.co/"):
        manage(client, engine)
        print("ok")
        return
    if engine == "bench-chat":
        trained = make(client, engine)
        probable(client, engine)
        grow(client, engine, trained)
        for file in files:
            bring(client, file)
            vectors(client, str(Path(file).with_name("tiny-embed.gguf")))
        print("ok")
        return
    if engine == "demo":
        receive_calls(client, "muster-demo")
        print("ok")
        return
    catalogue(client)
    talk(client)
    refuse(client)
    embed(client)
    if engine != "stub":
        call_tools(client)
    if engine == "llama_cpp":
        know(client)
    unload(client)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
