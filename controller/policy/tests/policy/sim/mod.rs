//! A simulated fleet: workers that carry commands out, late or never, and gateways that send requests. Workers keep the truth;
//! the checks here are about it, not about what policy believes.

mod waits;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use muster_policy::{
    Bytes, Command, Config, DeviceChoice, DeviceFacts, DeviceId, DeviceKind, Effect, EstimateSource, Event,
    Exclusivity, Fleet, HoldId, HostId, IdleTtl, InstanceId, Limit, Limits, LoadError, ModelId, ModelSpec,
    ModelState, ModelType, Moment, Need, NeedPart, Outcome, RequestId, RouteState, RuntimeName, Settings,
    SpecHash, Stage, UnloadHow, WorkerFacts, WorkerId,
};

pub(crate) use worker::{Life, SimWorker, failure};

/// A gateway's stream as the gateway sees it.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    pub(crate) stages: Vec<Stage>,
}

impl Stream {
    pub(crate) fn last(&self) -> Option<&Stage> {
        self.stages.last()
    }

    pub(crate) fn ready(&self) -> Option<(&InstanceId, &WorkerId)> {
        match self.last() {
            Some(Stage::Ready { instance, worker }) => Some((instance, worker)),
            _ => None,
        }
    }

    pub(crate) fn failed(&self) -> Option<&LoadError> {
        match self.last() {
            Some(Stage::Failed(error)) => Some(error),
            _ => None,
        }
    }
}

/// The whole simulated world.
#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) fleet: Fleet,
    pub(crate) config: Config,
    pub(crate) now: Moment,
    pub(crate) catalogue: BTreeMap<ModelId, ModelSpec>,
    /// Entries that left the catalogue.
    pub(crate) shelved: Vec<ModelSpec>,
    pub(crate) workers: BTreeMap<WorkerId, SimWorker>,
    pub(crate) streams: BTreeMap<HoldId, Stream>,
    /// Operators' calls that must be answered.
    pub(crate) calls: BTreeSet<RequestId>,
    pub(crate) replies: BTreeMap<RequestId, Result<ModelState, LoadError>>,
    pub(crate) routes: BTreeMap<InstanceId, (WorkerId, ModelId, RouteState)>,
    pub(crate) states: BTreeMap<ModelId, ModelState>,
    pub(crate) decisions: Vec<String>,
    pub(crate) wake: Option<Moment>,
    pub(crate) roster: BTreeMap<WorkerId, WorkerFacts>,
    /// Memory that other programs use, per host and device.
    pub(crate) foreign: BTreeMap<(HostId, DeviceId), Bytes>,
    /// Deliver everything at once; else tests decide when.
    pub(crate) instant: bool,
    pub(crate) log: Vec<String>,
    /// Loads that reached a worker.
    pub(crate) loads: Vec<(WorkerId, InstanceId, ModelId)>,
    /// Every worker with instances has joined this controller before it settled, so that the truth can be held against it.
    pub(crate) strict: bool,
    /// Workers report without memory samples.
    pub(crate) withhold_samples: bool,
    /// Models that were asked for with settings of their own, or with workers to avoid.
    pub(crate) overridden: BTreeSet<ModelId>,
    pub(crate) avoiding: BTreeSet<ModelId>,
    /// Models whose engine failed to load, and where; until they are loaded again.
    pub(crate) retrying: BTreeMap<ModelId, WorkerId>,
    /// Those of them that may be tried elsewhere: something changed about their worker or their files.
    pub(crate) unbound: BTreeSet<ModelId>,
    pub(crate) events: u64,
    /// Commands that could not be sent: nobody knows what became of them, as policy hears before anything else happens.
    unsent: Vec<muster_policy::CommandId>,
    /// How many such answers follow from each other at the moment.
    rounds: usize,
    next_instance: u64,
    next_name: u64,
}

/// Rounds of follow-up events within one input; the driver's bound is the same.
const MAX_ROUNDS: usize = 8;

