//! `eviction = "cost_aware"`: who goes first when room is needed.

use std::time::Duration;

use muster_core::{DeviceKind, ModelType};
use muster_policy::{Config, Eviction, ModelState};

use crate::sim::{Sim, config, device, facts, limits, model, unlimited};

const LATER: Duration = Duration::from_secs(600);

fn cost_aware() -> Config {
    Config {
        eviction: Eviction::CostAware,
        limits: unlimited(),
        ..config()
    }
}

fn loaded(sim: &Sim, id: &str) -> bool {
    sim.states[id] == ModelState::Loaded
}

/// Uses a model once in each of several conversations.
fn converse(sim: &mut Sim, id: &str, times: usize) {
    for _ in 0..times {
        sim.use_once(id);
        sim.advance(LATER);
    }
}

#[test]
fn the_model_in_frequent_use_outlasts_the_one_used_last() {
    for (eviction, stays, goes) in [
        (Eviction::CostAware, "often", "once"),
        (Eviction::Lru, "once", "often"),
    ] {
        let mut sim = Sim::one_device(
            Config {
                eviction,
                ..cost_aware()
            },
            100,
        );
        for id in ["often", "once", "new"] {
            sim.add_model(model(id, ModelType::Llm, 40));
        }
        converse(&mut sim, "often", 5);
        converse(&mut sim, "once", 1);
        sim.use_once("new");
        assert!(
            loaded(&sim, stays) && !loaded(&sim, goes),
            "{eviction:?}\n{}",
            sim.tail()
        );
    }
}

#[test]
fn many_requests_of_one_conversation_are_one_use() {
    let mut sim = Sim::one_device(cost_aware(), 100);
    for id in ["talkative", "often", "new"] {
        sim.add_model(model(id, ModelType::Llm, 40));
    }
    for _ in 0..20 {
        sim.use_once("talkative");
        sim.advance(Duration::from_secs(10));
    }
    converse(&mut sim, "often", 3);
    sim.use_once("new");
    assert!(
        loaded(&sim, "often") && !loaded(&sim, "talkative"),
        "{}",
        sim.tail()
    );
}

#[test]
fn the_larger_of_two_equally_used_models_goes() {
    let mut sim = Sim::one_device(cost_aware(), 100);
    sim.add_model(model("small", ModelType::Llm, 10));
    sim.add_model(model("large", ModelType::Llm, 80));
    sim.add_model(model("new", ModelType::Llm, 20));
    sim.use_once("small");
    sim.use_once("large");
    sim.advance(LATER);
    sim.use_once("new");
    assert!(loaded(&sim, "small") && !loaded(&sim, "large"), "{}", sim.tail());
}

#[test]
fn a_conversation_that_goes_on_is_worth_more_than_frequent_use() {
    let mut sim = Sim::one_device(cost_aware(), 100);
    for id in ["often", "talking", "new"] {
        sim.add_model(model(id, ModelType::Llm, 40));
    }
    converse(&mut sim, "often", 5);
    sim.use_once("talking");
    sim.advance(Duration::from_secs(30));
    sim.use_once("new");
    assert!(
        loaded(&sim, "talking") && !loaded(&sim, "often"),
        "{}",
        sim.tail()
    );
}

#[test]
fn a_slot_goes_to_whom_the_order_says() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            ..cost_aware()
        },
        1_000,
    );
    for id in ["often", "once", "new"] {
        sim.add_model(model(id, ModelType::Llm, 40));
    }
    converse(&mut sim, "often", 5);
    converse(&mut sim, "once", 1);
    sim.use_once("new");
    assert!(loaded(&sim, "often") && !loaded(&sim, "once"), "{}", sim.tail());
}

#[test]
fn taste_that_changes_is_followed() {
    let mut sim = Sim::one_device(cost_aware(), 100);
    for id in ["former", "present", "new"] {
        sim.add_model(model(id, ModelType::Llm, 40));
    }
    converse(&mut sim, "former", 6);
    // Half-lives go by in uses of others: three known models, four uses each.
    converse(&mut sim, "present", 40);
    sim.use_once("new");
    assert!(
        loaded(&sim, "present") && !loaded(&sim, "former"),
        "{}",
        sim.tail()
    );
}

