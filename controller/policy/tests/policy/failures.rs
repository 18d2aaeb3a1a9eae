//! Failed loads and crashed engines (I7).

use std::time::Duration;

use muster_core::{Code, DeviceKind, ModelType};
use muster_policy::{Config, DeviceChoice, Event, FailureClass, LoadError, ModelState};

use crate::sim::{Life, Sim, config, device, facts, failure, model, unlimited};

/// A host with an idle and a busy model, on which `new` is loading.
fn loading_beside_others() -> (Sim, muster_core::InstanceId) {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        100,
    );
    sim.add_model(model("idle", ModelType::Embedding, 10));
    sim.add_model(model("busy", ModelType::Llm, 10));
    sim.add_model(model("new", ModelType::Llm, 10));
    sim.use_once("idle");
    let busy = sim.use_model("busy");
    (sim, busy)
}

fn fail_the_load(sim: &mut Sim, class: FailureClass) {
    let loading = sim.loading();
    assert_eq!(loading.len(), 1, "{}", sim.tail());
    sim.fail_load(&loading[0].0, &loading[0].1, class);
}

#[test]
fn an_engine_that_fails_evicts_everything_and_is_tried_exactly_once_more() {
    let (mut sim, busy) = loading_beside_others();
    let hold = sim.open("new");
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    sim.finish_exits();
    assert_eq!(sim.states["idle"], ModelState::Unloaded, "{}", sim.tail());
    assert_eq!(
        sim.states["busy"],
        ModelState::Loaded,
        "busy models are waited for"
    );
    assert!(sim.loading().is_empty());
    let other = sim.open("idle");
    sim.deliver_all();
    assert!(
        sim.loading().is_empty(),
        "nothing else loads on the host meanwhile"
    );
    sim.end_request(&busy);
    sim.finish_exits();
    assert_eq!(sim.states["busy"], ModelState::Unloaded);
    assert_eq!(sim.loading().len(), 1);
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::ModelLoadFailed)
    );
    assert!(matches!(sim.states["new"], ModelState::Failed(_)));
    sim.finish_loads();
    assert!(sim.streams[&other].ready().is_some(), "{}", sim.tail());
    assert_eq!(
        sim.loads
            .iter()
            .filter(|(_, _, model)| model.as_str() == "new")
            .count(),
        2
    );
}

#[test]
fn the_retry_may_succeed() {
    let (mut sim, busy) = loading_beside_others();
    let hold = sim.open("new");
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_missing_file_evicts_nothing_and_is_not_tried_again() {
    let (mut sim, _busy) = loading_beside_others();
    let hold = sim.open("new");
    fail_the_load(&mut sim, FailureClass::BeforeEngine);
    assert!(sim.streams[&hold].failed().is_some());
    assert_eq!(sim.in_life(&Life::Ready).len(), 2);
}

#[test]
fn automatic_loads_of_a_failed_model_are_refused_for_a_doubling_while_and_operators_are_not() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    for seconds in [5, 10, 20] {
        sim.open("a");
        fail_the_load(&mut sim, FailureClass::BeforeEngine);
        sim.advance(Duration::from_secs(seconds - 1));
        let hold = sim.open("a");
        assert_eq!(
            sim.streams[&hold].failed().map(LoadError::code),
            Some(Code::ModelFailed),
            "{seconds}"
        );
        sim.advance(Duration::from_secs(2));
    }
    fail_an_automatic_load_then_load_as_operator(&mut sim);
}

fn fail_an_automatic_load_then_load_as_operator(sim: &mut Sim) {
    sim.open("a");
    fail_the_load(sim, FailureClass::BeforeEngine);
    let call = sim.load("a");
    assert_eq!(
        sim.states["a"],
        ModelState::Loading,
        "last_error is cleared when the load starts"
    );
    sim.finish_loads();
    assert_eq!(sim.replies[&call], Ok(ModelState::Loaded));
}

#[test]
fn a_crash_ends_the_streams_that_held_it_and_the_next_request_loads_again() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let hold = sim.open("a");
    sim.finish_loads();
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::RuntimeCrashed)
    );
    assert!(matches!(sim.states["a"], ModelState::Failed(_)));
    assert!(sim.routes.is_empty());
    assert!(
        sim.workers[&worker].instances.is_empty(),
        "the tombstone was acknowledged"
    );
    sim.use_once("a");
}

