//! What policy says it would do is what it does (`Control.Explain`).

use std::time::Duration;

use muster_core::{Bytes, DeviceKind, ModelType};
use muster_policy::{
    Config, DeviceChoice, EvictionRule, LoadError, ModelState, Obstruction, Verdict, VictimStanding,
};

use crate::sim::{Sim, config, device, facts, limits, model, need, unlimited};

fn two_hosts() -> Sim {
    let mut sim = Sim::new(config());
    for host in ["h0", "h1"] {
        sim.join(facts(host, host, vec![device("sim:a", DeviceKind::Sim, 100)]));
    }
    for id in ["a", "b", "c", "d"] {
        sim.add_model(model(id, ModelType::Llm, 60));
    }
    sim
}

#[test]
fn a_free_place_and_then_the_least_recently_used_victim_is_named() {
    let mut sim = two_hosts();
    let said = sim.explain("a", 10).unwrap();
    assert_eq!((said.verdict, said.state), (Verdict::Load, ModelState::Unloaded));
    assert_eq!(said.places.len(), 2);
    let part = &said.places[0].parts[0];
    assert_eq!(
        (part.wanted, part.capacity, part.possible),
        (Bytes::new(60), Bytes::new(100), Bytes::new(100))
    );
    let chosen = said.places[0].worker.clone();
    assert!(said.places[0].chosen && !said.places[1].chosen);
    sim.use_once("a");
    assert_eq!(sim.loads[0].0, chosen, "what was said is done");

    sim.use_once("b");
    let said = sim.explain("c", 1).unwrap();
    assert_eq!(said.verdict, Verdict::Evict(vec!["a".into()]));
    assert_eq!(said.more, 1);
    let victim = &said.places[0].victims[0];
    assert_eq!(
        (victim.rule, victim.standing),
        (EvictionRule::TypeSlot, VictimStanding::Idle)
    );
    let before = format!("{:?}", sim.fleet.instances());
    assert_eq!(
        before,
        format!("{:?}", sim.fleet.instances()),
        "asking changes nothing"
    );
    sim.use_once("c");
    assert_eq!(sim.states["a"], ModelState::Unloaded);
    let here = sim.explain("c", 1).unwrap();
    assert!(matches!(here.verdict, Verdict::Here(instances) if instances.len() == 1));
    assert!(sim.explain("nobody", 1).is_none());
}

#[test]
fn busy_and_queued_and_pinned_and_hopeless_are_told_apart() {
    let mut sim = Sim::one_device(config(), 100);
    for id in ["a", "b", "c"] {
        sim.add_model(model(id, ModelType::Llm, 60));
    }
    sim.add_model(model("huge", ModelType::Llm, 500));
    let busy = sim.use_model("a");
    let said = sim.explain("b", 5).unwrap();
    assert_eq!(said.verdict, Verdict::WaitForBusy(vec!["a".into()]));
    assert_eq!(
        said.places[0].victims[0].standing,
        VictimStanding::Busy { at_least: None }
    );

    sim.open("b");
    let said = sim.explain("c", 5).unwrap();
    assert_eq!(said.verdict, Verdict::WaitForClaims(vec!["b".into()]));
    assert_eq!(
        said.places[0].obstruction,
        Some(Obstruction::Claims(vec!["b".into()]))
    );
    let said = sim.explain("b", 5).unwrap();
    assert_eq!(
        (said.queue_position, said.verdict),
        (Some(1), Verdict::WaitForBusy(vec!["a".into()]))
    );

    let said = sim.explain("huge", 5).unwrap();
    let Verdict::Refuse(LoadError::InsufficientMemory { wanted, possible, .. }) = said.verdict else {
        panic!("{said:?}");
    };
    assert_eq!((wanted, possible), (Bytes::new(500), Bytes::new(100)));
    sim.end_request(&busy);
    sim.finish_loads();
}

#[test]
fn a_pinned_model_and_one_that_must_stay_for_a_while_are_named() {
    let mut sim = Sim::one_device(
        Config {
            min_residency: Duration::from_secs(20),
            limits: limits(1),
            ..config()
        },
        100,
    );
    for id in ["a", "b"] {
        sim.add_model(model(id, ModelType::Llm, 60));
    }
    sim.use_once("a");
    sim.advance(Duration::from_secs(5));
    let said = sim.explain("b", 5).unwrap();
    let VictimStanding::Busy { at_least: Some(left) } = said.places[0].victims[0].standing else {
        panic!("{said:?}");
    };
    assert!(
        left < Duration::from_secs(15) && left > Duration::from_secs(14),
        "{left:?}"
    );
    sim.catalogue.get_mut("a").unwrap().pinned = true;
    sim.publish_catalogue();
    let said = sim.explain("b", 5).unwrap();
    assert!(matches!(
        said.verdict,
        Verdict::Refuse(LoadError::SlotsPinned { .. })
    ));
    assert_eq!(
        said.places[0].obstruction,
        Some(Obstruction::Pinned(vec!["a".into()]))
    );
}

#[test]
fn nobody_is_said_to_go_where_that_would_not_be_enough() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    let gpus = ["g0", "g1"].map(|id| device(id, DeviceKind::Gpu, 100));
    sim.join(facts("w", "h", gpus.into()));
    for (id, on, bytes) in [("idle", "g0", 50), ("pinned", "g1", 50)] {
        let mut spec = model(id, ModelType::Llm, bytes);
        spec.device = DeviceChoice::Device(on.into());
        spec.pinned = id == "pinned";
        sim.add_model(spec);
        sim.use_once(id);
    }
    let mut split = model("split", ModelType::Llm, 0);
    split.needs = vec![need(&[(DeviceKind::Gpu, 80), (DeviceKind::Gpu, 80)])];
    sim.add_model(split);
    let said = sim.explain("split", 5).unwrap();
    assert_eq!(said.places.len(), 2);
    for place in &said.places {
        assert!(
            place.obstruction.is_some() && place.victims.is_empty(),
            "{place:?}"
        );
        assert_eq!(place.parts.len(), 2);
    }
}
