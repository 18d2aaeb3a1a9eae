//! The load queue: claims, load slots, abandonment (I5, I8).

use std::num::NonZeroU32;
use std::time::Duration;

use muster_core::{DeviceKind, ModelType};
use muster_policy::{Config, DeviceChoice, ModelState, Stage, UnloadHow, WaitReason};

use crate::sim::{Life, Sim, config, device, facts, limits, model, unlimited};

#[test]
fn one_load_at_a_time_per_host_and_other_hosts_do_not_wait() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    for host in ["h0", "h1"] {
        for n in 0..2 {
            let name = format!("{host}-{n}");
            sim.join(facts(&name, host, vec![device(&name, DeviceKind::Sim, 100)]));
        }
    }
    let holds: Vec<_> = ["a", "b", "c"]
        .map(|id| {
            sim.add_model(model(id, ModelType::Llm, 60));
            sim.open(id)
        })
        .into();
    assert_eq!(sim.in_life(&Life::Loading).len(), 2);
    let expected = Stage::Queued {
        position: 1,
        reason: WaitReason::LoadSlot,
        blocked_by: vec![sim.loads[0].2.clone()],
    };
    assert_eq!(sim.streams[&holds[2]].last(), Some(&expected));
    sim.finish_loads();
    assert!(holds.iter().all(|hold| sim.streams[hold].ready().is_some()));
}

#[test]
fn more_loads_run_at_once_if_allowed_but_not_on_one_device() {
    let loads = NonZeroU32::new(3).unwrap();
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        max_concurrent_loads: loads,
        ..config()
    });
    sim.join(facts("w0", "h", vec![device("a", DeviceKind::Sim, 100)]));
    sim.join(facts("w1", "h", vec![device("b", DeviceKind::Sim, 100)]));
    for id in ["a", "b", "c"] {
        sim.add_model(model(id, ModelType::Llm, 30));
        sim.open(id);
    }
    assert_eq!(sim.in_life(&Life::Loading).len(), 2);
}

#[test]
fn a_waiting_claim_holds_no_load_slot_and_keeps_its_room() {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        100,
    );
    for (id, bytes) in [("busy", 60), ("large", 70), ("small", 20), ("medium", 35)] {
        sim.add_model(model(id, ModelType::Llm, bytes));
    }
    let busy = sim.use_model("busy");
    let large = sim.open("large");
    let small = sim.open("small");
    sim.finish_loads();
    assert!(
        sim.streams[&small].ready().is_some(),
        "it fits beside the claim: {}",
        sim.tail()
    );
    let medium = sim.open("medium");
    sim.finish_loads();
    assert!(
        sim.streams[&medium].ready().is_none(),
        "it would take what was claimed"
    );
    sim.close(&small);
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&large].ready().is_some(), "{}", sim.tail());
}

#[test]
fn two_loads_of_a_type_do_not_take_the_same_victim() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            ..config()
        },
        100,
    );
    for id in ["a", "b", "c", "d"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    let a = sim.use_model("a");
    let b = sim.use_model("b");
    let holds = [sim.open("c"), sim.open("d")];
    sim.end_request(&a);
    sim.finish_loads();
    assert!(sim.streams[&holds[0]].ready().is_some());
    assert!(sim.streams[&holds[1]].ready().is_none());
    assert_eq!(sim.states["b"], ModelState::Loaded);
    sim.end_request(&b);
    sim.finish_loads();
    assert!(sim.streams[&holds[1]].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_queued_load_nobody_waits_for_is_dropped_at_once() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.add_model(model("b", ModelType::Llm, 10));
    sim.use_model("a");
    let hold = sim.open("b");
    assert_eq!(sim.states["b"], ModelState::Loading);
    sim.close(&hold);
    assert_eq!(sim.states["b"], ModelState::Unloaded);
}

#[test]
fn a_running_load_nobody_waits_for_goes_only_when_its_room_is_needed_and_its_grace_is_over() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.add_model(model("b", ModelType::Llm, 10));
    let first = sim.open("a");
    sim.close(&first);
    sim.advance(Duration::from_secs(60));
    assert_eq!(sim.in_life(&Life::Loading).len(), 1, "nobody needs its room");
    let second = sim.open("b");
    sim.deliver_all();
    assert_eq!(sim.states["a"], ModelState::Unloaded, "{}", sim.tail());
    sim.finish_loads();
    assert!(sim.streams[&second].ready().is_some());

    let third = sim.open("a");
    sim.close(&second);
    sim.deliver_all();
    sim.finish_exits();
    assert_eq!(sim.loading().len(), 1);
    sim.close(&third);
    let fourth = sim.open("b");
    sim.advance(Duration::from_secs(9));
    assert_eq!(sim.in_life(&Life::Loading).len(), 1, "spared for its grace");
    assert!(sim.streams[&fourth].ready().is_none());
    sim.advance(Duration::from_secs(2));
    sim.finish_loads();
    assert!(sim.streams[&fourth].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_gateway_that_comes_back_keeps_its_hold() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let hold = sim.open("a");
    sim.finish_loads();
    sim.open_as(hold.clone(), "a");
    assert!(sim.streams[&hold].ready().is_some());
    let worker = &sim.workers["w"];
    assert!(
        worker
            .instances
            .values()
            .all(|instance| instance.holds.contains(&hold))
    );
    sim.close(&hold);
    let worker = &sim.workers["w"];
    assert!(
        worker
            .instances
            .values()
            .all(|instance| instance.holds.is_empty())
    );
}

#[test]
fn a_load_that_waits_for_another_s_last_answer_does_not_keep_later_loads_from_free_devices() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    for (worker, id) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, 100)]));
    }
    for (id, on) in [("first", "sim:a"), ("second", "sim:a"), ("third", "sim:b")] {
        let mut spec = model(id, ModelType::Llm, 60);
        spec.device = DeviceChoice::Device(on.into());
        sim.add_model(spec);
    }
    let answering = sim.use_model("first");
    sim.unload("first", UnloadHow::Drain);
    let second = sim.open("second");
    assert!(sim.loading().is_empty(), "its room is not free yet");
    let third = sim.open("third");
    sim.finish_loads();
    assert!(sim.streams[&third].ready().is_some(), "{}", sim.tail());
    assert!(sim.streams[&second].ready().is_none());
    sim.end_request(&answering);
    sim.finish_loads();
    assert!(sim.streams[&second].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_load_whose_room_was_promised_to_an_earlier_one_does_not_keep_later_loads_from_free_devices() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    for (worker, id) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, 100)]));
    }
    for (id, on, bytes) in [
        ("busy", "sim:a", 80),
        ("first", "sim:a", 70),
        ("second", "sim:a", 30),
        ("third", "sim:b", 60),
    ] {
        let mut spec = model(id, ModelType::Llm, bytes);
        spec.device = DeviceChoice::Device(on.into());
        sim.add_model(spec);
    }
    sim.use_model("busy");
    sim.open("first");
    // It fits beside the first load's claim once the busy model has gone, and not before.
    sim.open("second");
    let third = sim.open("third");
    sim.finish_loads();
    assert!(sim.streams[&third].ready().is_some(), "{}", sim.tail());
}
