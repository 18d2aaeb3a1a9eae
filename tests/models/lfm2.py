"""A hybrid chat model of the lfm2 family: short convolutions with a constant state, attention in every second layer."""

from __future__ import annotations

from pathlib import Path

from gguf import GGMLQuantizationType

import habits
from gguf_file import Model
from llama import ATTENTION_SHARPNESS
from vocabulary import chat_vocabulary
from weights import Weights, ones

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, FEED_FORWARD, CONV = 64, 4, 2, 1, 32, 128, 3


def attends(layer: int) -> bool:
    """Whether a layer attends; the others convolve."""
    return layer % 2 == 1


def write(path: Path, seed: str) -> None:
    """Writes the model to `path`."""
    pieces, weights = chat_vocabulary(), Weights(seed)
    model = Model("lfm2", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    # A layer is recurrent if it has no heads for keys.
    writer.add_head_count_kv([KV_HEADS if attends(layer) else 0 for layer in range(LAYERS)])
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(1000000.0)
    writer.add_shortconv_l_cache(CONV)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    model.chat_tokenizer(pieces)

    tokens = habits.embedding(weights, pieces, WIDTH)
    model.tensor("token_embd.weight", tokens)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", ones(WIDTH))
        if attends(layer):
            model.tensor(f"{block}.attn_q.weight", weights.linear(f"{block}.q", HEADS * HEAD, WIDTH))
            model.tensor(f"{block}.attn_k.weight", weights.linear(f"{block}.k", KV_HEADS * HEAD, WIDTH))
            model.tensor(f"{block}.attn_v.weight", weights.linear(f"{block}.v", KV_HEADS * HEAD, WIDTH))
            out = habits.residual(weights, f"{block}.o", WIDTH, HEADS * HEAD, 1.0)
            model.tensor(f"{block}.attn_output.weight", out)
            model.tensor(f"{block}.attn_q_norm.weight", ones(HEAD) * ATTENTION_SHARPNESS)
            model.tensor(f"{block}.attn_k_norm.weight", ones(HEAD) * ATTENTION_SHARPNESS)
        else:
            model.tensor(f"{block}.shortconv.in_proj.weight", weights.linear(f"{block}.in", 3 * WIDTH, WIDTH))
            model.tensor(f"{block}.shortconv.conv.weight", weights.linear(f"{block}.conv", WIDTH, CONV), exact=True)
            out = habits.residual(weights, f"{block}.out", WIDTH, WIDTH, 1.0)
            model.tensor(f"{block}.shortconv.out_proj.weight", out)
        model.tensor(f"{block}.ffn_norm.weight", ones(WIDTH))
        model.tensor(f"{block}.ffn_gate.weight", weights.linear(f"{block}.gate", FEED_FORWARD, WIDTH))
        model.tensor(f"{block}.ffn_up.weight", weights.linear(f"{block}.up", FEED_FORWARD, WIDTH))
        model.tensor(f"{block}.ffn_down.weight", habits.residual(weights, f"{block}.down", WIDTH, FEED_FORWARD, 1.0))
    # The family's name for the norm before the output.
    model.tensor("token_embd_norm.weight", ones(WIDTH))
    model.tensor("output.weight", habits.output(weights, pieces, tokens, rms=2.0))
    model.save(path)
