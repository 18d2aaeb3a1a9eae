"""A chat model of the gpt-oss family: experts, attention sinks, and a sliding window in every second layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

import habits
from gguf_file import Model
from llama import ATTENTION_SHARPNESS
from vocabulary import chat_vocabulary
from weights import Weights, ones

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD = 64, 4, 2, 1, 32
EXPERTS, USED, EXPERT_WIDTH = 4, 2, 64

# Cells a windowed layer sees. Small, so that a short prompt leaves it.
WINDOW = 128


def write(path: Path, seed: str) -> None:
    """Writes the model to `path`."""
    pieces, weights = chat_vocabulary(), Weights(seed)
    model = Model("gpt-oss", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(EXPERT_WIDTH)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(150000.0)
    writer.add_sliding_window(WINDOW)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    model.chat_tokenizer(pieces)

    tokens = habits.embedding(weights, pieces, WIDTH)
    model.tensor("token_embd.weight", tokens)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        _attention(model, weights, block)
        _experts(model, weights, block)
    model.tensor("output_norm.weight", ones(WIDTH))
    model.tensor("output.weight", habits.output(weights, pieces, tokens, rms=2.0))
    model.save(path)


def _attention(model: Model, weights: Weights, block: str) -> None:
    model.tensor(f"{block}.attn_norm.weight", ones(WIDTH))
    for part, heads, gain in (("q", HEADS, ATTENTION_SHARPNESS), ("k", KV_HEADS, ATTENTION_SHARPNESS), ("v", KV_HEADS, 1.0)):
        model.tensor(f"{block}.attn_{part}.weight", weights.linear(f"{block}.{part}", heads * HEAD, WIDTH, gain))
        model.tensor(f"{block}.attn_{part}.bias", np.zeros(heads * HEAD))
    model.tensor(f"{block}.attn_output.weight", habits.residual(weights, f"{block}.o", WIDTH, HEADS * HEAD, 1.0))
    model.tensor(f"{block}.attn_output.bias", np.zeros(WIDTH))
    model.tensor(f"{block}.attn_sinks.weight", np.zeros(HEADS))
    model.tensor(f"{block}.post_attention_norm.weight", ones(WIDTH))


def _experts(model: Model, weights: Weights, block: str) -> None:
    def stack(part: str, make) -> np.ndarray:
        return np.stack([make(f"{block}.{part}.{expert}") for expert in range(EXPERTS)])

    # Far apart: which experts are used must not hang on a rounding.
    model.tensor(f"{block}.ffn_gate_inp.weight", weights.linear(f"{block}.router", EXPERTS, WIDTH, 4.0))
    model.tensor(f"{block}.ffn_gate_inp.bias", np.zeros(EXPERTS))
    for part in ("gate", "up"):
        matrices = stack(part, lambda name: weights.linear(name, EXPERT_WIDTH, WIDTH))
        model.tensor(f"{block}.ffn_{part}_exps.weight", matrices)
        model.tensor(f"{block}.ffn_{part}_exps.bias", np.zeros((EXPERTS, EXPERT_WIDTH)), exact=True)
    down = stack("down", lambda name: habits.residual(weights, name, WIDTH, EXPERT_WIDTH, 0.7))
    model.tensor(f"{block}.ffn_down_exps.weight", down)
    model.tensor(f"{block}.ffn_down_exps.bias", np.zeros((EXPERTS, WIDTH)), exact=True)
