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

/// Everything that policy knows. One task owns it.
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
    /// Hosts in the form that planning reads.
    pub(crate) ledger: Ledger,
    /// What keeping each instance is worth.
    pub(crate) appraiser: Appraiser,
    /// What queued loads found when they last looked for a place.
    pub(crate) memos: Memos,
    /// Instances that need a command or a check.
    pub(crate) attention: BTreeSet<InstanceId>,
    /// Models with a replica group that may be partly loaded.
    pub(crate) groups_loading: BTreeSet<ModelId>,
    /// What is due at a certain time.
    pub(crate) timers: Timers<Alarm>,
    /// Models to reconcile before the step ends.
    pub(crate) dirty: BTreeSet<ModelId>,
    /// The load queue must be planned again.
    pub(crate) replan: bool,
    /// The moment that the last `WakeAt` asked for.
    pub(crate) wake_sent: Option<Moment>,
    pub(crate) effects: Vec<Effect>,
    /// Operators' calls that wait until the fleet has settled.
    deferred: Vec<Event>,
    next_command: u64,
    next_load: u64,
}

/// Limit on planning rounds in one step, far above what is needed: a bug then delays a decision and does not hang the controller.
const MAX_ROUNDS: usize = 16;

/// Whether policy decides anything yet (PROTOCOL 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing is placed, evicted or refused until the roster has joined or the time is up.
    Settling {
        missing: BTreeSet<WorkerId>,
        /// Workers, known or new, are about to join; settling waits for them.
        joins_wait: bool,
        time_is_up: bool,
    },
    /// Policy decides.
    Running,
}

impl Fleet {
    /// A fleet at the controller's start. It settles until every worker of the roster has joined or `config.settle` has passed (PROTOCOL
    /// 2). Call [`step`](Self::step) soon (usually with the catalogue): only a step asks for the timer.
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

    /// Adds workers that had shut down in order before the start. None of their engines runs, so settling does not wait for them; but a
    /// model that fits only on them is not refused while absent workers count.
    pub fn remember_leavers(&mut self, leavers: Vec<WorkerFacts>) {
        for facts in leavers {
            let id = facts.id.clone();
            self.install_worker(facts, Presence::Away(self.now));
            self.forget_later(id);
        }
    }

    /// Handles one event and returns what to do. A `now` before the last one counts as the last one (PROTOCOL 19).
    pub fn step(&mut self, now: Moment, event: Event, ids: &mut dyn IdSource) -> Vec<Effect> {
        self.now = self.now.max(now);
        self.apply(event);
        self.ring();
        self.settle();
        self.reconcile_dirty();
        // Handle alarms that are due by now.
        self.ring();
        // One pass may free or claim what an earlier load of the queue can use. The rounds converge, since each one acts.
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
            Event::ConfigChanged { config } => self.config_changed(*config),
            Event::JoinsWait { any } => {
                if let Phase::Settling { joins_wait, .. } = &mut self.phase {
                    *joins_wait = any;
                }
            }
            Event::Tick => {}
        }
    }

    /// Whether an event needs the models' states, which are unknown before the fleet has settled.
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
            | Event::ConfigChanged { .. }
            | Event::JoinsWait { .. }
            | Event::Tick => false,
        }
    }

    /// Ends settling once all workers have joined or the time is up.
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

    /// Marks a model to be reconciled in this step.
    pub(crate) fn touch_model(&mut self, model: &ModelId) {
        if !self.dirty.contains(model) {
            self.dirty.insert(model.clone());
        }
        self.ledger.model_changed(model);
    }

    /// Marks the load queue to be planned again: something it depends on changed.
    pub(crate) fn room_changed(&mut self) {
        self.replan = true;
    }

    pub(crate) fn new_load_id(&mut self) -> LoadId {
        let id = LoadId(self.next_load);
        self.next_load += 1;
        id
    }

    /// Sends a command and stores it as the instance's outstanding one. The caller has checked that none is outstanding.
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

    /// Tells the worker that the controller has recorded the instance's end. Nothing waits for the answer.
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

    /// Emits a decision about an instance, with its model and worker.
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

    /// All instances of a model, ghosts included, in the order of their ids.
    pub(crate) fn instances_of(&self, model: &ModelId) -> impl Iterator<Item = &Instance> {
        let ids = self
            .models
            .get(model)
            .into_iter()
            .flat_map(|model| &model.instances);
        ids.filter_map(|id| self.instances.get(id))
    }

    /// All instances on a host, ghosts included, in the order of their ids.
    pub(crate) fn on_host<'a>(&'a self, host: &HostId) -> impl Iterator<Item = &'a Instance> {
        self.hosts
            .get(host)
            .into_iter()
            .flatten()
            .filter_map(|worker| self.workers.get(worker))
            .flat_map(|worker| &worker.instances)
            .filter_map(|id| self.instances.get(id))
    }

    /// All instances with a reservation on a device, ghosts included, in the order of their ids.
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

    /// Removes an instance whose engine has ended from all indexes.
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