/// Begins the only load's end, as workers do: unloading first.
fn begin_to_end_the_load(sim: &mut Sim, why: Option<FailureClass>) {
    let (worker, instance) = sim.loading().remove(0);
    let why = why.map(|class| failure(class, Code::LoadStalled));
    sim.begin_end(&worker, &instance, why);
}

#[test]
fn a_crash_that_is_first_reported_unloading_is_a_crash() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let hold = sim.open("a");
    sim.finish_loads();
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    let crash = failure(FailureClass::Crash, Code::RuntimeCrashed);
    sim.begin_end(&worker, &instance, Some(crash));
    let late = sim.open("a");
    sim.exit(&worker, &instance);
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::RuntimeCrashed)
    );
    assert_eq!(sim.loading().len(), 1, "no backoff: {}", sim.tail());
    sim.finish_loads();
    assert!(sim.streams[&late].ready().is_some());
    // With nobody waiting the model shows what happened.
    sim.close(&late);
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    let crash = failure(FailureClass::Crash, Code::RuntimeCrashed);
    sim.begin_end(&worker, &instance, Some(crash));
    sim.exit(&worker, &instance);
    assert!(matches!(sim.states["a"], ModelState::Failed(_)));
    sim.use_once("a");
}

#[test]
fn a_stalled_load_that_is_first_reported_unloading_is_tried_once_more_and_then_failed() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let call = sim.load("a");
    let hold = sim.open("a");
    for attempt in [1, 2] {
        assert_eq!(sim.loads.len(), attempt, "{}", sim.tail());
        begin_to_end_the_load(&mut sim, Some(FailureClass::EngineLoad));
        assert_eq!(sim.states["a"], ModelState::Loading);
        sim.finish_exits();
    }
    assert!(sim.loading().is_empty(), "{}", sim.tail());
    assert_eq!(
        sim.replies[&call].as_ref().map_err(LoadError::code),
        Err(Code::LoadStalled)
    );
    assert!(sim.streams[&hold].failed().is_some());
    assert!(matches!(sim.states["a"], ModelState::Failed(_)));
    let soon = sim.open("a");
    assert_eq!(
        sim.streams[&soon].failed().map(LoadError::code),
        Some(Code::ModelFailed)
    );
}

#[test]
fn a_load_that_somebody_at_the_host_ends_goes_back_into_the_queue() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.event(Event::PreloadRequested { model: "a".into() });
    begin_to_end_the_load(&mut sim, None);
    sim.finish_exits();
    assert_eq!(sim.loads.len(), 2, "the preload is not forgotten: {}", sim.tail());
    let call = sim.load("a");
    begin_to_end_the_load(&mut sim, None);
    sim.finish_loads();
    assert!(sim.replies[&call].is_ok());
    assert_eq!(sim.states["a"], ModelState::Loaded);
}

#[test]
fn a_load_whose_worker_shuts_down_goes_elsewhere() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let call = sim.load("a");
    let (worker, _) = sim.loading().remove(0);
    sim.workers.get_mut(&worker).unwrap().facts.draining = true;
    sim.event(Event::WorkerDraining {
        worker: worker.clone(),
        draining: true,
    });
    begin_to_end_the_load(&mut sim, None);
    sim.join(facts("x", "other", vec![device("sim:x", DeviceKind::Sim, 100)]));
    sim.finish_exits();
    sim.leave(&worker);
    sim.finish_loads();
    assert_eq!(sim.replies[&call], Ok(ModelState::Loaded), "{}", sim.tail());
}

#[test]
fn an_unload_that_meets_a_failing_load_ends_it_for_good() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let load = sim.load("a");
    begin_to_end_the_load(&mut sim, Some(FailureClass::EngineLoad));
    let unload = sim.unload("a", muster_policy::UnloadHow::DrainOrCancel);
    sim.finish_exits();
    assert!(sim.replies[&load].is_err());
    assert_eq!(sim.replies[&unload], Ok(ModelState::Unloaded));
    assert!(sim.loading().is_empty() && sim.loads.len() == 1);
}

