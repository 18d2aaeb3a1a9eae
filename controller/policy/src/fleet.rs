//! The fleet as policy knows it, and the one function that changes it.
//!
//! ```text
//!   event ──► transitions (facts and commands' outcomes) ──► reconcile (waiters, per touched model)
//!                                                               │
//!   effects ◄── announce (routes, states, stages, timer) ◄── plan (the load queue, in order)
//! ```
//!
//! Every phase is idempotent: a second pass without a new event yields no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::api::{
    Command, CommandId, Decision, DecisionKind, DeviceKey, Effect, Event, IdSource, Moment, WorkerFacts,
};
use crate::config::Config;
use crate::ledger::{Ledger, Tracked};
use crate::plan::Memos;
use crate::state::{Asked, Device, Instance, Load, LoadId, Model, Pending, Presence, Waiter, Worker};
use crate::strategy::Appraiser;
use crate::timers::{Alarm, Timers};
use muster_core::{HoldId, HostId, InstanceId, ModelId, WorkerId};

/// All policy knows. One task owns it.
#[derive(Debug)]
pub struct Fleet {
    pub(crate) config: Config,
    pub(crate) now: Moment,
    pub(crate) phase: Phase,
    pub(crate) models: BTreeMap<ModelId, Model>,
    pub(crate) workers: Tracked<WorkerId, Worker>,
    pub(crate) hosts: BTreeMap<HostId, BTreeSet<WorkerId>>,
    pub(crate) devices: Tracked<DeviceKey, Device>,
    pub(crate) instances: Tracked<InstanceId, Instance>,
    pub(crate) queue: BTreeMap<LoadId, Load>,
    pub(crate) waiters: BTreeMap<HoldId, Waiter>,
    pub(crate) commands: BTreeMap<CommandId, InstanceId>,
    /// What the load queue reads of hosts.
    pub(crate) ledger: Ledger,
    /// What instances are worth.
    pub(crate) appraiser: Appraiser,
    /// What queued loads found when they looked for a place.
    pub(crate) memos: Memos,
    /// Instances that need a command, or another look.
    pub(crate) attention: BTreeSet<InstanceId>,
    /// Models with a group of which a part may be loading.
    pub(crate) groups_loading: BTreeSet<ModelId>,
    /// What waits for the clock.
    pub(crate) timers: Timers<Alarm>,
    /// Models to look at before the step ends.
    pub(crate) dirty: BTreeSet<ModelId>,
    /// The queue must be decided anew.
    pub(crate) replan: bool,
    /// Timer as last asked for.
    pub(crate) wake_sent: Option<Moment>,
    pub(crate) effects: Vec<Effect>,
    /// Operators' wishes that wait for the fleet to settle.
    deferred: Vec<Event>,
    next_command: u64,
    next_load: u64,
}

/// Rounds of planning in one step; far more than ever needed, so that a mistake here costs a late decision and not a hang.
const MAX_ROUNDS: usize = 16;

/// Whether decisions are made yet (PROTOCOL 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is placed, evicted or refused until the roster has joined or time is up.
    Settling {
        missing: BTreeSet<WorkerId>,
        /// Workers are about to join, known ones or not: they are taken first.
        joins_wait: bool,
        time_is_up: bool,
    },
    /// Business as usual.
    Running,
}

impl Fleet {
    /// A fleet at its start: it settles until every worker of the roster has joined or `config.settle` has passed (PROTOCOL 2).
    /// The first [`step`](Self::step) should follow at once (the catalogue, usually): it asks for the timer.
    #[must_use]
    pub fn new(config: Config, roster: Vec<WorkerFacts>, now: Moment) -> Self {
        let missing: BTreeSet<WorkerId> = roster.iter().map(|facts| facts.id.clone()).collect();
        let phase = if missing.is_empty() {
            Phase::Running
        } else {
            Phase::Settling {
                missing,
                joins_wait: false,
                time_is_up: false,
            }
        };
        let appraiser = Appraiser::new(config.eviction);
        let mut fleet = Self {
            config,
            now,
            phase,
            models: BTreeMap::new(),
            workers: Tracked::new(),
            hosts: BTreeMap::new(),
            devices: Tracked::new(),
            instances: Tracked::new(),
            queue: BTreeMap::new(),
            waiters: BTreeMap::new(),
            commands: BTreeMap::new(),
            ledger: Ledger::default(),
            appraiser,
            memos: Memos::default(),
            attention: BTreeSet::new(),
            groups_loading: BTreeSet::new(),
            timers: Timers::default(),
            dirty: BTreeSet::new(),
            replan: false,
            wake_sent: None,
            effects: Vec::new(),
            deferred: Vec::new(),
            next_command: 1,
            next_load: 1,
        };
        for facts in roster {
            fleet.install_worker(facts, Presence::Away(now));
        }
        if !fleet.settled() {
            let until = now + fleet.config.settle;
            fleet.timers.set(&Alarm::Settle, Some(until));
        }
        fleet
    }