pub(crate) fn config() -> Config {
    Config {
        margin: Bytes::ZERO,
        ..Config::default()
    }
}

pub(crate) fn limits(n: u32) -> Limits {
    Limits::all(Limit::AtMost(NonZeroU32::new(n).unwrap()))
}

pub(crate) fn unlimited() -> Limits {
    Limits::all(Limit::Unlimited)
}

pub(crate) fn model(id: &str, kind: ModelType, bytes: u64) -> ModelSpec {
    let needs = [DeviceKind::Gpu, DeviceKind::Sim]
        .map(|device| need(&[(device, bytes)]))
        .to_vec();
    ModelSpec {
        id: id.into(),
        kind,
        runtime: "stub".into(),
        device: DeviceChoice::Any,
        needs,
        spec_hash: SpecHash::new(format!("hash-{id}")),
        pinned: false,
        idle_ttl: IdleTtl::Default,
        replicas: NonZeroU32::MIN,
        workers: BTreeSet::new(),
    }
}

pub(crate) fn need(parts: &[(DeviceKind, u64)]) -> Need {
    let parts = parts
        .iter()
        .map(|&(kind, bytes)| NeedPart {
            kind,
            bytes: Bytes::new(bytes),
            share: None,
        })
        .collect();
    Need {
        parts,
        source: EstimateSource::Configured,
        settings: Settings(Arc::from([1_u8, 2, 3])),
    }
}

pub(crate) fn device(id: &str, kind: DeviceKind, capacity: u64) -> DeviceFacts {
    let exclusivity = if kind == DeviceKind::Npu {
        Exclusivity::OneModel
    } else {
        Exclusivity::Shared
    };
    DeviceFacts {
        id: id.into(),
        kind,
        capacity: Bytes::new(capacity),
        exclusivity,
    }
}

pub(crate) fn facts(id: &str, host: &str, devices: Vec<DeviceFacts>) -> WorkerFacts {
    let usable: BTreeSet<DeviceId> = devices.iter().map(|device| device.id.clone()).collect();
    WorkerFacts {
        id: id.into(),
        boot: format!("{id}-boot-0").as_str().into(),
        host: host.into(),
        devices,
        runtimes: BTreeMap::from([(RuntimeName::new("stub"), usable)]),
        draining: false,
    }
}

impl Sim {
    pub(crate) fn new(config: Config) -> Self {
        let now = Moment::after_start(Duration::from_secs(1));
        Self {
            fleet: Fleet::new(config.clone(), Vec::new(), now),
            config,
            now,
            catalogue: BTreeMap::new(),
            shelved: Vec::new(),
            workers: BTreeMap::new(),
            streams: BTreeMap::new(),
            calls: BTreeSet::new(),
            replies: BTreeMap::new(),
            routes: BTreeMap::new(),
            states: BTreeMap::new(),
            decisions: Vec::new(),
            wake: None,
            roster: BTreeMap::new(),
            foreign: BTreeMap::new(),
            instant: true,
            log: Vec::new(),
            loads: Vec::new(),
            strict: true,
            withhold_samples: false,
            overridden: BTreeSet::new(),
            avoiding: BTreeSet::new(),
            retrying: BTreeMap::new(),
            unbound: BTreeSet::new(),
            events: 0,
            unsent: Vec::new(),
            rounds: 0,
            next_instance: 0,
            next_name: 0,
        }
    }

    /// One host with one simulated device.
    pub(crate) fn one_device(config: Config, capacity: u64) -> Self {
        let mut sim = Self::new(config);
        sim.join(facts("w", "h", vec![device("sim:a", DeviceKind::Sim, capacity)]));
        sim
    }

    pub(crate) fn add_model(&mut self, spec: ModelSpec) {
        self.catalogue.insert(spec.id.clone(), spec.clone());
        self.event(Event::ModelsChanged { models: vec![spec] });
    }

