//! Arbitrary histories: whatever happens in whatever order, decisions keep the rules, and everything that waits comes to an end.

mod fleets;
mod ops;

use std::time::Duration;

use muster_policy::{Bytes, Event, FailureClass, IdleTtl, InstanceId, WorkerId};
use proptest::prelude::*;

use crate::sim::{Life, Sim, SimWorker, failure, limits, unlimited};
use fleets::{bound_fleet, configs, crowded_fleet, fleet, wide_fleet};
use ops::{ModelOp, Op, WorkerOp, crowded_op, op};

fn choose<T: Clone>(from: impl IntoIterator<Item = T>, n: u8) -> Option<T> {
    let all: Vec<T> = from.into_iter().collect();
    if all.is_empty() {
        None
    } else {
        Some(all[usize::from(n) % all.len()].clone())
    }
}

fn worker(sim: &Sim, n: u8) -> WorkerId {
    choose(sim.workers.keys().cloned(), n).unwrap()
}

fn apply(sim: &mut Sim, op: &Op) {
    match *op {
        Op::Open(n) => {
            let model = choose(sim.catalogue.keys().cloned(), n).unwrap();
            sim.open(model.as_str());
        }
        Op::Close(n) => {
            if let Some(hold) = choose(sim.streams.keys().cloned(), n) {
                sim.close(&hold);
            }
        }
        Op::Request(n) => {
            let ready = sim.streams.values().filter_map(|stream| stream.ready());
            if let Some((instance, worker)) = choose(ready.map(|(i, w)| (i.clone(), w.clone())), n) {
                sim.start_request(&worker, &instance);
            }
        }
        Op::RouteRequest(n) => {
            if let Some((instance, (worker, ..))) = choose(sim.routes.clone(), n) {
                sim.start_request(&worker, &instance);
            }
        }
        Op::EndRequest(n) => {
            let running = sim
                .workers
                .values()
                .flat_map(|w| &w.instances)
                .filter(|(_, i)| i.running > 0);
            if let Some(instance) = choose(running.map(|(id, _)| id.clone()), n) {
                sim.end_request(&instance);
            }
        }
        Op::Down(n) => {
            sim.deliver_down(&worker(sim, n));
        }
        Op::Up(n) => {
            sim.deliver_up(&worker(sim, n));
        }
        Op::FinishLoad(n) => {
            if let Some((worker, instance)) = choose(sim.loading(), n) {
                sim.finish_load(&worker, &instance);
            }
        }
        Op::FailLoad(n, engine) => {
            let class = if engine {
                FailureClass::EngineLoad
            } else {
                FailureClass::BeforeEngine
            };
            if let Some((worker, instance)) = choose(sim.loading(), n) {
                sim.fail_load(&worker, &instance, class);
            }
        }
        Op::BeginEnd(n, engine) => begin_end(sim, n, engine),
        Op::Exit(n) => {
            if let Some((worker, instance)) = choose(sim.in_life(&Life::Unloading), n) {
                sim.exit(&worker, &instance);
            }
        }
        Op::Crash(n) => {
            if let Some((worker, instance)) = choose(sim.in_life(&Life::Ready), n) {
                sim.crash(&worker, &instance);
            }
        }
        Op::Worker(n, op) => apply_to_worker(sim, n, op),
        Op::Model(n, op) => apply_to_model(sim, n, op),
        Op::Touches(n) => sim.flush_touches(&worker(sim, n)),
        Op::Foreign(n) => {
            let used = Bytes::new(u64::from(n % 60));
            let before = sim.foreign.insert(("h0".into(), "g0".into()), used);
            // Memory that another program gives back may pass for a lost engine's end (PROTOCOL 1).
            let lost = sim
                .workers
                .values()
                .any(|w| !w.connected && !w.instances.is_empty());
            sim.strict &= !(lost && before.is_some_and(|before| before > used));
        }
        Op::ClockBack => sim.clock_back(Duration::from_secs(5)),
        Op::LateTouch(n) => sim.repeat_old_touches(&worker(sim, n)),
        Op::RestartController(at_once) => {
            sim.restart_controller();
            if at_once {
                connect_all(sim);
            }
        }
        Op::Advance(ms) => sim.advance(Duration::from_millis(u64::from(ms))),
        Op::Settle => sim.deliver_all(),
        Op::OpenAvoiding(n, other) => open_avoiding(sim, n, other),
        Op::Burst(n) => burst(sim, n),
        Op::Unknown(n, reached) => sim.lose_outcome(&worker(sim, n), reached),
        Op::Withhold(withhold) => sim.withhold_samples = withhold,
        Op::RestartWith(n) => restart_with(sim, n),
        Op::Jump(seconds) => jump(sim, seconds),
    }
}

