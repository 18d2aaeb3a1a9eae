"""A recurrent chat model: the mamba family. Its state is constant in size and cannot be cut at a position."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

import habits
from gguf_file import Model
from vocabulary import chat_vocabulary
from weights import Weights, ones

WIDTH, LAYERS, CONV, STATE, RANK = 64, 2, 4, 16, 4
INNER = 2 * WIDTH


def write(path: Path, seed: str) -> None:
    """Writes the model to `path`."""
    pieces, weights = chat_vocabulary(), Weights(seed)
    model = Model("mamba", seed, GGMLQuantizationType.F32)
    writer = model.writer
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(RANK)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    model.chat_tokenizer(pieces)

    tokens = habits.embedding(weights, pieces, WIDTH)
    model.tensor("token_embd.weight", tokens)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", ones(WIDTH))
        model.tensor(f"{block}.ssm_in.weight", weights.linear(f"{block}.in", 2 * INNER, WIDTH))
        model.tensor(f"{block}.ssm_conv1d.weight", weights.linear(f"{block}.conv", INNER, CONV), exact=True)
        model.tensor(f"{block}.ssm_conv1d.bias", np.zeros(INNER))
        model.tensor(f"{block}.ssm_x.weight", weights.linear(f"{block}.x", RANK + 2 * STATE, INNER))
        model.tensor(f"{block}.ssm_dt.weight", weights.linear(f"{block}.dt", INNER, RANK))
        model.tensor(f"{block}.ssm_dt.bias", np.full(INNER, -2.0))
        # Stored as -exp(A_log): negative, so that the state decays.
        decay = -np.tile(np.arange(1, STATE + 1, dtype=np.float32), (INNER, 1)) / STATE
        model.tensor(f"{block}.ssm_a", decay, exact=True)
        model.tensor(f"{block}.ssm_d", ones(INNER))
        model.tensor(f"{block}.ssm_out.weight", habits.residual(weights, f"{block}.out", WIDTH, INNER, 2.0))
    model.tensor("output_norm.weight", ones(WIDTH))
    model.tensor("output.weight", habits.output(weights, pieces, tokens, rms=2.0))
    model.save(path)