    pub(crate) fn publish_catalogue(&mut self) {
        self.event(Event::CatalogueChanged {
            models: self.catalogue.values().cloned().collect(),
        });
    }

    pub(crate) fn join(&mut self, facts: WorkerFacts) {
        let id = facts.id.clone();
        self.workers.insert(id.clone(), SimWorker::new(facts));
        self.connect(&id);
    }

    /// Opens a session with a full report.
    pub(crate) fn connect(&mut self, id: &WorkerId) {
        let report = self.full_report(id);
        let worker = self.workers.get_mut(id).unwrap();
        worker.connected = true;
        worker.known = true;
        worker.mute = false;
        worker.down.clear();
        worker.up.clear();
        let facts = worker.facts.clone();
        self.event(Event::WorkerJoined { facts, report });
    }

    /// The session breaks; the worker goes on. Commands and answers in flight are lost.
    pub(crate) fn lose(&mut self, id: &WorkerId) {
        let worker = self.workers.get_mut(id).unwrap();
        if !worker.connected {
            return;
        }
        worker.connected = false;
        worker.down.clear();
        worker.up.clear();
        worker.revert_quiesce();
        self.event(Event::WorkerLost { worker: id.clone() });
    }

    /// The worker dies with all its engines and comes back as another boot.
    pub(crate) fn restart(&mut self, id: &WorkerId) {
        self.lose(id);
        let worker = self.workers.get_mut(id).unwrap();
        worker.instances.clear();
        worker.boots += 1;
        worker.facts.boot = format!("{id}-boot-{}", worker.boots).as_str().into();
        self.connect(id);
    }

    /// The worker drains, says goodbye and starts again later as another boot.
    pub(crate) fn leave(&mut self, id: &WorkerId) {
        let worker = self.workers.get_mut(id).unwrap();
        worker.connected = false;
        worker.down.clear();
        worker.up.clear();
        worker.instances.clear();
        worker.boots += 1;
        worker.facts.boot = format!("{id}-boot-{}", worker.boots).as_str().into();
        self.event(Event::WorkerLeft { worker: id.clone() });
    }

    /// The controller dies and comes back, knowing the roster only.
    pub(crate) fn restart_controller(&mut self) {
        self.fleet = Fleet::new(
            self.config.clone(),
            self.roster.values().cloned().collect(),
            self.now,
        );
        self.streams.clear();
        self.calls.clear();
        self.routes.clear();
        self.states.clear();
        self.wake = None;
        for worker in self.workers.values_mut() {
            worker.connected = false;
            worker.known = false;
            worker.down.clear();
            worker.up.clear();
            worker.revert_quiesce();
        }
        self.publish_catalogue();
    }

    pub(crate) fn open(&mut self, model: &str) -> HoldId {
        self.next_name += 1;
        let hold = HoldId::new(format!("hold-{}", self.next_name));
        self.open_as(hold.clone(), model);
        hold
    }

    pub(crate) fn open_as(&mut self, hold: HoldId, model: &str) {
        self.streams.insert(hold.clone(), Stream { stages: Vec::new() });
        self.event(Event::EnsureOpened {
            hold,
            model: model.into(),
            avoid_instances: Vec::new(),
            avoid_workers: Vec::new(),
        });
    }

    pub(crate) fn open_avoiding(
        &mut self,
        model: &str,
        avoid_instances: Vec<InstanceId>,
        avoid_workers: Vec<WorkerId>,
    ) {
        self.next_name += 1;
        let hold = HoldId::new(format!("hold-{}", self.next_name));
        self.streams.insert(hold.clone(), Stream { stages: Vec::new() });
        self.avoiding.insert(model.into());
        self.event(Event::EnsureOpened {
            hold,
            model: model.into(),
            avoid_instances,
            avoid_workers,
        });
    }

    pub(crate) fn close(&mut self, hold: &HoldId) {
        self.streams.remove(hold);
        self.event(Event::EnsureClosed { hold: hold.clone() });
    }

