//! Busy victims and how long they are waited for (I8, PROTOCOL 11), the time a model stays at least and at most.

use std::time::Duration;

use muster_core::{Code, DeviceKind, InstanceId, ModelType};
use muster_policy::{Config, Event, IdleTtl, LoadError, ModelSpec, ModelState, RouteState, Stage, UnloadHow};

use crate::sim::{Life, Sim, config, device, facts, limits, model, unlimited};

const SECOND: Duration = Duration::from_secs(1);

fn two_models(config: Config) -> Sim {
    let mut sim = Sim::one_device(config, 100);
    for id in ["a", "b"] {
        sim.add_model(model(id, ModelType::Llm, 60));
    }
    sim
}

fn impatient(max_drain: Option<Duration>) -> Config {
    Config {
        max_eviction_wait: Some(SECOND * 10),
        max_drain,
        ..config()
    }
}

#[test]
fn by_default_a_busy_model_is_waited_for_without_end() {
    let mut sim = two_models(config());
    let busy = sim.use_model("a");
    let hold = sim.open("b");
    sim.advance(SECOND * 3600);
    assert!(matches!(sim.streams[&hold].last(), Some(Stage::Queued { .. })));
    assert_eq!(sim.routes[&busy].2, RouteState::Ready);
}

#[test]
fn a_permanently_busy_victim_is_quiesced_finishes_its_work_and_goes() {
    let mut sim = two_models(impatient(None));
    let busy = sim.use_model("a");
    let worker = sim.worker_of(&busy).unwrap();
    let hold = sim.open("b");
    // There is never a moment without a request.
    for _ in 0..9 {
        sim.advance(SECOND);
        assert!(sim.start_request(&worker, &busy));
        sim.end_request(&busy);
    }
    assert_eq!(sim.routes[&busy].2, RouteState::Ready);
    sim.advance(SECOND * 2);
    assert_eq!(sim.routes[&busy].2, RouteState::Draining, "{}", sim.tail());
    assert!(!sim.start_request(&worker, &busy), "it takes no new work");
    // Who wants it now waits until it can be loaded again.
    let again = sim.open("a");
    sim.advance(SECOND * 60);
    assert_eq!(sim.in_life(&Life::Quiesced).len(), 1, "its work is not cut short");
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    sim.close(&hold);
    sim.finish_loads();
    assert!(sim.streams[&again].ready().is_some(), "{}", sim.tail());
}

#[test]
fn who_is_promised_an_instance_is_served_before_it_is_quiesced() {
    let mut sim = two_models(impatient(None));
    let promised = sim.open("a");
    sim.finish_loads();
    let hold = sim.open("b");
    sim.advance(SECOND * 60);
    assert!(sim.in_life(&Life::Quiesced).is_empty());
    sim.close(&promised);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some());
}

#[test]
fn what_does_not_finish_in_time_is_ready_again_and_the_load_fails() {
    let mut sim = two_models(impatient(Some(SECOND * 5)));
    let busy = sim.use_model("a");
    let hold = sim.open("b");
    sim.advance(SECOND * 12);
    assert_eq!(sim.in_life(&Life::Quiesced).len(), 1);
    sim.advance(SECOND * 5);
    let expected = LoadError::EvictionTimeout {
        model: "b".into(),
        waited: SECOND * 5,
    };
    assert_eq!(sim.streams[&hold].failed(), Some(&expected), "{}", sim.tail());
    assert_eq!(sim.routes[&busy].2, RouteState::Ready);
    assert_eq!(sim.states["b"], ModelState::Unloaded);
    sim.end_request(&busy);
    sim.use_once("b");
}

#[test]
fn a_victim_that_is_finishing_is_not_exchanged_for_another() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            ..impatient(None)
        },
        100,
    );
    for id in ["a", "b", "c"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    let (a, b) = (sim.use_model("a"), sim.use_model("b"));
    sim.open("c");
    sim.advance(SECOND * 12);
    assert_eq!(sim.routes[&a].2, RouteState::Draining);
    // Two requests run there, one ends: now `b` is the least recently used.
    let before = sim.now;
    sim.workers
        .get_mut("w")
        .unwrap()
        .instances
        .get_mut(&a)
        .unwrap()
        .running += 1;
    sim.end_request(&a);
    sim.advance(SECOND);
    assert_eq!(sim.now, before + SECOND);
    assert_eq!(sim.routes[&a].2, RouteState::Draining, "{}", sim.tail());
    assert_eq!(sim.routes[&b].2, RouteState::Ready);
}

