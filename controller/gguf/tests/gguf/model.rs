//! What is read out of a header, architecture by architecture.

use muster_gguf::model::Layer;

use super::{
    model,
    support::{shapes, writer::*},
};

#[test]
fn heads_may_differ_between_layers() {
    let model = model(&shapes::deci(5, 32));
    let keys: Vec<u64> = model.layers.iter().map(|layer| layer.key).collect();
    assert_eq!(keys, [64, 0, 256, 512, 64]);
    assert_eq!(model.layers[1].heads, 0, "a layer without attention");
}

#[test]
fn windows_follow_the_architecture_or_the_file() {
    let windowed = |writer: &Writer| {
        let model = model(writer);
        (
            model.window,
            model
                .layers
                .iter()
                .map(|layer| u8::from(layer.windowed))
                .collect::<Vec<_>>(),
        )
    };
    assert_eq!(
        windowed(&shapes::gemma3(7, 32, 512)),
        (512, vec![1, 1, 1, 1, 1, 0, 1])
    );
    let mut writer = shapes::gemma3(4, 32, 512);
    writer.flags("attention.sliding_window_pattern", &[true, false, true, false]);
    assert_eq!(windowed(&writer), (512, vec![1, 0, 1, 0]));
    let mut writer = shapes::gemma3(4, 32, 512);
    writer.number("attention.sliding_window_pattern", 2);
    assert_eq!(windowed(&writer), (512, vec![1, 0, 1, 0]));
    assert_eq!(windowed(&shapes::gemma3(2, 32, 0)), (0, vec![0, 0]));

    let bare = |architecture: &str, layers: u32, window: Option<u32>| {
        let mut writer = Writer::new(architecture);
        writer
            .number("block_count", layers)
            .number("embedding_length", 64)
            .number("attention.head_count", 2);
        if let Some(window) = window {
            writer.number("attention.sliding_window", window);
        }
        windowed(&writer)
    };
    assert_eq!(bare("gemma2", 4, None), (4096, vec![1, 0, 1, 0]));
    assert_eq!(bare("gpt-oss", 4, Some(128)), (128, vec![1, 0, 1, 0]));
    assert_eq!(bare("llama4", 5, None), (8192, vec![1, 1, 1, 0, 1]));
    assert_eq!(bare("llama4", 5, Some(0)), (0, vec![0; 5]));
    assert_eq!(bare("smallthinker", 5, Some(1)), (4096, vec![0, 1, 1, 1, 0]));
    // llama.cpp ignores phi3's window, and one whose layers nobody names.
    assert_eq!(bare("phi3", 2, Some(2048)), (0, vec![0, 0]));
    assert_eq!(bare("new-architecture", 2, Some(2048)), (0, vec![0, 0]));
    assert_eq!(bare("exaone4", 2, None), (0, vec![0, 0]));
    assert_eq!(bare("exaone4", 64, None).0, 4096);
}

#[test]
fn latent_keys_hold_the_values() {
    let model = model(&shapes::deepseek2(3, 32));
    for layer in &model.layers {
        assert_eq!((layer.key, layer.value, layer.latent_head), (576, 0, 192));
    }
    assert_eq!((model.layers[0].experts, model.layers[0].feed_forward), (0, 2816));
    assert_eq!(
        (model.layers[1].experts_used, model.layers[1].expert_width),
        (4, 512)
    );
}

#[test]
fn recurrent_layers_have_states_and_no_keys() {
    let mamba = model(&shapes::mamba(2, 32));
    // (kernel − 1) × inner + state × inner.
    assert!(
        mamba
            .layers
            .iter()
            .all(|layer| layer.state == 3 * 2048 + 16 * 2048 && layer.key == 0)
    );
    let lfm2 = model(&shapes::lfm2(3, 32));
    let layers: Vec<(u64, u64)> = lfm2.layers.iter().map(|layer| (layer.state, layer.key)).collect();
    assert_eq!(layers, [(2048, 0), (2048, 0), (0, 512)]);
}