#[test]
fn a_retry_waits_for_a_pinned_model_that_loads_though_nobody_wants_it_any_more() {
    let mut sim = Sim::new(config());
    sim.join(facts("w0", "h", vec![device("g0", DeviceKind::Gpu, 100)]));
    sim.join(facts("w1", "h", vec![device("g1", DeviceKind::Gpu, 100)]));
    sim.add_model(model("fails", ModelType::Llm, 80));
    sim.add_model(model("pinned", ModelType::Embedding, 80));
    let hold = sim.open("fails");
    let (worker, failing) = sim.loading().remove(0);
    let why = failure(FailureClass::EngineLoad, Code::ModelLoadFailed);
    sim.begin_end(&worker, &failing, Some(why));
    let other = sim.open("pinned");
    let (there, pinned) = sim.loading().remove(0);
    sim.close(&other);
    if let Some(spec) = sim.catalogue.get_mut("pinned") {
        spec.pinned = true;
    }
    sim.publish_catalogue();
    sim.exit(&worker, &failing);
    assert_eq!(sim.loading(), [(there.clone(), pinned.clone())], "{}", sim.tail());
    sim.finish_load(&there, &pinned);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// Two devices that busy models fill; `first` waits for either, and `second` loads on `sim:b`, in what `first` leaves free there.
fn loading_beside_a_claim() -> (Sim, [muster_core::InstanceId; 2], [muster_core::HoldId; 2]) {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    for (worker, id, bytes) in [("w0", "sim:a", 100), ("w1", "sim:b", 120)] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, bytes)]));
    }
    for (id, on, bytes) in [("busy-a", "sim:a", 60), ("busy-b", "sim:b", 60)] {
        let mut spec = model(id, ModelType::Llm, bytes);
        spec.device = DeviceChoice::Device(on.into());
        sim.add_model(spec);
    }
    let busy = ["busy-a", "busy-b"].map(|id| {
        sim.advance(Duration::from_secs(1));
        sim.use_model(id)
    });
    sim.add_model(model("first", ModelType::Llm, 70));
    let mut spec = model("second", ModelType::Llm, 60);
    spec.device = DeviceChoice::Device("sim:b".into());
    sim.add_model(spec);
    let holds = ["first", "second"].map(|id| sim.open(id));
    assert_eq!(sim.loading().len(), 1, "{}", sim.tail());
    (sim, busy, holds)
}

#[test]
fn a_load_that_failed_is_tried_again_though_an_earlier_one_could_claim_its_place() {
    let (mut sim, busy, [first, second]) = loading_beside_a_claim();
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    for busy in &busy {
        sim.end_request(busy);
    }
    sim.finish_loads();
    let attempts = |id: &str| {
        sim.loads
            .iter()
            .filter(|(_, _, model)| model.as_str() == id)
            .count()
    };
    assert_eq!(attempts("second"), 2, "{}", sim.tail());
    assert!(sim.streams[&second].ready().is_some(), "{}", sim.tail());
    assert!(sim.streams[&first].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_load_that_failed_is_tried_again_elsewhere_if_its_worker_takes_no_more_loads() {
    let (mut sim, busy, [first, second]) = loading_beside_a_claim();
    sim.join(facts("w2", "other", vec![device("sim:b", DeviceKind::Sim, 65)]));
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    sim.workers.get_mut("w1").unwrap().facts.draining = true;
    sim.event(Event::WorkerDraining {
        worker: "w1".into(),
        draining: true,
    });
    sim.finish_loads();
    assert!(sim.streams[&second].ready().is_some(), "{}", sim.tail());
    assert_eq!(sim.loads.last().unwrap().0.as_str(), "w2");
    for busy in &busy {
        sim.end_request(busy);
    }
    sim.finish_loads();
    assert!(sim.streams[&first].ready().is_some(), "{}", sim.tail());
}

/// Found by the same property: there was room on a host that was closed for another load's second attempt, and a load waited there, for requests
/// that never end, though on another host an idle model would have gone for it.
#[test]
fn a_host_closed_for_a_second_attempt_attracts_no_load_that_can_begin_elsewhere() {
    let (mut sim, _busy) = loading_beside_others();
    sim.join(facts("w2", "other", vec![device("sim:b", DeviceKind::Sim, 15)]));
    let mut there = model("there", ModelType::Llm, 10);
    there.device = DeviceChoice::Device("sim:b".into());
    sim.add_model(there);
    sim.use_once("there");
    let hold = sim.open("new");
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    sim.finish_exits();
    assert!(
        sim.loading().is_empty(),
        "it waits for the busy one: {}",
        sim.tail()
    );
    sim.add_model(model("next", ModelType::Llm, 10));
    let next = sim.open("next");
    sim.finish_loads();
    assert!(sim.streams[&next].ready().is_some(), "{}", sim.tail());
    assert_eq!(sim.loads.last().unwrap().0.as_str(), "w2");
    assert!(sim.streams[&hold].ready().is_none());
}

/// Found by `loads_begin_by_the_clock_alone_though_some_requests_never_end`: the first of two second attempts was given up, and another load
/// began before the other one had the host.
#[test]
fn the_next_second_attempt_has_the_host_when_the_first_is_given_up() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        max_concurrent_loads: std::num::NonZeroU32::new(2).unwrap(),
        max_eviction_wait: Some(Duration::from_secs(3)),
        max_drain: Some(Duration::from_secs(4)),
        ..config()
    });
    for (worker, id) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, 100)]));
    }
    for (id, on) in [
        ("busy", "sim:a"),
        ("first", "sim:a"),
        ("second", "sim:b"),
        ("later", "sim:b"),
    ] {
        let mut spec = model(id, ModelType::Llm, 20);
        spec.device = DeviceChoice::Device(on.into());
        sim.add_model(spec);
    }
    sim.use_model("busy");
    let failing = ["first", "second"].map(|id| sim.open(id));
    for (worker, instance) in sim.loading() {
        sim.fail_load(&worker, &instance, FailureClass::EngineLoad);
    }
    let later = sim.open("later");
    sim.advance(Duration::from_secs(8));
    assert!(sim.streams[&failing[0]].failed().is_some(), "{}", sim.tail());
    assert!(sim.streams[&failing[1]].failed().is_none() && sim.loading().is_empty());
    sim.advance(Duration::from_secs(8));
    assert!(sim.streams[&failing[1]].failed().is_some(), "{}", sim.tail());
    sim.finish_loads();
    assert!(sim.streams[&later].ready().is_some(), "{}", sim.tail());
}

