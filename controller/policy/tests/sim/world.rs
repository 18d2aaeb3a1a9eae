//! A fleet that runs a scenario under the real policy: workers carry commands out and report, gateways send requests, all in virtual time.
//!
//! ```text
//!   request ──► route? ──► instance ──────────────► finished
//!                 │ none                 ▲
//!                 └─► EnsureOpened ─► Fleet::step ─► Load ─► ready ─► Ready ─► EnsureClosed
//! ```

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_core::{Bytes, DeviceKind, HoldId, InstanceId, Runtime, SpecHash};
use muster_policy::{
    CommandId, Config, DeviceChoice, DeviceFacts, Effect, EstimateSource, Event, Exclusivity, Fleet, IdleTtl,
    Limit, Limits, ModelSpec, Moment, Need, NeedPart, Outcome as Answer, Report, RouteState, Settings, Stage,
    WorkerFacts, invariants,
};

use crate::outcome::Outcome;
use crate::scenario::{Micros, ModelDef, Scenario};
use crate::worker::{Life, SimInstance, SimWorker};

const MILLISECOND: Micros = 1_000;
/// One way between controller and worker.
pub(crate) const LINK: Micros = MILLISECOND;
/// How long an engine takes to end.
pub(crate) const EXIT: Micros = 100 * MILLISECOND;
/// Touches and counts are told at most so late.
pub(crate) const COALESCE: Micros = 50 * MILLISECOND;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happening {
    Arrive(usize),
    Finish {
        instance: usize,
    },
    LoadEnd {
        instance: usize,
        well: bool,
    },
    Exit {
        instance: usize,
    },
    Flush {
        worker: usize,
    },
    Answer {
        worker: usize,
        boot: u32,
        id: CommandId,
        answer: Answer,
    },
    Tick,
    Crash {
        host: usize,
    },
    Back {
        host: usize,
    },
}

/// Requests that wait for a cold model, behind one stream.
#[derive(Debug)]
struct Stream {
    hold: HoldId,
    waiting: Vec<usize>,
}

pub(crate) struct World<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) fleet: Fleet,
    pub(crate) now: Micros,
    agenda: BinaryHeap<Reverse<(Micros, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    next: u64,
    pub(crate) workers: Vec<SimWorker>,
    pub(crate) instances: Vec<SimInstance>,
    pub(crate) by_id: BTreeMap<InstanceId, usize>,
    models: BTreeMap<String, usize>,
    routes: Vec<Vec<usize>>,
    streams: Vec<Option<Stream>>,
    holds: BTreeMap<HoldId, usize>,
    pending: VecDeque<Event>,
    wake: Option<Micros>,
    steps: u64,
    pub(crate) out: Outcome,
}

/// Runs a scenario under the policy; `config` says how, apart from what the scenario says.
pub(crate) fn run(scenario: &Scenario, config: Config) -> Outcome {
    let config = Config {
        limits: Limits::all(Limit::Unlimited),
        margin: Bytes::ZERO,
        ..config
    };
    let mut world = World::new(scenario, config);
    while let Some(Reverse((at, id))) = world.agenda.pop() {
        world.now = at;
        if let Some(happening) = world.happenings.remove(&id) {
            world.take(happening);
        }
    }
    world.finish()
}

fn spec(def: &ModelDef) -> ModelSpec {
    let kind = if def.npu { DeviceKind::Npu } else { DeviceKind::Gpu };
    ModelSpec {
        id: def.name.as_str().into(),
        kind: def.kind,
        runtime: Runtime::Stub,
        device: DeviceChoice::Any,
        needs: vec![Need {
            parts: vec![NeedPart {
                kind,
                bytes: Bytes::new(def.bytes),
                share: None,
            }],
            source: EstimateSource::Configured,
            settings: Settings(Arc::from([])),
        }],
        spec_hash: SpecHash::from("settings"),
        pinned: false,
        idle_ttl: IdleTtl::Default,
        replicas: std::num::NonZeroU32::MIN,
        workers: BTreeSet::new(),
    }
}

