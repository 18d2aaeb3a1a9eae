//! Nothing waits for longer than what it waits for: loads begin by the clock alone, though some requests never end (I8, I9).

use std::time::Duration;

use muster_policy::{Config, DeviceKind, Event, InstanceId, ModelState, ModelType, UnloadHow, WorkerId};

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
    assert_eq!(sim.states[&"new".into()], ModelState::Loading, "{}", sim.tail());
    assert!(sim.loading().is_empty() && sim.worker_of(&idle).is_some());
    sim.load("new");
    sim.finish_loads();
    assert_eq!(sim.states[&"new".into()], ModelState::Loaded, "{}", sim.tail());
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
