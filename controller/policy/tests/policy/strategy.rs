//! `eviction = "cost_aware"`: who goes first when room is needed.

use std::time::Duration;

use muster_policy::{Config, DeviceKind, Eviction, ModelState, ModelType};

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
    sim.states[&id.into()] == ModelState::Loaded
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
