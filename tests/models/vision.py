"""A projector (`mmproj`) of the LLaVA family: it turns an image into tokens of the tiny chat model's width."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

import llama
from gguf_file import Model
from weights import Weights, ones

# 28 × 28 pixels in four patches: an image costs four tokens.
IMAGE, PATCH = 28, 14
WIDTH, LAYERS, HEADS, FEED_FORWARD = 32, 2, 2, 64
# Of what an image's tokens are: as large as a text's.
GAIN = 1.0


def write(path: Path, seed: str) -> None:
    """Writes the projector."""
    weights, width = Weights(seed), llama.TINY.width
    model = Model("clip", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("mlp")
    writer.add_vision_projection_dim(width)
    writer.add_vision_image_size(IMAGE)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(FEED_FORWARD)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_use_gelu(True)

    def norm(name: str) -> None:
        model.tensor(f"{name}.weight", ones(WIDTH))
        model.tensor(f"{name}.bias", np.zeros(WIDTH))

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        model.tensor(f"{name}.weight", weights.linear(name, rows, columns, gain))
        model.tensor(f"{name}.bias", np.zeros(rows))

    patches = (IMAGE // PATCH) ** 2
    pixels = 3 * PATCH * PATCH
    model.tensor("v.patch_embd.weight", weights.linear("patch", WIDTH, pixels, 4.0).reshape(WIDTH, 3, PATCH, PATCH))
    model.tensor("v.class_embd", weights.normal("class", WIDTH))
    model.tensor("v.position_embd.weight", weights.normal("position", patches + 1, WIDTH) * 0.1)
    norm("v.pre_ln")
    for layer in range(LAYERS):
        block = f"v.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(f"{block}.{part}", WIDTH, WIDTH)
        norm(f"{block}.ln1")
        norm(f"{block}.ln2")
        linear(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
        linear(f"{block}.ffn_down", WIDTH, FEED_FORWARD)
    norm("v.post_ln")
    linear("mm.0", width, WIDTH)
    linear("mm.2", width, width, GAIN)
    model.save(path)
