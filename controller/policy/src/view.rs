//! What the driver may read of a fleet, for lists, snapshots and metrics. Nothing here can change it.

use crate::api::{
    Bytes, DeviceKey, DeviceKind, InstanceId, ModelId, ModelState, Moment, RouteState, WorkerFacts, WorkerId,
};

/// A model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelView {
    /// Its id.
    pub id: ModelId,
    /// Its state as users see it.
    pub state: ModelState,
    /// Its instances, ghosts included.
    pub instances: Vec<InstanceId>,
    /// Place in the load queue, from 1, while it waits there.
    pub queue_position: Option<u32>,
    /// Last use over its instances.
    pub last_used: Option<Moment>,
}

/// An instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceView {
    /// Its id.
    pub id: InstanceId,
    /// Its model.
    pub model: ModelId,
    /// Its worker.
    pub worker: WorkerId,
    /// Its route, if it has one.
    pub route: Option<RouteState>,
    /// Its worker's session is lost.
    pub ghost: bool,
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// Which.
    pub key: DeviceKey,
    /// What it is.
    pub kind: DeviceKind,
    /// Total memory.
    pub capacity: Bytes,
    /// Free memory by the newest sample.
    pub free: Option<Bytes>,
    /// Bytes reserved by instances, ghosts included.
    pub reserved: Bytes,
    /// Bytes of these that belong to lost workers.
    pub ghosts: Bytes,
    /// Workers that list it.
    pub workers: Vec<WorkerId>,
    /// Models on it.
    pub models: Vec<ModelId>,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerView {
    /// What it said about itself last.
    pub facts: WorkerFacts,
    /// Its session is open.
    pub connected: bool,
    /// Since when it is connected or away.
    pub since: Moment,
}
