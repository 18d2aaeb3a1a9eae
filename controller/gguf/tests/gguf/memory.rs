//! What is computed from a shape. That it is what llama.cpp allocates is shown in worker/llama/tests/memory.rs.

use muster_gguf::{
    CacheType, Model,
    memory::{Demand, Place, Settings, Split, demand, splits, spread},
};
use proptest::prelude::*;

use super::{model, support::shapes, whole::settings};

fn on_host(model: &Model, settings: &Settings) -> Demand {
    demand(model, settings, 0)
}

#[test]
fn caches_take_their_types_bytes() {
    let model = model(&shapes::llama(2, 32));
    // 2 layers × 4 heads × 64, keys and values, 4096 cells.
    let elements: u64 = 2 * 2 * 256 * 4096;
    for (name, bytes, per) in [
        ("f16", 2, 1),
        ("bf16", 2, 1),
        ("f32", 4, 1),
        ("q8_0", 34, 32),
        ("q5_1", 24, 32),
        ("q5_0", 22, 32),
        ("q4_1", 20, 32),
        ("q4_0", 18, 32),
        ("iq4_nl", 18, 32),
    ] {
        let kind = CacheType::named(name).unwrap();
        let with = Settings {
            keys: kind,
            values: kind,
            ..settings(4096)
        };
        assert_eq!(
            on_host(&model, &with).host.cache,
            elements / per * bytes,
            "{name}"
        );
    }
    assert_eq!(CacheType::named("q3_K"), None);
    assert_eq!(CacheType::named(""), Some(CacheType::F16));
}

#[test]
fn windows_hold_what_all_sequences_see() {
    let model = model(&shapes::gemma3(6, 32, 1000));
    let cell = 2 * 4 * 128 * 2;
    // 4 × 1000 + 512, up to the next 256.
    assert_eq!(
        on_host(&model, &settings(32_768)).host.cache,
        (32_768 + 5 * 4608) * cell
    );
    assert_eq!(on_host(&model, &settings(2048)).host.cache, 6 * 2048 * cell);
    let full = Settings {
        full_windows: true,
        ..settings(32_768)
    };
    assert_eq!(on_host(&model, &full).host.cache, 6 * 32_768 * cell);
    // Full caches can be cut anywhere; windows are set aside as well, with what a graph run adds to them: 1000 + 512, up to the next 256.
    assert_eq!(on_host(&model, &full).host.kept, 0);
    let kept = on_host(&model, &settings(32_768)).host.kept;
    assert_eq!(kept, 5 * 1536 * cell * 4 * 2);
    // A lone sequence fills the cells of all four: its state fits twice all the same.
    assert!(kept >= 2 * 5 * 4608 * cell);
}

#[test]
fn a_split_cache_gives_each_sequence_its_part() {
    let model = model(&shapes::gemma3(6, 32, 1000));
    let cell = 2 * 4 * 128 * 2;
    let split = |cells| Settings {
        split: true,
        ..settings(cells)
    };
    // Of each of four: 1000 + 512, up to the next 256.
    assert_eq!(
        on_host(&model, &split(32_768)).host.cache,
        (32_768 + 5 * 4 * 1536) * cell
    );
    // 500 / 4, up to the next 256.
    assert_eq!(on_host(&model, &split(500)).host.cache, 6 * 4 * 256 * cell);
    // A token sees its own part only.
    assert!(on_host(&model, &split(32_768)).host.compute < on_host(&model, &settings(32_768)).host.compute);
}

#[test]
fn states_are_constant_and_scores_are_not() {
    let mamba = model(&shapes::mamba(2, 32));
    assert_eq!(
        on_host(&mamba, &settings(1024)).host.cache,
        on_host(&mamba, &settings(65_536)).host.cache
    );
    let model = model(&shapes::llama(2, 32));
    let eager = |cells| Settings {
        flash: false,
        ..settings(cells)
    };
    let grown = on_host(&model, &eager(65_536)).host.compute - on_host(&model, &eager(32_768)).host.compute;
    // A float per head and a mask of floats, for each of 512 tokens and 32,768 cells more.
    assert_eq!(grown, 32_768 * 512 * 4 * 17);
}

