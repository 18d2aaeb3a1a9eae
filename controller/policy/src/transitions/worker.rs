//! Workers that join, are lost, drain and leave (PROTOCOL 1, 3, 7).

use std::collections::BTreeSet;

use crate::api::{DecisionKind, DeviceFacts, Effect, LoadError, Report, WorkerFacts};
use crate::fleet::{Fleet, Phase};
use crate::state::{Before, Device, Exit, Instance, InstanceState, Presence, Worker};
use crate::timers::Alarm;
use muster_core::{InstanceId, WorkerId};

use super::ended::End;

impl Fleet {
    /// Handles an accepted session. The report is complete: an instance that it does not name has ended.
    pub(crate) fn worker_joined(&mut self, facts: WorkerFacts, report: Report) {
        let id = facts.id.clone();
        let same_boot = self
            .workers
            .get(&id)
            .is_some_and(|known| known.facts.boot == facts.boot);
        let known: Vec<InstanceId> = self
            .workers
            .get(&id)
            .map(|worker| worker.instances.iter().cloned().collect())
            .unwrap_or_default();
        let reported: BTreeSet<&InstanceId> = report.instances.iter().map(|status| &status.id).collect();
        for instance in known
            .iter()
            .filter(|instance| !same_boot || !reported.contains(instance))
        {
            self.decided_on(DecisionKind::GhostEnded, instance);
            self.instance_ended(instance, End::LostWith(LoadError::WorkerLost(id.clone())));
        }
        self.install_worker(facts.clone(), Presence::Connected(self.now));
        if !same_boot {
            for device in &facts.devices {
                if let Some(known) = self.devices.get_mut(&Self::key(&facts.host, &device.id)) {
                    known.forget_sample_of(&id);
                }
            }
        }
        // Commands of the old session get no answer any more. The report tells what they did; whatever is still needed is sent again.
        for instance in &known {
            self.forget_pending(instance);
            if let Some(instance) = self.instances.get_mut(instance) {
                instance.session_over();
            }
        }
        self.effects.push(Effect::RosterPut { facts });
        self.decided(DecisionKind::WorkerJoined, None, None, Some(&id));
        self.worker_reported(&id, report);
        if let Phase::Settling { missing, .. } = &mut self.phase {
            missing.remove(&id);
        }
        self.room_changed();
    }

    /// Handles a lost session: the worker's instances become ghosts, which keep their reservations and slots.
    pub(crate) fn worker_lost(&mut self, id: &WorkerId) {
        let now = self.now;
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if !worker.connected() {
            return;
        }
        worker.presence = Presence::Away(now);
        let instances: Vec<InstanceId> = worker.instances.iter().cloned().collect();
        self.decided(DecisionKind::WorkerLost, None, None, Some(id));
        for instance in &instances {
            self.forget_pending(instance);
            self.become_ghost(instance);
            self.note_free_memory(instance);
        }
        self.room_changed();
    }

    fn become_ghost(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let before = instance.lose();
        instance.session_over();
        instance.doubtful_since = None;
        let (model, worker) = (instance.spec.model.clone(), instance.worker.clone());
        self.attention.remove(id);
        self.timers.set(&Alarm::Instance(id.clone()), None);
        self.touch_model(&model);
        self.free_waiters_of(&model, id);
        if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = before
        {
            self.load_lost(*load, &LoadError::WorkerLost(worker));
        }
    }

    /// Handles a worker that shut down in order: nothing of it still runs.
    pub(crate) fn worker_left(&mut self, id: &WorkerId) {
        let now = self.now;
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        worker.presence = Presence::Away(now);
        worker.facts.draining = true;
        let instances: Vec<InstanceId> = worker.instances.iter().cloned().collect();
        self.decided(DecisionKind::WorkerLeft, None, None, Some(id));
        for instance in &instances {
            let end = if self.instances.get(instance).is_some_and(Instance::carries_load) {
                End::LostWith(LoadError::WorkerLost(id.clone()))
            } else {
                End::Asked
            };
            self.instance_ended(instance, end);
        }
        self.forget_later(id.clone());
        self.room_changed();
    }

    /// Sets an alarm to forget a worker that shut down in order: its name may never come back.
    pub(crate) fn forget_later(&mut self, id: WorkerId) {
        let at = self.now + self.config.absent_counts;
        self.timers.set(&Alarm::Leaver(id), Some(at));
    }

    /// Forgets a worker that shut down in order long ago. If it has come back and was lost since, it is not forgotten, or only by a later
    /// alarm.
    pub(crate) fn forget_leaver(&mut self, id: &WorkerId) {
        let absent = |worker: &Worker| match worker.presence {
            Presence::Away(since) => since + self.config.absent_counts <= self.now,
            Presence::Connected(_) => false,
        };
        let found = self.workers.get(id);
        let gone = found.is_some_and(|worker| absent(worker) && worker.instances.is_empty());
        if gone && let Some(worker) = self.workers.remove(id) {
            self.remove_listing(&worker);
            self.effects.push(Effect::RosterRemove { worker: id.clone() });
        }
    }

    /// Handles the begin or end of a worker's draining: while it drains it takes no new loads, and its instances take no new requests.
    pub(crate) fn worker_draining(&mut self, id: &WorkerId, draining: bool) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        worker.facts.draining = draining;
        for instance in &worker.instances {
            if let Some(instance) = self.instances.get(instance) {
                self.dirty.insert(instance.spec.model.clone());
            }
        }
        self.room_changed();
    }

    /// Adds a worker and its devices to all indexes, in place of what was known before.
    pub(crate) fn install_worker(&mut self, facts: WorkerFacts, presence: Presence) {
        let instances = match self.workers.remove(&facts.id) {
            Some(old) => {
                self.remove_listing(&old);
                old.instances
            }
            None => BTreeSet::new(),
        };
        self.hosts
            .entry(facts.host.clone())
            .or_default()
            .insert(facts.id.clone());
        for device in &facts.devices {
            let exclusivity = self.config.exclusivity.get(&device.kind);
            let device = &DeviceFacts {
                exclusivity: exclusivity.copied().unwrap_or(device.exclusivity),
                ..device.clone()
            };
            let entry = self
                .devices
                .get_or_insert_with(Self::key(&facts.host, &device.id), || Device::new(device));
            entry.describe(device);
            entry.workers.insert(facts.id.clone());
        }
        self.workers.insert(
            facts.id.clone(),
            Worker {
                facts,
                presence,
                instances,
                ended: BTreeSet::new(),
            },
        );
    }

    /// Removes a worker from the host and device indexes.
    pub(crate) fn remove_listing(&mut self, worker: &Worker) {
        let (id, host) = (&worker.facts.id, &worker.facts.host);
        if let Some(workers) = self.hosts.get_mut(host) {
            workers.remove(id);
            if workers.is_empty() {
                self.hosts.remove(host);
            }
        }
        for device in &worker.facts.devices {
            let key = Self::key(host, &device.id);
            if let Some(known) = self.devices.get_mut(&key) {
                known.workers.remove(id);
                if known.workers.is_empty() && known.instances.is_empty() {
                    self.devices.remove(&key);
                }
            }
        }
    }

    /// Marks the outstanding command of an ended session as unknown.
    fn forget_pending(&mut self, id: &InstanceId) {
        if let Some(pending) = self
            .instances
            .get_mut(id)
            .and_then(|instance| instance.pending.take())
        {
            self.commands.remove(&pending.id);
            self.unknown(id, &pending.asked);
        }
    }
}
