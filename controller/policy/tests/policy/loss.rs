//! Lost workers, ghosts, settling, rebuilding, unknown outcomes (PROTOCOL 1, 2, 3, 7).

use std::time::Duration;

use muster_core::{Code, DeviceKind, ModelType};
use muster_policy::{
    CommandId, Config, DeviceChoice, Event, LoadError, ModelState, Moment, Outcome, RouteState, Stage,
    WaitReason,
};

use crate::sim::{Life, Sim, config, device, facts, limits, model, unlimited};

#[test]
fn lost_is_not_gone() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.add_model(model("b", ModelType::Llm, 60));
    let a = sim.use_model("a");
    sim.lose(&"w".into());
    assert_eq!(sim.routes[&a].2, RouteState::Suspect);
    assert!(matches!(
        &sim.states["a"],
        ModelState::Failed(LoadError::WorkerLost(_))
    ));
    assert_eq!(sim.fleet.devices()[0].ghosts.get(), 60);
    // Another worker of the host lists the same device: the ghost still has its room, and its slot.
    sim.join(facts("x", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    let hold = sim.open("b");
    assert!(matches!(
        sim.streams[&hold].last(),
        Some(Stage::Queued {
            reason: WaitReason::Claim,
            ..
        })
    ));
    sim.connect(&"w".into());
    assert_eq!(sim.routes[&a].2, RouteState::Ready);
    assert_eq!(sim.states["a"], ModelState::Loaded);
    sim.end_request(&a);
    sim.finish_loads();
    assert!(
        sim.streams[&hold].ready().is_some(),
        "it can be evicted again: {}",
        sim.tail()
    );
    assert_eq!(sim.loads.len(), 2, "nothing was loaded twice");
}

#[test]
fn a_new_boot_ends_the_ghosts_and_the_model_loads_again() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.use_once("a");
    sim.restart(&"w".into());
    assert!(sim.routes.is_empty());
    assert_eq!(sim.fleet.devices()[0].reserved.get(), 0);
    sim.use_once("a");
    assert_eq!(sim.loads.len(), 2);
}

#[test]
fn a_forgotten_worker_leaves_no_ghosts() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.use_once("a");
    let request = sim.request();
    sim.event(Event::ForgetRequested {
        request: request.clone(),
        worker: "w".into(),
    });
    assert!(sim.replies[&request].is_err(), "it is connected");
    sim.lose(&"w".into());
    let request = sim.request();
    sim.event(Event::ForgetRequested {
        request: request.clone(),
        worker: "w".into(),
    });
    assert!(sim.replies[&request].is_ok());
    assert!(sim.fleet.instances().is_empty() && sim.fleet.devices().is_empty() && sim.roster.is_empty());
}

#[test]
fn a_load_that_is_lost_with_its_worker_goes_elsewhere_or_waits_for_it() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let hold = sim.open("a");
    sim.lose(&"w".into());
    assert!(matches!(
        sim.streams[&hold].last(),
        Some(Stage::Queued {
            reason: WaitReason::NoWorker,
            ..
        })
    ));
    sim.connect(&"w".into());
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some());
    assert_eq!(
        sim.loads.len(),
        1,
        "the load belongs to the worker, not to the session"
    );

    sim.close(&hold);
    sim.unload("a", muster_policy::UnloadHow::Drain);
    sim.finish_exits();
    let hold = sim.open("a");
    sim.join(facts("x", "other", vec![device("sim:x", DeviceKind::Sim, 100)]));
    sim.lose(&"w".into());
    sim.finish_loads();
    let (_, worker) = sim.streams[&hold].ready().unwrap();
    assert_eq!(worker.as_str(), "x");
}

