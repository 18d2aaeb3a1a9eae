#!/usr/bin/env python3
"""Makes the small random-weight GGUF models that the tests and the benchmark run on.

    generate.py DIRECTORY [NAME.gguf ...]

The same versions of `gguf` and `numpy` (tests/requirements.txt) give the same bytes every time. Prints a `sha256  name`
line per file. Nothing is downloaded: the weights are noise, shaped so that greedy text is long, visible and depends on
the whole prompt (see habits.py).
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import bert
import gemma
import gpt_oss
import granite
import lfm2
import llama
import lora
import mamba
import vision

MODELS = {
    "tiny-chat.gguf": lambda path: llama.write(path, llama.TINY, seed="tiny-chat/3"),
    "tiny-chat-b.gguf": lambda path: llama.write(path, llama.TINY, seed="tiny-chat-b"),
    "tiny-lora.gguf": lambda path: lora.write(path, "tiny-lora"),
    "tiny-lora-b.gguf": lambda path: lora.write(path, "tiny-lora-b"),
    "tiny-lora-gemma.gguf": lambda path: lora.write(path, "tiny-lora-gemma", "gemma3"),
    "tiny-infill.gguf": lambda path: llama.write(path, llama.INFILL, seed="tiny-infill"),
    "tiny-swa.gguf": lambda path: gemma.write(path, seed="tiny-swa"),
    "tiny-mamba.gguf": lambda path: mamba.write(path, seed="tiny-mamba"),
    "tiny-lfm2.gguf": lambda path: lfm2.write(path, seed="tiny-lfm2"),
    "tiny-granite.gguf": lambda path: granite.write(path, seed="tiny-granite"),
    "tiny-gpt-oss.gguf": lambda path: gpt_oss.write(path, seed="tiny-gpt-oss"),
    "tiny-rows.gguf": lambda path: llama.write(path, llama.ROWS, seed="tiny-rows"),
    "tiny-rows-vision.gguf": lambda path: vision.write(path, "tiny-rows-vision", vision.ROWS),
    "tiny-swa-vision.gguf": lambda path: vision.write(path, "tiny-swa-vision", vision.GEMMA),
    "tiny-vision.gguf": lambda path: vision.write(path, "tiny-vision", vision.LLAVA),
    "tiny-embed.gguf": lambda path: bert.write(path, seed="tiny-embed", rerank=False),
    "tiny-rerank.gguf": lambda path: bert.write(path, seed="tiny-rerank", rerank=True),
    "bench-chat.gguf": lambda path: llama.write(path, llama.BENCH, seed="bench-chat"),
    "bench-copy.gguf": lambda path: llama.write(path, llama.COPYING, seed="bench-copy"),
}


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    directory = Path(arguments[0])
    names = arguments[1:] or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        print(f"no such model: {', '.join(unknown)}; there are: {', '.join(MODELS)}", file=sys.stderr)
        return 2
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        # Written beside and renamed, so that a reader never sees half a model.
        unfinished = directory / f".{name}.part"
        MODELS[name](unfinished)
        unfinished.replace(directory / name)
        print(f"{hashlib.sha256((directory / name).read_bytes()).hexdigest()}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
