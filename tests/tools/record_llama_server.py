#!/usr/bin/env python3
"""Records what a real llama-server answers, for tests/e2e/drop_in.rs: the status and the shape of each answer, no values.

    tests/tools/record_llama_server.py http://127.0.0.1:8080 > tests/e2e/fixtures/llama_server.json

Start the server of `tests/tools/build-llama-server` on tiny-chat.gguf first, with `-c 512 --slots --metrics`.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from typing import Any, Iterator

TURNS = [{"role": "user", "content": "hi"}]
ANSWER = {"role": "assistant", "content": "yo"}
LONG = "word " * 900
REPORTED = {"return_progress": True, "timings_per_token": True}
FEW = {"messages": TURNS, "max_tokens": 2}
CASES: list[tuple[str, str, Any]] = [
    ("GET", "/health", None),
    ("GET", "/v1/health", None),
    ("GET", "/props", None),
    ("GET", "/models", None),
    ("GET", "/v1/models", None),
    ("GET", "/slots", None),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 2, "seed": 3}),
    ("POST", "/completions", {"prompt": "hi", "n_predict": 2, "model": "gpt-4o"}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 2, "stream": True}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 2, "stream": True, "return_progress": True}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 2, "stream": True, **REPORTED}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 1, "n": 2}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 1, "samplers": "kt"}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 1, "id_slot": 99}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 1, "response_fields": []}),
    ("POST", "/completion", {"prompt": {"prompt_string": "hi"}, "n_predict": 1}),
    ("POST", "/completion", {"n_predict": 1}),
    ("POST", "/completion", {"prompt": "a", "n_predict": "x"}),
    ("POST", "/v1/completions", {"prompt": LONG}),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    ("POST", "/completion", {"prompt": "hi", "n_predict": 1, "ignore_eos": True}),
    ("POST", "/completion", {"prompt": LONG}),
    ("POST", "/completion", {"prompt": LONG, "stream": True}),
    ("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 2}),
    ("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True}),
    ("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 2, "stream": True, **REPORTED}),
    ("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 2, "verbose": True}),
    ("POST", "/v1/chat/completions", {**FEW, "verbose": True}),
    ("POST", "/v1/chat/completions", {**FEW, "verbose": True, "stream": True}),
    ("POST", "/v1/chat/completions", FEW),
    ("POST", "/chat/completions", FEW),
    ("POST", "/v1/chat/completions", {**FEW, "stream": True}),
    ("POST", "/v1/chat/completions", {**FEW, "stream": True, "stream_options": {"include_usage": True}}),
    ("POST", "/v1/chat/completions", {**FEW, "stream": True, **REPORTED}),
    ("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 2}),
    ("POST", "/responses", {"input": "hi", "max_output_tokens": 2, "stream": True}),
    ("POST", "/responses", {"input": "hi", "max_output_tokens": 2, "stream": True, **REPORTED}),
    ("POST", "/v1/messages", FEW),
    ("POST", "/v1/messages", {**FEW, "stream": True}),
    ("POST", "/v1/messages/count_tokens", {"messages": TURNS}),
    ("POST", "/v1/chat/completions/input_tokens", {"messages": TURNS}),
    ("POST", "/chat/completions/input_tokens", {"messages": TURNS}),
    ("POST", "/v1/responses/input_tokens", {"input": "hi"}),
    ("POST", "/apply-template", {"messages": TURNS}),
    ("POST", "/apply-template", {"messages": TURNS, "add_generation_prompt": False}),
    ("POST", "/apply-template", {"messages": [*TURNS, ANSWER]}),
    ("POST", "/apply-template", {"messages": [*TURNS, ANSWER, ANSWER]}),
    (
        "POST",
        "/apply-template",
        {"messages": [*TURNS, ANSWER], "add_generation_prompt": True, "continue_final_message": True},
    ),
    ("POST", "/tokenize", {"content": "hi", "with_pieces": True}),
    ("POST", "/detokenize", {"tokens": [5]}),
    ("POST", "/embedding", {"content": "hi"}),
    ("POST", "/rerank", {"query": "a", "documents": ["b"]}),
    ("GET", "/lora-adapters", None),
    ("POST", "/slots/0?action=erase", {}),
]


def shape(value: Any, path: str = "") -> Iterator[str]:
    """Each path of a value with the type that stands there; of a list, what its first item has."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from shape(inner, f"{path}/{key}")
    elif isinstance(value, list):
        yield f"{path}[]"
        for inner in value[:1]:
            yield from shape(inner, f"{path}[]")
    else:
        names = {bool: "boolean", int: "number", float: "number", str: "string", type(None): "null"}
        yield f"{path}: {names[type(value)]}"


def events(text: str) -> Any:
    """A stream's events: the first, the second and the last but `[DONE]`, which is where shapes differ."""
    found = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    found = [json.loads(event) for event in found if event != "[DONE]"]
    return {"first": found[0], "second": found[1], "last": found[-1]}


def ask(base: str, method: str, path: str, body: Any) -> tuple[int, str]:
    """The status and the text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def main() -> None:
    """Asks everything once."""
    recorded = []
    # A sequence that was used shows more of itself.
    ask(sys.argv[1], "POST", "/v1/chat/completions", {**FEW, "id_slot": 0})
    for method, path, body in CASES:
        status, text = ask(sys.argv[1], method, path, body)
        streamed = bool(body) and body.get("stream") is True and status == 200
        answer = events(text) if streamed else json.loads(text)
        recorded.append(
            {"method": method, "path": path, "body": body, "status": status, "shape": sorted(set(shape(answer)))}
        )
    json.dump(recorded, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
