"""A hybrid chat model of the granite-hybrid family: mamba2 layers with a constant state, attention in every second one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType

import habits
from gguf_file import Model
from llama import ATTENTION_SHARPNESS
from vocabulary import chat_vocabulary
from weights import Weights, ones

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD, FEED_FORWARD = 64, 4, 2, 1, 32, 128
# Of the mamba2 layers. The family's inner width is twice its outer one.
CONV, STATE, GROUPS, STATE_HEADS = 4, 16, 1, 4
INNER = 2 * WIDTH


def attends(layer: int) -> bool:
    """Whether a layer attends; the others are recurrent."""
    return layer % 2 == 1


def write(path: Path, seed: str) -> None:
    """Writes the model to `path`."""
    pieces, weights = chat_vocabulary(), Weights(seed)
    model = Model("granitehybrid", seed, GGMLQuantizationType.F32)
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
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_ssm_conv_kernel(CONV)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(STATE_HEADS)
    writer.add_ssm_group_count(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(pieces))
    model.chat_tokenizer(pieces)

    tokens = habits.embedding(weights, pieces, WIDTH)
    model.tensor("token_embd.weight", tokens)
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        model.tensor(f"{block}.attn_norm.weight", ones(WIDTH))
        if attends(layer):
            _attention(model, weights, block)
        else:
            _recurrence(model, weights, block)
        model.tensor(f"{block}.ffn_norm.weight", ones(WIDTH))
        model.tensor(f"{block}.ffn_gate.weight", weights.linear(f"{block}.gate", FEED_FORWARD, WIDTH))
        model.tensor(f"{block}.ffn_up.weight", weights.linear(f"{block}.up", FEED_FORWARD, WIDTH))
        model.tensor(f"{block}.ffn_down.weight", habits.residual(weights, f"{block}.down", WIDTH, FEED_FORWARD, 1.0))
    model.tensor("output_norm.weight", ones(WIDTH))
    model.tensor("output.weight", habits.output(weights, pieces, tokens, rms=2.0))
    model.save(path)


def _attention(model: Model, weights: Weights, block: str) -> None:
    model.tensor(f"{block}.attn_q.weight", weights.linear(f"{block}.q", HEADS * HEAD, WIDTH, ATTENTION_SHARPNESS))
    model.tensor(f"{block}.attn_k.weight", weights.linear(f"{block}.k", KV_HEADS * HEAD, WIDTH, ATTENTION_SHARPNESS))
    model.tensor(f"{block}.attn_v.weight", weights.linear(f"{block}.v", KV_HEADS * HEAD, WIDTH))
    model.tensor(f"{block}.attn_output.weight", habits.residual(weights, f"{block}.o", WIDTH, HEADS * HEAD, 1.0))


def _recurrence(model: Model, weights: Weights, block: str) -> None:
    # What is convolved: the input and, per group, what the state is written and read by.
    convolved = INNER + 2 * GROUPS * STATE
    model.tensor(f"{block}.ssm_in.weight", weights.linear(f"{block}.in", INNER + convolved + STATE_HEADS, WIDTH))
    model.tensor(f"{block}.ssm_conv1d.weight", weights.linear(f"{block}.conv", convolved, CONV), exact=True)
    model.tensor(f"{block}.ssm_conv1d.bias", np.zeros(convolved))
    model.tensor(f"{block}.ssm_dt.bias", np.full(STATE_HEADS, -2.0))
    # Stored as -exp(A_log): negative, so that the state decays.
    decay = -np.arange(1, STATE_HEADS + 1, dtype=np.float32).reshape(STATE_HEADS, 1) / STATE_HEADS
    model.tensor(f"{block}.ssm_a", decay, exact=True)
    model.tensor(f"{block}.ssm_d", np.ones((STATE_HEADS, 1)), exact=True)
    model.tensor(f"{block}.ssm_norm.weight", np.ones((GROUPS, INNER // GROUPS)), exact=True)
    model.tensor(f"{block}.ssm_out.weight", habits.residual(weights, f"{block}.out", WIDTH, INNER, 1.5))