#[test]
fn an_operators_unload_that_does_not_finish_in_time_is_given_up() {
    for (within, limit) in [(Some(SECOND * 3), None), (None, Some(SECOND * 3))] {
        let mut sim = two_models(Config {
            max_drain: limit,
            ..config()
        });
        let busy = sim.use_model("a");
        let request = sim.request();
        sim.event(Event::UnloadRequested {
            request: request.clone(),
            model: "a".into(),
            how: UnloadHow::Drain,
            drain_for: within,
        });
        assert_eq!(sim.states["a"], ModelState::Unloading);
        sim.advance(SECOND * 4);
        let given_up = sim.replies[&request].as_ref().map_err(LoadError::code);
        assert_eq!(given_up, Err(Code::EvictionTimeout), "{}", sim.tail());
        assert_eq!(sim.routes[&busy].2, RouteState::Ready);
    }
}

#[test]
fn a_load_that_waits_for_an_operators_drain_fails_when_that_takes_too_long() {
    let mut sim = two_models(Config {
        max_drain: Some(SECOND * 3),
        ..config()
    });
    let busy = sim.use_model("a");
    let request = sim.request();
    sim.event(Event::UnloadRequested {
        request,
        model: "a".into(),
        how: UnloadHow::Drain,
        drain_for: Some(SECOND * 30),
    });
    let hold = sim.open("b");
    sim.advance(SECOND * 4);
    assert_eq!(
        sim.streams[&hold].failed().map(LoadError::code),
        Some(Code::EvictionTimeout),
        "{}",
        sim.tail()
    );
    sim.end_request(&busy);
    sim.finish_exits();
    sim.use_once("b");
}

