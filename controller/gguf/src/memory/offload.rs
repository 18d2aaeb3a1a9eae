//! How much of a model goes on a GPU where not all of it fits (`gpu_layers = "auto"`).

use super::{Demand, Settings, demand};
use crate::Model;

/// A way to split a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split {
    /// Layers on the GPU, what comes after them counted as one (`--gpu-layers`).
    pub layers: u64,
    /// What that takes.
    pub demand: Demand,
}

/// All ways to split a model that put anything on the GPU, the largest first. Each next one takes less of the GPU than the one before.
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
    /// The first of `splits` that fits into so many bytes on the device and on the host.
    #[must_use]
    pub fn largest(splits: &[Self], device: u64, host: u64) -> Option<Self> {
        splits
            .iter()
            .find(|split| split.demand.device.total() <= device && split.demand.host.total() <= host)
            .copied()
    }
}
