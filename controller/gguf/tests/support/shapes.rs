//! Models of the common shapes, with weights of zeros: they load and allocate like real ones.
#![allow(dead_code, reason = "each test uses a part of it")]

use super::writer::{F16, F32, Q8_0, Writer};

pub(crate) const WIDTH: u64 = 1024;
const HEAD: u64 = 64;
const HEADS: u64 = 16;
const FEED: u64 = 2816;

fn narrow(value: u64) -> u32 {
    u32::try_from(value).unwrap()
}

/// What all models here have in common.
fn base(architecture: &str, layers: u64, vocabulary: u64) -> Writer {
    let mut w = Writer::new(architecture);
    w.number("block_count", narrow(layers))
        .number("context_length", 131_072)
        .number("embedding_length", narrow(WIDTH))
        .number("feed_forward_length", narrow(FEED))
        .float("attention.layer_norm_rms_epsilon", 1e-5)
        .float("attention.layer_norm_epsilon", 1e-5);
    w.text("tokenizer.ggml.model", "llama");
    w.texts(
        "tokenizer.ggml.tokens",
        (0..narrow(vocabulary)).map(|token| format!("<{token}>")),
    );
    w.entry("tokenizer.ggml.scores", 9, &floats(vocabulary));
    // Every token is a control token: nothing to merge, nothing to look up.
    let mut control = 5_u32.to_le_bytes().to_vec();
    control.extend(vocabulary.to_le_bytes());
    (0..vocabulary).for_each(|_| control.extend(3_i32.to_le_bytes()));
    w.entry("tokenizer.ggml.token_type", 9, &control);
    w.number("tokenizer.ggml.bos_token_id", 1)
        .number("tokenizer.ggml.eos_token_id", 2)
        .number("tokenizer.ggml.unknown_token_id", 0);
    w.tensor("token_embd.weight", Q8_0, &[WIDTH, vocabulary]);
    match architecture {
        "bert" => &mut w,
        "lfm2" => w.tensor("token_embd_norm.weight", F32, &[WIDTH]),
        _ => w.tensor("output_norm.weight", F32, &[WIDTH]),
    };
    w
}

fn floats(count: u64) -> Vec<u8> {
    let mut bytes = 6_u32.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.resize(bytes.len() + count as usize * 4, 0);
    bytes
}

fn heads(w: &mut Writer, heads: u64, kv: u64, key: u64, value: u64) {
    w.number("attention.head_count", narrow(heads))
        .number("attention.head_count_kv", narrow(kv))
        .number("attention.key_length", narrow(key))
        .number("attention.value_length", narrow(value));
}

fn attention(w: &mut Writer, layer: u64, heads: u64, kv: u64, head: u64) {
    w.tensor(&format!("blk.{layer}.attn_norm.weight"), F32, &[WIDTH])
        .tensor(
            &format!("blk.{layer}.attn_q.weight"),
            Q8_0,
            &[WIDTH, heads * head],
        )
        .tensor(&format!("blk.{layer}.attn_k.weight"), Q8_0, &[WIDTH, kv * head])
        .tensor(&format!("blk.{layer}.attn_v.weight"), Q8_0, &[WIDTH, kv * head])
        .tensor(
            &format!("blk.{layer}.attn_output.weight"),
            Q8_0,
            &[heads * head, WIDTH],
        )
        .tensor(&format!("blk.{layer}.ffn_norm.weight"), F32, &[WIDTH]);
}

fn dense(w: &mut Writer, layer: u64, feed: u64) {
    w.tensor(&format!("blk.{layer}.ffn_gate.weight"), Q8_0, &[WIDTH, feed])
        .tensor(&format!("blk.{layer}.ffn_up.weight"), Q8_0, &[WIDTH, feed])
        .tensor(&format!("blk.{layer}.ffn_down.weight"), Q8_0, &[feed, WIDTH]);
}

fn experts(w: &mut Writer, layer: u64, count: u64, width: u64) {
    w.tensor(&format!("blk.{layer}.ffn_gate_inp.weight"), F32, &[WIDTH, count])
        .tensor(
            &format!("blk.{layer}.ffn_gate_exps.weight"),
            Q8_0,
            &[WIDTH, width, count],
        )
        .tensor(
            &format!("blk.{layer}.ffn_up_exps.weight"),
            Q8_0,
            &[WIDTH, width, count],
        )
        .tensor(
            &format!("blk.{layer}.ffn_down_exps.weight"),
            Q8_0,
            &[width, WIDTH, count],
        );
}

/// Grouped-query attention: four queries share a key.
pub(crate) fn llama(layers: u64, vocabulary: u64) -> Writer {
    let mut w = base("llama", layers, vocabulary);
    heads(&mut w, HEADS, HEADS / 4, HEAD, HEAD);
    w.number("rope.dimension_count", narrow(HEAD));
    for layer in 0..layers {
        attention(&mut w, layer, HEADS, HEADS / 4, HEAD);
        dense(&mut w, layer, FEED);
    }
    w.tensor("output.weight", Q8_0, &[WIDTH, vocabulary]);
    w
}