    /// Workers that had left in order before the start: nothing of them runs, so nobody waits for them, but what fits on them only is not
    /// refused for as long as absent workers count.
    pub fn remember_leavers(&mut self, leavers: Vec<WorkerFacts>) {
        for facts in leavers {
            let id = facts.id.clone();
            self.install_worker(facts, Presence::Away(self.now));
            self.forget_later(id);
        }
    }

    /// Takes one event and says what to do. `now` is clamped to never run backwards (PROTOCOL 19).
    pub fn step(&mut self, now: Moment, event: Event, ids: &mut dyn IdSource) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.apply(event);
        self.ring();
        self.settle();
        self.reconcile_dirty();
        // What turned out to be due already.
        self.ring();
        // A pass may free or need something that an earlier load of the queue can use; it converges, since every round acts.
        for _ in 0..MAX_ROUNDS {
            if !self.plan_if_due(ids) {
                break;
            }
            self.reconcile_dirty();
        }
        self.attend();
        self.announce();
        self.refresh_ledger();
        self.announce_timer();
        std::mem::take(&mut self.effects)
    }

    fn apply(&mut self, event: Event) {
        if matches!(self.phase, Phase::Settling { .. }) && Self::waits_for_settling(&event) {
            self.deferred.push(event);
            return;
        }
        match event {
            Event::WorkerJoined { facts, report } => self.worker_joined(facts, report),
            Event::WorkerLost { worker } => self.worker_lost(&worker),
            Event::WorkerLeft { worker } => self.worker_left(&worker),
            Event::WorkerDraining { worker, draining } => self.worker_draining(&worker, draining),
            Event::WorkerReported { worker, report } => self.worker_reported(&worker, report),
            Event::Outcome { id, outcome } => self.command_answered(id, outcome),
            Event::EnsureOpened {
                hold,
                model,
                avoid_instances,
                avoid_workers,
            } => {
                self.ensure_opened(hold, model, avoid_instances, avoid_workers);
            }
            Event::EnsureClosed { hold } => self.ensure_closed(&hold),
            Event::LoadRequested {
                request,
                model,
                overrides,
            } => self.load_requested(request, &model, overrides),
            Event::UnloadRequested {
                request,
                model,
                how,
                drain_for,
            } => self.unload_requested(request, &model, how, drain_for),
            Event::PreloadRequested { model } => self.preload_requested(&model),
            Event::ForgetRequested { request, worker } => self.forget_requested(request, &worker),
            Event::GhostGone { instance } => self.ghost_gone(&instance),
            Event::ModelsChanged { models } => self.models_changed(models),
            Event::CatalogueChanged { models } => self.catalogue_changed(models),
            Event::JoinsWait { any } => {
                if let Phase::Settling { joins_wait, .. } = &mut self.phase {
                    *joins_wait = any;
                }
            }
            Event::Tick => {}
        }
    }

    /// An operator's wish is judged by a model's state, which is not known before the fleet has settled.
    fn waits_for_settling(event: &Event) -> bool {
        match event {
            Event::LoadRequested { .. } | Event::UnloadRequested { .. } | Event::PreloadRequested { .. } => {
                true
            }
            Event::WorkerJoined { .. }
            | Event::WorkerLost { .. }
            | Event::WorkerLeft { .. }
            | Event::WorkerDraining { .. }
            | Event::WorkerReported { .. }
            | Event::Outcome { .. }
            | Event::EnsureOpened { .. }
            | Event::EnsureClosed { .. }
            | Event::ForgetRequested { .. }
            | Event::GhostGone { .. }
            | Event::ModelsChanged { .. }
            | Event::CatalogueChanged { .. }
            | Event::JoinsWait { .. }
            | Event::Tick => false,
        }
    }

    /// Ends settling when its time has come.
    fn settle(&mut self) {
        let over = match &self.phase {
            Phase::Settling {
                missing,
                joins_wait,
                time_is_up,
            } => (missing.is_empty() || *time_is_up) && !joins_wait,
            Phase::Running => false,
        };
        if !over {
            return;
        }
        self.phase = Phase::Running;
        self.timers.set(&Alarm::Settle, None);
        self.replan = true;
        self.effects.push(Effect::Settled);
        self.decided(DecisionKind::Settled, None, None, None);
        for model in self.models.keys().cloned().collect::<Vec<_>>() {
            self.touch_model(&model);
        }
        for event in std::mem::take(&mut self.deferred) {
            self.apply(event);
        }
    }

    /// Marks a model for another look in this step.
    pub(crate) fn touch_model(&mut self, model: &ModelId) {
        if !self.dirty.contains(model) {
            self.dirty.insert(model.clone());
        }
        self.ledger.model_changed(model);
    }

    /// Something changed that the load queue may depend on.
    pub(crate) fn room_changed(&mut self) {
        self.replan = true;
    }

    pub(crate) fn new_load_id(&mut self) -> LoadId {
        let id = LoadId(self.next_load);
        self.next_load += 1;
        id
    }

    /// Sends a command and remembers it as the instance's outstanding one. The caller has checked that there is none.
    pub(crate) fn send(&mut self, instance: &InstanceId, asked: Asked, command: Command) {
        let Some(found) = self.instances.get_mut(instance) else {
            return;
        };
        let id = CommandId(self.next_command);
        self.next_command += 1;
        found.given.note(&asked, self.now);
        found.pending = Some(Pending { id, asked });
        let worker = found.worker.clone();
        self.commands.insert(id, instance.clone());
        self.effects.push(Effect::Command {
            id,
            worker,
            instance: instance.clone(),
            command,
        });
    }

    /// Tells a worker that its instance's end was heard; nothing waits for the answer.
    pub(crate) fn acknowledge_end(&mut self, worker: &WorkerId, instance: &InstanceId) {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        self.effects.push(Effect::Command {
            id,
            worker: worker.clone(),
            instance: instance.clone(),
            command: Command::AckTombstone,
        });
    }

    pub(crate) fn decided(
        &mut self,
        kind: DecisionKind,
        model: Option<&ModelId>,
        instance: Option<&InstanceId>,
        worker: Option<&WorkerId>,
    ) {
        self.effects.push(Effect::Decided(Decision {
            kind,
            model: model.cloned(),
            instance: instance.cloned(),
            worker: worker.cloned(),
        }));
    }

    /// A decision about an instance, with its model and worker.
    pub(crate) fn decided_on(&mut self, kind: DecisionKind, instance: &InstanceId) {
        let Some(found) = self.instances.get(instance) else {
            return;
        };
        let (model, worker) = (found.spec.model.clone(), found.worker.clone());
        self.decided(kind, Some(&model), Some(instance), Some(&worker));
    }

    /// The key of a device on the host of an instance.
    pub(crate) fn key(host: &HostId, device: &muster_core::DeviceId) -> DeviceKey {
        DeviceKey {
            host: host.clone(),
            device: device.clone(),
        }
    }

    /// All instances of a model, ghosts included, by id.
    pub(crate) fn instances_of(&self, model: &ModelId) -> impl Iterator<Item = &Instance> {
        let ids = self
            .models
            .get(model)
            .into_iter()
            .flat_map(|model| &model.instances);
        ids.filter_map(|id| self.instances.get(id))
    }

    /// All instances on a host, ghosts included, by id.
    pub(crate) fn on_host<'a>(&'a self, host: &HostId) -> impl Iterator<Item = &'a Instance> {
        self.hosts
            .get(host)
            .into_iter()
            .flatten()
            .filter_map(|worker| self.workers.get(worker))
            .flat_map(|worker| &worker.instances)
            .filter_map(|id| self.instances.get(id))
    }

    /// All instances with a reservation on a device, ghosts included, by id.
    pub(crate) fn on_device<'a>(&'a self, key: &DeviceKey) -> impl Iterator<Item = &'a Instance> {
        self.devices
            .get(key)
            .into_iter()
            .flat_map(|device| &device.instances)
            .filter_map(|id| self.instances.get(id))
    }

    pub(crate) fn connected(&self, worker: &WorkerId) -> bool {
        self.workers.get(worker).is_some_and(Worker::connected)
    }

    /// Adds an instance to all indexes.
    pub(crate) fn insert_instance(&mut self, instance: Instance) {
        let id = instance.id.clone();
        if let Some(worker) = self.workers.get_mut(&instance.worker) {
            worker.instances.insert(id.clone());
        }
        for reservation in &instance.spec.reservations {
            if let Some(device) = self
                .devices
                .get_mut(&Self::key(&instance.host, &reservation.device))
            {
                device.instances.insert(id.clone());
            }
        }
        let model = instance.spec.model.clone();
        self.models
            .entry(model.clone())
            .or_insert_with(|| Model::new(None))
            .instances
            .insert(id.clone());
        self.instances.insert(id, instance);
        self.touch_model(&model);
        self.room_changed();
    }

    /// Removes an instance from all indexes; its engine is gone.
    pub(crate) fn remove_instance(&mut self, id: &InstanceId) -> Option<Instance> {
        let instance = self.instances.remove(id)?;
        if let Some(worker) = self.workers.get_mut(&instance.worker) {
            worker.instances.remove(id);
        }
        for reservation in &instance.spec.reservations {
            if let Some(device) = self
                .devices
                .get_mut(&Self::key(&instance.host, &reservation.device))
            {
                device.instances.remove(id);
                device.changed(self.now);
            }
        }
        self.gave_back(&instance);
        if let Some(model) = self.models.get_mut(&instance.spec.model) {
            model.instances.remove(id);
        }
        if let Some(pending) = &instance.pending {
            self.commands.remove(&pending.id);
        }
        self.attention.remove(id);
        self.timers.set(&Alarm::Instance(id.clone()), None);
        if instance.route.is_some() {
            self.effects.push(Effect::RetractRoute { instance: id.clone() });
        }
        self.touch_model(&instance.spec.model);
        self.room_changed();
        Some(instance)
    }

    /// The catalogue's entry of a model.
    pub(crate) fn spec_of(&self, model: &ModelId) -> Option<&Arc<crate::api::ModelSpec>> {
        self.models.get(model).and_then(|found| found.spec.as_ref())
    }
}
