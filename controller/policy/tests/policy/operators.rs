//! Operators' loads and unloads (gateway/README.md, Runtime Admin API).

use muster_core::{Code, InstanceId, ModelType};
use muster_policy::{
    Command, DoneState, Effect, Event, LoadError, ModelState, Outcome, Report, RouteState, UnloadHow,
};

use crate::sim::{Life, Sim, config, model};

fn one_model() -> Sim {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.add_model(model("b", ModelType::Llm, 10));
    sim
}

fn code(reply: &Result<ModelState, LoadError>) -> &'static str {
    reply
        .as_ref()
        .map_or_else(|error| error.code().as_str(), |_| "ok")
}

#[test]
fn a_load_is_answered_when_it_is_over_and_is_idempotent() {
    let mut sim = one_model();
    let first = sim.load("a");
    assert!(!sim.replies.contains_key(&first));
    let second = sim.load("a");
    assert_eq!(sim.replies[&second], Ok(ModelState::Loading));
    sim.finish_loads();
    assert_eq!(sim.replies[&first], Ok(ModelState::Loaded));
    let third = sim.load("a");
    assert_eq!(sim.replies[&third], Ok(ModelState::Loaded));
    assert_eq!(sim.loads.len(), 1);
    let unknown = sim.load("nobody");
    assert_eq!(code(&sim.replies[&unknown]), "unknown_model");
}

#[test]
fn overrides_are_refused_while_loading_or_loaded() {
    let mut sim = one_model();
    let ask = |sim: &mut Sim| {
        let request = sim.request();
        let overrides = Some(model("a", ModelType::Llm, 20));
        sim.event(Event::LoadRequested {
            request: request.clone(),
            model: "a".into(),
            overrides,
        });
        request
    };
    let first = ask(&mut sim);
    let while_loading = ask(&mut sim);
    assert_eq!(code(&sim.replies[&while_loading]), "model_loading");
    sim.finish_loads();
    assert_eq!(code(&sim.replies[&first]), "ok");
    assert_eq!(sim.fleet.devices()[0].reserved.get(), 20);
    let while_loaded = ask(&mut sim);
    assert_eq!(code(&sim.replies[&while_loaded]), "invalid_load_request");
}

#[test]
fn an_unload_waits_for_running_work_and_a_second_one_is_answered_at_once() {
    let mut sim = one_model();
    let a = sim.use_model("a");
    let first = sim.unload("a", UnloadHow::Drain);
    let second = sim.unload("a", UnloadHow::Drain);
    assert!(!sim.replies.contains_key(&first));
    assert_eq!(sim.replies[&second], Ok(ModelState::Unloading));
    let hold = sim.open("a");
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::ModelUnloading)
    );
    let load = sim.load("a");
    assert_eq!(code(&sim.replies[&load]), "model_unloading");
    sim.end_request(&a);
    sim.finish_exits();
    assert_eq!(sim.replies[&first], Ok(ModelState::Unloaded));
    let third = sim.unload("a", UnloadHow::Drain);
    assert_eq!(sim.replies[&third], Ok(ModelState::Unloaded));
}

/// A delete unloads so, and must not find what it waits for half gone.
#[test]
fn an_unload_that_may_cancel_waits_for_one_that_is_under_way() {
    let mut sim = one_model();
    let a = sim.use_model("a");
    let first = sim.unload("a", UnloadHow::Drain);
    let second = sim.unload("a", UnloadHow::DrainOrCancel);
    assert!(!sim.replies.contains_key(&second));
    sim.end_request(&a);
    sim.finish_exits();
    for request in [first, second] {
        assert_eq!(sim.replies[&request], Ok(ModelState::Unloaded));
    }
}

/// An outcome and a report come in no order between them: what was reported before the end once brought the instance back.
#[test]
fn what_a_worker_reported_before_an_end_that_is_known_brings_nothing_back() {
    let mut sim = one_model();
    sim.load("a");
    sim.finish_loads();
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    let late = sim.status(&worker, &instance);
    let gone = Outcome::Done {
        state: DoneState::Gone,
        touch_seq: 1,
    };
    sim.stubborn.insert(worker.clone(), gone);
    let unload = sim.unload("a", UnloadHow::Drain);
    assert_eq!(sim.replies[&unload], Ok(ModelState::Unloaded));
    sim.stubborn.clear();
    let report = Report {
        instances: vec![late],
        ..Report::default()
    };
    let heard = Event::WorkerReported {
        worker: worker.clone(),
        report,
    };
    sim.event(heard);
    assert_eq!(sim.fleet.model("a").unwrap().state, ModelState::Unloaded);
    // A new session says how things are.
    sim.lose(&worker);
    sim.connect(&worker);
    assert_eq!(sim.fleet.model("a").unwrap().state, ModelState::Loaded);
}

