//! Instances of lost workers (ghosts), and the two signs of their end (PROTOCOL 1): the process is gone, or its memory is free again.
//!
//! Memory is a sign only on devices that mostly our engines use. When a worker is lost, the free memory of its devices is stored. All
//! ghosts of a device have ended when a live worker's newer sample shows more free memory than that, by at least what *all* ghosts of the
//! device had. A smaller rise does not tell which of several ghosts ended. Memory that our other instances free meanwhile does not count.
//! Host RAM changes with every program and is no sign.

use crate::api::{DecisionKind, DeviceKey, LoadError, Moment};
use crate::fleet::Fleet;
use crate::state::{Free, Instance, Presence};
use muster_core::{Bytes, DeviceKind, InstanceId};

use super::ended::End;

impl Fleet {
    /// Handles a lost instance that has ended.
    pub(crate) fn ghost_gone(&mut self, id: &InstanceId) {
        let Some(ghost) = self.instances.get(id).filter(|instance| instance.lost()) else {
            return;
        };
        let worker = ghost.worker.clone();
        self.decided_on(DecisionKind::GhostEnded, id);
        self.instance_ended(id, End::LostWith(LoadError::WorkerLost(worker)));
    }

    /// Stores the free memory of the instance's devices at the moment its worker is lost.
    pub(crate) fn note_free_memory(&mut self, id: &InstanceId) {
        let (now, wait) = (self.now, self.config.sample_wait);
        let Some(instance) = self.instances.get(id) else {
            return;
        };
        let mut noted = Vec::new();
        for reservation in &instance.spec.reservations {
            let key = Self::key(&instance.host, &reservation.device);
            let Some(device) = self.devices.get(&key).filter(|device| tells(device.kind)) else {
                continue;
            };
            if let Free::Known(free) = device.free(now, wait) {
                noted.push((reservation.device.clone(), free));
            }
        }
        if let Some(instance) = self.instances.get_mut(id) {
            instance.free_at_loss = noted;
        }
    }

    /// Handles the end of another of our instances: the memory it frees is no sign that ghosts beside it have ended.
    pub(crate) fn gave_back(&mut self, ended: &Instance) {
        for reservation in &ended.spec.reservations {
            let key = Self::key(&ended.host, &reservation.device);
            let bytes = ended.charge_on(&reservation.device);
            for ghost in self.ghosts_on(&key) {
                let Some(ghost) = self.instances.get_mut(&ghost) else {
                    continue;
                };
                for (device, free) in &mut ghost.free_at_loss {
                    if *device == reservation.device {
                        *free += bytes;
                    }
                }
            }
        }
    }

    /// Checks, after a sample of a device's memory, whether its ghosts' memory is free again.
    pub(crate) fn look_for_gone_ghosts(&mut self, key: &DeviceKey, taken_at: Moment) {
        let ghosts = self.ghosts_on(key);
        if ghosts.is_empty() {
            return;
        }
        let Some(Free::Known(free)) = self
            .devices
            .get(key)
            .map(|device| device.free(self.now, self.config.sample_wait))
        else {
            return;
        };
        let (mut before, mut held) = (Bytes::ZERO, Bytes::ZERO);
        for ghost in ghosts.iter().filter_map(|id| self.instances.get(id)) {
            let noted = ghost
                .free_at_loss
                .iter()
                .find(|(device, _)| *device == key.device);
            let lost_before = self
                .workers
                .get(&ghost.worker)
                .is_some_and(|worker| matches!(worker.presence, Presence::Away(since) if since < taken_at));
            let Some((_, noted)) = noted.filter(|_| lost_before) else {
                return;
            };
            before = before.max(*noted);
            held += ghost.charge_on(&key.device);
        }
        if held > self.config.margin && free >= before + held {
            for ghost in &ghosts {
                self.memory_came_back(ghost, key);
            }
            // The sample that showed their end already includes it.
            if let Some(device) = self.devices.get_mut(key) {
                device.is_current();
            }
        }
    }

    /// Records that one device of a ghost is free. An instance over several devices has ended once all of them are.
    fn memory_came_back(&mut self, id: &InstanceId, key: &DeviceKey) {
        let Some(ghost) = self.instances.get_mut(id) else {
            return;
        };
        ghost.free_at_loss.retain(|(device, _)| *device != key.device);
        if ghost.free_at_loss.is_empty() {
            self.ghost_gone(id);
        }
    }

    fn ghosts_on(&self, key: &DeviceKey) -> Vec<InstanceId> {
        let ghosts = self.on_device(key).filter(|instance| instance.lost());
        ghosts.map(|ghost| ghost.id.clone()).collect()
    }
}

/// Whether the free memory of such a device is a sign of a single process's end.
const fn tells(kind: DeviceKind) -> bool {
    match kind {
        DeviceKind::Gpu | DeviceKind::Npu | DeviceKind::Sim => true,
        DeviceKind::Cpu => false,
    }
}