/// One layer of a small model with the given tensors.
fn layer(architecture: &str, entries: &[(&str, u32)], tensors: &[&str]) -> Layer {
    let mut writer = Writer::new(architecture);
    writer
        .number("block_count", 2)
        .number("embedding_length", 64)
        .number("attention.head_count", 4);
    for (key, value) in entries {
        writer.number(key, *value);
    }
    for part in tensors {
        writer.tensor(&format!("blk.0.{part}.weight"), F32, &[64, 64]);
    }
    model(&writer).layers[0]
}

#[test]
fn tensors_say_what_a_layer_does() {
    let ssm = [
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 128),
        ("ssm.state_size", 16),
        ("ssm.group_count", 2),
    ];
    let state = 3 * (128 + 2 * 2 * 16) + 16 * 128;
    // Both side by side (falcon-h1), and a fused matrix that feeds the recurrent part only (qwen3next).
    let both = layer("falcon-h1", &ssm, &["attn_k", "ssm_in"]);
    assert_eq!((both.key, both.state), (64, state));
    let linear = layer("qwen3next", &ssm, &["attn_qkv", "ssm_out"]);
    assert_eq!((linear.key, linear.state), (0, state));
    let fused = layer("phi2", &[], &["attn_qkv"]);
    assert_eq!((fused.key, fused.value), (64, 64));
    let rwkv = layer(
        "rwkv7",
        &[("wkv.head_size", 16), ("token_shift_count", 1)],
        &["time_mix_key"],
    );
    assert_eq!(rwkv.state, 64 + 64 * 16);
    let kimi = layer(
        "kimi-linear",
        &[("kda.head_dim", 16), ("ssm.conv_kernel", 4)],
        &["ssm_beta"],
    );
    assert_eq!(kimi.state, 3 * 3 * 4 * 16 + 16 * 16 * 4);
}

#[test]
fn an_indexer_caches_a_key_of_its_own() {
    let entries = [
        ("attention.indexer.key_length", 128),
        ("attention.head_count_kv", 1),
    ];
    let sparse = layer("deepseek32", &entries, &["attn_kv_a_mqa", "indexer.attn_k"]);
    assert_eq!(sparse.key, 16 + 128);
    assert_eq!(layer("deepseek32", &entries, &["attn_kv_a_mqa"]).key, 16);
}

#[test]
fn shared_and_further_layers_cache_nothing() {
    let cached = |architecture: &str, key: &str, value: u32| {
        let mut writer = Writer::new(architecture);
        writer
            .number("block_count", 4)
            .number("embedding_length", 64)
            .number("attention.head_count", 4);
        writer.number(key, value);
        for layer in 0..4 {
            writer.tensor(&format!("blk.{layer}.attn_k.weight"), F32, &[64, 64]);
        }
        model(&writer).layers.iter().filter(|layer| layer.key > 0).count()
    };
    assert_eq!(cached("gemma4", "attention.shared_kv_layers", 2), 2);
    assert_eq!(cached("glm4moe", "nextn_predict_layers", 1), 3);
    // All layers predict further tokens: it is a draft model, and they are what it has.
    assert_eq!(cached("glm4moe", "nextn_predict_layers", 4), 4);
}

#[test]
fn weights_are_counted_where_they_go() {
    let model = model(&shapes::llama(2, 320));
    let matrix = 1024 * 320 / 32 * 34;
    assert_eq!((model.input, model.output.weights), (matrix, matrix + 4096));
    assert_eq!(model.output.tied, None);
    let tied = super::model(&shapes::gemma3(2, 320, 512));
    assert_eq!((tied.output.tied, tied.output.weights), (Some(matrix), 4096));
    let largest = 1024 * 2816 / 32 * 34;
    assert!(
        model
            .layers
            .iter()
            .all(|layer| layer.largest == largest && layer.weights > 3 * largest)
    );
}