#[test]
fn force_ends_running_work() {
    let mut sim = one_model();
    sim.use_model("a");
    let drain = sim.unload("a", UnloadHow::Drain);
    let force = sim.unload("a", UnloadHow::Force);
    sim.finish_exits();
    assert_eq!(sim.replies[&drain], Ok(ModelState::Unloaded));
    assert_eq!(sim.replies[&force], Ok(ModelState::Unloaded));
}

#[test]
fn an_unload_while_loading_is_refused_unless_it_may_cancel() {
    let mut sim = one_model();
    let hold = sim.open("a");
    let refused = sim.unload("a", UnloadHow::Drain);
    assert_eq!(code(&sim.replies[&refused]), "model_loading");
    let cancelled = sim.unload("a", UnloadHow::DrainOrCancel);
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::LoadCancelled)
    );
    assert_eq!(sim.replies[&cancelled], Ok(ModelState::Unloaded));
    assert!(sim.loading().is_empty());
}

#[test]
fn a_cancelled_load_that_became_ready_meanwhile_is_unloaded() {
    let mut sim = one_model();
    sim.open("a");
    sim.instant = false;
    let call = sim.unload("a", UnloadHow::DrainOrCancel);
    sim.finish_load(&"w".into(), &sim.loading()[0].1.clone());
    sim.instant = true;
    sim.deliver_all();
    sim.finish_exits();
    assert_eq!(sim.replies[&call], Ok(ModelState::Unloaded), "{}", sim.tail());
}

#[test]
fn pinned_models_are_unloaded_by_operators() {
    let mut sim = Sim::one_device(config(), 100);
    let mut pinned = model("a", ModelType::Llm, 10);
    pinned.pinned = true;
    sim.add_model(pinned);
    sim.use_once("a");
    let call = sim.unload("a", UnloadHow::Drain);
    sim.finish_exits();
    assert_eq!(sim.replies[&call], Ok(ModelState::Unloaded));
}

#[test]
fn an_operators_load_survives_its_caller_and_may_evict() {
    let mut sim = one_model();
    let hold = sim.open("a");
    sim.load("a");
    sim.close(&hold);
    sim.finish_loads();
    assert_eq!(sim.states["a"], ModelState::Loaded);
    let call = sim.load("b");
    sim.finish_loads();
    assert_eq!(sim.replies[&call], Ok(ModelState::Loaded));
    assert_eq!(sim.states["a"], ModelState::Unloaded);
}

#[test]
fn preloads_fill_what_is_free_in_order_and_never_evict() {
    let mut sim = one_model();
    for id in ["a", "b"] {
        sim.event(Event::PreloadRequested { model: id.into() });
    }
    sim.finish_loads();
    assert_eq!(sim.states["a"], ModelState::Loaded);
    assert_eq!(sim.states["b"], ModelState::Unloaded);
    assert!(sim.decisions.iter().any(|d| d.starts_with("load_refused b")));
}

#[test]
fn a_model_that_left_the_catalogue_finishes_what_it_has_and_goes() {
    let mut sim = one_model();
    let a = sim.use_model("a");
    sim.catalogue.remove("a");
    sim.publish_catalogue();
    assert_eq!(
        sim.routes[&a].2,
        RouteState::Draining,
        "nothing new is sent there"
    );
    let hold = sim.open("a");
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::UnknownModel)
    );
    assert_eq!(sim.in_life(&Life::Ready).len(), 1, "its work is finished");
    sim.end_request(&a);
    sim.finish_exits();
    assert!(sim.workers["w"].instances.is_empty(), "{}", sim.tail());
    assert!(sim.decisions.iter().any(|d| d.starts_with("not_in_catalogue a ")));
    assert!(sim.fleet.models().iter().all(|model| model.id.as_str() != "a"));
}

#[test]
fn an_idle_model_of_an_earlier_catalogue_goes_when_its_worker_joins() {
    let mut sim = one_model();
    sim.use_once("a");
    sim.catalogue.remove("a");
    sim.restart_controller();
    sim.connect(&"w".into());
    sim.finish_exits();
    assert!(sim.workers["w"].instances.is_empty(), "{}", sim.tail());
}