#[test]
fn a_restarted_controller_settles_first_and_reloads_nothing() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.add_model(model("b", ModelType::Llm, 10));
    let a = sim.use_once("a");
    sim.restart_controller();
    let (again, new) = (sim.open("a"), sim.open("b"));
    for hold in [&again, &new] {
        let settling = Stage::Queued {
            position: 1,
            reason: WaitReason::Settling,
            blocked_by: Vec::new(),
        };
        assert!(
            matches!(sim.streams[hold].last(), Some(Stage::Queued { reason, .. }) if *reason == WaitReason::Settling),
            "{settling:?}"
        );
    }
    assert!(!sim.fleet.settled());
    sim.advance(Duration::from_millis(500));
    sim.connect(&"w".into());
    assert!(sim.fleet.settled());
    assert_eq!(
        sim.streams[&again].ready().map(|(instance, _)| instance),
        Some(&a)
    );
    assert_eq!(sim.states["a"], ModelState::Loaded);
    sim.close(&again);
    sim.finish_loads();
    assert!(sim.streams[&new].ready().is_some(), "{}", sim.tail());
}

#[test]
fn settling_ends_by_itself_and_absent_workers_still_count_for_never_fits() {
    let mut sim = Sim::new(config());
    sim.join(facts("small", "h", vec![device("sim:a", DeviceKind::Sim, 10)]));
    sim.join(facts("large", "h", vec![device("sim:b", DeviceKind::Sim, 100)]));
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.restart_controller();
    let hold = sim.open("a");
    sim.connect(&"small".into());
    sim.advance(Duration::from_secs(3));
    assert!(sim.fleet.settled());
    assert!(
        sim.streams[&hold].failed().is_none(),
        "the large one may come back"
    );
    sim.connect(&"large".into());
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some());
}

#[test]
fn holds_of_gateways_that_never_come_back_are_released() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.add_model(model("b", ModelType::Llm, 10));
    sim.open("a");
    sim.finish_loads();
    sim.restart_controller();
    sim.connect(&"w".into());
    let hold = sim.open("b");
    sim.advance(Duration::from_secs(5));
    assert!(sim.streams[&hold].ready().is_none(), "its gateway may come back");
    sim.advance(Duration::from_secs(6));
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn an_unknown_outcome_keeps_the_reservation_until_a_report_explains_it() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.add_model(model("b", ModelType::Llm, 60));
    sim.instant = false;
    let hold = sim.open("a");
    // The command vanished on its way.
    sim.workers.get_mut("w").unwrap().down.clear();
    sim.event(Event::Outcome {
        id: CommandId(1),
        outcome: Outcome::Unknown,
    });
    let other = sim.open("b");
    assert!(matches!(sim.streams[&other].last(), Some(Stage::Queued { .. })));
    sim.instant = true;
    sim.advance(sim.config.unknown_wait);
    sim.finish_loads();
    assert!(
        sim.streams[&hold].ready().is_some(),
        "a full report told that it is not there: {}",
        sim.tail()
    );
}

/// Seen on the running product: the controller asked a worker whose session was over to release a hold, or to cancel a load, 100,000 times a
/// second and for ever, because an unknown outcome made the same command due again at once.
#[test]
fn a_command_that_cannot_be_sent_is_not_asked_for_again_before_something_changes() {
    let mute = |sim: &mut Sim| sim.workers.get_mut("w").unwrap().mute = true;
    let back = |sim: &mut Sim| {
        sim.lose(&"w".into());
        sim.connect(&"w".into());
    };

    // A hold to be released, of a loading instance and of a ready one.
    for ready in [false, true] {
        let mut sim = Sim::one_device(config(), 100);
        sim.add_model(model("a", ModelType::Llm, 10));
        let hold = sim.open("a");
        if ready {
            sim.finish_loads();
        }
        mute(&mut sim);
        sim.close(&hold);
        back(&mut sim);
        sim.finish_loads();
        let holds = |sim: &Sim| {
            sim.workers["w"]
                .instances
                .values()
                .map(|i| i.holds.len())
                .sum::<usize>()
        };
        assert_eq!(holds(&sim), 0, "released after all: {}", sim.tail());
    }

    // A load to be cancelled, or sent.
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.open("a");
    mute(&mut sim);
    sim.unload("a", muster_policy::UnloadHow::DrainOrCancel);
    sim.lose(&"w".into());
    sim.connect(&"w".into());
    sim.run_out();
    assert_eq!(sim.states["a"], ModelState::Unloaded, "{}", sim.tail());
    mute(&mut sim);
    let hold = sim.open("a");
    back(&mut sim);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// A session that is fenced by the next one of the same boot takes its commands along; what they were for is asked for again.
#[test]
fn what_was_outstanding_in_a_fenced_session_is_asked_for_again_in_the_next() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.open("a");
    sim.instant = false;
    sim.unload("a", muster_policy::UnloadHow::DrainOrCancel);
    sim.instant = true;
    // `connect` drops what was on its way.
    sim.connect(&"w".into());
    sim.finish_exits();
    assert_eq!(sim.states["a"], ModelState::Unloaded, "{}", sim.tail());
}

