"""Chat models of the llama family: grouped-query attention, RoPE, SwiGLU; and of Qwen2-VL, which is the same with several positions per token."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

import habits
from gguf_file import Model
from vocabulary import chat_vocabulary
from weights import Weights, ones


# How sharp attention is (its scores deviate by the square of this) and how much it adds to the residual stream.
# Chosen by trying. Sharper or stronger: flash attention's rounding (1e-3 in a logit, with the shape of the batch) changes
# greedy text more often; now about 1 text of 128 tokens in 20, and none with flash attention off. Weaker: the
# prompt matters less, and the text falls into loops.
ATTENTION_SHARPNESS, ATTENTION_GAIN = 2.0, 0.6


@dataclass(frozen=True)
class Shape:
    """Sizes of one model. Heads are at least 32 wide, so that a quantised KV cache (blocks of 32) is possible."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    feed_forward: int
    vocabulary: int | None
    kind: GGMLQuantizationType
    context: int = 32768
    infill: bool = False
    # Of half a head, how much turns with the time, the row and the column of a token (M-RoPE); none = one position per token.
    sections: tuple[int, int, int, int] | None = None
    # How much attention adds to the residual stream.
    gain: float = ATTENTION_GAIN


TINY = Shape(64, 2, 4, 2, 32, 160, None, GGMLQuantizationType.F32)
INFILL = replace(TINY, infill=True)
ROWS = replace(TINY, heads=2, kv_heads=1, sections=(8, 4, 4, 0))
BENCH = Shape(512, 8, 8, 2, 64, 1408, 32768, GGMLQuantizationType.Q8_0)
# The next token depends on the last one alone: what stood in a text before comes again.
COPYING = replace(BENCH, gain=0.0)


def write(path: Path, shape: Shape, seed: str) -> None:
    """Writes the model to `path`; another `seed` gives other weights in the same shape."""
    pieces, weights = chat_vocabulary(shape.vocabulary, shape.infill), Weights(seed)
    model = Model("qwen2vl" if shape.sections else "llama", seed.partition("/")[0], shape.kind)
    writer = model.writer
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(10000.0)
    if shape.sections:
        writer.add_rope_dimension_sections(shape.sections)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    model.chat_tokenizer(pieces)

    tokens = habits.embedding(weights, pieces, shape.width)
    model.tensor("token_embd.weight", tokens)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        for part, matrix in _attention(weights, block, shape, first=layer == 0).items():
            model.tensor(f"{block}.attn_{'output' if part == 'o' else part}.weight", matrix)
        model.tensor(f"{block}.attn_norm.weight", ones(shape.width))
        model.tensor(f"{block}.ffn_norm.weight", ones(shape.width))
        model.tensor(f"{block}.ffn_gate.weight", weights.linear(f"{block}.gate", shape.feed_forward, shape.width))
        model.tensor(f"{block}.ffn_up.weight", weights.linear(f"{block}.up", shape.feed_forward, shape.width))
        down = habits.residual(weights, f"{block}.down", shape.width, shape.feed_forward, 1.5)
        model.tensor(f"{block}.ffn_down.weight", down)
    model.tensor("output_norm.weight", ones(shape.width))
    model.tensor("output.weight", habits.output(weights, pieces, tokens, rms=2.0))
    model.save(path)


def _attention(weights: Weights, block: str, shape: Shape, first: bool) -> dict[str, np.ndarray]:
    queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
    matrices = {
        "q": weights.linear(f"{block}.q", queries, shape.width, ATTENTION_SHARPNESS),
        "k": weights.linear(f"{block}.k", keys, shape.width, ATTENTION_SHARPNESS),
        "v": weights.linear(f"{block}.v", keys, shape.width),
        "o": habits.residual(weights, f"{block}.o", shape.width, queries, shape.gain),
    }
    if first:
        habits.attend(matrices, 0, shape.heads, shape.kv_heads, habits.THINKING, habits.THINKS)
        habits.attend(matrices, shape.heads - 1, shape.heads, shape.kv_heads, habits.CALLING, habits.CALLS)
    return matrices
