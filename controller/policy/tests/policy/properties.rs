//! Arbitrary histories: whatever happens in whatever order, decisions keep the rules, and everything that waits comes to an end.

use std::num::NonZeroU32;
use std::time::Duration;

use muster_policy::{
    Bytes, Config, DeviceKind, Event, FailureClass, IdleTtl, InstanceId, ModelType, UnloadHow, WorkerId,
};
use proptest::prelude::*;

use crate::sim::{Life, Sim, SimWorker, config, device, facts, failure, limits, model, need, unlimited};

/// One thing that happens; numbers choose among what there is at that moment.
#[derive(Debug, Clone)]
enum Op {
    Open(u8),
    Close(u8),
    Request(u8),
    RouteRequest(u8),
    EndRequest(u8),
    Down(u8),
    Up(u8),
    FinishLoad(u8),
    FailLoad(u8, bool),
    /// An engine fails, while it loads or later, or somebody at its host wants it gone: it is unloading first (`Exit` ends it).
    BeginEnd(u8, Option<bool>),
    Exit(u8),
    Crash(u8),
    Worker(u8, WorkerOp),
    Model(u8, ModelOp),
    Touches(u8),
    Foreign(u8),
    RestartController(bool),
    /// The driver's clock reads earlier than it did.
    ClockBack,
    /// Touches that were told already are told again, older and with lower counts.
    LateTouch(u8),
    Advance(u16),
    Settle,
}

#[derive(Debug, Clone, Copy)]
enum WorkerOp {
    Lose,
    Rejoin,
    Restart,
    Leave,
    Forget,
    Drain(bool),
}

#[derive(Debug, Clone, Copy)]
enum ModelOp {
    Load,
    Unload(UnloadHow),
    Preload,
    Pin,
    /// Gives it an idle time, of so many seconds; zero = as the configuration says.
    Ttl(u8),
    /// Leaves the catalogue, or comes back.
    Catalogue,
    /// What policy would do is asked for.
    Explain,
}

fn worker_op() -> impl Strategy<Value = WorkerOp> {
    prop_oneof![
        2 => Just(WorkerOp::Lose),
        4 => Just(WorkerOp::Rejoin),
        1 => Just(WorkerOp::Restart),
        1 => Just(WorkerOp::Leave),
        1 => Just(WorkerOp::Forget),
        2 => any::<bool>().prop_map(WorkerOp::Drain),
    ]
}

fn model_op() -> impl Strategy<Value = ModelOp> {
    let how = prop_oneof![
        Just(UnloadHow::Drain),
        Just(UnloadHow::Force),
        Just(UnloadHow::DrainOrCancel)
    ];
    prop_oneof![
        Just(ModelOp::Load),
        how.prop_map(ModelOp::Unload),
        Just(ModelOp::Preload),
        Just(ModelOp::Pin),
        any::<u8>().prop_map(ModelOp::Ttl),
        Just(ModelOp::Catalogue),
        Just(ModelOp::Explain),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        10 => any::<u8>().prop_map(Op::Open),
        6 => any::<u8>().prop_map(Op::Close),
        8 => any::<u8>().prop_map(Op::Request),
        4 => any::<u8>().prop_map(Op::RouteRequest),
        8 => any::<u8>().prop_map(Op::EndRequest),
        20 => any::<u8>().prop_map(Op::Down),
        20 => any::<u8>().prop_map(Op::Up),
        8 => any::<u8>().prop_map(Op::FinishLoad),
        2 => any::<(u8, bool)>().prop_map(|(n, engine)| Op::FailLoad(n, engine)),
        3 => any::<(u8, Option<bool>)>().prop_map(|(n, engine)| Op::BeginEnd(n, engine)),
        8 => any::<u8>().prop_map(Op::Exit),
        1 => any::<u8>().prop_map(Op::Crash),
        6 => (any::<u8>(), worker_op()).prop_map(|(n, op)| Op::Worker(n, op)),
        4 => (any::<u8>(), model_op()).prop_map(|(n, op)| Op::Model(n, op)),
        4 => any::<u8>().prop_map(Op::Touches),
        1 => any::<u8>().prop_map(Op::Foreign),
        1 => prop::bool::weighted(0.8).prop_map(Op::RestartController),
        6 => (0_u16..12_000).prop_map(Op::Advance),
        1 => Just(Op::ClockBack),
        2 => any::<u8>().prop_map(Op::LateTouch),
        4 => Just(Op::Settle),
    ]
}

/// Mostly requests, on a fleet that is too small for its models: evictions race with them.
fn crowded_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => any::<u8>().prop_map(Op::Open),
        10 => any::<u8>().prop_map(Op::Close),
        14 => any::<u8>().prop_map(Op::RouteRequest),
        14 => any::<u8>().prop_map(Op::EndRequest),
        14 => any::<u8>().prop_map(Op::Down),
        14 => any::<u8>().prop_map(Op::Up),
        8 => any::<u8>().prop_map(Op::FinishLoad),
        8 => any::<u8>().prop_map(Op::Exit),
        2 => any::<(u8, Option<bool>)>().prop_map(|(n, engine)| Op::BeginEnd(n, engine)),
        1 => any::<(u8, bool)>().prop_map(|(n, engine)| Op::FailLoad(n, engine)),
        1 => (any::<u8>(), worker_op()).prop_map(|(n, op)| Op::Worker(n, op)),
        1 => (any::<u8>(), model_op()).prop_map(|(n, op)| Op::Model(n, op)),
        6 => Just(Op::Settle),
        4 => (0_u16..600).prop_map(Op::Advance),
    ]
}