#[test]
fn a_worker_that_leaves_in_order_leaves_nothing() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    let a = sim.use_once("a");
    sim.event(Event::WorkerDraining {
        worker: "w".into(),
        draining: true,
    });
    assert_eq!(sim.routes[&a].2, RouteState::Draining);
    sim.leave(&"w".into());
    assert!(sim.routes.is_empty());
    assert_eq!(sim.states["a"], ModelState::Unloaded);
}

#[test]
fn an_instance_in_an_unknown_state_is_busy_reserved_and_not_routable() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.add_model(model("b", ModelType::Llm, 60));
    let a = sim.use_once("a");
    sim.report_unknown_state(&"w".into(), &a);
    assert!(sim.routes.is_empty());
    let hold = sim.open("b");
    sim.finish_loads();
    assert!(matches!(sim.streams[&hold].last(), Some(Stage::Queued { .. })));
    assert_eq!(sim.in_life(&Life::Ready).len(), 1);
}

/// Found by `every_history_keeps_the_rules_and_ends`: the copy of a hold at a worker that came back was never released, because its
/// stream had been served elsewhere meanwhile.
#[test]
fn a_hold_on_a_worker_that_came_back_is_released_with_its_stream() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.join(facts("x", "other", vec![device("sim:x", DeviceKind::Sim, 100)]));
    let hold = sim.open("a");
    let first = sim.loads[0].0.clone();
    sim.lose(&first);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some());
    sim.connect(&first);
    sim.finish_loads();
    sim.close(&hold);
    let instances = sim.workers.values().flat_map(|worker| worker.instances.values());
    assert!(
        instances.into_iter().all(|instance| instance.holds.is_empty()),
        "{}",
        sim.tail()
    );
}

