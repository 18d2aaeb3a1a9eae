//! Nothing waits for longer than what it waits for: loads begin by the clock alone, though some requests never end (I8, I9).

use std::time::Duration;

use muster_core::{DeviceKind, InstanceId, ModelType, WorkerId};
use muster_policy::{Config, DeviceChoice, Event, ModelSpec, ModelState, UnloadHow};

use crate::sim::{Sim, config, device, facts, limits, model, unlimited};

const SECOND: Duration = Duration::from_secs(1);

/// A host that takes two models. `old` answers a request without end; `hot` has had ten short ones since, so that it is idle only after
/// a pause longer than those between them.
fn old_is_busy_and_hot_was_used_just_now(config: Config) -> (Sim, WorkerId, InstanceId) {
    let mut sim = Sim::one_device(config, 100);
    for id in ["old", "hot", "new"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    sim.use_model("old");
    let hot = sim.use_once("hot");
    let worker = sim.worker_of(&hot).unwrap();
    for _ in 0..10 {
        sim.advance(Duration::from_millis(5));
        assert!(sim.start_request(&worker, &hot));
        sim.advance(Duration::from_millis(5));
        sim.end_request(&hot);
        sim.flush_touches(&worker);
    }
    (sim, worker, hot)
}

#[test]
fn a_load_begins_when_any_instance_turns_idle_and_not_only_the_one_used_least_recently() {
    let (mut sim, ..) = old_is_busy_and_hot_was_used_just_now(Config {
        limits: limits(2),
        ..config()
    });
    let hold = sim.open("new");
    assert!(sim.loading().is_empty(), "nobody is idle yet: {}", sim.tail());
    sim.advance(SECOND / 2);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_load_begins_when_the_time_that_any_instance_must_stay_is_over() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            min_residency: SECOND * 5,
            ..config()
        },
        100,
    );
    for id in ["old", "young", "new"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    sim.use_model("old");
    sim.advance(SECOND * 6);
    sim.use_once("young");
    let hold = sim.open("new");
    sim.advance(SECOND * 4);
    assert!(sim.loading().is_empty(), "{}", sim.tail());
    sim.advance(SECOND * 2);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_load_that_waits_for_one_instance_takes_another_that_was_used_meanwhile_and_is_idle_again() {
    let (mut sim, worker, hot) = old_is_busy_and_hot_was_used_just_now(Config {
        limits: limits(2),
        ..config()
    });
    assert!(sim.start_request(&worker, &hot));
    let hold = sim.open("new");
    sim.advance(SECOND * 3);
    assert!(sim.loading().is_empty(), "both are busy: {}", sim.tail());
    sim.end_request(&hot);
    sim.flush_touches(&worker);
    sim.advance(SECOND / 2);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// Two devices: on one an instance finishes work on its way out, on the other one is idle.
fn one_drains_and_one_is_idle() -> (Sim, InstanceId, InstanceId) {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    sim.join(facts("w0", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.join(facts("w1", "h", vec![device("sim:b", DeviceKind::Sim, 100)]));
    for (id, bytes) in [("drains", 70), ("idle", 90), ("new", 50)] {
        sim.add_model(model(id, ModelType::Llm, bytes));
    }
    let drains = sim.use_model("drains");
    let idle = sim.use_once("idle");
    sim.advance(SECOND);
    sim.unload("drains", UnloadHow::Drain);
    (sim, drains, idle)
}

/// Found by `loads_begin_by_the_clock_alone_though_some_requests_never_end`: room that a drain leaves some day passed for free.
#[test]
fn a_load_takes_the_place_of_an_idle_instance_rather_than_that_of_one_that_drains() {
    let (mut sim, drains, idle) = one_drains_and_one_is_idle();
    let hold = sim.open("new");
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    assert!(sim.worker_of(&drains).is_some() && sim.worker_of(&idle).is_none());
}

#[test]
fn a_preload_waits_for_a_drain_since_it_evicts_nobody_until_an_operator_wants_it() {
    let (mut sim, drains, idle) = one_drains_and_one_is_idle();
    sim.event(Event::PreloadRequested { model: "new".into() });
    sim.advance(SECOND);
    assert_eq!(sim.states["new"], ModelState::Loading, "{}", sim.tail());
    assert!(sim.loading().is_empty() && sim.worker_of(&idle).is_some());
    sim.load("new");
    sim.finish_loads();
    assert_eq!(sim.states["new"], ModelState::Loaded, "{}", sim.tail());
    assert!(sim.worker_of(&drains).is_some() && sim.worker_of(&idle).is_none());
}

/// PROTOCOL 19: a clock that reads earlier than it did is no clock.
#[test]
fn time_never_runs_backwards_for_policy() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.use_once("a");
    let before = sim.fleet.models();
    let now = sim.now;
    sim.world.now = now.ago(Duration::from_secs(5));
    sim.event(Event::Tick);
    sim.world.now = now;
    assert_eq!(sim.fleet.models(), before);
    sim.use_once("a");
}

fn bound(id: &str, kind: ModelType, device: &str, bytes: u64) -> ModelSpec {
    ModelSpec {
        device: DeviceChoice::Device(device.into()),
        ..model(id, kind, bytes)
    }
}

/// Issue 11: the room of a busy model that an earlier load waits for passed for free room, and free room is better than an eviction.
#[test]
fn a_load_evicts_an_idle_instance_rather_than_wait_for_room_promised_to_an_earlier_one() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    sim.join(facts("w0", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.join(facts("w1", "h", vec![device("sim:b", DeviceKind::Sim, 100)]));
    sim.add_model(bound("busy", ModelType::Llm, "sim:a", 60));
    sim.add_model(bound("idle", ModelType::Llm, "sim:b", 90));
    sim.add_model(bound("earlier", ModelType::Llm, "sim:a", 50));
    sim.add_model(model("late", ModelType::Llm, 45));
    let busy = sim.use_model("busy");
    sim.use_once("idle");
    let earlier = sim.open("earlier");
    let late = sim.open("late");
    sim.finish_loads();
    assert!(sim.streams[&late].ready().is_some(), "{}", sim.tail());
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&earlier].ready().is_some(), "{}", sim.tail());
}

/// The same on one device: who would have to go now is not who will have gone.
#[test]
fn a_load_evicts_an_idle_instance_beside_the_busy_one_that_an_earlier_load_waits_for() {
    let mut sim = Sim::one_device(config(), 150);
    sim.add_model(model("busy", ModelType::Llm, 60));
    sim.add_model(model("idle", ModelType::Embedding, 50));
    sim.add_model(model("earlier", ModelType::Llm, 50));
    sim.add_model(model("late", ModelType::Reranking, 45));
    let busy = sim.use_model("busy");
    sim.use_once("idle");
    let earlier = sim.open("earlier");
    let late = sim.open("late");
    sim.finish_loads();
    assert!(sim.streams[&late].ready().is_some(), "{}", sim.tail());
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&earlier].ready().is_some(), "{}", sim.tail());
    assert_eq!(sim.states["late"], ModelState::Loaded, "it fits beside");
}

/// The same for a slot: one that drains has it for as long as its work takes.
#[test]
fn a_load_evicts_an_idle_model_elsewhere_rather_than_wait_for_the_slot_of_one_that_drains() {
    let mut sim = Sim::new(config());
    sim.join(facts(
        "w0",
        "h0",
        vec![
            device("sim:a", DeviceKind::Sim, 100),
            device("sim:b", DeviceKind::Sim, 100),
        ],
    ));
    sim.join(facts("w1", "h1", vec![device("sim:c", DeviceKind::Sim, 100)]));
    sim.add_model(bound("drains", ModelType::Llm, "sim:a", 60));
    sim.add_model(bound("idle", ModelType::Llm, "sim:c", 90));
    sim.add_model(model("new", ModelType::Llm, 45));
    sim.use_model("drains");
    sim.use_once("idle");
    sim.unload("drains", UnloadHow::Drain);
    let hold = sim.open("new");
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}
