"""A chat model with sliding-window attention: the gemma3 family, every second layer seeing only a window."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType

import habits
from gguf_file import Model
from llama import ATTENTION_SHARPNESS
from vocabulary import chat_vocabulary
from weights import Weights, ones

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, FEED_FORWARD = 64, 4, 2, 1, 32, 128

# Cells a windowed layer sees. Small, so that a short prompt leaves it.
WINDOW = 128


def write(path: Path, seed: str) -> None:
    """Writes the model to `path`."""
    pieces, weights = chat_vocabulary(), Weights(seed)
    model = Model("gemma3", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(1000000.0)
    writer.add_sliding_window(WINDOW)
    writer.add_sliding_window_pattern([layer % 2 == 0 for layer in range(LAYERS)])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(len(pieces))
    model.chat_tokenizer(pieces)

    # This graph multiplies the embeddings by sqrt(width).
    tokens = habits.embedding(weights, pieces, WIDTH)
    model.tensor("token_embd.weight", tokens / WIDTH**0.5)

    for layer in range(LAYERS):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", ones(WIDTH))
        model.tensor(f"{block}.attn_q.weight", weights.linear(f"{block}.q", HEADS * HEAD, WIDTH))
        model.tensor(f"{block}.attn_k.weight", weights.linear(f"{block}.k", KV_HEADS * HEAD, WIDTH))
        model.tensor(f"{block}.attn_v.weight", weights.linear(f"{block}.v", KV_HEADS * HEAD, WIDTH))
        model.tensor(f"{block}.attn_output.weight", habits.residual(weights, f"{block}.o", WIDTH, HEADS * HEAD, 1.0))
        model.tensor(f"{block}.attn_q_norm.weight", ones(HEAD) * ATTENTION_SHARPNESS)
        model.tensor(f"{block}.attn_k_norm.weight", ones(HEAD) * ATTENTION_SHARPNESS)
        model.tensor(f"{block}.post_attention_norm.weight", ones(WIDTH) * 0.3)
        model.tensor(f"{block}.ffn_norm.weight", ones(WIDTH))
        model.tensor(f"{block}.ffn_gate.weight", weights.linear(f"{block}.gate", FEED_FORWARD, WIDTH))
        model.tensor(f"{block}.ffn_up.weight", weights.linear(f"{block}.up", FEED_FORWARD, WIDTH))
        model.tensor(f"{block}.ffn_down.weight", habits.residual(weights, f"{block}.down", WIDTH, FEED_FORWARD, 1.0))
        model.tensor(f"{block}.post_ffw_norm.weight", ones(WIDTH))
    model.tensor("output_norm.weight", ones(WIDTH))
    model.tensor("output.weight", habits.output(weights, pieces, tokens, rms=3.0))
    model.save(path)