/// Head counts and feed-forward widths that differ between layers; one layer does not attend at all.
pub(crate) fn deci(layers: u64, vocabulary: u64) -> Writer {
    let mut w = base("deci", layers, vocabulary);
    let kv = |layer: u64| if layer == 1 { 0 } else { 1 << (layer % 4) };
    w.numbers(
        "attention.head_count",
        &(0..layers)
            .map(|l| if l == 1 { 0 } else { narrow(HEADS) })
            .collect::<Vec<_>>(),
    );
    w.numbers(
        "attention.head_count_kv",
        &(0..layers).map(|l| narrow(kv(l))).collect::<Vec<_>>(),
    );
    w.number("attention.key_length", narrow(HEAD))
        .number("attention.value_length", narrow(HEAD))
        .number("rope.dimension_count", narrow(HEAD));
    for layer in 0..layers {
        if kv(layer) > 0 {
            attention(&mut w, layer, HEADS, kv(layer), HEAD);
        } else {
            w.tensor(&format!("blk.{layer}.ffn_norm.weight"), F32, &[WIDTH]);
        }
        dense(&mut w, layer, FEED);
    }
    w.tensor("output.weight", Q8_0, &[WIDTH, vocabulary]);
    w
}

/// A window in five of six layers, the embedding used again for the results.
pub(crate) fn gemma3(layers: u64, vocabulary: u64, window: u32) -> Writer {
    let mut w = base("gemma3", layers, vocabulary);
    heads(&mut w, 8, 4, 128, 128);
    w.number("attention.sliding_window", window);
    for layer in 0..layers {
        attention(&mut w, layer, 8, 4, 128);
        for name in ["attn_q_norm", "attn_k_norm"] {
            w.tensor(&format!("blk.{layer}.{name}.weight"), F32, &[128]);
        }
        for name in ["post_attention_norm", "post_ffw_norm"] {
            w.tensor(&format!("blk.{layer}.{name}.weight"), F32, &[WIDTH]);
        }
        dense(&mut w, layer, FEED);
    }
    w
}

/// Experts, a few of them used per token.
pub(crate) fn qwen3moe(layers: u64, vocabulary: u64) -> Writer {
    let mut w = base("qwen3moe", layers, vocabulary);
    heads(&mut w, HEADS, 2, 128, 128);
    w.number("expert_count", 32)
        .number("expert_used_count", 8)
        .number("expert_feed_forward_length", 768);
    for layer in 0..layers {
        attention(&mut w, layer, HEADS, 2, 128);
        for name in ["attn_q_norm", "attn_k_norm"] {
            w.tensor(&format!("blk.{layer}.{name}.weight"), F32, &[128]);
        }
        experts(&mut w, layer, 32, 768);
    }
    w.tensor("output.weight", Q8_0, &[WIDTH, vocabulary]);
    w
}

/// Latent keys that hold the values too; the first layer dense, the others with experts and a shared one.
pub(crate) fn deepseek2(layers: u64, vocabulary: u64) -> Writer {
    const LATENT: u64 = 512;
    const ROPE: u64 = 64;
    const KEY: u64 = 192;
    const VALUE: u64 = 128;
    let mut w = base("deepseek2", layers, vocabulary);
    heads(&mut w, HEADS, 1, LATENT + ROPE, LATENT);
    w.number("attention.key_length_mla", narrow(KEY))
        .number("attention.value_length_mla", narrow(VALUE))
        .number("attention.kv_lora_rank", narrow(LATENT))
        .number("attention.q_lora_rank", 256)
        .number("rope.dimension_count", narrow(ROPE))
        .number("leading_dense_block_count", 1)
        .number("expert_count", 16)
        .number("expert_used_count", 4)
        .number("expert_shared_count", 1)
        .number("expert_feed_forward_length", 512)
        .float("expert_weights_scale", 1.0);
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        w.tensor(&name("attn_norm"), F32, &[WIDTH])
            .tensor(&name("attn_q_a_norm"), F32, &[256])
            .tensor(&name("attn_kv_a_norm"), F32, &[LATENT])
            .tensor(&name("attn_q_a"), Q8_0, &[WIDTH, 256])
            .tensor(&name("attn_q_b"), Q8_0, &[256, HEADS * KEY])
            .tensor(&name("attn_kv_a_mqa"), Q8_0, &[WIDTH, LATENT + ROPE])
            .tensor(&name("attn_k_b"), Q8_0, &[KEY - ROPE, LATENT, HEADS])
            .tensor(&name("attn_v_b"), Q8_0, &[LATENT, VALUE, HEADS])
            .tensor(&name("attn_output"), Q8_0, &[HEADS * VALUE, WIDTH])
            .tensor(&name("ffn_norm"), F32, &[WIDTH]);
        if layer == 0 {
            dense(&mut w, layer, FEED);
        } else {
            experts(&mut w, layer, 16, 512);
            w.tensor(&name("ffn_gate_shexp"), Q8_0, &[WIDTH, 512])
                .tensor(&name("ffn_up_shexp"), Q8_0, &[WIDTH, 512])
                .tensor(&name("ffn_down_shexp"), Q8_0, &[512, WIDTH]);
        }
    }
    w.tensor("output.weight", Q8_0, &[WIDTH, vocabulary]);
    w
}