    pub(crate) fn request(&mut self) -> RequestId {
        self.next_name += 1;
        RequestId::new(format!("call-{}", self.next_name))
    }

    /// An operator's load.
    pub(crate) fn load(&mut self, model: &str) -> RequestId {
        self.load_with(model, None)
    }

    pub(crate) fn load_with(&mut self, model: &str, overrides: Option<ModelSpec>) -> RequestId {
        let request = self.request();
        self.calls.insert(request.clone());
        if overrides.is_some() {
            self.overridden.insert(model.into());
        }
        self.event(Event::LoadRequested {
            request: request.clone(),
            model: model.into(),
            overrides,
        });
        request
    }

    /// An operator's unload.
    pub(crate) fn unload(&mut self, model: &str, how: UnloadHow) -> RequestId {
        self.unload_within(model, how, None)
    }

    pub(crate) fn unload_within(
        &mut self,
        model: &str,
        how: UnloadHow,
        drain_for: Option<Duration>,
    ) -> RequestId {
        let request = self.request();
        self.calls.insert(request.clone());
        self.event(Event::UnloadRequested {
            request: request.clone(),
            model: model.into(),
            how,
            drain_for,
        });
        request
    }

    /// Opens a stream, waits until it is ready, sends a request and closes the stream. Returns the instance with the request running.
    pub(crate) fn use_model(&mut self, model: &str) -> InstanceId {
        let hold = self.open(model);
        self.finish_loads();
        let (instance, worker) = self.streams[&hold]
            .ready()
            .map(|(i, w)| (i.clone(), w.clone()))
            .unwrap();
        assert!(
            self.start_request(&worker, &instance),
            "the worker refused a request of a held instance"
        );
        self.close(&hold);
        instance
    }

    /// One whole request.
    pub(crate) fn use_once(&mut self, model: &str) -> InstanceId {
        let instance = self.use_model(model);
        self.advance(Duration::from_millis(10));
        self.end_request(&instance);
        instance
    }

    /// The driver hands over an earlier moment than before, once.
    pub(crate) fn clock_back(&mut self, span: Duration) {
        let now = self.now;
        self.now = now.ago(span);
        self.event(Event::Tick);
        self.now = now;
    }

    pub(crate) fn explain(&mut self, model: &str, places: usize) -> Option<muster_policy::Explanation> {
        self.fleet.explain(self.now, &model.into(), places)
    }

