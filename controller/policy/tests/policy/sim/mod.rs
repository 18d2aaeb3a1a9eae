//! Policy alone before a simulated fleet, for its rules one by one: every effect is carried out at once, or when a test says so. Whole
//! histories run through the controller's driver (`controller/src/rig`).

mod workers;

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use muster_core::{DeviceKind, HoldId, InstanceId, ModelId, RequestId, WorkerId};
use muster_policy::{
    Command, CommandId, Config, Effect, Event, Fleet, LoadError, ModelSpec, ModelState, Moment, Outcome,
    RouteState, Stage, UnloadHow, WorkerFacts,
};

pub(crate) use crate::world::{Life, config, device, facts, failure, limits, model, need, unlimited};
use crate::world::{SimWorker, World};

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

/// Policy and the world.
#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) fleet: Fleet,
    pub(crate) world: World,
    pub(crate) streams: BTreeMap<HoldId, Stream>,
    pub(crate) replies: BTreeMap<RequestId, Result<ModelState, LoadError>>,
    pub(crate) routes: BTreeMap<InstanceId, (WorkerId, ModelId, RouteState)>,
    pub(crate) states: BTreeMap<ModelId, ModelState>,
    pub(crate) decisions: Vec<String>,
    wake: Option<Moment>,
    pub(crate) roster: BTreeMap<WorkerId, WorkerFacts>,
    /// Deliver everything at once; else tests decide when.
    pub(crate) instant: bool,
    pub(crate) events: u64,
    /// Commands that were answered at once: what policy hears before anything else happens.
    answered: Vec<(CommandId, Outcome)>,
    /// Workers that do nothing they are told: they answer so at once, and say again how what they have stands.
    pub(crate) stubborn: BTreeMap<WorkerId, Outcome>,
    repeated: Vec<(WorkerId, InstanceId)>,
    /// Commands that stubborn workers were given.
    pub(crate) refused: usize,
    /// How many such answers follow from each other at the moment.
    rounds: usize,
    next_instance: u64,
    next_name: u64,
}

impl Deref for Sim {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Sim {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

/// Rounds of follow-up events within one input; the driver's bound is the same.
const MAX_ROUNDS: usize = 8;

impl Sim {
    pub(crate) fn new(config: Config) -> Self {
        let now = Moment::after_start(Duration::from_secs(1));
        Self {
            fleet: Fleet::new(config.clone(), Vec::new(), now),
            world: World::new(config, now),
            streams: BTreeMap::new(),
            replies: BTreeMap::new(),
            routes: BTreeMap::new(),
            states: BTreeMap::new(),
            decisions: Vec::new(),
            wake: None,
            roster: BTreeMap::new(),
            instant: true,
            events: 0,
            answered: Vec::new(),
            stubborn: BTreeMap::new(),
            repeated: Vec::new(),
            refused: 0,
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
            self.world.config.clone(),
            self.roster.values().cloned().collect(),
            self.world.now,
        );
        self.streams.clear();
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
        let hold = HoldId::from(format!("hold-{}", self.next_name).as_str());
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

    pub(crate) fn close(&mut self, hold: &HoldId) {
        self.streams.remove(hold);
        self.event(Event::EnsureClosed { hold: hold.clone() });
    }

    pub(crate) fn request(&mut self) -> RequestId {
        self.next_name += 1;
        RequestId::from(format!("call-{}", self.next_name).as_str())
    }

    /// An operator's load.
    pub(crate) fn load(&mut self, model: &str) -> RequestId {
        self.load_with(model, None)
    }

    pub(crate) fn load_with(&mut self, model: &str, overrides: Option<ModelSpec>) -> RequestId {
        let request = self.request();
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

    pub(crate) fn explain(&mut self, model: &str, places: usize) -> Option<muster_policy::Explanation> {
        self.fleet.explain(self.world.now, model, places)
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
        self.world.policy_hears(&event);
        let mut next = self.next_instance;
        let mut ids = || {
            next += 1;
            InstanceId::from(format!("i-{next:05}").as_str())
        };
        let effects = self.fleet.step(self.world.now, event, &mut ids);
        self.next_instance = next;
        if self.fleet.settled() {
            self.world.policy_has_settled();
        }
        let checked = muster_policy::invariants::check(&self.fleet, &effects);
        for effect in effects {
            self.world.policy_decides(&effect);
            self.take(effect);
        }
        checked.unwrap_or_else(|broken| panic!("{broken:?}\n{}", self.tail()));
        self.answer_at_once();
        if self.instant {
            self.deliver_all();
        }
    }

    /// As the driver does, within the same input.
    fn answer_at_once(&mut self) {
        let answered = std::mem::take(&mut self.answered);
        let any = usize::from(!answered.is_empty());
        self.rounds += any;
        assert!(
            self.rounds <= MAX_ROUNDS,
            "what was not done is asked for again at once\n{}",
            self.tail()
        );
        for (id, outcome) in answered {
            self.event(Self::outcome(id, outcome));
        }
        for (worker, instance) in std::mem::take(&mut self.repeated) {
            self.repeat(&worker, &instance);
        }
        self.rounds -= any;
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

    fn take_command(&mut self, id: CommandId, worker: &WorkerId, instance: InstanceId, command: Command) {
        assert!(
            self.workers[worker].connected,
            "a command to a worker without a session\n{}",
            self.tail()
        );
        self.world.policy_commands(worker, &instance, &command);
        let found = self.world.workers.get_mut(worker).unwrap();
        let acknowledges = matches!(command, Command::AckTombstone);
        if found.mute {
            self.answered.push((id, Outcome::Unknown));
        } else if let Some(answer) = self.stubborn.get(worker).filter(|_| !acknowledges) {
            self.answered.push((id, answer.clone()));
            self.repeated.push((worker.clone(), instance));
            self.refused += 1;
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

    pub(crate) fn deliver_up(&mut self, id: &WorkerId) -> bool {
        let event = self.world.heard_from(id);
        event.map(|event| self.event(event)).is_some()
    }

    pub(crate) fn deliver_down(&mut self, id: &WorkerId) -> bool {
        self.world.carry_out_next(id)
    }

    pub(crate) fn outcome(id: CommandId, outcome: Outcome) -> Event {
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
