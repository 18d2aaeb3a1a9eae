"""A client of llama.cpp's server as its own tests have one (`tools/server/tests/utils.py`): requests to its native routes, which name no model, and
its router's life of a model.

    llama_cpp_client.py native http://HOST:PORT
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
    if sys.argv[1] == "native":
        native(Server(sys.argv[2]))
    else:
        router(Server(sys.argv[2]), sys.argv[3])
