//! What making room comes to: victims, or what no eviction can remove.

use super::tenure::Tenure;
use crate::api::{DeviceKey, EvictionRule};
use muster_core::{Bytes, InstanceId, ModelId};

/// An instance that has to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) id: InstanceId,
    pub(crate) model: ModelId,
    pub(crate) rule: EvictionRule,
    pub(crate) tenure: Tenure,
}

/// What stands in the way and cannot be evicted, not even later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Claims of earlier loads.
    Claims(Vec<ModelId>),
    /// Instances of lost workers.
    Ghosts {
        models: Vec<ModelId>,
        short: Option<Shortage>,
    },
    /// Pinned models.
    Pinned(Vec<ModelId>),
    /// Memory that other programs use.
    Foreign(Shortage),
}

/// A device without enough memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) device: DeviceKey,
    pub(crate) wanted: Bytes,
    pub(crate) possible: Bytes,
}