#[test]
fn a_changed_entry_changes_no_other() {
    let mut sim = one_model();
    let a = sim.use_model("a");
    sim.end_request(&a);
    let mut ids = || -> InstanceId { panic!("nothing is loaded") };
    let mut pinned = sim.catalogue["a"].clone();
    pinned.pinned = true;
    let new = model("new", ModelType::Llm, 1);
    let models = vec![pinned, new];
    let event = Event::ModelsChanged { models };
    let effects = sim.fleet.step(sim.now, event, &mut ids);
    let told = effects.iter().any(|effect| {
        matches!(effect, Effect::Command { command: Command::SetAttributes { .. }, instance, .. } if *instance == a)
    });
    assert!(told, "its worker keeps the pin: {effects:?}");
    let known = sim.fleet.models();
    let state = |id: &str| {
        known
            .iter()
            .find(|model| model.id.as_str() == id)
            .map(|model| model.state.clone())
    };
    assert_eq!(state("a"), Some(ModelState::Loaded));
    assert_eq!(state("new"), Some(ModelState::Unloaded));
    assert_eq!(
        state("b"),
        Some(ModelState::Unloaded),
        "whoever is not named stays"
    );
}

/// What is under way when the operator cancels.
#[derive(Debug, Clone, Copy)]
enum UnderWay {
    Load,
    /// Nobody waits for the load, and policy cancels it already.
    Abandoned,
    /// Its worker reports a state that this controller does not know.
    Opaque,
    /// It is loaded.
    Service,
    /// Somebody at its host unloads it, and gives that up.
    Drain,
}

/// The operator cancels, so many messages pass, and the session is lost or fenced by the next one of the same boot; the engine goes on.
fn cancelled_before_the_session_ends(under_way: UnderWay, how: UnloadHow, passed: usize, fenced: bool) {
    let mut sim = one_model();
    let worker = "w".into();
    let hold = sim.open("a");
    let (_, instance) = sim.loading().remove(0);
    match under_way {
        UnderWay::Load => {}
        UnderWay::Abandoned => {
            sim.close(&hold);
            sim.advance(sim.config.abandon_grace);
            sim.instant = false;
            sim.open("b");
        }
        UnderWay::Opaque => sim.report_unknown_state(&worker, &instance),
        UnderWay::Service => sim.finish_loads(),
        UnderWay::Drain => {
            sim.finish_loads();
            sim.start_request(&worker, &instance);
            sim.set_life(&worker, &instance, Life::Draining);
        }
    }
    sim.instant = false;
    let call = sim.unload("a", how);
    for step in 0..passed {
        if step % 2 == 0 {
            sim.deliver_down(&worker);
        } else {
            sim.deliver_up(&worker);
        }
    }
    if fenced {
        sim.connect(&worker);
    } else {
        sim.lose(&worker);
        if let UnderWay::Opaque = under_way {
            sim.connect(&worker);
            sim.report_unknown_state(&worker, &instance);
            sim.lose(&worker);
        }
        let state = sim.workers[&worker]
            .instances
            .get(&instance)
            .map(|i| i.life.clone());
        match state {
            Some(Life::Loading) => sim.finish_load(&worker, &instance),
            Some(Life::Draining) => sim.set_life(&worker, &instance, Life::Ready),
            _ => {}
        }
        sim.connect(&worker);
    }
    sim.instant = true;
    sim.deliver_all();
    sim.advance(sim.config.unknown_wait * 3);
    sim.end_all_requests();
    sim.finish_loads();
    let serves = sim.routes.contains_key(&instance) || sim.worker_of(&instance).is_some();
    assert!(!serves, "{under_way:?} {how:?} {passed} {fenced}\n{}", sim.tail());
    assert!(sim.replies.contains_key(&call));
}

/// Issue 11: the caller heard "unloaded", and the worker that came back went on and served.
#[test]
fn an_operator_s_cancel_outlives_the_session_whatever_was_under_way() {
    let all = [
        UnderWay::Load,
        UnderWay::Abandoned,
        UnderWay::Opaque,
        UnderWay::Service,
        UnderWay::Drain,
    ];
    for under_way in all {
        for how in [UnloadHow::Force, UnloadHow::DrainOrCancel] {
            for passed in 0..5 {
                for fenced in [false, true] {
                    cancelled_before_the_session_ends(under_way, how, passed, fenced);
                }
            }
        }
    }
}