#[test]
fn an_offloaded_model_leaves_its_embedding_behind() {
    let llama = model(&shapes::llama(4, 32_000));
    let all = demand(&llama, &settings(4096), 5);
    assert_eq!(all.host.weights, llama.input);
    assert_eq!(all.device.weights + all.host.weights, llama.weights());
    assert_eq!(all.host.cache, 0);
    assert!(all.device.overhead > 0 && all.host.overhead > 0);
    // More layers than there are is all of them, as for llama.cpp.
    assert_eq!(demand(&llama, &settings(4096), u64::MAX), all);
    // One layer is what comes after the layers.
    let one = demand(&llama, &settings(4096), 1);
    assert_eq!((one.device.weights, one.device.cache), (llama.output.weights, 0));
    // An embedding that is used again is copied.
    let gemma = model(&shapes::gemma3(4, 32_000, 512));
    let all = demand(&gemma, &settings(4096), 5);
    assert_eq!(
        all.device.weights + all.host.weights,
        gemma.weights() + gemma.output.tied.unwrap()
    );
}

#[test]
fn several_gpus_share_the_layers_in_order() {
    let llama = model(&shapes::llama(8, 32_000));
    let alone = demand(&llama, &settings(16_384), 9).device;
    assert_eq!(spread(&llama, &settings(16_384), 1).unwrap(), [alone]);
    for gpus in 2..=9 {
        let places = spread(&llama, &settings(16_384), gpus).unwrap();
        assert_eq!(places.len(), gpus);
        let sum = |of: fn(&Place) -> u64| places.iter().map(of).sum::<u64>();
        assert_eq!(sum(|place| place.weights), alone.weights);
        assert_eq!(sum(|place| place.cache), alone.cache);
        for place in &places {
            assert!(place.total() < alone.total() && place.weights > 0);
            assert!(place.compute > alone.compute, "inputs are there several times");
            assert_eq!(place.overhead, alone.overhead);
        }
    }
    // llama.cpp's upper_bound over [1/2, 1]: of nine units the first five go to the first.
    let two = spread(&llama, &settings(16_384), 2).unwrap();
    assert_eq!(two[0].cache / 5, two[1].cache / 3);
    for gpus in [0, 10] {
        assert!(spread(&llama, &settings(16_384), gpus).is_none(), "{gpus}");
    }
}

#[test]
fn splits_are_ordered_and_the_largest_that_fits_is_found() {
    let model = model(&shapes::llama(8, 32_000));
    let all = splits(&model, &settings(16_384));
    assert_eq!(all.first().unwrap().layers, 9);
    let room = |layers| demand(&model, &settings(16_384), layers).device.total();
    for layers in 1..=9 {
        let found = Split::largest(&all, room(layers), u64::MAX).unwrap();
        assert!(found.demand.device.total() <= room(layers));
        assert!(
            found.layers >= layers,
            "{layers} fit, {} were chosen",
            found.layers
        );
    }
    assert_eq!(Split::largest(&all, 1 << 20, u64::MAX), None);
    assert_eq!(Split::largest(&all, u64::MAX, 1 << 20), None);
}

proptest! {
    /// The largest split that fits is the best of all that fit, tried one by one.
    #[test]
    fn the_best_split_is_found(room in 0_u64..1 << 31, layers in 1_u64..12, cells in 1_u64..40_000) {
        let model = model(&shapes::qwen3moe(layers, 512));
        let settings = settings(cells);
        let best = (1..=layers + 1).rev().find(|n| demand(&model, &settings, *n).device.total() <= room);
        let found = Split::largest(&splits(&model, &settings), room, u64::MAX);
        prop_assert_eq!(found.map(|split| split.layers), best);
    }

    /// More cells, sequences or tokens at once never take less.
    #[test]
    fn demand_grows(cells in 1_u64..100_000, sequences in 1_u64..64, ubatch in 1_u64..4096, flash: bool, split: bool) {
        let smaller = Settings { sequences, ubatch, flash, split, ..settings(cells) };
        for model in [
            model(&shapes::gemma3(6, 64, 512)),
            model(&shapes::deepseek2(2, 64)),
            model(&shapes::lfm2(3, 64)),
            model(&shapes::bert(2, 64)),
        ] {
            let total = |settings: &Settings| on_host(&model, settings).host.total();
            for larger in [
                Settings { cells: cells * 2, ..smaller },
                Settings { ubatch: ubatch * 2, ..smaller },
                // Of a split cache more sequences see less each.
                Settings { sequences: if split { sequences } else { sequences * 2 }, ..smaller },
            ] {
                prop_assert!(total(&larger) >= total(&smaller));
            }
        }
    }
}
