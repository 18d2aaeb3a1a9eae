#!/usr/bin/env python3
"""Tests of the test rig: the generated models are the same every time, the committed ones are what
was trained, and the launcher behaves as llama-server does.

Ends with the line `N passed, N failed`. Needs what `tests/tools/env` sets.
"""

from __future__ import annotations

import contextlib
import filecmp
import hashlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

MODELS = Path(os.environ["MUSTER_TEST_MODELS"])
LAUNCHER = os.environ["MUSTER_TEST_LLAMA_SERVER"]
ROOT = Path(__file__).parent.parent.parent
DEMO = ROOT / "tests" / "models" / "demo"
GENERATE = Path(__file__).parent.parent / "models" / "generate.py"
# Models whose memories differ: windows, experts and sinks, recurrent states, both.
KINDS = ("tiny-swa.gguf", "tiny-gpt-oss.gguf", "tiny-mamba.gguf", "tiny-lfm2.gguf", "tiny-granite.gguf")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


class Server:
    """A running engine on a unix socket in a directory of its own."""

    def __init__(self, model: str, *flags: str) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._socket = Path(self._directory.name) / "engine.sock"
        command = [LAUNCHER, "-m", str(MODELS / model), "--host", str(self._socket), "--fit", "off", "-fa", "off", "-t", "1", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while True:
            try:
                if self.request("GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{model} does not serve (exit code {self.process.poll()})")
            time.sleep(0.005)

    def request(self, method: str, path: str, body: object = None) -> tuple[int, object]:
        """Status and decoded body."""
        with contextlib.closing(UnixConnection(self._socket)) as connection:
            payload = None if body is None else json.dumps(body)
            connection.request(method, path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def post(self, path: str, body: object) -> dict:
        """Body of a successful answer."""
        status, answer = self.request("POST", path, body)
        assert status == 200, answer
        return answer

    def chat(self, messages: list[dict], **more: object) -> dict:
        """The first choice of a greedy answer."""
        body = {"messages": messages, "temperature": 0, "max_tokens": 200, **more}
        return self.post("/v1/chat/completions", body)["choices"][0]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._directory.cleanup()


HELLO = [{"role": "user", "content": "hello"}]


class Models(unittest.TestCase):
    """The generated files."""

    def test_same_bytes_every_time(self) -> None:
        with tempfile.TemporaryDirectory() as again:
            subprocess.run([sys.executable, GENERATE, again], check=True, stdout=subprocess.DEVNULL)
            names = sorted(path.name for path in Path(again).iterdir())
            self.assertGreater(len(names), 5)
            _, different, missing = filecmp.cmpfiles(again, MODELS, names, shallow=False)
            self.assertEqual((different, missing), ([], []))

    def test_any_bytes_survive_the_tokenizer(self) -> None:
        text = "hello wörld\n日本 🚀 \x01 ×ㄳ"
        with Server("tiny-chat.gguf") as server:
            tokens = server.post("/tokenize", {"content": text})["tokens"]
            self.assertEqual(server.post("/detokenize", {"tokens": tokens})["content"], text)

    def test_greedy_text_is_long_and_depends_on_the_prompt_only(self) -> None:
        for model in ("tiny-chat.gguf", "tiny-chat-b.gguf", *KINDS):
            with self.subTest(model), Server(model) as server:
                ask = lambda prompt: server.post("/completion", {"prompt": prompt, "temperature": 0, "n_predict": 100})
                first, other, again = ask("the sun and"), ask("a house in"), ask("the sun and")
                self.assertEqual(first["content"], again["content"])
                self.assertNotEqual(first["content"], other["content"])
                self.assertEqual(first["tokens_predicted"], 100)
                self.assertGreater(len(set(first["content"].split())), 20)

    def test_tools_are_called_and_answered(self) -> None:
        for model in ("tiny-chat.gguf", "tiny-chat-b.gguf"):
            with self.subTest(model), Server(model) as server:
                asked = server.chat(HELLO, tools=[TOOL])
                self.assertEqual(asked["finish_reason"], "tool_calls")
                call = asked["message"]["tool_calls"][0]
                self.assertEqual(call["function"]["name"], "get_weather")
                self.assertEqual(set(json.loads(call["function"]["arguments"])), {"city", "days"})
                result = {"role": "tool", "content": "rain", "tool_call_id": call["id"]}
                answered = server.chat([*HELLO, asked["message"], result], tools=[TOOL])
                self.assertNotIn("tool_calls", answered["message"])
                self.assertGreater(len(answered["message"]["content"]), 100)

    def test_thoughts_end(self) -> None:
        with Server("tiny-chat.gguf") as server:
            message = server.chat(HELLO, chat_template_kwargs={"open_thinking": True})["message"]
            self.assertTrue(message["reasoning_content"])
            self.assertTrue(message["content"])
            message = server.chat(HELLO, chat_template_kwargs={"enable_thinking": False})["message"]
            self.assertNotIn("reasoning_content", message)

    def test_embeddings(self) -> None:
        with Server("tiny-embed.gguf", "--embeddings") as server:
            texts = ["the sun and the sea", "the sea and the sun", "children play in the city"]
            one, same, other = (row["embedding"] for row in server.post("/v1/embeddings", {"input": texts})["data"])
            dot = lambda left, right: sum(a * b for a, b in zip(left, right, strict=True))
            self.assertAlmostEqual(dot(one, one), 1.0, places=4)
            self.assertGreater(dot(one, same), dot(one, other))

    def test_scores(self) -> None:
        with Server("tiny-rerank.gguf", "--reranking") as server:
            documents = ["the sun and the sea", "children play", "sun"]
            results = server.post("/v1/rerank", {"query": "the sun", "documents": documents})["results"]
            self.assertEqual(len({result["relevance_score"] for result in results}), 3)


class Demo(unittest.TestCase):
    """The committed files of the model that ships."""

    def test_they_are_what_was_trained(self) -> None:
        listed = [line.split(maxsplit=1) for line in (DEMO / "SHA256SUMS").read_text().splitlines()]
        self.assertEqual(len(listed), 3)
        for wanted, name in listed:
            self.assertEqual(hashlib.sha256((ROOT / name).read_bytes()).hexdigest(), wanted, name)
        self.assertLess(sum((ROOT / name).stat().st_size for _, name in listed), 12_000_000)

    def test_no_held_out_wording_is_in_the_text(self) -> None:
        plain = lambda text: " ".join(re.findall(r"[a-z0-9]+", text.lower()))
        text = {plain(line[2:]) for line in (DEMO / "facts.txt").read_text().splitlines() if line.startswith("? ")}
        held_out = json.loads((DEMO / "held_out.json").read_text())["questions"]
        self.assertEqual(len(held_out), 40)
        self.assertEqual([entry["question"] for entry in held_out if plain(entry["question"]) in text], [])


class Launcher(unittest.TestCase):
    """llama-server's command line and manners."""

    def fails(self, *flags: str) -> str:
        done = subprocess.run([LAUNCHER, *flags], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        return done.stderr

    def test_unknown_flag(self) -> None:
        self.assertIn("invalid argument: --nope", self.fails("-m", "x.gguf", "--nope"))

    def test_bad_value(self) -> None:
        self.assertIn("--port", self.fails("--port", "x"))

    def test_missing_model(self) -> None:
        self.assertIn("failed to load model", self.fails("-m", "/nowhere.gguf", "--port", "0"))

    def test_every_flag_that_muster_uses(self) -> None:
        flags = """-c 2048 -np 4 -b 512 -ub 256 -ngl 0 -t 2 -tb 2 --jinja --metrics --slots --props --kv-unified --cache-ram 0
            -ctxcp 8 --no-webui --reasoning-format auto --cache-type-k q8_0 --cache-type-v f16 --timeout 60 --alias a
            --api-key secret --no-warmup --swa-full --slot-save-path /tmp""".split()
        with Server("tiny-chat.gguf", *flags) as server:
            status, answer = server.request("POST", "/v1/chat/completions", {"messages": HELLO})
            self.assertEqual((status, answer["error"]["type"]), (401, "authentication_error"))

    def test_sigterm_ends_it_at_once(self) -> None:
        with Server("tiny-chat.gguf") as server:
            # Healthy comes a moment before ready to be stopped.
            server.chat(HELLO, max_tokens=1)
            started = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(timeout=10), 0)
            self.assertLess(time.monotonic() - started, 2)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    # A failed subtest is listed by itself, with the test it belongs to.
    wrong = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    print(f"{result.testsRun - len(wrong)} passed, {len(wrong)} failed", flush=True)
    sys.exit(0 if result.wasSuccessful() else 1)
