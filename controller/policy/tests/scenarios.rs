//! The seed's scenarios and the rules of DESIGN.md, one by one, against a simulated fleet.

#[cfg(test)]
mod sim;

use muster_policy::{ModelState, ModelType, Stage};
use sim::{Sim, config, limits, model};

#[test]
fn a_cold_model_loads_once_for_a_hundred_callers_and_all_become_ready() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let holds: Vec<_> = (0..100).map(|_| sim.open("a")).collect();
    sim.finish_loads();
    assert_eq!(sim.loads.len(), 1);
    for hold in &holds {
        assert!(sim.streams[hold].ready().is_some(), "{:?}", sim.streams[hold]);
    }
    assert_eq!(sim.states[&"a".into()], ModelState::Loaded);
    assert_eq!(sim.routes.len(), 1);
}

#[test]
fn a_full_slot_evicts_the_least_recently_used_of_its_type() {
    let mut sim = Sim::one_device(
        muster_policy::Config {
            limits: limits(2),
            ..config()
        },
        100,
    );
    for id in ["a", "b", "c"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    sim.add_model(model("e", ModelType::Embedding, 10));
    for id in ["a", "b", "e"] {
        sim.use_once(id);
    }
    sim.use_once("a");
    sim.use_once("c");
    assert_eq!(sim.states[&"b".into()], ModelState::Unloaded);
    for id in ["a", "c", "e"] {
        assert_eq!(sim.states[&id.into()], ModelState::Loaded, "{id}");
    }
}

#[test]
fn a_busy_model_is_not_evicted_and_the_load_waits() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.add_model(model("b", ModelType::Llm, 10));
    let busy = sim.use_model("a");
    let hold = sim.open("b");
    sim.finish_loads();
    assert!(matches!(
        sim.streams[&hold].last(),
        Some(Stage::Queued { position: 1, .. })
    ));
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(
        sim.streams[&hold].ready().is_some(),
        "{:?}\n{}",
        sim.streams[&hold],
        sim.tail()
    );
    assert_eq!(sim.states[&"a".into()], ModelState::Unloaded);
}
