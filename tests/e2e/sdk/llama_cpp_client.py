"""A client of llama.cpp's server as its own tests have one (`tools/server/tests/utils.py`): requests to its native routes, which name no model, and
its router's life of a model.

    llama_cpp_client.py native|embedding|rerank|infill http://HOST:PORT     (a server with one model of that kind)
    llama_cpp_client.py router http://HOST:PORT ORG/NAME:VARIANT
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Callable, Iterator

LIMIT = 60


class Server:
    """What llama.cpp's tests call `ServerProcess`, without starting one."""

    def __init__(self, base: str) -> None:
        self.base = base

    def make_request(self, method: str, path: str, data: Any = None) -> tuple[int, Any]:
        """The status and the body of an answer."""
        try:
            with self.open(method, path, data) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except json.JSONDecodeError:
            return status, text

    def ok(self, method: str, path: str, data: Any = None) -> Any:
        """The body of an answer that must be 200."""
        status, body = self.make_request(method, path, data)
        assert status == 200, (method, path, status, body)
        return body

    def make_stream_request(self, method: str, path: str, data: Any = None) -> Iterator[Any]:
        """The events of a stream."""
        with self.open(method, path, data) as answer:
            for line in answer:
                text = line.decode().rstrip("\n")
                if text.startswith("data: ") and text != "data: [DONE]":
                    yield json.loads(text[6:])

    def open(self, method: str, path: str, data: Any) -> Any:
        """Sends a request."""
        body = None if data is None else json.dumps(data).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(self.base + path, body, headers, method=method)
        return urllib.request.urlopen(request, timeout=LIMIT)