fn open_avoiding(sim: &mut Sim, n: u8, other: u8) {
    let model = choose(sim.catalogue.keys().cloned(), n).unwrap();
    let instance = choose(sim.routes.keys().cloned(), other);
    let avoid = worker(sim, other);
    sim.open_avoiding(model.as_str(), instance.into_iter().collect(), vec![avoid]);
}

/// The controller comes back with other limits, and all workers with it.
fn restart_with(sim: &mut Sim, n: u8) {
    sim.config.limits = match n % 4 {
        0 => unlimited(),
        limit => limits(limit.into()),
    };
    sim.restart_controller();
    connect_all(sim);
}

fn jump(sim: &mut Sim, seconds: u16) {
    sim.now = sim.now + Duration::from_secs(seconds.into());
    sim.event(Event::Tick);
    sim.give_up_drains();
}

fn burst(sim: &mut Sim, n: u8) {
    let Some((instance, (worker, ..))) = choose(sim.routes.clone(), n) else {
        return;
    };
    for _ in 0..4 {
        if sim.start_request(&worker, &instance) {
            sim.advance(Duration::from_millis(5));
            sim.end_request(&instance);
        }
        sim.advance(Duration::from_millis(5));
        sim.flush_touches(&worker);
    }
}

/// `engine`: none if nothing fails, else whether a load fails in its engine.
fn begin_end(sim: &mut Sim, n: u8, engine: Option<bool>) {
    let (loading, ready) = (sim.loading(), sim.in_life(&Life::Ready));
    let Some((worker, instance)) = choose(loading.iter().chain(&ready).cloned(), n) else {
        return;
    };
    let class = match engine {
        Some(_) if !loading.contains(&(worker.clone(), instance.clone())) => FailureClass::Crash,
        Some(true) => FailureClass::EngineLoad,
        Some(false) | None => FailureClass::BeforeEngine,
    };
    let why = engine.map(|_| failure(class, "ended"));
    sim.begin_end(&worker, &instance, why);
}

fn connect_all(sim: &mut Sim) {
    for id in sim.workers.keys().cloned().collect::<Vec<_>>() {
        sim.connect(&id);
    }
}

fn apply_to_worker(sim: &mut Sim, n: u8, op: WorkerOp) {
    let id = worker(sim, n);
    let away = |sim: &Sim, test: fn(&SimWorker) -> bool| {
        let all = sim
            .workers
            .values()
            .filter(|w| !w.connected && test(w))
            .map(|w| w.facts.id.clone());
        choose(all, n)
    };
    match op {
        WorkerOp::Lose => sim.lose(&id),
        WorkerOp::Rejoin => {
            if let Some(id) = away(sim, |_| true) {
                sim.connect(&id);
            }
        }
        WorkerOp::Restart => sim.restart(&id),
        WorkerOp::Leave if sim.workers[&id].connected => sim.leave(&id),
        WorkerOp::Drain(draining) if sim.workers[&id].connected => {
            sim.workers.get_mut(&id).unwrap().facts.draining = draining;
            sim.event(Event::WorkerDraining { worker: id, draining });
        }
        WorkerOp::Leave | WorkerOp::Drain(_) => {}
        WorkerOp::GhostGone => {
            let ghosts = sim
                .workers
                .values()
                .filter(|worker| !worker.connected && worker.known);
            let ghosts = ghosts.flat_map(|w| w.instances.keys().map(|id| (w.facts.id.clone(), id.clone())));
            if let Some((worker, instance)) = choose(ghosts, n) {
                sim.workers.get_mut(&worker).unwrap().instances.remove(&instance);
                sim.event(Event::GhostGone { instance });
            }
        }
        WorkerOp::Mute => {
            let worker = sim.workers.get_mut(&id).unwrap();
            worker.mute = worker.connected;
        }
        // Operators who forget a worker that still runs get what they asked for; the checks of the truth would not.
        WorkerOp::Forget => {
            if let Some(id) = away(sim, |worker| worker.instances.is_empty()) {
                let request = sim.request();
                sim.event(Event::ForgetRequested { request, worker: id });
            }
        }
    }
}