/// One host, two workers that share a device.
fn crowded_fleet(config: Config) -> Sim {
    let mut sim = Sim::new(config);
    sim.instant = false;
    sim.join(facts("w0", "h", vec![device("sim:a", DeviceKind::Sim, 100)]));
    sim.join(facts(
        "w1",
        "h",
        vec![
            device("sim:a", DeviceKind::Sim, 100),
            device("sim:b", DeviceKind::Sim, 40),
        ],
    ));
    for (n, bytes) in [30_u64, 30, 50, 50, 20, 90, 100].into_iter().enumerate() {
        let kind = if n == 4 {
            ModelType::Embedding
        } else {
            ModelType::Llm
        };
        sim.add_model(model(&format!("m{n}"), kind, bytes));
    }
    sim
}

fn choose<T: Clone>(from: impl IntoIterator<Item = T>, n: u8) -> Option<T> {
    let all: Vec<T> = from.into_iter().collect();
    if all.is_empty() {
        None
    } else {
        Some(all[usize::from(n) % all.len()].clone())
    }
}

/// Two hosts: one with two GPUs, a worker each and one spanning both, and an NPU; one with a small simulated device.
fn fleet(config: Config) -> Sim {
    let mut sim = Sim::new(config);
    sim.instant = false;
    let gpu = |id| device(id, DeviceKind::Gpu, 100);
    sim.join(facts("w0", "h0", vec![gpu("g0")]));
    sim.join(facts("w1", "h0", vec![gpu("g1")]));
    sim.join(facts("w2", "h0", vec![gpu("g0"), gpu("g1")]));
    sim.join(facts("w3", "h0", vec![device("n0", DeviceKind::Npu, 50)]));
    sim.join(facts("w4", "h1", vec![device("sim:a", DeviceKind::Sim, 60)]));
    let kinds = [
        ModelType::Llm,
        ModelType::Llm,
        ModelType::Llm,
        ModelType::Embedding,
        ModelType::Reranking,
    ];
    for (n, bytes) in [10_u64, 40, 70, 95, 55, 30].into_iter().enumerate() {
        sim.add_model(model(&format!("m{n}"), kinds[n % kinds.len()], bytes));
    }
    let mut spanning = model("span", ModelType::Llm, 0);
    spanning.needs = vec![need(&[(DeviceKind::Gpu, 80), (DeviceKind::Gpu, 80)])];
    sim.add_model(spanning);
    for id in ["n0", "n1"] {
        let mut npu = model(
            id,
            if id == "n0" {
                ModelType::Llm
            } else {
                ModelType::Audio
            },
            0,
        );
        npu.needs = vec![need(&[(DeviceKind::Npu, 20)])];
        sim.add_model(npu);
    }
    let mut twins = model("twins", ModelType::Reranking, 20);
    twins.replicas = NonZeroU32::new(2).unwrap();
    sim.add_model(twins);
    let mut huge = model("huge", ModelType::Image, 0);
    huge.needs = vec![need(&[(DeviceKind::Gpu, 500)])];
    sim.add_model(huge);
    sim
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
        ModelOp::Unload(how) => {
            sim.unload(model.as_str(), how);
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

fn configs() -> impl Strategy<Value = Config> {
    let waits = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let basics = (1_u32..4, any::<bool>(), 1_u32..3, any::<bool>(), any::<bool>());
    (basics, waits).prop_map(
        |((limit, no_limit, loads, pack, cost_aware), (impatient, strict, stay, ttl))| Config {
            max_eviction_wait: impatient.then_some(Duration::from_secs(3)),
            max_drain: (impatient && strict).then_some(Duration::from_secs(4)),
            min_residency: if stay {
                Duration::from_secs(2)
            } else {
                Duration::ZERO
            },
            idle_ttl: ttl.then_some(Duration::from_secs(20)),
            limits: if no_limit { unlimited() } else { limits(limit) },
            max_concurrent_loads: NonZeroU32::new(loads).unwrap(),
            placement: if pack {
                muster_policy::Placement::Pack
            } else {
                muster_policy::Placement::Spread
            },
            eviction: if cost_aware {
                muster_policy::Eviction::CostAware
            } else {
                muster_policy::Eviction::Lru
            },
            ..config()
        },
    )
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
    #![proptest_config(ProptestConfig { max_shrink_iters: 4000, ..ProptestConfig::default() })]

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
    fn a_fleet_rebuilt_from_reports_is_the_fleet(config in configs(), ops in prop::collection::vec(op(), 1..120)) {
        let mut sim = fleet(config);
        for op in ops.iter().filter(|op| !matches!(op, Op::RestartController(_) | Op::Foreign(_))) {
            apply(&mut sim, op);
        }
        sim.run_out();
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
