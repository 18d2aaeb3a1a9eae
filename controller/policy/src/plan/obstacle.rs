//! The results of making room: instances to evict, or what eviction cannot remove.

use super::tenure::Tenure;
use crate::api::{DeviceKey, EvictionRule};
use muster_core::{Bytes, InstanceId, ModelId};

/// An instance to evict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) id: InstanceId,
    pub(crate) model: ModelId,
    pub(crate) rule: EvictionRule,
    pub(crate) tenure: Tenure,
}

/// What stands in the way and cannot be evicted, now or later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// Claims of earlier loads.
    Claims(Vec<ModelId>),
    /// Instances of these models on lost workers.
    Ghosts {
        models: Vec<ModelId>,
        short: Option<Shortage>,
    },
    /// Pinned models.
    Pinned(Vec<ModelId>),
    /// Other programs use the memory.
    Foreign(Shortage),
}

/// A device without enough memory, with the bytes wanted and possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) device: DeviceKey,
    pub(crate) wanted: Bytes,
    pub(crate) possible: Bytes,
}