fn apply_to_model(sim: &mut Sim, n: u8, op: ModelOp) {
    let model = choose(sim.catalogue.keys().cloned(), n).unwrap();
    match op {
        ModelOp::Load => {
            sim.load(model.as_str());
        }
        ModelOp::LoadWith(bytes) => {
            let mut overrides = sim.catalogue[&model].clone();
            for part in overrides.needs.iter_mut().flat_map(|need| &mut need.parts) {
                part.bytes = Bytes::new(u64::from(bytes % 100));
            }
            overrides.spec_hash = format!("with-{bytes}").as_str().into();
            sim.load_with(model.as_str(), Some(overrides));
        }
        ModelOp::Unload(how, within) => {
            sim.unload_within(
                model.as_str(),
                how,
                within.map(|seconds| Duration::from_secs(seconds.into())),
            );
        }
        ModelOp::Files(n) => {
            let only = (n % 3 != 0).then(|| worker(sim, n));
            sim.catalogue.get_mut(&model).unwrap().workers = only.into_iter().collect();
            sim.publish_catalogue();
        }
        ModelOp::Preload => sim.event(Event::PreloadRequested { model }),
        ModelOp::Pin => {
            let spec = sim.catalogue.get_mut(&model).unwrap();
            spec.pinned = !spec.pinned;
            sim.publish_catalogue();
        }
        ModelOp::Ttl(seconds) => {
            let ttl = match seconds % 8 {
                0 => IdleTtl::Default,
                1 => IdleTtl::Never,
                more => IdleTtl::After(Duration::from_secs(more.into())),
            };
            sim.catalogue.get_mut(&model).unwrap().idle_ttl = ttl;
            sim.publish_catalogue();
        }
        ModelOp::Catalogue => {
            let back = sim.shelved.pop();
            if let Some(spec) = sim.catalogue.remove(&model) {
                sim.shelved.push(spec);
            }
            sim.catalogue.extend(back.map(|spec| (spec.id.clone(), spec)));
            sim.publish_catalogue();
        }
        ModelOp::Explain => {
            let before = format!("{:?}", sim.fleet.instances());
            let said = sim.explain(model.as_str(), 3);
            assert!(said.is_some() && before == format!("{:?}", sim.fleet.instances()));
        }
    }
}

/// What policy reads of a fleet, without what only one controller can know (failures, streams) or what moves with time.
fn digest(sim: &Sim) -> (Vec<String>, Vec<String>, Vec<(muster_policy::Moment, InstanceId)>) {
    let instances = sim
        .fleet
        .instances()
        .iter()
        .map(|instance| format!("{instance:?}"))
        .collect();
    let devices = sim
        .fleet
        .devices()
        .iter()
        .map(|device| format!("{device:?}"))
        .collect();
    let order = sim
        .fleet
        .models()
        .into_iter()
        .filter_map(|m| Some((m.last_used?, m.instances.first()?.clone())));
    let mut order: Vec<_> = order.collect();
    order.sort();
    (instances, devices, order)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4000, max_shrink_time: 60_000, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_rules_and_ends(config in configs(), ops in prop::collection::vec(op(), 1..160)) {
        let mut sim = fleet(config);
        for op in &ops {
            sim.log.push(format!("== {op:?}"));
            apply(&mut sim, op);
        }
        sim.run_out();
        let unanswered: Vec<_> = sim.calls.iter().filter(|call| !sim.replies.contains_key(*call)).collect();
        prop_assert!(unanswered.is_empty(), "{unanswered:?}\n{}", sim.tail());
    }

    #[test]
    fn every_crowded_history_keeps_the_rules_and_ends(
        config in configs(),
        ops in prop::collection::vec(crowded_op(), 1..240),
    ) {
        let mut sim = crowded_fleet(config);
        for op in &ops {
            sim.log.push(format!("== {op:?}"));
            apply(&mut sim, op);
        }
        sim.run_out();
    }

    #[test]
    fn every_history_of_a_wide_fleet_keeps_the_rules_and_ends(
        config in configs(),
        ops in prop::collection::vec(op(), 1..160),
    ) {
        let mut sim = wide_fleet(config);
        for op in &ops {
            sim.log.push(format!("== {op:?}"));
            apply(&mut sim, op);
        }
        sim.run_out();
    }

    /// Some requests never end: what needs their instances waits, and nothing else does.
    #[test]
    fn loads_begin_by_the_clock_alone_though_some_requests_never_end(
        config in configs(),
        which in 0_u8..4,
        ops in prop::collection::vec(prop_oneof![op(), crowded_op()], 1..160),
    ) {
        let mut sim = [fleet, crowded_fleet, wide_fleet, bound_fleet][usize::from(which)](config);
        for op in &ops {
            sim.log.push(format!("== {op:?}"));
            apply(&mut sim, op);
        }
        sim.run_on();
        sim.log.push("== what still runs ends".to_owned());
        sim.run_out();
    }

    #[test]
    fn a_fleet_rebuilt_from_reports_is_the_fleet(config in configs(), ops in prop::collection::vec(op(), 1..120)) {
        let mut sim = fleet(config);
        for op in ops.iter().filter(|op| !matches!(op, Op::RestartController(_) | Op::RestartWith(_) | Op::Foreign(_))) {
            apply(&mut sim, op);
        }
        sim.run_out();
        // What has been idle for too long beside a load is looked at once a second; a new controller does so at once.
        sim.advance(Duration::from_secs(1));
        sim.run_out();
        sim.withhold_samples = false;
        for id in sim.workers.keys().cloned().collect::<Vec<_>>() {
            sim.flush_touches(&id);
        }
        let before = digest(&sim);
        sim.restart_controller();
        connect_all(&mut sim);
        sim.deliver_all();
        prop_assert_eq!(digest(&sim), before, "{}", sim.tail());
    }
}
