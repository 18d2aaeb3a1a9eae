//! What the load queue reads: every host in one piece ([`Host`]), kept up to date as events change the fleet.
//!
//! ```text
//!   instances, workers, devices (written to) ─┐
//!   models (touched: waiters, pins) ──────────┼─► refresh ─► hosts ─► stamp of each host ─► loads look again at what is newer
//!   time (an instance becomes idle) ──────────┘
//! ```
//!
//! A placement looks at every host of the fleet. Without the ledger it would look up every instance by name. An event costs only as much as
//! its own host.
//!
//! Invariant: after [`Fleet::refresh_ledger`] every host is as [`Fleet::read_host`] would read it (`invariants::check` compares them).

mod host;
mod tracked;

use std::collections::{BTreeMap, BTreeSet};

use crate::api::Moment;
use crate::fleet::Fleet;
use crate::timers::Timers;
use muster_core::{HostId, InstanceId, ModelId, WorkerId};

pub(crate) use host::{Host, ModelTag, Resident, Seat, Space};
pub(crate) use tracked::Tracked;

/// All hosts, each with the stamp of its last change.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Indexed by slot. Slots of removed hosts are used again.
    hosts: Vec<Option<Host>>,
    stamps: Vec<u64>,
    slots: BTreeMap<HostId, usize>,
    vacant: Vec<usize>,
    /// The host of each worker at the last refresh.
    seated: BTreeMap<WorkerId, HostId>,
    /// Slots by the stamp of their last change.
    changes: BTreeMap<u64, usize>,
    stamp: u64,
    /// The stamp at which a host was last removed.
    last_gone: u64,
    /// When an instance changes by time alone: the earliest moment for each.
    turns: Timers<InstanceId>,
    /// Models whose instances must be read again.
    stale: BTreeSet<ModelId>,
}

impl Ledger {
    pub(crate) fn host(&self, slot: usize) -> Option<&Host> {
        self.hosts.get(slot).and_then(Option::as_ref)
    }

    pub(crate) fn slot(&self, host: &HostId) -> Option<usize> {
        self.slots.get(host).copied()
    }

    pub(crate) fn named(&self, host: &HostId) -> Option<&Host> {
        self.host(self.slot(host)?)
    }

    /// Slots of all hosts, in the order of the hosts' names.
    pub(crate) fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.slots.values().copied()
    }

    /// Slots of the hosts that changed after a stamp.
    pub(crate) fn changed_after(&self, stamp: u64) -> impl Iterator<Item = usize> + '_ {
        self.changes.range(stamp + 1..).map(|(_, slot)| *slot)
    }

    /// Whether a host was removed after a stamp.
    pub(crate) fn lost_host_after(&self, stamp: u64) -> bool {
        self.last_gone > stamp
    }

    /// The newest stamp.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Marks a model whose waiters or catalogue entry changed.
    pub(crate) fn model_changed(&mut self, model: &ModelId) {
        if !self.stale.contains(model) {
            self.stale.insert(model.clone());
        }
    }

    /// Marks a host where something outside of it changes what loads may do.
    pub(crate) fn host_changed(&mut self, host: &HostId) {
        if let Some(slot) = self.slot(host) {
            self.mark(slot);
        }
    }

    /// Notes that an instance must be read again at `at`. An earlier moment stays: that refresh sets the next one.
    fn turn_at(&mut self, id: &InstanceId, at: Option<Moment>) {
        if let Some(at) = at {
            self.turns.no_later(id, at);
        }
    }

    /// When an instance changes next by time alone.
    pub(crate) fn next_turn(&self) -> Option<Moment> {
        self.turns.next()
    }

    fn mark(&mut self, slot: usize) {
        self.stamp += 1;
        if let Some(stamp) = self.stamps.get_mut(slot) {
            self.changes.remove(stamp);
            *stamp = self.stamp;
            self.changes.insert(self.stamp, slot);
        }
    }

    fn put(&mut self, id: &HostId, host: Option<Host>) {
        let slot = match (self.slots.get(id), &host) {
            (Some(slot), _) => *slot,
            (None, None) => return,
            (None, Some(_)) => {
                let slot = self.vacant.pop().unwrap_or_else(|| {
                    self.hosts.push(None);
                    self.stamps.push(0);
                    self.hosts.len() - 1
                });
                self.slots.insert(id.clone(), slot);
                slot
            }
        };
        let gone = host.is_none();
        let Some(place) = self.hosts.get_mut(slot) else {
            return;
        };
        if *place == host {
            return;
        }
        *place = host;
        self.mark(slot);
        if gone {
            self.last_gone = self.stamp;
            self.slots.remove(id);
            self.vacant.push(slot);
        }
    }
}

