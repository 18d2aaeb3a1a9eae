//! Models over several devices of one worker: every choice of devices is looked at, not only the emptiest ones (I4).

use std::time::Duration;

use muster_core::{Bytes, DeviceKind, ModelType};
use muster_policy::{Config, DeviceChoice, LoadError, ModelState};

use crate::sim::{Sim, config, device, facts, model, need, unlimited};

const G: DeviceKind = DeviceKind::Gpu;

/// One worker over devices `g0`, `g1`, … of 100 bytes each, with a model of so many bytes idle on each of the first ones.
fn devices(count: usize, idle: &[u64]) -> Sim {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    let gpus = (0..count).map(|n| device(&format!("g{n}"), G, 100)).collect();
    sim.join(facts("w", "h", gpus));
    for (n, bytes) in idle.iter().enumerate() {
        add_on(&mut sim, &format!("idle-{n}"), n, *bytes);
        sim.use_once(&format!("idle-{n}"));
        sim.advance(Duration::from_secs(1));
    }
    sim
}

fn add_on(sim: &mut Sim, id: &str, device: usize, bytes: u64) {
    let mut spec = model(id, ModelType::Llm, bytes);
    spec.device = DeviceChoice::Device(format!("g{device}").as_str().into());
    sim.add_model(spec);
}

fn add_split(sim: &mut Sim, parts: &[u64]) {
    let parts: Vec<(DeviceKind, u64)> = parts.iter().map(|bytes| (G, *bytes)).collect();
    let mut spec = model("split", ModelType::Llm, 0);
    spec.needs = vec![need(&parts)];
    sim.add_model(spec);
}

fn load_split(sim: &mut Sim) -> Vec<String> {
    let hold = sim.open("split");
    sim.finish_loads();
    let stream = &sim.streams[&hold];
    let (instance, worker) = stream
        .ready()
        .unwrap_or_else(|| panic!("{:?}\n{}", stream.last(), sim.tail()));
    let parts = &sim.workers[worker].instances[instance].spec.reservations;
    parts.iter().map(|part| part.device.to_string()).collect()
}

#[test]
fn the_device_with_most_left_is_passed_by_if_a_pinned_model_is_on_it() {
    let mut sim = devices(3, &[70, 70, 65]);
    sim.catalogue.get_mut("idle-2").unwrap().pinned = true;
    sim.publish_catalogue();
    add_split(&mut sim, &[60, 60]);
    assert_eq!(load_split(&mut sim), ["g0", "g1"]);
    assert_eq!(sim.states["idle-2"], ModelState::Loaded);
}

#[test]
fn the_device_with_most_left_is_passed_by_if_another_program_uses_it() {
    let mut sim = devices(3, &[70, 70]);
    sim.foreign.insert(("h".into(), "g2".into()), Bytes::new(60));
    // A load shows the worker's new samples.
    add_on(&mut sim, "look", 2, 5);
    sim.use_once("look");
    add_split(&mut sim, &[60, 60]);
    assert_eq!(load_split(&mut sim), ["g0", "g1"]);
}

#[test]
fn the_device_with_most_left_is_passed_by_if_an_earlier_load_has_claimed_it() {
    let mut sim = devices(3, &[60, 60]);
    add_on(&mut sim, "busy", 2, 50);
    sim.use_model("busy");
    add_on(&mut sim, "claims", 2, 95);
    sim.open("claims");
    add_split(&mut sim, &[45, 45]);
    assert_eq!(load_split(&mut sim), ["g0", "g1"]);
}

#[test]
fn all_devices_but_the_wrong_ones_are_found_among_eight() {
    let mut sim = devices(8, &[90; 8]);
    for n in [0, 3, 5, 6] {
        sim.catalogue
            .get_mut(format!("idle-{n}").as_str())
            .unwrap()
            .pinned = true;
    }
    sim.publish_catalogue();
    add_split(&mut sim, &[60, 60, 60, 60]);
    let mut found = load_split(&mut sim);
    found.sort();
    assert_eq!(found, ["g1", "g2", "g4", "g7"]);
}

#[test]
fn parts_of_different_sizes_find_the_devices_that_are_large_enough() {
    let mut sim = Sim::new(config());
    let sizes = [("g0", 100), ("g1", 90), ("g2", 50)];
    sim.join(facts(
        "w",
        "h",
        sizes.map(|(id, bytes)| device(id, G, bytes)).into(),
    ));
    add_split(&mut sim, &[40, 45, 95]);
    assert_eq!(load_split(&mut sim), ["g1", "g2", "g0"]);
    let mut even = model("even", ModelType::Llm, 0);
    even.needs = vec![need(&[(G, 60), (G, 60), (G, 60)])];
    sim.add_model(even);
    let hold = sim.open("even");
    let failed = sim.streams[&hold].failed();
    let Some(LoadError::InsufficientMemory { wanted, possible, .. }) = failed else {
        panic!("{failed:?}")
    };
    assert_eq!(
        (wanted.get(), possible.get()),
        (60, 50),
        "only two are large enough"
    );
}
