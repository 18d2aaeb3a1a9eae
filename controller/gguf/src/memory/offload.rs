//! How much of a model goes to a GPU if not all of it fits (`gpu_layers = "auto"`).

use super::{Demand, Settings, demand};
use crate::Model;

/// A way to split a model between GPU and host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Number of layers on the GPU, counting everything after the layers as one (`--gpu-layers`).
    pub layers: u64,
    /// The memory that this split takes.
    pub demand: Demand,
}

/// All ways to split a model with at least one layer on the GPU. Each one takes less of the GPU than the one before.
#[must_use]
pub fn splits(model: &Model, settings: &Settings) -> Vec<Split> {
    let most = model.layers.len() as u64 + 1;
    let mut splits: Vec<Split> = Vec::new();
    for layers in (1..=most).rev() {
        let demand = demand(model, settings, layers);
        let less = splits
            .last()
            .is_none_or(|last| demand.device.total() < last.demand.device.total());
        if less {
            splits.push(Split { layers, demand });
        }
    }
    splits
}

impl Split {
    /// The first of `splits` that fits into `device` and `host` bytes.
    #[must_use]
    pub fn largest(splits: &[Self], device: u64, host: u64) -> Option<Self> {
        splits
            .iter()
            .find(|split| split.demand.device.total() <= device && split.demand.host.total() <= host)
            .copied()
    }
}