/// Issue 11: the second attempt did not ask where the load came from.
#[test]
fn a_preload_whose_engine_fails_evicts_nobody() {
    let (mut sim, busy) = loading_beside_others();
    sim.end_request(&busy);
    sim.event(Event::PreloadRequested { model: "new".into() });
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    sim.advance(Duration::from_secs(60));
    sim.finish_loads();
    for id in ["idle", "busy"] {
        assert_eq!(sim.states[id], ModelState::Loaded, "{}", sim.tail());
    }
    assert!(matches!(sim.states["new"], ModelState::Failed(_)));
    assert!(!sim.decisions.iter().any(|d| d.starts_with("evicting")));
}

#[test]
fn a_preload_that_somebody_waits_for_by_now_is_tried_again_when_its_engine_fails() {
    let (mut sim, busy) = loading_beside_others();
    sim.end_request(&busy);
    sim.event(Event::PreloadRequested { model: "new".into() });
    let hold = sim.open("new");
    fail_the_load(&mut sim, FailureClass::EngineLoad);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// Issue 11: idle neighbours of a load that was being cancelled were unloaded while its engine was still there (PROTOCOL 13).
#[test]
fn a_second_attempt_unloads_nobody_beside_a_load_that_is_being_cancelled() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        max_concurrent_loads: std::num::NonZeroU32::new(2).unwrap(),
        ..config()
    });
    for (worker, id) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(id, DeviceKind::Sim, 100)]));
    }
    for (id, on) in [("fails", "sim:a"), ("idle", "sim:b"), ("abandoned", "sim:b")] {
        let mut spec = model(id, ModelType::Llm, 20);
        spec.device = DeviceChoice::Device(on.into());
        sim.add_model(spec);
    }
    sim.use_once("idle");
    let abandoned = sim.open("abandoned");
    sim.close(&abandoned);
    sim.advance(sim.config.abandon_grace);
    let hold = sim.open("fails");
    let failing = sim
        .loading()
        .into_iter()
        .find(|(worker, _)| worker.as_str() == "w0");
    let (worker, failing) = failing.unwrap();
    sim.instant = false;
    sim.fail_load(&worker, &failing, FailureClass::EngineLoad);
    sim.deliver_up(&worker);
    let sent = |sim: &Sim| {
        let down = sim.workers["w1"].down.iter();
        down.map(|(_, _, command)| format!("{command:?}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(sent(&sim), ["CancelLoad"], "{}", sim.tail());
    sim.instant = true;
    sim.deliver_all();
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    assert_eq!(sim.states["idle"], ModelState::Unloaded);
}
