//! Memory per device (I4) and placement.

use std::time::Duration;

use muster_core::{Bytes, Code, DeviceKind, ModelType};
use muster_policy::{
    Config, DeviceChoice, DeviceKey, LoadError, ModelSpec, ModelState, Placement, Share, Stage,
};

use crate::sim::{Sim, config, device, facts, model, need, unlimited};

fn two_gpus(config: Config) -> Sim {
    let mut sim = Sim::new(config);
    sim.join(facts("w0", "h", vec![device("g0", DeviceKind::Gpu, 100)]));
    sim.join(facts("w1", "h", vec![device("g1", DeviceKind::Gpu, 80)]));
    sim
}

#[test]
fn what_can_never_fit_is_refused_at_once_with_numbers() {
    let mut sim = two_gpus(Config {
        margin: Bytes::new(10),
        ..config()
    });
    sim.add_model(model("huge", ModelType::Llm, 500));
    let hold = sim.open("huge");
    let expected = LoadError::InsufficientMemory {
        model: "huge".into(),
        wanted: Bytes::new(500),
        possible: Bytes::new(90),
        device: Some(DeviceKey {
            host: "h".into(),
            device: "g0".into(),
        }),
    };
    assert_eq!(sim.streams[&hold].failed(), Some(&expected));
}

#[test]
fn short_memory_evicts_the_same_type_first_and_only_what_it_takes() {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        100,
    );
    sim.add_model(model("embed", ModelType::Embedding, 30));
    sim.add_model(model("a", ModelType::Llm, 30));
    sim.add_model(model("b", ModelType::Llm, 30));
    sim.add_model(model("c", ModelType::Llm, 35));
    for id in ["embed", "a", "b", "c"] {
        sim.use_once(id);
    }
    assert_eq!(sim.states["a"], ModelState::Unloaded);
    for id in ["embed", "b", "c"] {
        assert_eq!(sim.states[id], ModelState::Loaded, "{id}");
    }
}

#[test]
fn a_small_victim_that_a_larger_one_makes_needless_is_spared() {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        100,
    );
    sim.add_model(model("small", ModelType::Llm, 10));
    sim.add_model(model("large", ModelType::Llm, 90));
    sim.add_model(model("new", ModelType::Llm, 80));
    for id in ["small", "large", "new"] {
        sim.use_once(id);
    }
    assert_eq!(sim.states["small"], ModelState::Loaded);
    assert_eq!(sim.states["large"], ModelState::Unloaded);
}

