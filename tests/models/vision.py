"""Projectors (`mmproj`): images become tokens of the tiny chat models' width.

Of the LLaVA family: four tokens. Of Gemma 3's: four, which see each other (no causal attention). Of Qwen2-VL's: images have rows and columns, so that tokens
have several positions each (M-RoPE), and an image takes fewer positions than tokens.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

import llama
from gguf_file import Model
from weights import Weights, ones

PATCH = 14
LLAVA, GEMMA, ROWS = "mlp", "gemma3", "qwen2vl_merger"
# Sides of images, in patches; Gemma's patches are merged by four.
SIDES = {LLAVA: 2, GEMMA: 4, ROWS: 2}
WIDTH, LAYERS, HEADS, FEED_FORWARD = 32, 2, 2, 64
# Of what an image's tokens are: as large as a text's.
GAIN = 1.0


def write(path: Path, seed: str, kind: str) -> None:
    """Writes a projector of this kind."""
    weights, width = Weights(seed), llama.TINY.width
    model = Model("clip", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type(kind)
    writer.add_vision_projection_dim(width)
    writer.add_vision_image_size(SIDES[kind] * PATCH)
    writer.add_vision_patch_size(PATCH)
    writer.add_vision_embedding_length(WIDTH)
    writer.add_vision_feed_forward_length(FEED_FORWARD)
    writer.add_vision_block_count(LAYERS)
    writer.add_vision_head_count(HEADS)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_image_mean([0.5, 0.5, 0.5])
    writer.add_vision_image_std([0.5, 0.5, 0.5])
    writer.add_vision_use_gelu(True)
    if kind == GEMMA:
        writer.add_vision_projector_scale_factor(2)

    def norm(name: str) -> None:
        model.tensor(f"{name}.weight", ones(WIDTH))
        model.tensor(f"{name}.bias", np.zeros(WIDTH))

    def linear(name: str, rows: int, columns: int, gain: float = 1.0) -> None:
        model.tensor(f"{name}.weight", weights.linear(name, rows, columns, gain))
        model.tensor(f"{name}.bias", np.zeros(rows))

    patches = SIDES[kind] ** 2
    pixels = 3 * PATCH * PATCH
    # Of Qwen2-VL's two, each has a frame of a video; a still image is both. Four neighbours are merged into one token.
    frames, merged = (["", ".1"], 4) if kind == ROWS else ([""], 1)
    for frame in frames:
        patch = weights.linear(f"patch{frame}", WIDTH, pixels, 4.0).reshape(WIDTH, 3, PATCH, PATCH)
        model.tensor(f"v.patch_embd.weight{frame}", patch)
    if kind == LLAVA:
        model.tensor("v.class_embd", weights.normal("class", WIDTH))
        norm("v.pre_ln")
    if kind != ROWS:
        places = patches + (kind == LLAVA)
        model.tensor("v.position_embd.weight", weights.normal("position", places, WIDTH) * 0.1)
    for layer in range(LAYERS):
        block = f"v.blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_out"):
            linear(f"{block}.{part}", WIDTH, WIDTH)
        norm(f"{block}.ln1")
        norm(f"{block}.ln2")
        linear(f"{block}.ffn_up", FEED_FORWARD, WIDTH)
        linear(f"{block}.ffn_down", WIDTH, FEED_FORWARD)
    norm("v.post_ln")
    if kind == GEMMA:
        model.tensor("mm.input_projection.weight", weights.linear("projection", width, WIDTH).T)
        model.tensor("mm.soft_emb_norm.weight", ones(WIDTH))
    else:
        linear("mm.0", width, WIDTH * merged)
        linear("mm.2", width, width, GAIN)
    model.save(path)