def until(what: str, probe: Callable[[], bool]) -> None:
    """Waits for a condition."""
    deadline = time.monotonic() + LIMIT
    while not probe():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def native(server: Server) -> None:
    """The routes of a server with one model, as its README shows them: no request names the model."""
    until("ready", lambda: server.make_request("GET", "/health")[0] == 200)
    props = server.ok("GET", "/props")
    assert props["total_slots"] >= 1 and props["chat_template"] and props["is_sleeping"] is False
    assert props["default_generation_settings"]["n_ctx"] > 0 and props["model_path"].endswith(".gguf")
    slots = server.ok("GET", "/slots")
    assert [slot["id"] for slot in slots] == list(range(props["total_slots"]))
    assert all(slot["n_ctx"] == props["default_generation_settings"]["n_ctx"] for slot in slots)
    assert server.make_request("GET", "/slots?fail_on_no_slot=1")[0] == 200
    models = server.ok("GET", "/models")
    assert len(models["data"]) == 1 and models["models"][0]["name"] == models["data"][0]["id"]

    asked = {"prompt": "I believe the meaning of life is", "n_predict": 8, "temperature": 0.0, "seed": 42}
    whole = server.ok("POST", "/completion", asked)
    assert whole["timings"]["prompt_n"] > 0 and whole["timings"]["predicted_n"] == 8
    assert whole["stop_type"] == "limit" and not whole["truncated"] and isinstance(whole["prompt"], str)
    content, tokens, stopped = "", [], False
    for event in server.make_stream_request("POST", "/completion", {**asked, "stream": True}):
        assert event["stop"] in (True, False) and "index" in event
        tokens += event["tokens"]
        if event["stop"]:
            stopped = True
            assert event["content"] == "" and event["timings"]["predicted_n"] == 8
        else:
            content += event["content"]
    assert stopped and content == whole["content"] and len(tokens) == 8, (content, whole["content"])

    body = server.ok("POST", "/completion", {**asked, "n_probs": 3, "return_tokens": True})
    assert len(body["tokens"]) == 8 and len(body["completion_probabilities"]) == 8
    assert all(len(one["top_logprobs"]) == 3 for one in body["completion_probabilities"])
    several = server.ok("POST", "/completion", {**asked, "prompt": ["a", [5, 6], ["b", 7]]})
    assert [one["index"] for one in several] == [0, 1, 2]

    text = "What is the capital of France ?"
    ids = server.ok("POST", "/tokenize", {"content": text})["tokens"]
    assert server.ok("POST", "/detokenize", {"tokens": ids})["content"].strip() == text
    pieces = server.ok("POST", "/tokenize", {"content": text, "with_pieces": True})["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    turns = [{"role": "user", "content": "hi"}]
    prompt = server.ok("POST", "/apply-template", {"messages": turns})["prompt"]
    assert "hi" in prompt
    chat = server.ok("POST", "/chat/completions", {"messages": turns, "max_tokens": 4, "verbose": True})
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert chat["__verbose"]["tokens_predicted"] == 4 and chat["__verbose"]["prompt"].endswith(prompt)
    # Any name means the only model.
    named = server.ok("POST", "/v1/chat/completions", {"model": "gpt-3.5-turbo", "messages": turns, "max_tokens": 2})
    assert named["usage"]["completion_tokens"] == 2

    status, error = server.make_request("POST", "/completion", {"prompt": "word " * 5000})
    assert status == 400 and error["error"]["type"] == "exceed_context_size_error", error
    assert error["error"]["n_prompt_tokens"] > error["error"]["n_ctx"] > 0
    status, error = server.make_request("POST", "/completion", {"prompt": "a", "grammar": "root ::= ("})
    assert status == 400 and error["error"]["type"] == "invalid_request_error", error


def embedding(server: Server) -> None:
    """As its `test_embedding.py`: every shape of input, vectors of length 1."""
    until("ready", lambda: server.make_request("GET", "/health")[0] == 200)
    single = server.ok("POST", "/embedding", {"content": "I believe the meaning of life is"})
    vector = single[0]["embedding"][0]
    assert single[0]["index"] == 0 and abs(sum(x * x for x in vector) - 1) < 1e-3
    for given, several in [
        ("string", False),
        ([12, 34, 56], False),
        ([12, 34, "string", 56, 78], False),
        ({"prompt_string": "string"}, False),
        ({"content": [{"type": "text", "text": "string"}]}, False),
        (["string1", "string2"], True),
        (["string1", [12, 34, 56]], True),
        ([[12, 34, 56], [12, "string", 34, 56]], True),
        (["string1", {"prompt_string": "string2"}, {"content": [{"type": "text", "text": "string3"}]}], True),
    ]:
        for path, key in [("/embeddings", "content"), ("/v1/embeddings", "input")]:
            body = server.ok("POST", path, {key: given})
            rows = body if isinstance(body, list) else body["data"]
            assert len(rows) == (len(given) if several else 1), (path, given)
    same = {"input": ["hello world", {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]}]}
    rows = server.ok("POST", "/v1/embeddings", same)["data"]
    assert rows[0]["embedding"] == rows[1]["embedding"]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    sound: dict[str, Any] = {"type": "input_audio", "input_audio": {}}
    for wrong in [[], {"content": "string"}, {"content": [sound]}, {"content": [image]}]:
        status, error = server.make_request("POST", "/v1/embeddings", {"input": wrong})
        assert status == 400, (wrong, error)
    status, error = server.make_request("POST", "/embedding", {"content": "This is a test " * 5000})
    assert status == 400 and error["error"]["n_prompt_tokens"] > error["error"]["n_ctx"] > 0, error


def rerank(server: Server) -> None:
    """As its `test_rerank.py`: Jina's and TEI's shape."""
    until("ready", lambda: server.make_request("GET", "/health")[0] == 200)
    documents = ["A machine", "Learning is", "Paris, capitale de la France"]
    body = server.ok("POST", "/rerank", {"query": "Machine learning is", "documents": documents})
    assert sorted(one["index"] for one in body["results"]) == [0, 1, 2]
    assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] > 0
    scores = {one["index"]: one["relevance_score"] for one in body["results"]}
    tei = server.ok("POST", "/rerank", {"query": "Machine learning is", "texts": documents})
    assert {one["index"]: one["score"] for one in tei} == scores
    for most, count in [(2, 2), (99, 3)]:
        asked = {"query": "Machine learning is", "top_n": most}
        assert len(server.ok("POST", "/rerank", {**asked, "documents": documents})["results"]) == count
        assert len(server.ok("POST", "/rerank", {**asked, "texts": documents})) == count
    for wrong in [[], None, 123, [1, 2, 3]]:
        status, error = server.make_request("POST", "/rerank", {"query": "a", "documents": wrong})
        assert status == 400 and error["error"], (wrong, error)