#[test]
fn memory_of_other_programs_counts() {
    let mut sim = Sim::new(config());
    sim.foreign.insert(("h".into(), "sim:a".into()), Bytes::new(60));
    sim.join(facts("w", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.add_model(model("a", ModelType::Llm, 50));
    let hold = sim.open("a");
    match sim.streams[&hold].failed() {
        Some(LoadError::InsufficientMemory { wanted, possible, .. }) => {
            assert_eq!((*wanted, *possible), (Bytes::new(50), Bytes::new(40)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_load_waits_for_a_sample_that_shows_the_last_exit_but_not_forever() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.add_model(model("b", ModelType::Llm, 60));
    sim.use_once("a");
    sim.withhold_samples = true;
    let hold = sim.open("b");
    sim.finish_exits();
    assert!(
        matches!(sim.streams[&hold].last(), Some(Stage::Queued { .. })),
        "{}",
        sim.tail()
    );
    sim.advance(sim.config.sample_wait);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn no_eviction_is_better_than_eviction_and_spreading_better_than_packing_by_default() {
    for (placement, second) in [(Placement::Spread, "w1"), (Placement::Pack, "w0")] {
        let mut sim = two_gpus(Config {
            limits: unlimited(),
            placement,
            ..config()
        });
        sim.workers.get_mut("w1").unwrap().facts.devices[0].capacity = Bytes::new(100);
        sim.lose(&"w1".into());
        sim.connect(&"w1".into());
        for id in ["a", "b", "c"] {
            sim.add_model(model(id, ModelType::Llm, 45));
        }
        for id in ["a", "b", "c"] {
            sim.use_once(id);
        }
        let places: Vec<&str> = sim.loads.iter().map(|(worker, ..)| worker.as_str()).collect();
        assert_eq!(&places[..2], ["w0", second]);
        assert!(sim.states.values().all(|state| *state == ModelState::Loaded));
    }
}

#[test]
fn an_explicit_device_is_honoured() {
    let mut sim = two_gpus(Config {
        limits: unlimited(),
        ..config()
    });
    let mut spec = model("a", ModelType::Llm, 10);
    spec.device = DeviceChoice::Device("g1".into());
    sim.add_model(spec);
    sim.use_once("a");
    assert_eq!(sim.loads[0].0.as_str(), "w1");
}

#[test]
fn a_second_need_is_used_only_where_the_first_can_never_work() {
    let mut sim = two_gpus(Config {
        limits: unlimited(),
        ..config()
    });
    sim.join(facts("cpu", "h", vec![device("cpu", DeviceKind::Cpu, 1000)]));
    for id in ["a", "b"] {
        let mut spec = model(id, ModelType::Llm, 0);
        spec.needs = vec![need(&[(DeviceKind::Gpu, 95)]), need(&[(DeviceKind::Cpu, 95)])];
        sim.add_model(spec);
    }
    let mut large = model("large", ModelType::Llm, 0);
    large.needs = vec![need(&[(DeviceKind::Gpu, 300)]), need(&[(DeviceKind::Cpu, 300)])];
    sim.add_model(large);
    for id in ["a", "b", "large"] {
        sim.use_once(id);
    }
    let places: Vec<&str> = sim.loads.iter().map(|(worker, ..)| worker.as_str()).collect();
    assert_eq!(
        places,
        ["w0", "w0", "cpu"],
        "evict on the GPU before falling back to the CPU"
    );
}

#[test]
fn a_model_over_two_devices_takes_both_whole() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    let gpu = |id| device(id, DeviceKind::Gpu, 100);
    sim.join(facts("w0", "h", vec![gpu("g0")]));
    sim.join(facts("both", "h", vec![gpu("g0"), gpu("g1")]));
    let mut spec = model("span", ModelType::Llm, 0);
    spec.needs = vec![need(&[(DeviceKind::Gpu, 80), (DeviceKind::Gpu, 80)])];
    sim.add_model(spec);
    sim.add_model(model("a", ModelType::Llm, 50));
    let busy = sim.use_model("a");
    let hold = sim.open("span");
    sim.finish_loads();
    assert!(matches!(sim.streams[&hold].last(), Some(Stage::Queued { .. })));
    sim.end_request(&busy);
    sim.finish_loads();
    let (_, worker) = sim.streams[&hold].ready().unwrap();
    assert_eq!(worker.as_str(), "both");
    let reserved: Vec<u64> = sim
        .fleet
        .devices()
        .iter()
        .map(|device| device.reserved.get())
        .collect();
    assert_eq!(reserved, [80, 80]);
}

#[test]
fn no_capable_worker_is_waited_for_and_then_refused() {
    let mut sim = Sim::new(config());
    sim.add_model(model("a", ModelType::Llm, 10));
    let hold = sim.open("a");
    sim.advance(Duration::from_secs(29));
    assert!(matches!(sim.streams[&hold].last(), Some(Stage::Queued { .. })));
    sim.advance(Duration::from_secs(2));
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::NoWorker)
    );
    let hold = sim.open("a");
    sim.advance(Duration::from_secs(5));
    sim.join(facts("w", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some());
}

/// Found by a test of patience: a sample showed what a loading model had already taken, nothing said whose it was, and a load that only
/// had to wait for it was refused for ever.
#[test]
fn memory_that_a_loading_model_already_uses_is_not_taken_for_other_programs() {
    let mut sim = Sim::one_device(config(), 100);
    for id in ["a", "b"] {
        sim.add_model(model(id, ModelType::Llm, 60));
    }
    let first = sim.open("a");
    let second = sim.open("b");
    assert!(
        matches!(sim.streams[&second].last(), Some(Stage::Queued { .. })),
        "{}",
        sim.tail()
    );
    sim.finish_loads();
    sim.close(&first);
    sim.finish_loads();
    assert!(sim.streams[&second].ready().is_some(), "{}", sim.tail());
}

/// `gpu_layers = "auto"`: the model comes with several sizings, the largest first (controller/policy/README.md, Decisions: evict by policy, then partial offload, then
/// another device).
#[test]
fn the_largest_sizing_that_can_be_had_by_evicting_is_taken() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    let devices = vec![
        device("g", DeviceKind::Gpu, 100),
        device("cpu", DeviceKind::Cpu, 1000),
    ];
    sim.join(facts("w", "h", devices));
    let mut other = model("other", ModelType::Llm, 0);
    other.needs = vec![need(&[(DeviceKind::Gpu, 50)])];
    sim.add_model(other.clone());
    let mut auto = model("auto", ModelType::Llm, 0);
    auto.needs = vec![
        need(&[(DeviceKind::Gpu, 90)]),
        need(&[(DeviceKind::Gpu, 60), (DeviceKind::Cpu, 30)]),
        need(&[(DeviceKind::Gpu, 40), (DeviceKind::Cpu, 50)]),
        need(&[(DeviceKind::Cpu, 90)]),
    ];
    sim.add_model(auto);
    let reserved = |sim: &Sim| -> Vec<u64> {
        let mut all: Vec<_> = sim.fleet.devices();
        all.sort_by(|a, b| b.key.device.cmp(&a.key.device));
        all.iter().map(|device| device.reserved.get()).collect()
    };
    sim.use_once("other");
    sim.use_once("auto");
    assert_eq!(
        reserved(&sim),
        [90, 0],
        "an idle model goes before anything is offloaded"
    );

    for (foreign, pinned, expected) in [
        (0, true, [50 + 40, 50]),
        (35, false, [60, 30]),
        (95, false, [0, 90]),
    ] {
        sim.unload("auto", muster_policy::UnloadHow::Drain);
        sim.unload("other", muster_policy::UnloadHow::Drain);
        sim.finish_exits();
        other.pinned = pinned;
        sim.add_model(other.clone());
        if pinned {
            sim.use_once("other");
        }
        sim.foreign.insert(("h".into(), "g".into()), Bytes::new(foreign));
        sim.flush_touches(&"w".into());
        sim.use_once("auto");
        assert_eq!(reserved(&sim), expected, "{foreign} {pinned}\n{}", sim.tail());
    }
}

#[test]
fn host_ram_is_one_device_of_all_workers_of_a_host() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    let ram = || device("ram", DeviceKind::Cpu, 100);
    sim.join(facts("cpu", "h", vec![ram()]));
    sim.join(facts("gpu", "h", vec![device("g", DeviceKind::Gpu, 100), ram()]));
    let mut split = model("split", ModelType::Llm, 0);
    split.needs = vec![need(&[(DeviceKind::Gpu, 80), (DeviceKind::Cpu, 70)])];
    let mut small = model("small", ModelType::Llm, 0);
    small.needs = vec![need(&[(DeviceKind::Cpu, 40)])];
    sim.add_model(split);
    sim.add_model(small);
    sim.use_once("small");
    sim.use_once("split");
    assert_eq!(sim.states["small"], ModelState::Unloaded, "{}", sim.tail());
    assert_eq!(sim.states["split"], ModelState::Loaded);
}

fn reserved(sim: &Sim) -> Vec<(String, u64)> {
    let devices = sim.fleet.devices();
    let shown = devices
        .iter()
        .map(|view| (view.key.device.to_string(), view.reserved.get()));
    shown.filter(|(_, bytes)| *bytes > 0).collect()
}

/// `id` needs 10 bytes on each of so many GPUs, and takes nine tenths of each.
fn greedy(id: &str, devices: usize) -> ModelSpec {
    let mut spec = model(id, ModelType::Llm, 0);
    let mut need = need(&vec![(DeviceKind::Gpu, 10); devices]);
    for part in &mut need.parts {
        part.share = Some(Share::thousandths(900));
    }
    spec.needs = vec![need];
    spec
}

#[test]
fn a_share_is_set_aside_of_the_device_that_is_chosen() {
    for (margin, small, large) in [(0, 72, 90), (30, 50, 70)] {
        let mut sim = Sim::new(Config {
            limits: unlimited(),
            margin: Bytes::new(margin),
            ..config()
        });
        for (worker, capacity) in [("w0", 80), ("w1", 100)] {
            sim.join(facts(
                worker,
                "h",
                vec![device(&format!("g{capacity}"), DeviceKind::Gpu, capacity)],
            ));
        }
        sim.add_model(greedy("a", 1));
        sim.add_model(greedy("b", 1));
        sim.add_model(greedy("c", 1));
        sim.use_once("a");
        sim.use_once("b");
        let both = [("g100".to_owned(), large), ("g80".to_owned(), small)];
        assert_eq!(reserved(&sim), both);
        // Ten bytes would fit beside each of them; what it takes does not.
        sim.use_once("c");
        assert_eq!(sim.states["a"], ModelState::Unloaded);
        assert_eq!(reserved(&sim), both);
    }
}

#[test]
fn a_share_of_several_devices_is_one_of_each() {
    let mut sim = Sim::new(config());
    let gpus = vec![
        device("g0", DeviceKind::Gpu, 100),
        device("g1", DeviceKind::Gpu, 40),
    ];
    sim.join(facts("both", "h", gpus));
    sim.add_model(greedy("a", 2));
    sim.use_once("a");
    assert_eq!(reserved(&sim), [("g0".to_owned(), 90), ("g1".to_owned(), 36)]);
}