/// Only recurrent states.
pub(crate) fn mamba(layers: u64, vocabulary: u64) -> Writer {
    const INNER: u64 = 2 * WIDTH;
    const STATE: u64 = 16;
    const RANK: u64 = 64;
    let mut w = base("mamba", layers, vocabulary);
    w.number("ssm.conv_kernel", 4)
        .number("ssm.inner_size", narrow(INNER))
        .number("ssm.state_size", narrow(STATE))
        .number("ssm.time_step_rank", narrow(RANK));
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}");
        w.tensor(&name("attn_norm.weight"), F32, &[WIDTH])
            .tensor(&name("ssm_in.weight"), Q8_0, &[WIDTH, 2 * INNER])
            .tensor(&name("ssm_conv1d.weight"), F32, &[4, INNER])
            .tensor(&name("ssm_conv1d.bias"), F32, &[INNER])
            .tensor(&name("ssm_x.weight"), Q8_0, &[INNER, RANK + 2 * STATE])
            .tensor(&name("ssm_dt.weight"), F32, &[RANK, INNER])
            .tensor(&name("ssm_dt.bias"), F32, &[INNER])
            .tensor(&name("ssm_a"), F32, &[STATE, INNER])
            .tensor(&name("ssm_d"), F32, &[INNER])
            .tensor(&name("ssm_out.weight"), Q8_0, &[INNER, WIDTH]);
    }
    w.tensor("output.weight", Q8_0, &[WIDTH, vocabulary]);
    w
}

/// Attention in every third layer, short convolutions in the others.
pub(crate) fn lfm2(layers: u64, vocabulary: u64) -> Writer {
    const KERNEL: u64 = 3;
    let mut w = base("lfm2", layers, vocabulary);
    let kv = |layer: u64| if layer % 3 == 2 { HEADS / 2 } else { 0 };
    w.number("attention.head_count", narrow(HEADS))
        .numbers(
            "attention.head_count_kv",
            &(0..layers).map(|l| narrow(kv(l))).collect::<Vec<_>>(),
        )
        .number("shortconv.l_cache", narrow(KERNEL));
    for layer in 0..layers {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        if kv(layer) > 0 {
            attention(&mut w, layer, HEADS, kv(layer), HEAD);
            w.tensor(&name("attn_q_norm"), F32, &[HEAD])
                .tensor(&name("attn_k_norm"), F32, &[HEAD]);
        } else {
            w.tensor(&name("attn_norm"), F32, &[WIDTH])
                .tensor(&name("ffn_norm"), F32, &[WIDTH])
                .tensor(&name("shortconv.conv"), F32, &[KERNEL, WIDTH])
                .tensor(&name("shortconv.in_proj"), Q8_0, &[WIDTH, 3 * WIDTH])
                .tensor(&name("shortconv.out_proj"), Q8_0, &[WIDTH, WIDTH]);
        }
        dense(&mut w, layer, FEED);
    }
    w
}

/// An embedding model: it sees the whole text at once and keeps nothing.
pub(crate) fn bert(layers: u64, vocabulary: u64) -> Writer {
    let mut w = base("bert", layers, vocabulary);
    w.number("attention.head_count", narrow(HEADS))
        .flag("attention.causal", false)
        .number("pooling_type", 1);
    w.number("tokenizer.ggml.token_type_count", 2);
    w.tensor("token_types.weight", F32, &[WIDTH, 2])
        .tensor("position_embd.weight", F16, &[WIDTH, 131_072])
        .tensor("token_embd_norm.weight", F32, &[WIDTH])
        .tensor("token_embd_norm.bias", F32, &[WIDTH]);
    for layer in 0..layers {
        let mut pair = |part: &str, input: u64, output: u64| {
            w.tensor(&format!("blk.{layer}.{part}.weight"), Q8_0, &[input, output])
                .tensor(&format!("blk.{layer}.{part}.bias"), F32, &[output]);
        };
        for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
            pair(part, WIDTH, WIDTH);
        }
        pair("ffn_up", WIDTH, FEED);
        pair("ffn_down", FEED, WIDTH);
        for part in ["attn_output_norm", "layer_output_norm"] {
            w.tensor(&format!("blk.{layer}.{part}.weight"), F32, &[WIDTH])
                .tensor(&format!("blk.{layer}.{part}.bias"), F32, &[WIDTH]);
        }
    }
    w
}
