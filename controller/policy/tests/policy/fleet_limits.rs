//! A limit of models per type over all hosts, beside the limit of each (I2).

use std::time::Duration;

use muster_core::{Code, DeviceKind, ModelType};
use muster_policy::{Config, FailureClass, LoadError, ModelState, Verdict};

use crate::sim::{Life, Sim, config, device, facts, limits, model, unlimited};

/// Three hosts with room for everything, of which the fleet takes two models of a type.
fn three_hosts() -> Sim {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        fleet_limits: limits(2),
        ..config()
    });
    for n in 0..3 {
        let device = device("sim:a", DeviceKind::Sim, 1000);
        sim.join(facts(&format!("w{n}"), &format!("h{n}"), vec![device]));
    }
    for id in ["a", "b", "c", "d"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    sim
}

fn use_in_turn(sim: &mut Sim, models: &[&str]) {
    for model in models {
        sim.advance(Duration::from_secs(1));
        sim.use_once(model);
    }
}

fn loaded(sim: &Sim) -> Vec<&str> {
    let loaded = sim
        .states
        .iter()
        .filter(|(_, state)| **state == ModelState::Loaded);
    loaded.map(|(model, _)| model.as_str()).collect()
}

#[test]
fn the_least_recently_used_model_of_the_fleet_goes_wherever_it_is() {
    let mut sim = three_hosts();
    sim.catalogue.get_mut("c").unwrap().workers = ["w2".into()].into();
    sim.publish_catalogue();
    use_in_turn(&mut sim, &["a", "b", "a", "c"]);
    assert_eq!(loaded(&sim), ["a", "c"], "{}", sim.tail());
    let places: Vec<&str> = sim.loads.iter().map(|(worker, ..)| worker.as_str()).collect();
    assert_eq!(places, ["w0", "w1", "w2"], "what went was on another host");
}

#[test]
fn other_types_have_limits_of_their_own() {
    let mut sim = three_hosts();
    sim.add_model(model("words", ModelType::Embedding, 10));
    use_in_turn(&mut sim, &["a", "b", "words"]);
    assert_eq!(loaded(&sim), ["a", "b", "words"]);
}

#[test]
fn a_busy_model_elsewhere_is_waited_for_and_a_pinned_one_refuses_the_load() {
    let mut sim = three_hosts();
    let busy = [sim.use_model("a"), sim.use_model("b")];
    let waits = sim.open("c");
    assert!(sim.loading().is_empty(), "both are busy");
    assert!(
        matches!(sim.explain("c", 1).unwrap().verdict, Verdict::WaitForBusy(models) if models == ["a".into()])
    );
    let behind = sim.open("d");
    sim.end_request(&busy[1]);
    sim.finish_loads();
    assert!(sim.streams[&waits].ready().is_some(), "{}", sim.tail());
    assert!(
        sim.streams[&behind].ready().is_none(),
        "there is one place for two"
    );
    sim.close(&waits);
    sim.end_request(&busy[0]);
    sim.finish_loads();
    assert!(sim.streams[&behind].ready().is_some(), "{}", sim.tail());
    sim.close(&behind);
    for id in ["a", "d"] {
        sim.catalogue.get_mut(id).unwrap().pinned = true;
    }
    sim.publish_catalogue();
    assert_eq!(loaded(&sim), ["a", "d"]);
    let refused = sim.open("b");
    assert_eq!(
        sim.streams[&refused].failed().map(LoadError::code),
        Some(Code::SlotsPinned)
    );
}

#[test]
fn a_second_attempt_makes_its_room_in_the_fleet_again() {
    let mut sim = three_hosts();
    use_in_turn(&mut sim, &["a"]);
    let hold = sim.open("b");
    let (worker, instance) = sim.loading().remove(0);
    let other = sim.open("c");
    sim.fail_load(&worker, &instance, FailureClass::EngineLoad);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    assert!(sim.in_life(&Life::Ready).len() <= 2);
    sim.close(&hold);
    sim.finish_loads();
    assert!(sim.streams[&other].ready().is_some(), "{}", sim.tail());
}
