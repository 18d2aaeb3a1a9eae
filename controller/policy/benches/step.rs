//! What one decision costs: `Fleet::step` in fleets of 10, 1,000 and 10,000 workers with ten instances each.
//!
//! `cargo bench -p muster-policy --bench step`. Every worker is a host of its own with one device that its ten instances fill, except
//! where a case says otherwise. Each case undoes what it did outside the measured time, so that every round meets the same fleet.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a benchmark measures time; policy itself still gets it handed in"
)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::wildcard_enum_match_arm,
    reason = "as in tests: what does not hold ends the benchmark"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use muster_core::{Bytes, DeviceKind, HoldId, InstanceId, ModelType, Runtime, SpecHash};
use muster_policy::{
    Command, CommandId, Config, DeviceChoice, DeviceFacts, Effect, EstimateSource, Event, Exclusivity, Fleet,
    InstanceSpec, InstanceStatus, Limit, Limits, ModelSpec, Moment, Need, NeedPart, Origin, Outcome, Refusal,
    Report, ReportedState, Reservation, Settings, Touch, WorkerFacts,
};

const PER_WORKER: usize = 10;
const MODEL: u64 = 10;

/// One round of a case: a number, and where to add the time it took.
type Round = Box<dyn FnMut(&mut World, u64, &mut Duration)>;

struct World {
    fleet: Fleet,
    now: Moment,
    workers: usize,
    next: u64,
    touch_seq: u64,
}

fn spec(id: &str) -> ModelSpec {
    ModelSpec {
        id: id.into(),
        kind: ModelType::Llm,
        runtime: Runtime::Stub,
        device: DeviceChoice::Any,
        needs: vec![Need {
            parts: vec![NeedPart {
                kind: DeviceKind::Gpu,
                bytes: Bytes::new(MODEL),
                share: None,
            }],
            source: EstimateSource::Configured,
            settings: Settings(Arc::from([])),
        }],
        spec_hash: SpecHash::from("hash"),
        pinned: false,
        idle_ttl: muster_policy::IdleTtl::Default,
        replicas: std::num::NonZeroU32::MIN,
        workers: BTreeSet::new(),
    }
}

fn instance_name(worker: usize, n: usize) -> InstanceId {
    InstanceId::from(format!("0190-{worker:06}-{n:03}").as_str())
}

fn status(worker: usize, n: usize, running: u32, touch_seq: u64, age: Duration) -> InstanceStatus {
    let model = spec(&format!("model-{worker}-{n}"));
    InstanceStatus {
        id: instance_name(worker, n),
        spec: InstanceSpec {
            model: model.id,
            kind: model.kind,
            runtime: model.runtime,
            settings: Settings(Arc::from([])),
            spec_hash: model.spec_hash,
            reservations: vec![Reservation {
                device: "gpu".into(),
                bytes: Bytes::new(MODEL),
            }],
            source: EstimateSource::Configured,
            origin: Origin::Auto,
            attempt: 1,
            pinned: false,
            idle_ttl: None,
            group: None,
        },
        state: ReportedState::Ready,
        revision: touch_seq,
        running,
        queued: 0,
        holds: BTreeSet::new(),
        touch_seq,
        touch_age: age,
        observed: Vec::new(),
    }
}

impl World {
    /// `room`: devices have room for so many further models.
    fn new(workers: usize, room: usize, running: u32) -> Self {
        let config = Config {
            limits: Limits::all(Limit::Unlimited),
            margin: Bytes::ZERO,
            ..Config::default()
        };
        let now = Moment::after_start(Duration::from_secs(100_000));
        let mut world = Self {
            fleet: Fleet::new(config, Vec::new(), now),
            now,
            workers,
            next: 0,
            touch_seq: 10,
        };
        let mut models: Vec<ModelSpec> = (0..64).map(|n| spec(&format!("cold-{n}"))).collect();
        for worker in 0..workers {
            models.extend((0..PER_WORKER).map(|n| spec(&format!("model-{worker}-{n}"))));
        }
        world.step(Event::CatalogueChanged { models });
        let capacity = MODEL * u64::try_from(PER_WORKER + room).unwrap();
        for worker in 0..workers {
            let name = format!("worker-{worker:06}");
            let facts = WorkerFacts {
                id: name.as_str().into(),
                boot: "boot".into(),
                host: format!("host-{worker:06}").as_str().into(),
                devices: vec![DeviceFacts {
                    id: "gpu".into(),
                    kind: DeviceKind::Gpu,
                    capacity: Bytes::new(capacity),
                    exclusivity: Exclusivity::Shared,
                }],
                runtimes: BTreeMap::from([(Runtime::Stub, BTreeSet::from(["gpu".into()]))]),
                draining: false,
            };
            let age = |n: usize| Duration::from_secs(((worker * 7919 + n * 104_729) % 90_000) as u64 + 10);
            let report = Report {
                instances: (0..PER_WORKER)
                    .map(|n| status(worker, n, running, 1, age(n)))
                    .collect(),
                ..Report::default()
            };
            world.step(Event::WorkerJoined { facts, report });
        }
        world
    }

