//! The memory that llama.cpp takes for a model with given settings, per place (controller/gguf/README.md, VRAM estimate).
//!
//! ```text
//! device: weights of offloaded layers + their caches + compute buffer                      + what a context of the driver takes
//! host:   weights of the others       + their caches + compute and output buffers + inputs + what the process itself takes
//! ```
//! Formulas follow the allocations of the llama.cpp that `muster-llama` builds; `worker/llama/tests/memory.rs` holds them against what
//! it reports. Sums saturate: an absurd file gives an absurd demand, which fits nowhere.

mod compute;
mod offload;
mod spread;

pub use offload::{Split, splits};
pub use spread::spread;

use crate::{CacheType, Model, model::Layer};

/// llama.cpp rounds contexts and windows up to so many cells.
const CELL_BLOCK: u64 = 256;
/// What an engine process takes on the host beside what is computed here: code, libraries, threads, allocator, the gRPC service.
const PROCESS: u64 = 48 * MIB;
/// Strings, hash maps and pieces that llama.cpp keeps per token of the vocabulary.
const PER_TOKEN: u64 = 256;
/// A context of CUDA and cuBLAS on one GPU, as `nvidia-smi` shows it for llama.cpp (some 400 to 600 MiB on recent ones).
const CONTEXT: u64 = 512 * MIB;
const MIB: u64 = 1024 * 1024;
const FLOAT: u64 = 4;
/// States set aside per sequence, on average, where a cache cannot be cut at any place (windows, recurrent states). See [`set_aside`].
const CHECKPOINTS: u64 = 2;

/// How a model is loaded: llama.cpp's context parameters, every default filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Cells over all sequences (`n_ctx`).
    pub cells: u64,
    /// Sequences (`n_seq_max`); one cache for all of them.
    pub sequences: u64,
    /// Tokens per graph run (`n_ubatch`).
    pub ubatch: u64,
    /// Most outputs that graphs are laid out for (`n_outputs_max`).
    pub outputs: u64,
    /// Most outputs that a call asks for.
    pub results: u64,
    /// It gives vectors (`embeddings`).
    pub vectors: bool,
    /// Elements of the K cache.
    pub keys: CacheType,
    /// Elements of the V cache.
    pub values: CacheType,
    /// Flash attention is on, or left to llama.cpp, which switches it on wherever it works.
    pub flash: bool,
    /// Layers with a window get caches of full size.
    pub full_windows: bool,
}

/// Bytes in one place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Weights; on the host mapped from the file.
    pub weights: u64,
    /// Keys, values, recurrent states.
    pub cache: u64,
    /// Buffers for graph runs.
    pub compute: u64,
    /// Buffer for results as it is after the load (host only).
    pub output: u64,
    /// What that buffer grows by with the largest call (host only).
    pub growth: u64,
    /// States of sequences set aside, to go back to (host only; see [`set_aside`]).
    pub kept: u64,
    /// The process itself, or the driver's context.
    pub overhead: u64,
}

impl Place {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        [
            self.weights,
            self.cache,
            self.compute,
            self.output,
            self.growth,
            self.kept,
            self.overhead,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}

/// Bytes per place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    /// On the GPU.
    pub device: Place,
    /// In host memory.
    pub host: Place,
}