#[test]
fn a_model_stays_for_its_least_time() {
    let mut sim = two_models(Config {
        min_residency: SECOND * 20,
        ..config()
    });
    sim.use_once("a");
    let hold = sim.open("b");
    sim.advance(SECOND * 19);
    assert_eq!(sim.states["a"], ModelState::Loaded);
    sim.advance(SECOND * 2);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

fn with_ttl(default: Option<Duration>, ttl: IdleTtl) -> (Sim, InstanceId) {
    let mut sim = Sim::one_device(
        Config {
            idle_ttl: default,
            limits: unlimited(),
            ..config()
        },
        100,
    );
    let mut spec = model("a", ModelType::Llm, 10);
    spec.idle_ttl = ttl;
    sim.add_model(spec);
    let a = sim.use_once("a");
    (sim, a)
}

#[test]
fn an_idle_model_is_unloaded_after_its_time_counted_from_its_last_use() {
    for (default, ttl) in [
        (Some(SECOND * 60), IdleTtl::Default),
        (None, IdleTtl::After(SECOND * 60)),
        (Some(SECOND), IdleTtl::After(SECOND * 60)),
    ] {
        let (mut sim, a) = with_ttl(default, ttl);
        sim.advance(SECOND * 50);
        let worker = sim.worker_of(&a).unwrap();
        assert!(sim.start_request(&worker, &a));
        sim.advance(SECOND * 600);
        assert_eq!(sim.states["a"], ModelState::Loaded, "it is busy");
        sim.end_request(&a);
        sim.advance(SECOND * 59);
        assert_eq!(sim.states["a"], ModelState::Loaded);
        sim.advance(SECOND * 2);
        sim.finish_exits();
        assert_eq!(sim.states["a"], ModelState::Unloaded, "{}", sim.tail());
        assert!(
            sim.decisions
                .iter()
                .any(|d| d == "idle_ttl a unloaded after 60000 ms without use")
        );
    }
}

#[test]
fn pinned_and_wanted_models_and_those_that_never_expire_stay() {
    let (mut sim, _) = with_ttl(Some(SECOND), IdleTtl::Never);
    sim.advance(SECOND * 600);
    assert_eq!(sim.states["a"], ModelState::Loaded);

    let (mut sim, _) = with_ttl(Some(SECOND * 60), IdleTtl::Default);
    sim.catalogue.get_mut("a").unwrap().pinned = true;
    sim.publish_catalogue();
    sim.advance(SECOND * 600);
    assert_eq!(sim.states["a"], ModelState::Loaded);
    sim.catalogue.get_mut("a").unwrap().pinned = false;
    sim.publish_catalogue();
    sim.finish_exits();
    assert_eq!(sim.states["a"], ModelState::Unloaded);

    let hold = sim.open("a");
    sim.finish_loads();
    sim.advance(SECOND * 600);
    assert!(sim.streams[&hold].ready().is_some() && sim.states["a"] == ModelState::Loaded);
}

#[test]
fn a_use_that_was_not_heard_of_yet_spares_a_model_whose_time_is_over() {
    let (mut sim, a) = with_ttl(Some(SECOND * 60), IdleTtl::Default);
    let worker = sim.worker_of(&a).unwrap();
    sim.advance(SECOND * 59);
    sim.instant = false;
    assert!(sim.start_request(&worker, &a));
    sim.end_request(&a);
    sim.workers.get_mut(&worker).unwrap().up.clear();
    sim.advance(SECOND * 2);
    sim.instant = true;
    sim.deliver_all();
    assert_eq!(sim.states["a"], ModelState::Loaded, "{}", sim.tail());
    sim.flush_touches(&worker);
    sim.advance(SECOND * 50);
    assert_eq!(sim.states["a"], ModelState::Loaded);
    sim.advance(SECOND * 10);
    sim.finish_exits();
    assert_eq!(sim.states["a"], ModelState::Unloaded);
}

#[test]
fn late_and_reordered_touches_keep_the_order_of_use() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            ..config()
        },
        100,
    );
    for id in ["a", "b", "c"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    let (a, b) = (sim.use_once("a"), sim.use_once("b"));
    let touch = |instance: &InstanceId, touch_seq, age| muster_policy::Touch {
        instance: instance.clone(),
        touch_seq,
        age: SECOND * age,
    };
    sim.advance(SECOND * 100);
    // `a` was used 10 s ago. Then come, late, a use of `b` 50 s ago and an older one of `a`; then again what is known.
    for touches in [
        vec![touch(&a, 20, 10)],
        vec![touch(&b, 20, 50), touch(&a, 15, 70)],
        vec![touch(&a, 20, 10)],
    ] {
        let report = muster_policy::Report {
            touches,
            ..muster_policy::Report::default()
        };
        sim.event(Event::WorkerReported {
            worker: "w".into(),
            report,
        });
    }
    for (instance, age) in [(&a, 10), (&b, 50)] {
        let at = sim.now;
        let found = sim
            .workers
            .get_mut("w")
            .unwrap()
            .instances
            .get_mut(instance)
            .unwrap();
        (found.touch_seq, found.touched_at) = (20, at.ago(SECOND * age));
    }
    sim.use_once("c");
    assert_eq!(sim.states["a"], ModelState::Loaded, "{}", sim.tail());
    assert_eq!(sim.states["b"], ModelState::Unloaded);
}

#[test]
fn workers_are_told_new_pins_and_times_and_echo_them() {
    let (mut sim, a) = with_ttl(None, IdleTtl::Default);
    let echoed = |sim: &Sim| {
        let spec = &sim.workers["w"].instances[&a].spec;
        (spec.pinned, spec.idle_ttl)
    };
    assert_eq!(echoed(&sim), (false, None));
    let spec = sim.catalogue.get_mut("a").unwrap();
    spec.pinned = true;
    spec.idle_ttl = IdleTtl::After(SECOND);
    sim.publish_catalogue();
    assert_eq!(echoed(&sim), (true, Some(SECOND)));
    // Nothing more is sent when nothing changes, by a new controller neither.
    sim.instant = false;
    sim.publish_catalogue();
    sim.restart_controller();
    sim.connect(&"w".into());
    assert!(sim.workers["w"].down.is_empty(), "{}", sim.tail());
}