    fn step(&mut self, event: Event) -> Vec<Effect> {
        let next = &mut self.next;
        let mut ids = || {
            *next += 1;
            InstanceId::from(format!("0191-{next:09}").as_str())
        };
        self.fleet.step(self.now, event, &mut ids)
    }

    fn timed(&mut self, event: Event, spent: &mut Duration) -> Vec<Effect> {
        let begun = Instant::now();
        let effects = black_box(self.step(black_box(event)));
        *spent += begun.elapsed();
        effects
    }

    fn open(&self, n: u64) -> (HoldId, Event) {
        let hold = HoldId::from(format!("hold-{n}").as_str());
        let event = Event::EnsureOpened {
            hold: hold.clone(),
            model: format!("cold-{}", n % 64).as_str().into(),
            avoid_instances: Vec::new(),
            avoid_workers: Vec::new(),
        };
        (hold, event)
    }

    /// A different instance each time, all over the fleet.
    fn somewhere(&mut self) -> (usize, usize) {
        self.touch_seq += 1;
        self.now = self.now + Duration::from_millis(1);
        let n = usize::try_from(self.touch_seq).unwrap();
        ((n * 7919) % self.workers, n % PER_WORKER)
    }

    fn touch(&mut self, spent: &mut Duration) {
        let (worker, n) = self.somewhere();
        let touch = Touch {
            instance: instance_name(worker, n),
            touch_seq: self.touch_seq,
            age: Duration::from_millis(50),
        };
        self.timed(
            Event::WorkerReported {
                worker: format!("worker-{worker:06}").as_str().into(),
                report: Report {
                    touches: vec![touch],
                    ..Report::default()
                },
            },
            spent,
        );
    }

    fn report(&mut self, running: u32, spent: &mut Duration) {
        let (worker, n) = self.somewhere();
        let status = status(worker, n, running, self.touch_seq, Duration::from_millis(1));
        self.timed(
            Event::WorkerReported {
                worker: format!("worker-{worker:06}").as_str().into(),
                report: Report {
                    instances: vec![status],
                    ..Report::default()
                },
            },
            spent,
        );
    }

    /// A cold model is asked for; what was begun for it is undone.
    fn place(&mut self, n: u64, spent: &mut Duration) {
        self.now = self.now + Duration::from_secs(2);
        let (hold, event) = self.open(n);
        let effects = self.timed(event, spent);
        self.step(Event::EnsureClosed { hold });
        let sent = effects.into_iter().find_map(|effect| match effect {
            Effect::Command { id, command, .. } => Some((id, command)),
            _ => None,
        });
        let (id, command): (CommandId, Command) = sent.expect("a placement sends a command");
        let reason = match command {
            Command::Load { .. } => Refusal::Draining,
            _ => Refusal::Touched,
        };
        let undone = match reason {
            Refusal::Draining => Outcome::Done {
                state: muster_policy::DoneState::Gone,
                touch_seq: 0,
            },
            _ => Outcome::Refused { reason, touch_seq: 0 },
        };
        self.step(Event::Outcome { id, outcome: undone });
    }
}

fn decisions(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(500));
    for workers in [10_usize, 1_000, 10_000] {
        let mut case = |name: &str, mut world: World, mut round: Round| {
            let mut n = 0;
            group.bench_function(BenchmarkId::new(name, workers), |bencher| {
                bencher.iter_custom(|rounds| {
                    let mut spent = Duration::ZERO;
                    for _ in 0..rounds {
                        n += 1;
                        round(&mut world, n, &mut spent);
                    }
                    spent
                });
            });
        };
        case(
            "touch",
            World::new(workers, 0, 0),
            Box::new(|world, _, spent| world.touch(spent)),
        );
        case(
            "report",
            World::new(workers, 0, 0),
            Box::new(|world, n, spent| world.report(u32::from(n % 2 == 0), spent)),
        );
        case("place_free", World::new(workers, 1, 0), Box::new(World::place));
        case(
            "place_evicting",
            World::new(workers, 0, 0),
            Box::new(World::place),
        );
        // Everything is busy, and sixteen loads wait: what does news of one instance cost that changes nothing?
        let mut crowded = World::new(workers, 0, 1);
        for n in 0..16 {
            let (_, event) = crowded.open(n);
            crowded.step(event);
        }
        case(
            "report_beside_16_waiting",
            crowded,
            Box::new(|world, _, spent| world.report(1, spent)),
        );
    }
    group.finish();
}

criterion_group!(benches, decisions);
criterion_main!(benches);