/// What a model takes with its last `offloaded` layers on a GPU; llama.cpp counts what comes after the layers as one more, the first to
/// go there (`--gpu-layers`). 0 = no GPU at all.
#[must_use]
pub fn demand(model: &Model, settings: &Settings, offloaded: u64) -> Demand {
    let count = model.layers.len() as u64;
    let offloaded = offloaded.min(count + 1);
    // llama.cpp's `i_gpu_start`.
    let first = count + 1 - offloaded;
    let mut demand = Demand::default();
    let mut left_behind = 0;
    for (index, layer) in (0..).zip(&model.layers) {
        let place = if index >= first {
            &mut demand.device
        } else {
            left_behind = layer.largest.max(left_behind);
            &mut demand.host
        };
        place.weights = place.weights.saturating_add(layer.weights);
        place.cache = place.cache.saturating_add(cache(model, settings, layer));
    }
    demand.host.weights = demand.host.weights.saturating_add(model.input);
    let end = if offloaded > 0 {
        // On a device of its own the embedding is there a second time.
        let copy = model.output.tied.unwrap_or(0);
        demand.device.weights = demand.device.weights.saturating_add(copy);
        &mut demand.device
    } else {
        &mut demand.host
    };
    end.weights = end.weights.saturating_add(model.output.weights);
    let graph = compute::graph(model, settings);
    if offloaded > 0 {
        // Matrices left behind are copied to the device for prompts, one at a time.
        demand.device.compute = graph.total().saturating_add(left_behind);
        demand.host.compute = if offloaded > count {
            graph.inputs.saturating_add(graph.embedded)
        } else {
            graph.total()
        };
        demand.device.overhead = CONTEXT;
    } else {
        demand.host.compute = graph.total();
    }
    demand.host.output = compute::output(model, settings, settings.sequences);
    demand.host.growth =
        compute::output(model, settings, settings.results).saturating_sub(demand.host.output);
    demand.host.kept = set_aside(model, settings);
    demand.host.overhead = PROCESS
        .saturating_add(PER_TOKEN.saturating_mul(model.vocabulary))
        .saturating_add(compute::scratch(model, settings));
    demand
}

/// Cells of all layers without a window.
fn cells(settings: &Settings) -> u64 {
    settings.cells.min(1 << 32).next_multiple_of(CELL_BLOCK)
}

/// Cells of layers with a window: what all sequences see, and one graph run more (llama-kv-cache-iswa.cpp).
fn window_cells(model: &Model, settings: &Settings) -> u64 {
    let all = cells(settings);
    if settings.full_windows {
        return all;
    }
    model
        .window
        .saturating_mul(settings.sequences)
        .saturating_add(settings.ubatch)
        .min(all)
        .next_multiple_of(CELL_BLOCK)
}

/// Bytes that one layer keeps between calls.
fn cache(model: &Model, settings: &Settings, layer: &Layer) -> u64 {
    if !model.stateful {
        return 0;
    }
    let cells = if layer.windowed {
        window_cells(model, settings)
    } else {
        cells(settings)
    };
    // Transposed values have one width in all layers (llama-kv-cache.cpp, TAG_V_CACHE_VARIABLE).
    let value = if settings.flash || layer.value == 0 {
        layer.value
    } else {
        model.layers.iter().map(|layer| layer.value).max().unwrap_or(0)
    };
    let keys = settings.keys.size(layer.key).saturating_mul(cells);
    let values = settings.values.size(value).saturating_mul(cells);
    let states = layer
        .state
        .saturating_mul(settings.sequences.max(1))
        .saturating_mul(FLOAT);
    keys.saturating_add(values).saturating_add(states)
}

/// Bytes that the states which an engine sets aside for all sequences may take: what is reserved for them, and the bound that `muster-llama` keeps.
/// The largest state (a lone sequence's, which may fill the cells of all windows) fits at least [`CHECKPOINTS`] times.
#[must_use]
pub fn set_aside(model: &Model, settings: &Settings) -> u64 {
    let one = Settings {
        sequences: 1,
        ..*settings
    };
    let partial = |layer: &Layer| match layer {
        // A full-size cache can be cut at any place.
        Layer { state: 0, .. } if !layer.windowed || settings.full_windows => 0,
        Layer { state: 0, .. } => cache(model, &one, layer),
        Layer { .. } => layer.state.saturating_mul(FLOAT),
    };
    let sequence = model.layers.iter().map(partial).fold(0, u64::saturating_add);
    sequence
        .saturating_mul(settings.sequences)
        .saturating_mul(CHECKPOINTS)
}