/// Somebody waits for either of them.
#[test]
fn of_two_whose_loads_take_as_long_for_each_byte_the_larger_one_goes() {
    let mut sim = Sim::one_device(cost_aware(), 100);
    for (id, bytes) in [("small", 30), ("large", 60), ("new", 20)] {
        sim.add_model(model(id, ModelType::Llm, bytes));
    }
    for (id, load) in [("small", 3), ("large", 6)] {
        let hold = sim.open(id);
        sim.advance(Duration::from_secs(load));
        sim.finish_loads();
        sim.close(&hold);
        sim.advance(LATER);
    }
    sim.advance(LATER);
    sim.use_once("new");
    assert!(loaded(&sim, "small") && !loaded(&sim, "large"), "{}", sim.tail());
}

#[test]
fn a_pause_that_grows_long_is_worth_less_than_frequent_use() {
    for (pause, stays, goes) in [(30, "talking", "often"), (80, "often", "talking")] {
        let mut sim = Sim::one_device(cost_aware(), 100);
        for id in ["often", "talking", "new", "rare-1", "rare-2", "rare-3"] {
            sim.add_model(model(id, ModelType::Llm, 40));
        }
        for id in ["rare-1", "rare-2", "rare-3"] {
            converse(&mut sim, id, 1);
        }
        converse(&mut sim, "often", 12);
        sim.use_once("talking");
        sim.advance(Duration::from_secs(pause));
        sim.use_once("new");
        assert!(
            loaded(&sim, stays) && !loaded(&sim, goes),
            "after {pause} s\n{}",
            sim.tail()
        );
    }
}

#[test]
fn room_is_made_where_least_is_lost_altogether() {
    let mut sim = Sim::new(cost_aware());
    for (worker, id) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, 60)]));
    }
    // For each byte the large one is worth less, as a whole it is worth more.
    for (id, bytes) in [("large", 60), ("small", 40), ("new", 40)] {
        sim.add_model(model(id, ModelType::Llm, bytes));
    }
    converse(&mut sim, "large", 4);
    converse(&mut sim, "small", 3);
    sim.use_once("new");
    assert!(loaded(&sim, "large") && !loaded(&sim, "small"), "{}", sim.tail());
}

#[test]
fn a_slot_goes_by_what_is_lost_whatever_its_bytes() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            ..cost_aware()
        },
        1_000,
    );
    for (id, bytes) in [("large", 80), ("small", 10), ("new", 10)] {
        sim.add_model(model(id, ModelType::Llm, bytes));
    }
    converse(&mut sim, "large", 3);
    converse(&mut sim, "small", 1);
    sim.use_once("new");
    assert!(loaded(&sim, "large") && !loaded(&sim, "small"), "{}", sim.tail());
}

#[test]
fn a_night_without_uses_changes_nothing() {
    let mut sim = Sim::one_device(cost_aware(), 100);
    for id in ["often", "once", "new"] {
        sim.add_model(model(id, ModelType::Llm, 40));
    }
    converse(&mut sim, "often", 5);
    converse(&mut sim, "once", 1);
    sim.advance(Duration::from_secs(12 * 3600));
    sim.use_once("once");
    sim.advance(LATER);
    sim.use_once("new");
    assert!(loaded(&sim, "often") && !loaded(&sim, "once"), "{}", sim.tail());
}

/// Found by `every_history_of_a_wide_fleet_keeps_the_rules_and_ends`: one replica's use made the model worth more, the other's worth was
/// still read as before (the ledger is compared after every step).
#[test]
fn the_use_of_one_replica_is_noticed_for_all() {
    let mut sim = Sim::new(cost_aware());
    for (worker, id) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, 100)]));
    }
    let mut twins = model("twins", ModelType::Llm, 40);
    twins.replicas = std::num::NonZeroU32::new(2).unwrap();
    sim.add_model(twins);
    let used = sim.use_once("twins");
    let worker = sim.worker_of(&used).unwrap();
    sim.advance(Duration::from_secs(200));
    sim.start_request(&worker, &used);
    sim.flush_touches(&worker);
    sim.end_request(&used);
    sim.advance(Duration::from_secs(200));
    let now = sim.now;
    let touched = sim
        .workers
        .get_mut(&worker)
        .unwrap()
        .instances
        .get_mut(&used)
        .unwrap();
    touched.touch_seq += 1;
    touched.touched_at = now;
    sim.flush_touches(&worker);
}