/// Found by `every_history_keeps_the_rules_and_ends`: a model whose only instance sat on a draining worker waited for the claim of a
/// load that waited for that instance to become unwanted.
#[test]
fn a_model_on_a_draining_worker_can_make_room_for_the_load_its_own_reload_waits_for() {
    let mut sim = Sim::one_device(config(), 100);
    for id in ["a", "b"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    sim.use_once("a");
    sim.join(facts("x", "h", vec![device("sim:x", DeviceKind::Sim, 100)]));
    let busy = sim.use_model("a");
    let b = sim.open("b");
    let w = sim.worker_of(&busy).unwrap();
    sim.event(Event::WorkerDraining {
        worker: w,
        draining: true,
    });
    let a = sim.open("a");
    sim.end_request(&busy);
    sim.finish_loads();
    assert!(sim.streams[&b].ready().is_some(), "{}", sim.tail());
    sim.close(&b);
    sim.finish_loads();
    assert!(sim.streams[&a].ready().is_some(), "{}", sim.tail());
}

#[test]
fn what_was_used_before_the_controller_started_keeps_its_order() {
    let two = Config {
        limits: limits(2),
        ..config()
    };
    let mut sim = Sim::one_device(two, 100);
    for id in ["a", "b", "c"] {
        sim.add_model(model(id, ModelType::Llm, 10));
    }
    let (a, b) = (sim.use_once("a"), sim.use_once("b"));
    // Long before this controller's clock began; ids alone would send `a` away.
    for (instance, hours) in [(&a, 1), (&b, 2)] {
        let age = Duration::from_secs(hours * 3600);
        let worker = sim.workers.get_mut("w").unwrap();
        worker.instances.get_mut(instance).unwrap().touched_at = Moment::START.ago(age);
    }
    sim.restart_controller();
    sim.connect(&"w".into());
    sim.use_once("c");
    assert_eq!(sim.states["a"], ModelState::Loaded, "{}", sim.tail());
    assert_eq!(sim.states["b"], ModelState::Unloaded);
}

#[test]
fn who_left_in_order_is_forgotten_after_a_while_unless_it_came_back() {
    let mut sim = Sim::one_device(config(), 100);
    sim.join(facts("x", "h", vec![device("sim:x", DeviceKind::Sim, 100)]));
    sim.leave(&"w".into());
    sim.leave(&"x".into());
    let counts = sim.config.absent_counts;
    sim.advance(counts - Duration::from_secs(1));
    assert_eq!(sim.fleet.workers().len(), 2);
    sim.connect(&"x".into());
    sim.advance(Duration::from_secs(1));
    let left: Vec<String> = sim
        .fleet
        .workers()
        .iter()
        .map(|worker| worker.facts.id.to_string())
        .collect();
    assert_eq!(left, ["x"]);
    assert!(!sim.roster.contains_key("w") && sim.roster.contains_key("x"));
    assert!(
        sim.fleet
            .devices()
            .iter()
            .all(|device| device.key.device.as_str() == "sim:x")
    );
}

#[test]
fn nobody_waits_at_a_start_for_who_had_left_in_order_but_it_may_still_come() {
    let mut sim = Sim::new(config());
    let big = facts("w", "h", vec![device("sim:a", DeviceKind::Sim, 100)]);
    sim.fleet.remember_leavers(vec![big]);
    assert!(sim.fleet.settled());
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.join(facts("x", "h", vec![device("sim:x", DeviceKind::Sim, 10)]));
    let hold = sim.open("a");
    assert!(
        matches!(
            sim.streams[&hold].last(),
            Some(Stage::Queued {
                reason: WaitReason::NoWorker,
                ..
            })
        ),
        "not refused as too large: {}",
        sim.tail()
    );
}

/// Two workers of a host share a device; `a` runs on `w`, which is lost.
fn a_ghost_beside_a_live_worker() -> Sim {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.use_once("a");
    sim.join(facts("x", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.advance(Duration::from_secs(1));
    sim.lose(&"w".into());
    sim.advance(Duration::from_secs(1));
    sim
}

#[test]
fn a_ghost_ends_when_a_live_worker_sees_its_memory_come_back() {
    let mut sim = a_ghost_beside_a_live_worker();
    sim.flush_touches(&"x".into());
    assert_eq!(sim.fleet.devices()[0].ghosts.get(), 60, "its engine still runs");
    sim.workers.get_mut("w").unwrap().instances.clear();
    sim.flush_touches(&"x".into());
    assert!(sim.fleet.instances().is_empty(), "{}", sim.tail());
    assert!(sim.routes.is_empty());
    sim.use_once("a");
    assert_eq!(sim.loads.len(), 2);
}

#[test]
fn memory_that_others_give_back_ends_no_ghost() {
    let mut sim = Sim::one_device(
        Config {
            limits: limits(2),
            ..config()
        },
        200,
    );
    sim.add_model(model("a", ModelType::Llm, 60));
    sim.add_model(model("b", ModelType::Llm, 60));
    sim.foreign
        .insert(("h".into(), "sim:a".into()), muster_core::Bytes::new(50));
    sim.use_once("a");
    sim.join(facts("x", "h", vec![device("sim:a", DeviceKind::Sim, 200)]));
    sim.workers.get_mut("w").unwrap().facts.draining = true;
    sim.event(Event::WorkerDraining {
        worker: "w".into(),
        draining: true,
    });
    sim.use_once("b");
    sim.lose(&"w".into());
    sim.advance(Duration::from_secs(1));
    // Another program ends, and then an instance of ours, which had as much as the ghost.
    sim.foreign.clear();
    sim.flush_touches(&"x".into());
    assert_eq!(
        sim.fleet.devices()[0].ghosts.get(),
        60,
        "less came back than it has"
    );
    sim.foreign
        .insert(("h".into(), "sim:a".into()), muster_core::Bytes::new(50));
    sim.flush_touches(&"x".into());
    sim.unload("b", muster_policy::UnloadHow::Drain);
    sim.finish_exits();
    sim.flush_touches(&"x".into());
    assert_eq!(sim.fleet.devices()[0].ghosts.get(), 60, "{}", sim.tail());
}

/// Found by `every_history_keeps_the_rules_and_ends`: a retry (I7) waited for a hold on a worker that was shutting down, and the hold's
/// stream waited for a load that the retry kept from its host.
#[test]
fn a_hold_on_a_draining_worker_does_not_keep_its_own_stream_waiting() {
    let mut sim = Sim::one_device(config(), 100);
    sim.add_model(model("a", ModelType::Llm, 20));
    sim.add_model(model("b", ModelType::Embedding, 20));
    sim.join(facts("x", "h", vec![device("sim:x", DeviceKind::Sim, 100)]));
    let a = sim.open("a");
    sim.finish_loads();
    let (holder, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.lose(&holder);
    sim.finish_loads();
    assert!(
        sim.streams[&a]
            .ready()
            .is_some_and(|(other, _)| *other != instance)
    );
    sim.workers.get_mut(&holder).unwrap().facts.draining = true;
    sim.connect(&holder);
    sim.open("b");
    let (worker, loading) = sim.loading().remove(0);
    sim.fail_load(&worker, &loading, muster_policy::FailureClass::EngineLoad);
    sim.finish_exits();
    assert!(
        !sim.workers[&holder].instances.contains_key(&instance),
        "it keeps nothing: {}",
        sim.tail()
    );
}

/// A second way to host a model lies behind a ghost, which may end; what keeps it from the first is there to stay.
#[test]
fn a_lost_worker_s_room_is_waited_for_though_the_preferred_way_is_refused() {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    sim.join(facts("w0", "h", vec![device("gpu", DeviceKind::Gpu, 100)]));
    sim.join(facts("w1", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.join(facts("w2", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    let mut pinned = model("pinned", ModelType::Llm, 60);
    pinned.device = DeviceChoice::Kind(DeviceKind::Gpu);
    pinned.pinned = true;
    sim.add_model(pinned);
    sim.use_once("pinned");
    let mut lost = model("lost", ModelType::Llm, 60);
    lost.device = DeviceChoice::Kind(DeviceKind::Sim);
    sim.add_model(lost);
    let lost = sim.use_once("lost");
    let worker = sim.worker_of(&lost).unwrap();
    sim.lose(&worker);
    sim.add_model(model("new", ModelType::Llm, 60));
    let hold = sim.open("new");
    assert!(sim.streams[&hold].failed().is_none(), "{}", sim.tail());
    sim.restart(&worker);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// Found by `loads_begin_by_the_clock_alone_though_some_requests_never_end`: the load ended well, and stayed cancelled for ever.
#[test]
fn a_cancellation_of_which_nobody_knows_whether_it_arrived_is_asked_for_again() {
    for reached in [false, true] {
        let mut sim = Sim::one_device(config(), 100);
        sim.add_model(model("unwanted", ModelType::Llm, 60));
        sim.add_model(model("new", ModelType::Llm, 60));
        let unwanted = sim.open("unwanted");
        let (worker, instance) = sim.loading().remove(0);
        sim.close(&unwanted);
        sim.advance(sim.config.abandon_grace);
        sim.instant = false;
        if !reached {
            sim.finish_load(&worker, &instance);
        }
        let hold = sim.open("new");
        sim.lose_outcome(&worker, reached);
        sim.instant = true;
        sim.deliver_all();
        sim.advance(Duration::from_secs(1));
        sim.finish_loads();
        assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    }
}

/// Two workers of a host share a device; `a` loads on one of them, which is lost.
fn a_ghost_that_loads() -> (Sim, muster_core::WorkerId, muster_core::HoldId) {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    for id in ["w", "x"] {
        sim.join(facts(id, "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    }
    sim.add_model(model("a", ModelType::Llm, 30));
    sim.add_model(model("b", ModelType::Llm, 30));
    let a = sim.open("a");
    let (lost, _) = sim.loading().remove(0);
    sim.lose(&lost);
    (sim, lost, a)
}

/// Issue 11: an engine that loads was not seen any more once its worker was lost (I5, PROTOCOL 13). The simulated worker checks it.
#[test]
fn no_load_begins_on_a_device_where_a_lost_worker_s_engine_loads() {
    let (mut sim, lost, a) = a_ghost_that_loads();
    let b = sim.open("b");
    sim.advance(Duration::from_secs(20));
    assert_eq!(sim.loads.len(), 1, "{}", sim.tail());
    for hold in [&a, &b] {
        let waits = matches!(sim.streams[hold].last(), Some(Stage::Queued { reason, .. }) if *reason == WaitReason::Claim);
        assert!(waits, "{}", sim.tail());
    }
    sim.connect(&lost);
    sim.finish_loads();
    for hold in [&a, &b] {
        assert!(sim.streams[hold].ready().is_some(), "{}", sim.tail());
    }
    assert_eq!(sim.loads.len(), 2);
}

#[test]
fn who_waits_for_a_lost_worker_s_load_hears_why_if_it_never_comes_back() {
    let (mut sim, ..) = a_ghost_that_loads();
    let b = sim.open("b");
    sim.advance(sim.config.worker_wait + Duration::from_secs(1));
    let failed = sim.streams[&b].failed().map(LoadError::code);
    assert_eq!(failed, Some(Code::NoWorker), "{}", sim.tail());
}

#[test]
fn a_load_goes_where_no_lost_worker_s_engine_loads() {
    let (mut sim, ..) = a_ghost_that_loads();
    sim.join(facts("y", "h", vec![device("sim:y", DeviceKind::Sim, 40)]));
    let b = sim.open("b");
    sim.finish_loads();
    let places: Vec<&str> = sim.loads.iter().map(|(at, ..)| at.as_str()).collect();
    assert_eq!(places[1..], ["y"], "{}", sim.tail());
    assert!(sim.streams[&b].failed().is_none());
}

/// Issue 11: an engine in a state that nobody knows, and that cannot be observed, may still come to use all it reserved (I4).
#[test]
fn what_an_unobserved_engine_in_an_unknown_state_may_still_take_is_not_given_to_others() {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        100,
    );
    sim.add_model(model("a", ModelType::Llm, 40));
    sim.add_model(model("b", ModelType::Llm, 50));
    let a = sim.use_once("a");
    // It has taken nothing so far, as far as anybody can tell, and another program has as much as it may take.
    sim.hide_memory_of(&a);
    sim.foreign
        .insert(("h".into(), "sim:a".into()), muster_core::Bytes::new(35));
    sim.flush_touches(&"w".into());
    sim.report_unknown_state(&"w".into(), &a);
    let b = sim.open("b");
    assert_eq!(sim.loads.len(), 1, "{}", sim.tail());
    drop(b);
}