    pub(crate) fn advance(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(at) = self.wake.filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.wake = None;
            self.event(Event::Tick);
        }
        self.now = end;
        self.give_up_drains();
    }

    pub(crate) fn event(&mut self, event: Event) {
        self.events += 1;
        assert!(self.events < 20_000, "events without end\n{}", self.tail());
        if matches!(
            event,
            Event::CatalogueChanged { .. }
                | Event::ModelsChanged { .. }
                | Event::WorkerLost { .. }
                | Event::WorkerLeft { .. }
                | Event::WorkerDraining { .. }
        ) {
            self.unbound.extend(self.retrying.keys().cloned());
        }
        if !matches!(
            event,
            Event::CatalogueChanged { .. } | Event::ModelsChanged { .. }
        ) {
            self.log
                .push(Self::brief(&format!("{:?} {event:?}", self.now.since_start())));
        }
        let mut next = self.next_instance;
        let mut ids = || {
            next += 1;
            InstanceId::new(format!("i-{next:05}"))
        };
        let effects = self.fleet.step(self.now, event, &mut ids);
        self.next_instance = next;
        let unknown = |worker: &SimWorker| !worker.known && !worker.instances.is_empty();
        if self.fleet.settled() && self.workers.values().any(unknown) {
            self.strict = false;
        }
        let checked = muster_policy::invariants::check(&self.fleet, &effects);
        for effect in effects {
            self.log.push(Self::brief(&format!("    -> {effect:?}")));
            self.take(effect);
        }
        checked.unwrap_or_else(|broken| panic!("{broken:?}\n{}", self.tail()));
        self.answer_unsent();
        if self.instant {
            self.deliver_all();
        }
    }

    /// As the driver does, within the same input.
    fn answer_unsent(&mut self) {
        let unsent = std::mem::take(&mut self.unsent);
        self.rounds += usize::from(!unsent.is_empty());
        assert!(
            self.rounds <= MAX_ROUNDS,
            "what cannot be sent is asked for again at once\n{}",
            self.tail()
        );
        for id in &unsent {
            self.event(Self::outcome(*id, Outcome::Unknown));
        }
        self.rounds -= usize::from(!unsent.is_empty());
    }

    fn brief(line: &str) -> String {
        let line = cut(line, "spec: InstanceSpec {", "group: None }");
        let line = cut(&line, "devices: [DeviceFacts", "}]");
        let line = cut(&line, "samples: [", "]");
        line.chars().take(600).collect()
    }

    pub(crate) fn tail(&self) -> String {
        self.log[self.log.len().saturating_sub(120)..].join("\n")
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Command {
                id,
                worker,
                instance,
                command,
            } => self.take_command(id, &worker, instance, command),
            Effect::Notify { hold, stage } => {
                if let Some(stream) = self.streams.get_mut(&hold) {
                    assert_ne!(stream.last(), Some(&stage), "said twice");
                    stream.stages.push(stage);
                }
            }
            Effect::Progress { .. } => {}
            Effect::Reply { request, result } => {
                assert!(self.replies.insert(request, result).is_none(), "answered twice");
            }
            Effect::PublishRoute {
                instance,
                worker,
                model,
                state,
            } => {
                self.routes.insert(instance, (worker, model, state));
            }
            Effect::RetractRoute { instance } => {
                assert!(
                    self.routes.remove(&instance).is_some(),
                    "retracted a route that was never published"
                );
            }
            Effect::ModelChanged { model, state } => {
                self.states.insert(model, state);
            }
            Effect::Settled => {}
            Effect::RosterPut { facts } => {
                self.roster.insert(facts.id.clone(), facts);
            }
            Effect::RosterRemove { worker } => {
                self.roster.remove(&worker);
            }
            Effect::Resync { worker } => {
                self.workers.get_mut(&worker).unwrap().resync = true;
            }
            Effect::WakeAt { at } => self.wake = Some(at),
            Effect::Decided(decision) => self.decisions.push(format!(
                "{} {} {}",
                decision.kind.word(),
                decision.model.map(|model| model.to_string()).unwrap_or_default(),
                decision.kind
            )),
        }
    }

    /// I7: nothing but pinned models is left beside a second attempt.
    fn check_emptied(&self, worker: &WorkerId, model: &ModelId) {
        let host = &self.workers[worker].facts.host;
        let workers = self
            .workers
            .values()
            .filter(|other| other.connected && other.facts.host == *host);
        let there = workers
            .flat_map(|worker| worker.instances.values())
            .filter(|found| found.exists());
        for other in there.map(|found| &found.spec.model) {
            let pinned = self.catalogue.get(other).is_some_and(|spec| spec.pinned);
            assert!(
                pinned || other == model,
                "I7: {model} is tried again beside {other}\n{}",
                self.tail()
            );
        }
    }

    fn take_command(
        &mut self,
        id: muster_policy::CommandId,
        worker: &WorkerId,
        instance: InstanceId,
        command: Command,
    ) {
        let found = &self.workers[worker];
        assert!(
            found.connected,
            "a command to a worker without a session\n{}",
            self.log.join("\n")
        );
        if let Command::Load { spec, .. } = &command {
            let failed_at = self.retrying.remove(&spec.model);
            let bound = !self.unbound.remove(&spec.model) && self.strict;
            if bound && spec.attempt > 1 && failed_at.as_ref() == Some(worker) {
                self.check_emptied(worker, &spec.model);
            }
        }
        if let Command::Unload {
            mode: muster_policy::UnloadMode::IfIdle { .. },
        } = &command
        {
            let model = found.instances.get(&instance).map(|i| i.spec.model.clone());
            let pinned = model
                .and_then(|model| self.catalogue.get(&model))
                .is_some_and(|spec| spec.pinned);
            assert!(!pinned, "I6: policy evicts a pinned model\n{}", self.tail());
        }
        let found = self.workers.get_mut(worker).unwrap();
        if found.mute {
            self.unsent.push(id);
        } else {
            found.down.push_back((id, instance, command));
        }
    }

    /// Delivers everything in both directions until nothing moves.
    pub(crate) fn deliver_all(&mut self) {
        let instant = std::mem::replace(&mut self.instant, false);
        loop {
            let ids: Vec<WorkerId> = self.workers.keys().cloned().collect();
            let mut moved = false;
            for id in ids {
                while self.deliver_down(&id) {
                    moved = true;
                }
                while self.deliver_up(&id) {
                    moved = true;
                }
                if self.workers[&id].resync {
                    self.workers.get_mut(&id).unwrap().resync = false;
                    self.lose(&id);
                    self.connect(&id);
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        self.instant = instant;
    }

    /// Ages grow on the way, as they would with a clock of its own.
    pub(crate) fn deliver_up(&mut self, id: &WorkerId) -> bool {
        let Some((sent, mut event)) = self.workers.get_mut(id).and_then(|worker| worker.up.pop_front())
        else {
            return false;
        };
        let delay = self.now.since(sent);
        if let Event::WorkerReported { report, .. } = &mut event {
            report
                .instances
                .iter_mut()
                .for_each(|status| status.touch_age += delay);
            report.touches.iter_mut().for_each(|touch| touch.age += delay);
            report.samples.iter_mut().for_each(|sample| sample.age += delay);
        }
        self.event(event);
        true
    }

    pub(crate) fn outcome(id: muster_policy::CommandId, outcome: Outcome) -> Event {
        Event::Outcome { id, outcome }
    }

    /// Brings everything to an end: sessions, loads, unloads, requests. Asserts that every waiter ends (liveness).
    pub(crate) fn run_out(&mut self) {
        self.instant = true;
        let mute = self
            .workers
            .values()
            .filter(|worker| worker.connected && worker.mute);
        for id in mute.map(|worker| worker.facts.id.clone()).collect::<Vec<_>>() {
            self.lose(&id);
        }
        for _ in 0..400 {
            let lost: Vec<WorkerId> = self
                .workers
                .values()
                .filter(|w| !w.connected)
                .map(|w| w.facts.id.clone())
                .collect();
            for id in lost {
                self.connect(&id);
            }
            self.deliver_all();
            self.finish_loads();
            self.finish_exits();
            self.end_all_requests();
            let streams: Vec<(HoldId, Stream)> = self.streams.clone().into_iter().collect();
            for (hold, stream) in streams {
                if stream.ready().is_some() || stream.failed().is_some() {
                    self.close(&hold);
                }
            }
            let quiet = self.workers.values().all(SimWorker::quiet);
            if self.streams.is_empty()
                && quiet
                && self.fleet.models().iter().all(|m| m.state != ModelState::Loading)
            {
                return;
            }
            self.advance(Duration::from_millis(500));
        }
        panic!("waiters never ended: {:#?}\n{}", self.streams, self.tail());
    }
}

/// Cuts out what nobody wants to read in a failing history.
fn cut(line: &str, from: &str, to: &str) -> String {
    let start = line.find(from);
    let end = start.and_then(|start| Some(start + line[start..].find(to)?));
    match (start, end) {
        (Some(start), Some(end)) if start < end => format!("{}{}", &line[..start], &line[end + to.len()..]),
        _ => line.to_owned(),
    }
}
