"""Ollama's own client against a gateway: `ollama_client.py http://HOST:PORT`."""

import sys

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
    assert MODEL in [model.model for model in client.list().models]
    assert "completion" in client.show(MODEL).capabilities
    assert client.show(f"{MODEL}:latest").modified_at is not None


def talk(client: ollama.Client) -> None:
    whole = client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS)
    assert whole.done and whole.done_reason in ("stop", "length"), whole
    said = (whole.message.thinking or "") + whole.message.content
    assert said and 1 <= whole.eval_count <= 8, whole
    pieces = list(client.chat(model=MODEL, messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join((piece.message.thinking or "") + piece.message.content for piece in pieces) == said
    assert pieces[-1].done and pieces[-1].eval_count == whole.eval_count, pieces[-1]
    assert MODEL in [model.model for model in client.ps().models]

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


def refuse(client: ollama.Client) -> None:
    try:
        client.chat(model="nobody", messages=MESSAGES)
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "nobody" in error.error, error
    else:
        raise AssertionError("an unknown model must be refused")


def main(host: str, engine: str) -> None:
    client = ollama.Client(host=host, timeout=60)
    catalogue(client)
    talk(client)
    refuse(client)
    if engine != "stub":
        call_tools(client)
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