impl Fleet {
    /// Reads again what has changed since the last refresh.
    pub(crate) fn refresh_ledger(&mut self) {
        let whole = self.hosts_to_read();
        let instances = self.instances_to_read();
        for id in &instances {
            if let Some(instance) = self.instances.get(id) {
                self.appraiser.notice(instance, self.now);
            }
        }
        if self.appraiser.len() > 2 * self.models.len() + 64 {
            let models = &self.models;
            self.appraiser.forget(|model| models.contains_key(model));
        }
        for id in &whole {
            let host = self.read_host(id);
            for resident in host.iter().flat_map(|host| &host.residents) {
                self.ledger.turn_at(&resident.id, resident.turns);
            }
            self.ledger.put(id, host);
        }
        let devices: BTreeSet<HostId> = self
            .devices
            .take_changed()
            .into_iter()
            .map(|key| key.host)
            .collect();
        for id in devices.difference(&whole) {
            self.reread_spaces(id);
        }
        for id in instances {
            self.reread_instance(&id, &whole);
        }
    }

    /// Hosts whose workers or instances changed.
    fn hosts_to_read(&mut self) -> BTreeSet<HostId> {
        let mut hosts = BTreeSet::new();
        for worker in self.workers.take_changed() {
            let now = self.workers.get(&worker).map(|worker| worker.facts.host.clone());
            let before = match &now {
                Some(now) => self.ledger.seated.insert(worker, now.clone()),
                None => self.ledger.seated.remove(&worker),
            };
            hosts.extend(before);
            hosts.extend(now);
        }
        hosts
    }

    fn instances_to_read(&mut self) -> BTreeSet<InstanceId> {
        let mut instances = self.instances.take_changed();
        for model in std::mem::take(&mut self.ledger.stale) {
            if let Some(model) = self.models.get(&model) {
                instances.extend(model.instances.iter().cloned());
            }
        }
        while let Some(id) = self.ledger.turns.pop_due(self.now) {
            instances.insert(id);
        }
        if !self.config.eviction.by_last_use() {
            self.add_replicas(&mut instances);
        }
        instances
    }

    /// Adds the replicas of the same models: the use of one changes the worth of all.
    fn add_replicas(&self, instances: &mut BTreeSet<InstanceId>) {
        let models = instances.iter().filter_map(|id| self.instances.get(id));
        let models: BTreeSet<&ModelId> = models.map(|instance| &instance.spec.model).collect();
        for model in models.into_iter().filter_map(|model| self.models.get(model)) {
            if model.instances.len() > 1 {
                instances.extend(model.instances.iter().cloned());
            }
        }
    }

    fn reread_spaces(&mut self, id: &HostId) {
        let spaces = self.read_spaces(id);
        let Some(slot) = self.ledger.slot(id) else { return };
        let host = self.ledger.hosts.get_mut(slot).and_then(Option::as_mut);
        if host.is_some_and(|host| host.put_spaces(spaces)) {
            self.ledger.mark(slot);
        }
    }

    fn reread_instance(&mut self, id: &InstanceId, read: &BTreeSet<HostId>) {
        let Some(instance) = self.instances.get(id).filter(|found| !read.contains(&found.host)) else {
            return;
        };
        let Some(slot) = self.ledger.slot(&instance.host) else {
            return;
        };
        let Some(resident) = self
            .ledger
            .host(slot)
            .map(|host| self.read_resident(instance, host))
        else {
            return;
        };
        self.ledger.turn_at(id, resident.turns);
        let host = self.ledger.hosts.get_mut(slot).and_then(Option::as_mut);
        if host.is_some_and(|host| host.put_resident(resident)) {
            self.ledger.mark(slot);
        }
    }

    /// Whether nothing has changed since the last refresh.
    pub(crate) fn ledger_is_fresh(&self) -> bool {
        self.workers.unchanged()
            && self.devices.unchanged()
            && self.instances.unchanged()
            && self.ledger.stale.is_empty()
    }

    /// Hosts where the ledger disagrees with the fleet.
    pub(crate) fn ledger_errors(&self) -> Vec<HostId> {
        let known: BTreeSet<&HostId> = self.hosts.keys().chain(self.ledger.slots.keys()).collect();
        known
            .into_iter()
            .filter(|id| self.read_host(id).as_ref() != self.ledger.named(id))
            .cloned()
            .collect()
    }
}
