//! What the driver may read of a fleet, for lists, snapshots and metrics. Nothing in this module changes the fleet.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::{DeviceKey, ModelState, Moment, RouteState, WorkerFacts};
use muster_core::{Bytes, DeviceKind, HostId, InstanceId, ModelId, WorkerId};

use crate::fleet::{Fleet, Phase};
use crate::state::{Device, Instance, LoadId, Model, Presence, Worker};

/// A model as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    pub id: ModelId,
    pub state: ModelState,
    /// Its instances, those on lost workers included.
    pub instances: Vec<InstanceId>,
    /// Place in the load queue, 1 is next; none if the model is not queued.
    pub queue_position: Option<u32>,
    /// When any of its instances was last used.
    pub last_used: Option<Moment>,
}

/// An instance as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceView {
    pub id: InstanceId,
    pub model: ModelId,
    pub worker: WorkerId,
    /// The state of its route; none if it has no route.
    pub route: Option<RouteState>,
    /// Its worker is lost.
    pub ghost: bool,
}

/// A device as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    pub key: DeviceKey,
    pub kind: DeviceKind,
    /// Total memory.
    pub capacity: Bytes,
    /// Free memory by the newest sample; none without a sample.
    pub free: Option<Bytes>,
    /// Bytes that instances have reserved, those on lost workers included.
    pub reserved: Bytes,
    /// The part of `reserved` that belongs to lost workers.
    pub ghosts: Bytes,
    /// Workers that list it.
    pub workers: Vec<WorkerId>,
    /// Models with an instance on the device.
    pub models: Vec<ModelId>,
}

/// A worker as lists show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// What the worker reported about itself last.
    pub facts: WorkerFacts,
    /// Its session is open.
    pub connected: bool,
    /// When it connected, or when it left.
    pub since: Moment,
}

fn instance_view(instance: &Instance) -> InstanceView {
    InstanceView {
        id: instance.id.clone(),
        model: instance.spec.model.clone(),
        worker: instance.worker.clone(),
        route: instance.route,
        ghost: instance.lost(),
    }
}

impl Fleet {
    /// Whether settling after the start is over.
    #[must_use]
    pub fn settled(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// All models of the catalogue and all that still have instances, in the order of their ids.
    #[must_use]
    pub fn models(&self) -> Vec<ModelView> {
        let positions: BTreeMap<LoadId, u32> = self.queue.keys().copied().zip(1..).collect();
        let position = |load: LoadId| positions.get(&load).copied();
        let view = |(id, model): (&ModelId, &Model)| self.model_view(id, model, position);
        self.models.iter().filter_map(view).collect()
    }

    /// The model with this id; none if [`models`](Self::models) does not have it.
    #[must_use]
    pub fn model(&self, id: &str) -> Option<ModelView> {
        let position = |load: LoadId| u32::try_from(self.queue.range(..=load).count()).ok();
        let (id, model) = self.models.get_key_value(id)?;
        self.model_view(id, model, position)
    }

    fn model_view(
        &self,
        id: &ModelId,
        model: &Model,
        position: impl Fn(LoadId) -> Option<u32>,
    ) -> Option<ModelView> {
        let instances = model.instances.iter();
        let instances = instances.filter_map(|instance| self.instances.get(instance));
        Some(ModelView {
            id: id.clone(),
            state: self.model_state(id)?,
            instances: model.instances.iter().cloned().collect(),
            queue_position: model.queued.and_then(position),
            last_used: instances.map(|instance| instance.usage.last_used).max(),
        })
    }

    /// All instances, in the order of their ids.
    #[must_use]
    pub fn instances(&self) -> Vec<InstanceView> {
        self.instances.values().map(instance_view).collect()
    }

    /// The instance with this id.
    #[must_use]
    pub fn instance(&self, id: &InstanceId) -> Option<InstanceView> {
        self.instances.get(id).map(instance_view)
    }

    /// Instances of the host's lost workers.
    #[must_use]
    pub fn ghosts_of_host(&self, host: &HostId) -> Vec<InstanceView> {
        let ghosts = self.on_host(host).filter(|instance| instance.lost());
        ghosts.map(instance_view).collect()
    }

    /// The kinds of all known devices.
    #[must_use]
    pub fn device_kinds(&self) -> BTreeSet<DeviceKind> {
        self.devices.values().map(|device| device.kind).collect()
    }

    /// All devices, in the order of host and id.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceView> {
        let view = |(key, device): (&DeviceKey, &Device)| {
            let reserved = |instance: &Instance| instance.reserved_on(&key.device);
            DeviceView {
                key: key.clone(),
                kind: device.kind,
                capacity: device.capacity,
                free: device.newest_free(),
                reserved: self.on_device(key).map(reserved).sum(),
                ghosts: self
                    .on_device(key)
                    .filter(|instance| instance.lost())
                    .map(reserved)
                    .sum(),
                workers: device.workers.iter().cloned().collect(),
                models: self
                    .on_device(key)
                    .map(|instance| instance.spec.model.clone())
                    .collect(),
            }
        };
        self.devices.iter().map(view).collect()
    }

    /// All workers, in the order of their ids.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerView> {
        let view = |worker: &Worker| WorkerView {
            facts: worker.facts.clone(),
            connected: worker.connected(),
            since: match worker.presence {
                Presence::Connected(since) | Presence::Away(since) => since,
            },
        };
        self.workers.values().map(view).collect()
    }
}
