//! A whole model on several GPUs, with the layers shared evenly in order: llama.cpp's `--split-mode layer` with an even `--tensor-split`.

use super::{CONTEXT, Place, Settings, cache, compute};
use crate::Model;

/// Number of copies of its inputs that each GPU keeps, so that all can work at the same time (`GGML_SCHED_MAX_COPIES`).
const COPIES: u64 = 4;

/// The memory of each of `gpus` GPUs, in llama.cpp's order of devices. The host takes the same as with one GPU. None if some GPU would get
/// no layer.
#[must_use]
pub fn spread(model: &Model, settings: &Settings, gpus: usize) -> Option<Vec<Place>> {
    // Everything after the layers counts as one more layer.
    let units = model.layers.len() + 1;
    if gpus == 0 || gpus > units {
        return None;
    }
    let graph = compute::graph(model, settings);
    let more = if gpus > 1 { COPIES - 1 } else { 0 };
    let copies = graph.inputs.saturating_add(graph.embedded).saturating_mul(more);
    let empty = Place {
        compute: graph.total().saturating_add(copies),
        overhead: CONTEXT,
        ..Place::default()
    };
    let mut places = vec![empty; gpus];
    // llama.cpp's `layer_gpu`: the first GPU whose share of the whole ends after this unit.
    let gpu = |unit: usize| unit * gpus / units;
    for (unit, layer) in model.layers.iter().enumerate() {
        let place = places.get_mut(gpu(unit))?;
        place.weights = place.weights.saturating_add(layer.weights);
        place.cache = place.cache.saturating_add(cache(model, settings, layer));
    }
    let end = places.last_mut()?;
    let output = model
        .output
        .weights
        .saturating_add(model.output.tied.unwrap_or(0));
    end.weights = end.weights.saturating_add(output);
    Some(places)
}