fn facts(host: usize, device: &str, kind: DeviceKind, bytes: u64, boot: u32) -> WorkerFacts {
    let exclusivity = match kind {
        DeviceKind::Npu => Exclusivity::OneModel,
        DeviceKind::Gpu | DeviceKind::Cpu | DeviceKind::Sim => Exclusivity::Shared,
    };
    WorkerFacts {
        id: format!("worker-{host:04}-{device}").as_str().into(),
        boot: format!("boot-{boot}").as_str().into(),
        host: format!("host-{host:04}").as_str().into(),
        devices: vec![DeviceFacts {
            id: device.into(),
            kind,
            capacity: Bytes::new(bytes),
            exclusivity,
        }],
        runtimes: BTreeMap::from([(Runtime::Stub, BTreeSet::from([device.into()]))]),
        draining: false,
    }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario, config: Config) -> Self {
        let names = scenario.models.iter().enumerate();
        let mut world = Self {
            scenario,
            fleet: Fleet::new(config, Vec::new(), Moment::after_start(Duration::ZERO)),
            now: 0,
            agenda: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            next: 0,
            workers: Vec::new(),
            instances: Vec::new(),
            by_id: BTreeMap::new(),
            models: names.map(|(index, def)| (def.name.clone(), index)).collect(),
            routes: vec![Vec::new(); scenario.models.len()],
            streams: scenario.models.iter().map(|_| None).collect(),
            holds: BTreeMap::new(),
            pending: VecDeque::new(),
            wake: None,
            steps: 0,
            out: Outcome::default(),
        };
        world.feed(Event::CatalogueChanged {
            models: scenario.models.iter().map(spec).collect(),
        });
        for host in 0..scenario.hosts {
            for (index, bytes) in scenario.gpus.iter().enumerate() {
                world.join(host, &format!("gpu-{index}"), DeviceKind::Gpu, *bytes);
            }
            if scenario.npu {
                world.join(host, "npu", DeviceKind::Npu, 16 << 30);
            }
        }
        for (index, request) in scenario.requests.iter().enumerate() {
            world.at(request.at, Happening::Arrive(index));
        }
        for (at, host) in &scenario.crashes {
            world.at(*at, Happening::Crash { host: *host });
        }
        world
    }

    fn join(&mut self, host: usize, device: &str, kind: DeviceKind, bytes: u64) {
        let facts = facts(host, device, kind, bytes, 0);
        self.workers.push(SimWorker::new(host, facts.clone()));
        self.feed(Event::WorkerJoined {
            facts,
            report: Report::default(),
        });
    }

    pub(crate) fn at(&mut self, at: Micros, happening: Happening) {
        self.next += 1;
        self.agenda.push(Reverse((at, self.next)));
        self.happenings.insert(self.next, happening);
    }

    pub(crate) fn later(&mut self, span: Micros, happening: Happening) {
        self.at(self.now + span, happening);
    }

    /// Gives policy an event and carries out what it wants.
    pub(crate) fn feed(&mut self, event: Event) {
        self.pending.push_back(event);
        while let Some(event) = self.pending.pop_front() {
            let now = Moment::after_start(Duration::from_micros(self.now));
            let next = &mut self.next;
            let mut ids = || {
                *next += 1;
                InstanceId::from(format!("i-{next:012}").as_str())
            };
            let effects = self.fleet.step(now, event, &mut ids);
            self.steps += 1;
            if self.steps.is_multiple_of(self.scenario.check_every)
                && let Err(broken) = invariants::check(&self.fleet, &effects)
            {
                panic!("{}: after {} steps: {broken:?}", self.scenario.name, self.steps);
            }
            for effect in effects {
                self.carry_out(effect);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Command {
                id,
                worker,
                instance,
                command,
            } => self.command(id, &worker, instance, command),
            Effect::Notify { hold, stage } => self.notified(&hold, &stage),
            Effect::PublishRoute {
                instance,
                model,
                state,
                ..
            } => {
                let (index, model) = (self.by_id[&instance], self.models[model.as_str()]);
                self.routes[model].retain(|known| *known != index);
                match state {
                    RouteState::Ready => self.routes[model].push(index),
                    RouteState::Suspect | RouteState::Draining => {}
                }
            }
            Effect::RetractRoute { instance } => {
                let index = self.by_id[&instance];
                let model = self.instances[index].model;
                self.routes[model].retain(|known| *known != index);
            }
            Effect::WakeAt { at } => {
                let at = Micros::try_from(at.since_start().as_micros()).unwrap();
                self.wake = Some(at);
                self.at(at, Happening::Tick);
            }
            Effect::Resync { worker } => panic!("{worker}: an outcome stayed unknown"),
            Effect::Progress { .. }
            | Effect::Reply { .. }
            | Effect::ModelChanged { .. }
            | Effect::Settled
            | Effect::RosterPut { .. }
            | Effect::RosterRemove { .. }
            | Effect::Decided(_) => {}
        }
    }

    pub(crate) fn model(&self, name: &str) -> usize {
        self.models[name]
    }

    fn take(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive(request) => self.arrive(request),
            Happening::Finish { instance } => self.request_ended(instance),
            Happening::LoadEnd { instance, well } => self.load_ended(instance, well),
            Happening::Exit { instance } => self.exited(instance),
            Happening::Flush { worker } => self.flush(worker),
            Happening::Answer {
                worker,
                boot,
                id,
                answer,
            } => {
                if self.workers[worker].alive(boot) {
                    self.feed(Event::Outcome { id, outcome: answer });
                }
            }
            Happening::Tick => {
                if self.wake == Some(self.now) {
                    self.wake = None;
                    self.feed(Event::Tick);
                }
            }
            Happening::Crash { host } => {
                let up = |worker: &SimWorker| worker.host == host && worker.up;
                let workers: Vec<usize> = (0..self.workers.len())
                    .filter(|index| up(&self.workers[*index]))
                    .collect();
                if !workers.is_empty() {
                    self.later(Scenario::OUTAGE, Happening::Back { host });
                }
                for worker in workers {
                    self.crash(worker);
                }
            }
            Happening::Back { host } => {
                for worker in 0..self.workers.len() {
                    if self.workers[worker].host == host {
                        let facts = self.workers[worker].restart();
                        self.feed(Event::WorkerJoined {
                            facts,
                            report: Report::default(),
                        });
                    }
                }
            }
        }
    }

    fn arrive(&mut self, request: usize) {
        let model = self.scenario.requests[request].model;
        let ready = self.routes[model]
            .iter()
            .copied()
            .filter(|index| self.instances[*index].life == Life::Ready);
        if let Some(instance) = ready.min_by_key(|index| self.instances[*index].running) {
            self.out.served(None);
            self.begin(instance, request);
            return;
        }
        if let Some(stream) = &mut self.streams[model] {
            stream.waiting.push(request);
            return;
        }
        // Gateways name an instance that has just turned them away.
        let stale = self.routes[model]
            .iter()
            .map(|index| self.instances[*index].id.clone());
        let avoid_instances = stale.collect();
        self.next += 1;
        let hold = HoldId::from(format!("hold-{}", self.next).as_str());
        self.holds.insert(hold.clone(), model);
        self.streams[model] = Some(Stream {
            hold: hold.clone(),
            waiting: vec![request],
        });
        self.pending.push_back(Event::EnsureOpened {
            hold,
            model: self.scenario.models[model].name.as_str().into(),
            avoid_instances,
            avoid_workers: Vec::new(),
        });
        if let Some(event) = self.pending.pop_front() {
            self.feed(event);
        }
    }

    fn notified(&mut self, hold: &HoldId, stage: &Stage) {
        match stage {
            Stage::Ready { instance, .. } => {
                let Some((stream, index)) = self.end_stream(hold).zip(self.by_id.get(instance).copied())
                else {
                    return;
                };
                for request in stream.waiting {
                    self.out
                        .served(Some(self.now - self.scenario.requests[request].at));
                    self.begin(index, request);
                }
                self.pending.push_back(Event::EnsureClosed { hold: hold.clone() });
            }
            Stage::Failed(_) => {
                if let Some(stream) = self.end_stream(hold) {
                    self.out.failed += u64::try_from(stream.waiting.len()).unwrap();
                }
                self.pending.push_back(Event::EnsureClosed { hold: hold.clone() });
            }
            Stage::Queued { .. } | Stage::Evicting { .. } | Stage::Loading { .. } => {}
        }
    }

    fn end_stream(&mut self, hold: &HoldId) -> Option<Stream> {
        let model = self.holds.remove(hold)?;
        let stream = self.streams[model].take()?;
        assert_eq!(stream.hold, *hold, "a stream was answered twice");
        Some(stream)
    }

    fn finish(mut self) -> Outcome {
        assert!(self.pending.is_empty());
        let waiting = self
            .streams
            .iter()
            .flatten()
            .map(|stream| stream.waiting.len() as u64);
        self.out.starved = waiting.sum();
        self.out.requests = u64::try_from(self.scenario.requests.len()).unwrap();
        self.out
    }
}
