//! What must hold of what really runs, whatever the controller believes.

use std::collections::BTreeSet;

use muster_core::{Bytes, DeviceId, HostId, InstanceId, ModelId, ModelType, WorkerId};
use muster_policy::UnloadMode;

use super::World;
use super::worker::{Life, SimInstance};

impl World {
    /// What exists on a host, whoever its worker is.
    pub(crate) fn on_host<'a>(&'a self, host: &'a HostId) -> impl Iterator<Item = &'a SimInstance> {
        let workers = self
            .workers
            .values()
            .filter(move |worker| worker.facts.host == *host);
        workers
            .flat_map(|worker| worker.instances.values())
            .filter(|found| found.exists())
    }

    /// Bytes that engines really use on a device, of all workers that live on the host.
    pub(crate) fn used_on(&self, host: &HostId, device: &DeviceId) -> Bytes {
        self.on_host(host).map(|found| found.used_on(device)).sum()
    }

    /// What really runs must fit: memory per device, one model per exclusive device, models per type and host.
    pub(super) fn check_truth(&self, id: &WorkerId, instance: &InstanceId) {
        if !self.strict {
            return;
        }
        let host = &self.workers[id].facts.host;
        let spec = &self.workers[id].instances[instance].spec;
        for reservation in &spec.reservations {
            let devices = &self.workers[id].facts.devices;
            let device = devices.iter().find(|d| d.id == reservation.device).unwrap();
            let reserved: Bytes = self
                .on_host(host)
                .map(|found| found.reserved_on(&device.id))
                .sum();
            assert!(
                self.config.overcommit || reserved + self.config.margin <= device.capacity,
                "I4: {reserved} on {}\n{}",
                device.id,
                self.tail()
            );
            let class = self.config.exclusivity.get(&device.kind).copied();
            let class = class.unwrap_or(device.exclusivity);
            if let Some(limit) = class.limit(spec.kind) {
                let models = self.models_where(host, |i| {
                    class.counts_together(spec.kind, i.spec.kind)
                        && i.spec.reservations.iter().any(|r| r.device == device.id)
                });
                assert!(models.len() <= limit, "I3: {models:?}\n{}", self.tail());
            }
        }
        let models = self.models_of(host, spec.kind);
        assert!(
            self.config.limits.of(spec.kind).allows(models.len()),
            "I2: {models:?}\n{}",
            self.tail()
        );
        let everywhere = self.workers.values().flat_map(|worker| worker.instances.values());
        let everywhere = everywhere.filter(|i| i.exists() && i.spec.kind == spec.kind);
        let models: BTreeSet<&ModelId> = everywhere.map(|i| &i.spec.model).collect();
        assert!(
            self.config.fleet_limits.of(spec.kind).allows(models.len()),
            "I2, of the fleet: {models:?}\n{}",
            self.tail()
        );
    }

    /// I1: work is drained or ended only where an operator wants the model gone, or it left the catalogue.
    pub(super) fn check_work(&self, id: &WorkerId, instance: &InstanceId, mode: UnloadMode) {
        let Some(found) = self.workers[id].instances.get(instance) else {
            return;
        };
        let gently = matches!(mode, UnloadMode::IfIdle { .. });
        assert!(
            gently || found.running == 0 || self.sent_away.contains(&found.spec.model),
            "I1: {instance} of {} is unloaded while it works\n{}",
            found.spec.model,
            self.tail()
        );
    }

    /// PROTOCOL 13: policy unloads nothing on a device where a load runs.
    pub(super) fn check_unload(&self, id: &WorkerId, instance: &InstanceId) {
        let parts = &self.workers[id].instances[instance].spec.reservations;
        let there = self.on_host(&self.workers[id].facts.host);
        let mut loading = there.filter(|found| found.life == Life::Loading);
        let beside = loading.find(|found| {
            parts
                .iter()
                .any(|part| found.reserved_on(&part.device) > Bytes::ZERO)
        });
        assert!(
            beside.is_none() || !self.strict,
            "PROTOCOL 13: {instance} is unloaded beside a load of {:?}\n{}",
            beside.map(|found| &found.spec.model),
            self.tail()
        );
    }

    /// I5: no other load runs on its devices, whether its worker can be reached or not.
    pub(super) fn check_alone(&self, id: &WorkerId, instance: &InstanceId) {
        if !self.strict {
            return;
        }
        let host = &self.workers[id].facts.host;
        let parts = &self.workers[id].instances[instance].spec.reservations;
        let workers = self.workers.values().filter(|worker| worker.facts.host == *host);
        let mut others = workers.flat_map(|worker| &worker.instances);
        let beside = others.find(|(other, found)| {
            let mut shared = found.spec.reservations.iter().map(|part| &part.device);
            found.life == Life::Loading
                && *other != instance
                && shared.any(|device| parts.iter().any(|part| part.device == *device))
        });
        assert!(
            beside.is_none(),
            "I5: {instance} loads beside {beside:?}\n{}",
            self.tail()
        );
    }

    /// I7: nothing but pinned models is left beside a second attempt.
    pub(crate) fn check_emptied(&self, worker: &WorkerId, model: &ModelId) {
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

    fn models_of(&self, host: &HostId, kind: ModelType) -> BTreeSet<ModelId> {
        self.models_where(host, |instance| instance.spec.kind == kind)
    }

    fn models_where(&self, host: &HostId, test: impl Fn(&SimInstance) -> bool) -> BTreeSet<ModelId> {
        let there = self.on_host(host).filter(|found| test(found));
        there.map(|found| found.spec.model.clone()).collect()
    }
}
