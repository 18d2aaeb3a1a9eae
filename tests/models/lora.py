"""A LoRA adapter of the tiny chat model: what llama.cpp's `convert_lora_to_gguf.py` writes."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType

import llama
from gguf_file import Model
from weights import Weights

RANK, ALPHA = 4, 8.0


def write(path: Path, seed: str, architecture: str = "llama") -> None:
    """Writes an adapter that changes what the model says."""
    weights, shape = Weights(seed), llama.TINY
    model = Model(architecture, seed, GGMLQuantizationType.F32)
    model.writer.add_type("adapter")
    model.writer.add_string("adapter.type", "lora")
    model.writer.add_float32("adapter.lora.alpha", ALPHA)
    rows = {"attn_q": shape.heads * shape.head, "attn_v": shape.kv_heads * shape.head, "ffn_up": shape.feed_forward}
    for layer in range(shape.layers):
        for part, out in rows.items():
            name = f"blk.{layer}.{part}.weight"
            model.tensor(f"{name}.lora_a", weights.linear(f"{name}.a", RANK, shape.width))
            model.tensor(f"{name}.lora_b", weights.linear(f"{name}.b", out, RANK, 1.5))
    model.save(path)