def infill(server: Server) -> None:
    """As its `test_infill.py`."""
    until("ready", lambda: server.make_request("GET", "/health")[0] == 200)
    asked = {"input_prefix": "int main() {\n", "prompt": "    int n = ", "input_suffix": "}\n", "n_predict": 4}
    plain = server.ok("POST", "/infill", asked)
    extra = server.ok("POST", "/infill", {**asked, "input_extra": [{"filename": "llama.h", "text": "int n();\n"}]})
    assert extra["tokens_evaluated"] > plain["tokens_evaluated"] > 0 and plain["tokens_predicted"] == 4
    content = "".join(event["content"] for event in server.make_stream_request("POST", "/infill", {**asked, "stream": True}))
    assert content
    bad: list[Any] = [{}, {"filename": "ok"}, {"filename": 123}, {"filename": 123, "text": "abc"}]
    for wrong in bad:
        status, error = server.make_request("POST", "/infill", {**asked, "input_extra": [wrong]})
        assert status == 400, (wrong, error)


def router(server: Server, model: str) -> None:
    """The life of a model in llama.cpp's router, as its `test_router.py` lives it: download, list, load, unload, delete."""
    props = server.ok("GET", "/props")
    assert props["role"] == "router" and props["max_instances"] >= 0 and props["models_autoload"] is True
    events: list[Any] = []
    threading.Thread(target=listen, args=(server, events), daemon=True).start()

    def seen(event: str) -> bool:
        return any(one["model"] == model and one["event"] == event for one in events)

    def status() -> str | None:
        rows = server.ok("GET", "/models")["data"]
        return next((row["status"]["value"] for row in rows if row["id"] == model), None)

    assert status() is None
    refused, error = server.make_request("POST", "/models", {"model": "nobody/nothing-GGUF:Q4_0"})
    assert 400 <= refused < 500, error
    until(
        "what is not there is forgotten",
        lambda: all("nobody" not in row["id"] for row in server.ok("GET", "/models")["data"]),
    )
    assert server.ok("POST", "/models", {"model": model})["success"] is True
    until("download_finished", lambda: seen("download_finished"))
    assert seen("download_progress")
    until("it is listed", lambda: status() == "unloaded")
    row = next(row for row in server.ok("GET", "/models")["data"] if row["id"] == model)
    assert row["source"] == "cache" and row["can_remove"] is True
    assert row["architecture"] == {"input_modalities": ["text"], "output_modalities": ["text"]}
    again, error = server.make_request("POST", "/models", {"model": model})
    assert again == 400, error

    assert server.ok("POST", "/models/load", {"model": model})["success"] is True
    until("it is loaded", lambda: status() == "loaded")
    until("that is told", lambda: any(one.get("data") == {"status": "loaded"} for one in events))
    answer = server.ok("POST", "/completion", {"model": model, "prompt": "a", "n_predict": 2})
    assert answer["tokens_predicted"] == 2
    shown = server.ok("GET", "/props?model=" + urllib.parse.quote(model, safe=""))
    assert shown["is_sleeping"] is False and "role" not in shown
    assert server.ok("POST", "/models/unload", {"model": model})["success"] is True
    until("it is unloaded", lambda: status() == "unloaded")
    query = urllib.parse.urlencode({"model": model})
    assert server.ok("DELETE", f"/models?{query}")["success"] is True
    until("it is gone", lambda: status() is None)
    until("that is told", lambda: seen("model_remove"))


def listen(server: Server, events: list[Any]) -> None:
    """Gathers events until the server goes."""
    try:
        for event in server.make_stream_request("GET", "/models/sse"):
            events.append(event)
    except OSError:
        pass


if __name__ == "__main__":
    if sys.argv[1] == "router":
        router(Server(sys.argv[2]), sys.argv[3])
    else:
        kinds = {"native": native, "embedding": embedding, "rerank": rerank, "infill": infill}
        kinds[sys.argv[1]](Server(sys.argv[2]))