/// It once was resumed as soon as it was idle, since the slot was taken, and quiesced again as soon as it was not, a thousand times a second.
#[test]
fn nobody_is_hurried_out_for_a_load_that_could_not_begin() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        max_concurrent_loads: std::num::NonZeroU32::MIN,
        ..impatient(None)
    });
    for (worker, gpu) in [("w0", "g0"), ("w1", "g1")] {
        sim.join(facts(worker, "h", vec![device(gpu, DeviceKind::Gpu, 100)]));
    }
    let bound = |id: &str, worker: &str| ModelSpec {
        workers: [worker.into()].into(),
        ..model(id, ModelType::Llm, 60)
    };
    for (id, worker) in [("a", "w0"), ("b", "w0"), ("slow", "w1")] {
        sim.add_model(bound(id, worker));
    }
    let busy = sim.use_model("a");
    sim.open("slow");
    let hold = sim.open("b");
    let before = sim.events;
    sim.advance(SECOND * 60);
    assert!(sim.in_life(&Life::Quiesced).is_empty(), "{}", sim.tail());
    assert!(
        sim.events - before < 200,
        "{} events\n{}",
        sim.events - before,
        sim.tail()
    );
    // The slot is free: now its patience is at an end.
    sim.finish_loads();
    sim.advance(SECOND);
    assert_eq!(sim.routes[&busy].2, RouteState::Draining, "{}", sim.tail());
    sim.end_all_requests();
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// A thousand looks a second, for as long as the load took.
#[test]
fn a_model_whose_time_is_over_waits_for_the_load_beside_it_without_haste() {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        200,
    );
    sim.add_model(ModelSpec {
        idle_ttl: IdleTtl::After(SECOND * 5),
        ..model("over", ModelType::Llm, 60)
    });
    sim.add_model(model("slow", ModelType::Llm, 60));
    sim.use_once("over");
    sim.open("slow");
    let before = sim.events;
    sim.advance(SECOND * 60);
    assert_eq!(sim.states["over"], ModelState::Loaded);
    assert!(
        sim.events - before < 200,
        "{} events\n{}",
        sim.events - before,
        sim.tail()
    );
    sim.finish_loads();
    sim.advance(SECOND * 2);
    sim.finish_loads();
    assert_eq!(sim.states["over"], ModelState::Unloaded, "{}", sim.tail());
}

/// Issue 11: whatever drained anywhere on the host was waited for.
#[test]
fn a_load_is_not_given_up_for_a_drain_that_is_not_in_its_way() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        max_concurrent_loads: std::num::NonZeroU32::new(2).unwrap(),
        max_drain: Some(SECOND * 3),
        ..config()
    });
    for (worker, on) in [("w0", "sim:a"), ("w1", "sim:b")] {
        sim.join(facts(worker, "h", vec![device(on, DeviceKind::Sim, 100)]));
    }
    let bound = |id: &str, on: &str| ModelSpec {
        device: muster_policy::DeviceChoice::Device(on.into()),
        ..model(id, ModelType::Llm, 20)
    };
    for (id, on) in [("drains", "sim:a"), ("slow", "sim:b"), ("new", "sim:b")] {
        sim.add_model(bound(id, on));
    }
    sim.use_model("drains");
    sim.unload_within("drains", UnloadHow::Drain, Some(SECOND * 30));
    sim.open("slow");
    let hold = sim.open("new");
    sim.advance(SECOND * 10);
    assert!(sim.streams[&hold].failed().is_none(), "{}", sim.tail());
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// Found by `loads_begin_by_the_clock_alone_though_some_requests_never_end`: of two idle models one was to leave the slot that the busy one leaves
/// anyway; each was quiesced when the other was resumed, as fast as commands travel.
#[test]
fn victims_are_not_exchanged_for_each_other_without_end() {
    let mut sim = Sim::new(Config {
        limits: limits(3),
        ..impatient(None)
    });
    for (worker, on) in [("w0", "sim:0"), ("w1", "sim:1"), ("w2", "sim:2")] {
        sim.join(facts(worker, "h", vec![device(on, DeviceKind::Sim, 100)]));
    }
    for (id, on) in [
        ("idle-0", "sim:0"),
        ("idle-2", "sim:2"),
        ("busy", "sim:1"),
        ("new", "sim:1"),
    ] {
        sim.add_model(ModelSpec {
            device: muster_policy::DeviceChoice::Device(on.into()),
            ..model(id, ModelType::Llm, 60)
        });
    }
    sim.use_once("idle-0");
    sim.use_once("idle-2");
    let busy = sim.use_model("busy");
    let hold = sim.open("new");
    let before = sim.events;
    sim.advance(SECOND * 60);
    assert!(
        sim.events - before < 100,
        "{}\n{}",
        sim.events - before,
        sim.tail()
    );
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    for id in ["idle-0", "idle-2"] {
        assert_eq!(sim.states[id], ModelState::Loaded, "{}", sim.tail());
    }
}
