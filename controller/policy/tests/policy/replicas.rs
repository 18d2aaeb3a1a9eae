//! Replica groups: all or none, published together, refilled (PROTOCOL 14).

use std::num::NonZeroU32;
use std::time::Duration;

use muster_core::{DeviceKind, ModelType};
use muster_policy::{Config, FailureClass, LoadError, ModelState, Origin, RouteState};

use crate::sim::{Life, Sim, config, device, facts, limits, model, unlimited};

/// A host with two devices, a worker each, and a model of two replicas.
fn twins(bytes: u64) -> Sim {
    let mut sim = Sim::new(Config {
        limits: unlimited(),
        ..config()
    });
    sim.join(facts("w0", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.join(facts("w1", "h", vec![device("sim:b", DeviceKind::Sim, 100)]));
    let mut spec = model("twins", ModelType::Llm, bytes);
    spec.replicas = NonZeroU32::new(2).unwrap();
    sim.add_model(spec);
    sim.add_model(model("other", ModelType::Llm, 90));
    sim
}

#[test]
fn replicas_go_to_distinct_devices_and_take_requests_together() {
    let mut sim = twins(40);
    let hold = sim.open("twins");
    let (worker, first) = sim.loading().remove(0);
    sim.finish_load(&worker, &first);
    sim.deliver_all();
    assert!(sim.routes.is_empty(), "the first is withheld");
    assert_eq!(sim.states["twins"], ModelState::Loading);
    assert!(sim.streams[&hold].ready().is_none());
    sim.finish_loads();
    let places: Vec<&str> = sim.loads.iter().map(|(worker, ..)| worker.as_str()).collect();
    assert_eq!(places, ["w0", "w1"]);
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    assert_eq!(
        sim.routes
            .values()
            .filter(|(_, _, state)| *state == RouteState::Ready)
            .count(),
        2
    );
    let groups: Vec<_> = sim
        .workers
        .values()
        .flat_map(|w| w.instances.values())
        .map(|i| i.spec.group.clone())
        .collect();
    assert!(groups[0].is_some() && groups[0] == groups[1]);
    sim.close(&hold);
    let call = sim.unload("twins", muster_policy::UnloadHow::Drain);
    sim.finish_exits();
    assert_eq!(sim.replies[&call], Ok(ModelState::Unloaded));
}

#[test]
fn a_group_that_does_not_fit_whole_is_refused_before_anything_is_loaded() {
    let mut sim = twins(60);
    sim.lose(&"w1".into());
    sim.use_once("other");
    let before = sim.loads.len();
    let hold = sim.open("twins");
    let expected = LoadError::TooFewPlaces {
        model: "twins".into(),
        replicas: 2,
        possible: 1,
    };
    assert_eq!(sim.streams[&hold].failed(), Some(&expected), "{}", sim.tail());
    assert_eq!(
        (sim.loads.len(), &sim.states["other"]),
        (before, &ModelState::Loaded)
    );
}

#[test]
fn if_one_fails_for_good_the_other_is_unloaded() {
    let mut sim = twins(40);
    let call = sim.load("twins");
    let (worker, first) = sim.loading().remove(0);
    sim.finish_load(&worker, &first);
    sim.deliver_all();
    let (worker, second) = sim.loading().remove(0);
    sim.fail_load(&worker, &second, FailureClass::BeforeEngine);
    sim.finish_exits();
    assert!(sim.replies[&call].is_err());
    assert!(
        sim.workers.values().all(|worker| worker.instances.is_empty()),
        "{}",
        sim.tail()
    );
    assert!(matches!(sim.states["twins"], ModelState::Failed(_)));
    assert!(
        sim.decisions
            .iter()
            .any(|d| d.starts_with("group_torn_down twins"))
    );
}

#[test]
fn nobody_waits_any_more_between_two_parts_and_the_first_goes() {
    let mut sim = twins(40);
    let hold = sim.open("twins");
    let (worker, first) = sim.loading().remove(0);
    sim.close(&hold);
    sim.finish_load(&worker, &first);
    sim.finish_loads();
    assert!(
        sim.workers.values().all(|worker| worker.instances.is_empty()),
        "{}",
        sim.tail()
    );
    assert_eq!(sim.states["twins"], ModelState::Unloaded);
}

#[test]
fn a_crashed_replica_is_replaced_after_a_while_and_the_others_serve() {
    let mut sim = twins(40);
    sim.use_once("twins");
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    assert_eq!(sim.states["twins"], ModelState::Loaded);
    assert_eq!((sim.routes.len(), sim.loading().len()), (1, 0));
    sim.advance(Duration::from_secs(6));
    sim.finish_loads();
    assert_eq!(sim.routes.len(), 2, "{}", sim.tail());
    assert!(sim.decisions.iter().any(|d| d.starts_with("refilling twins")));
}

/// A replica crashed, and was due to be replaced while `other` loaded.
fn refill_behind_a_load() -> (Sim, muster_core::HoldId) {
    let mut sim = twins(40);
    sim.add_model(model("beside", ModelType::Llm, 10));
    sim.use_once("twins");
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    sim.advance(Duration::from_secs(4));
    let beside = sim.open("beside");
    assert_eq!(sim.loading().len(), 1);
    sim.advance(Duration::from_secs(8));
    assert!(sim.decisions.iter().any(|d| d.starts_with("refilling twins")));
    assert_eq!(sim.loading().len(), 1, "one load at a time");
    (sim, beside)
}

#[test]
fn a_replica_that_cannot_be_replaced_at_once_is_replaced_when_the_host_s_load_slot_is_free() {
    let (mut sim, beside) = refill_behind_a_load();
    assert_eq!(sim.states["twins"], ModelState::Loaded, "one serves");
    sim.finish_loads();
    assert!(sim.streams[&beside].ready().is_some());
    let replicas = |sim: &Sim| {
        sim.routes
            .values()
            .filter(|(_, model, _)| model.as_str() == "twins")
            .count()
    };
    assert_eq!(replicas(&sim), 2, "{}", sim.tail());
    assert!(!sim.decisions.iter().any(|d| d.starts_with("load_abandoned")));
}

#[test]
fn a_replacement_that_waits_is_dropped_when_no_replica_is_left() {
    let (mut sim, beside) = refill_behind_a_load();
    let (worker, survivor) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &survivor);
    sim.finish_loads();
    assert!(sim.streams[&beside].ready().is_some());
    assert!(
        matches!(sim.states["twins"], ModelState::Failed(_)),
        "{}",
        sim.tail()
    );
    assert_eq!(sim.routes.len(), 1);
}

#[test]
fn a_replica_is_replaced_with_the_settings_that_the_others_were_loaded_with() {
    let mut sim = twins(40);
    let mut overrides = sim.catalogue["twins"].clone();
    overrides.needs = model("twins", ModelType::Llm, 25).needs;
    overrides.spec_hash = "overridden".into();
    let request = sim.request();
    sim.event(muster_policy::Event::LoadRequested {
        request,
        model: "twins".into(),
        overrides: Some(overrides),
    });
    sim.finish_loads();
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    sim.advance(Duration::from_secs(6));
    sim.finish_loads();
    let reserved: Vec<u64> = sim
        .fleet
        .devices()
        .iter()
        .map(|device| device.reserved.get())
        .collect();
    assert_eq!(reserved, [25, 25], "{}", sim.tail());
}

#[test]
fn a_replica_that_was_evicted_for_room_is_replaced_only_in_room_that_nobody_needs() {
    let mut sim = twins(60);
    sim.use_once("twins");
    sim.use_once("other");
    assert_eq!(sim.routes.len(), 2, "one twin made room: {}", sim.tail());
    sim.advance(Duration::from_secs(600));
    assert!(sim.loading().is_empty());
    assert_eq!(sim.states["other"], ModelState::Loaded);
    sim.unload("other", muster_policy::UnloadHow::Drain);
    sim.finish_exits();
    sim.advance(Duration::from_secs(600));
    sim.finish_loads();
    assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
}

#[test]
fn a_restarted_controller_knows_the_group_again() {
    let mut sim = twins(40);
    sim.use_once("twins");
    sim.restart_controller();
    for id in ["w0", "w1"] {
        sim.connect(&id.into());
    }
    assert_eq!(sim.routes.len(), 2);
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    sim.advance(Duration::from_secs(6));
    sim.finish_loads();
    assert_eq!(sim.routes.len(), 2, "{}", sim.tail());
}

/// Found by `every_history_keeps_the_rules_and_ends`: a withheld replica was unloaded on a device where another load had just begun.
#[test]
fn a_withheld_replica_goes_only_when_no_load_runs_beside_it() {
    let mut sim = twins(40);
    let hold = sim.open("twins");
    let (worker, first) = sim.loading().remove(0);
    sim.finish_load(&worker, &first);
    sim.deliver_all();
    let (second, instance) = sim.loading().remove(0);
    // The queue's next load takes the device of the first replica in the step that gives the group up.
    let mut spec = model("beside", ModelType::Llm, 30);
    spec.device = muster_policy::DeviceChoice::Device("sim:a".into());
    sim.add_model(spec);
    let beside = sim.open("beside");
    sim.fail_load(&second, &instance, FailureClass::BeforeEngine);
    assert!(sim.streams[&hold].failed().is_some());
    sim.finish_loads();
    sim.advance(Duration::from_secs(3));
    sim.finish_exits();
    assert!(sim.streams[&beside].ready().is_some(), "{}", sim.tail());
    assert!(!sim.routes.contains_key(&first));
    assert!(
        !sim.workers[&worker].instances.contains_key(&first),
        "{}",
        sim.tail()
    );
}

/// Found by `every_history_of_a_wide_fleet_keeps_the_rules_and_ends`: a load whose worker came back waited for the slot of a group that had
/// begun meanwhile, and the group for its claim.
#[test]
fn a_group_that_has_begun_goes_on_with_the_slot_that_an_earlier_load_waits_for() {
    let mut sim = twins(40);
    sim.config.limits = limits(1);
    sim.restart_controller();
    for id in ["w0", "w1"] {
        sim.connect(&id.into());
    }
    sim.join(facts("w2", "h", vec![device("sim:c", DeviceKind::Sim, 100)]));
    sim.add_model(muster_policy::ModelSpec {
        device: muster_policy::DeviceChoice::Device("sim:c".into()),
        ..model("earlier", ModelType::Llm, 40)
    });
    sim.lose(&"w2".into());
    let earlier = sim.open("earlier");
    let group = sim.open("twins");
    let (worker, first) = sim.loading().remove(0);
    sim.connect(&"w2".into());
    sim.finish_load(&worker, &first);
    sim.finish_loads();
    assert!(sim.streams[&group].ready().is_some(), "{}", sim.tail());
    assert!(sim.streams[&earlier].ready().is_none(), "one model at a time");
    sim.close(&group);
    sim.advance(Duration::from_secs(1));
    sim.finish_loads();
    assert!(sim.streams[&earlier].ready().is_some(), "{}", sim.tail());
}

/// As before, but it is memory that the two wait for: what a group lacks is claimed while a part of it loads.
#[test]
fn a_group_that_has_begun_is_completed_before_an_earlier_load_whose_worker_comes_back() {
    let mut sim = Sim::one_device(
        Config {
            limits: unlimited(),
            ..config()
        },
        100,
    );
    let mut twins = model("twins", ModelType::Llm, 40);
    twins.replicas = NonZeroU32::new(2).unwrap();
    sim.add_model(twins);
    let (here, shared) = sim
        .workers
        .values()
        .map(|worker| (worker.facts.host.clone(), worker.facts.devices.clone()))
        .next()
        .unwrap();
    sim.join(facts("beside", here.as_str(), shared));
    sim.add_model(muster_policy::ModelSpec {
        workers: ["beside".into()].into(),
        ..model("earlier", ModelType::Llm, 90)
    });
    sim.lose(&"beside".into());
    let earlier = sim.open("earlier");
    let group = sim.open("twins");
    sim.connect(&"beside".into());
    sim.finish_loads();
    assert!(sim.streams[&group].ready().is_some(), "{}", sim.tail());
    assert!(sim.streams[&earlier].ready().is_none(), "there is room for one");
    sim.close(&group);
    sim.advance(Duration::from_secs(1));
    sim.finish_loads();
    assert!(sim.streams[&earlier].ready().is_some(), "{}", sim.tail());
    assert!(!sim.decisions.iter().any(|d| d.starts_with("group_torn_down")));
}

/// Issue 11: the place of a group's next part was anybody's while one of its parts loaded.
#[test]
fn what_a_group_lacks_is_not_taken_while_a_part_of_it_loads() {
    let mut sim = twins(60);
    let group = sim.open("twins");
    let late = sim.open("other");
    sim.finish_loads();
    assert!(sim.streams[&group].ready().is_some(), "{}", sim.tail());
    let order: Vec<&str> = sim.loads.iter().map(|(.., model)| model.as_str()).collect();
    assert_eq!(order[..2], ["twins", "twins"], "{}", sim.tail());
    sim.close(&group);
    sim.advance(Duration::from_secs(1));
    sim.finish_loads();
    assert!(sim.streams[&late].ready().is_some(), "{}", sim.tail());
}

/// Found by `every_history_of_a_wide_fleet_keeps_the_rules_and_ends`: a group that only waited for work to end was torn down and begun
/// without end. Now what it lacks is claimed before the load that waits.
#[test]
fn a_group_that_has_begun_waits_for_nobody_who_waits_for_work_to_end() {
    let mut sim = Sim::new(Config {
        limits: limits(2),
        ..config()
    });
    sim.join(facts("w0", "h0", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.join(facts("w1", "h0", vec![device("sim:b", DeviceKind::Sim, 30)]));
    sim.join(facts("w2", "h1", vec![device("sim:c", DeviceKind::Sim, 100)]));
    let bound = |id: &str, device: &str, bytes| muster_policy::ModelSpec {
        device: muster_policy::DeviceChoice::Device(device.into()),
        ..model(id, ModelType::Llm, bytes)
    };
    sim.add_model(bound("busy", "sim:a", 70));
    sim.add_model(bound("busy-too", "sim:c", 90));
    sim.add_model(bound("earlier", "sim:a", 95));
    let mut twins = model("twins", ModelType::Llm, 20);
    twins.replicas = NonZeroU32::new(2).unwrap();
    sim.add_model(twins);
    let busy = sim.use_model("busy");
    let busy_too = sim.use_model("busy-too");
    let earlier = sim.open("earlier");
    let group = sim.open("twins");
    sim.finish_loads();
    assert!(sim.streams[&group].ready().is_some(), "{}", sim.tail());
    assert!(!sim.decisions.iter().any(|d| d.starts_with("group_torn_down")));
    sim.close(&group);
    sim.end_request(&busy);
    sim.advance(Duration::from_secs(1));
    sim.finish_loads();
    assert!(sim.streams[&earlier].ready().is_some(), "{}", sim.tail());
    sim.end_request(&busy_too);
}

/// Found by `every_history_keeps_the_rules_and_ends`: a part found loading was taken for a model of one instance, and stayed withheld.
#[test]
fn a_part_that_comes_back_loading_with_its_worker_goes_if_nobody_completes_its_group() {
    let mut sim = twins(40);
    let mut overrides = sim.catalogue["twins"].clone();
    overrides.needs = model("twins", ModelType::Llm, 61).needs;
    overrides.spec_hash = "overridden".into();
    let call = sim.load_with("twins", Some(overrides));
    let (worker, part) = sim.loading().remove(0);
    sim.lose(&worker);
    assert!(sim.replies[&call].is_err(), "{}", sim.tail());
    sim.connect(&worker);
    sim.use_model("other");
    sim.advance(Duration::from_secs(2));
    sim.finish_loads();
    assert_eq!(sim.worker_of(&part), None, "{}", sim.tail());
    assert_eq!(sim.states["twins"], ModelState::Unloaded, "{}", sim.tail());
}

fn ready_replicas(sim: &Sim) -> usize {
    let twins = |route: &&(_, muster_core::ModelId, RouteState)| {
        route.1.as_str() == "twins" && route.2 == RouteState::Ready
    };
    sim.routes.values().filter(twins).count()
}

/// One replica is ready, and the command that loads the other one is lost with the controller.
fn half_loaded_at_a_restart(origin: Origin) -> Sim {
    let mut sim = twins(40);
    let config = sim.world.config.clone();
    half_load_and_restart(&mut sim, origin, config);
    sim
}

fn half_load_and_restart(sim: &mut Sim, origin: Origin, config_then: Config) {
    let before = sim.loads.len();
    match origin {
        Origin::Auto => drop(sim.open("twins")),
        Origin::Admin | Origin::Preload => drop(sim.load("twins")),
    }
    sim.instant = false;
    let (worker, first) = sim.loading().remove(0);
    sim.finish_load(&worker, &first);
    while sim.deliver_up(&worker) {}
    assert_eq!(
        sim.loads.len(),
        before + 1,
        "the other one's command is on its way"
    );
    sim.world.config = config_then;
    sim.restart_controller();
    sim.instant = true;
    for id in ["w0", "w1"] {
        sim.connect(&id.into());
    }
    assert_eq!(ready_replicas(sim), 0, "{}", sim.tail());
}

/// Issue 11: a half-loaded group was published after a restart, and never completed.
#[test]
fn a_group_found_half_loaded_is_completed_before_it_takes_requests() {
    let mut sim = half_loaded_at_a_restart(Origin::Admin);
    assert_eq!(sim.states["twins"], ModelState::Loading);
    sim.finish_loads();
    assert_eq!((ready_replicas(&sim), sim.loads.len()), (2, 2), "{}", sim.tail());
    let groups = sim.workers.values().flat_map(|w| w.instances.values());
    let groups: Vec<_> = groups.map(|i| i.spec.group.clone()).collect();
    assert!(groups[0].is_some() && groups[0] == groups[1], "{groups:?}");
}

#[test]
fn a_group_found_half_loaded_is_completed_for_who_comes_back_and_goes_if_nobody_does() {
    let mut sim = half_loaded_at_a_restart(Origin::Auto);
    let hold = sim.open("twins");
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    assert_eq!(ready_replicas(&sim), 2);

    let mut sim = half_loaded_at_a_restart(Origin::Auto);
    sim.advance(Duration::from_secs(30));
    sim.finish_loads();
    assert!(
        sim.workers.values().all(|worker| worker.instances.is_empty()),
        "{}",
        sim.tail()
    );
}

/// Found by the rig (seed 93731): a group that had begun counted on the slot that it had, though there were more models than the new limit
/// allows. So it evicted nobody, and waited for ever.
#[test]
fn a_group_found_half_loaded_is_completed_under_a_lower_limit() {
    let one = Config {
        limits: limits(1),
        ..config()
    };
    let one_in_fleet = Config {
        limits: unlimited(),
        fleet_limits: limits(1),
        ..config()
    };
    for lower in [one, one_in_fleet] {
        let mut sim = twins(40);
        sim.add_model(model("small", ModelType::Llm, 10));
        sim.use_once("small");
        half_load_and_restart(&mut sim, Origin::Admin, lower);
        sim.finish_loads();
        assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
        assert_eq!(sim.states["small"], ModelState::Unloaded, "{}", sim.tail());
    }
}

#[test]
fn a_group_that_served_before_a_restart_goes_on_serving_and_is_completed() {
    let mut sim = twins(40);
    sim.use_once("twins");
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    let (other, survivor) = sim.in_life(&Life::Ready).remove(0);
    if sim.workers[&other].instances[&survivor].touch_seq < 3 {
        assert!(sim.start_request(&other, &survivor));
        sim.end_request(&survivor);
    }
    sim.restart_controller();
    for id in ["w0", "w1"] {
        sim.connect(&id.into());
    }
    assert_eq!(ready_replicas(&sim), 1, "{}", sim.tail());
    sim.advance(Duration::from_secs(6));
    sim.finish_loads();
    assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
}

/// Found by the rig (seed 36006): with the settings forgotten, every replica but one was taken for a copy too many.
#[test]
fn a_group_with_settings_of_its_own_is_whole_after_a_restart() {
    let mut sim = twins(40);
    let mut overrides = sim.catalogue["twins"].clone();
    overrides.spec_hash = "overridden".into();
    sim.load_with("twins", Some(overrides));
    sim.finish_loads();
    for (worker, instance) in sim.in_life(&Life::Ready) {
        for _ in 0..3 {
            assert!(sim.start_request(&worker, &instance));
            sim.end_request(&instance);
        }
    }
    sim.restart_controller();
    for id in ["w0", "w1"] {
        sim.connect(&id.into());
    }
    sim.advance(Duration::from_secs(60));
    sim.finish_loads();
    assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
}

/// Found by the rig (seed 40176): nobody told the operator that the other part would never come.
#[test]
fn a_call_is_answered_if_its_model_leaves_the_catalogue_before_the_group_is_whole() {
    let mut sim = twins(40);
    let call = sim.load("twins");
    sim.catalogue.remove("twins");
    sim.publish_catalogue();
    sim.finish_loads();
    assert!(
        matches!(sim.replies[&call], Err(LoadError::Cancelled(_))),
        "{}",
        sim.tail()
    );
    assert!(sim.workers.values().all(|worker| worker.instances.is_empty()));
}

/// Issue 11: only a replica that ended by itself was replaced.
#[test]
fn a_replica_whose_worker_leaves_in_order_is_replaced() {
    let mut sim = twins(40);
    sim.join(facts("w2", "h", vec![device("sim:c", DeviceKind::Sim, 100)]));
    sim.use_once("twins");
    let (worker, _) = sim.in_life(&Life::Ready).remove(0);
    sim.leave(&worker);
    assert_eq!(ready_replicas(&sim), 1);
    sim.advance(Duration::from_secs(6));
    sim.finish_loads();
    assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
}

/// Issue 11: a refill that somebody waited for became an automatic load, and was forgotten when that one was gone.
#[test]
fn a_refill_that_somebody_waited_for_and_left_is_scheduled_again() {
    let (mut sim, beside) = refill_behind_a_load();
    let (worker, _) = sim.in_life(&Life::Ready).remove(0);
    let drain = |sim: &mut Sim, draining: bool| {
        sim.workers.get_mut(&worker).unwrap().facts.draining = draining;
        let worker = worker.clone();
        sim.event(muster_policy::Event::WorkerDraining { worker, draining });
    };
    drain(&mut sim, true);
    let hold = sim.open("twins");
    sim.close(&hold);
    drain(&mut sim, false);
    sim.finish_loads();
    assert!(sim.streams[&beside].ready().is_some());
    sim.advance(Duration::from_secs(60));
    sim.finish_loads();
    assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
}

/// Issue 11: a part that came back with its lost worker stayed beside the one that was loaded in its place.
#[test]
fn a_copy_too_many_goes_when_its_worker_comes_back() {
    let mut sim = twins(40);
    sim.join(facts("w2", "h", vec![device("sim:c", DeviceKind::Sim, 100)]));
    let hold = sim.open("twins");
    let (worker, first) = sim.loading().remove(0);
    sim.finish_load(&worker, &first);
    sim.deliver_all();
    let (lost, _) = sim.loading().remove(0);
    sim.lose(&lost);
    let (other, third) = sim.loading().into_iter().find(|(at, _)| *at != lost).unwrap();
    sim.finish_load(&other, &third);
    sim.deliver_all();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
    sim.connect(&lost);
    sim.finish_loads();
    sim.close(&hold);
    sim.advance(Duration::from_secs(5));
    sim.finish_loads();
    let copies: usize = sim.workers.values().map(|worker| worker.instances.len()).sum();
    assert_eq!((copies, ready_replicas(&sim)), (2, 2), "{}", sim.tail());
}

/// One replica crashed, and another model has its room: the refill is refused.
fn no_room_for_a_refill() -> Sim {
    let mut sim = twins(60);
    sim.use_once("twins");
    let (worker, instance) = sim.in_life(&Life::Ready).remove(0);
    sim.crash(&worker, &instance);
    sim.use_once("other");
    assert_eq!(ready_replicas(&sim), 1);
    sim
}

/// Issue 11: whoever was about to get the healthy replica heard that the refill had found no room.
#[test]
fn a_refused_refill_fails_nobody_who_waits_for_a_healthy_replica() {
    let mut sim = no_room_for_a_refill();
    sim.instant = false;
    let hold = sim.open("twins");
    sim.advance(Duration::from_secs(6));
    assert!(
        sim.decisions.iter().any(|d| d.starts_with("load_refused twins")),
        "{}",
        sim.tail()
    );
    assert!(sim.streams[&hold].failed().is_none(), "{}", sim.tail());
    sim.instant = true;
    sim.deliver_all();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

/// Issue 11: the second attempt of a refill evicted everything on its host.
#[test]
fn a_refill_whose_engine_fails_evicts_nobody() {
    let mut sim = twins(40);
    sim.add_model(model("beside", ModelType::Embedding, 10));
    sim.use_once("beside");
    sim.use_once("twins");
    let (worker, instance) = sim.in_life(&Life::Ready).into_iter().rfind(|_| true).unwrap();
    sim.crash(&worker, &instance);
    sim.advance(Duration::from_secs(6));
    let (worker, refill) = sim.loading().remove(0);
    sim.fail_load(&worker, &refill, FailureClass::EngineLoad);
    sim.finish_exits();
    assert_eq!(sim.states["beside"], ModelState::Loaded, "{}", sim.tail());
    assert_eq!(ready_replicas(&sim), 1, "{}", sim.tail());
    assert!(!sim.decisions.iter().any(|d| d.starts_with("evicting")));
    sim.advance(Duration::from_secs(60));
    sim.finish_loads();
    assert_eq!(ready_replicas(&sim), 2, "{}", sim.tail());
}
