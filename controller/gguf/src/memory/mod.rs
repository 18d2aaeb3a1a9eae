//! The memory that llama.cpp takes for a model with given settings, on the host and on each device (controller/gguf/README.md, VRAM
//! estimate).
//!
//! ```text
//! device: weights of offloaded layers + their caches + compute buffer + context of the driver
//! host: weights of the other layers + their caches + compute and output buffers + inputs + the process itself
//! ```
//! The formulas follow the allocations of the llama.cpp that `muster-llama` builds; `worker/llama/tests/memory.rs` compares them with what
//! llama.cpp reports. Sums saturate: a nonsensical file gives a demand that fits nowhere.

mod compute;
mod offload;
mod spread;

pub use offload::{Split, splits};
pub use spread::spread;

use crate::{CacheType, Model, model::Layer};

/// llama.cpp rounds contexts and windows up to a multiple of this many cells.
const CELL_BLOCK: u64 = 256;
/// Host memory of an engine process beside what is computed here: code, libraries, threads, allocator, the gRPC service.
const PROCESS: u64 = 48 * MIB;
/// Bytes per token of the vocabulary for llama.cpp's strings and hash maps.
const PER_TOKEN: u64 = 256;
/// Memory of a context of CUDA and cuBLAS on one GPU, as `nvidia-smi` shows it for llama.cpp (400 to 600 MiB on recent GPUs).
const CONTEXT: u64 = 512 * MIB;
const MIB: u64 = 1024 * 1024;
const FLOAT: u64 = 4;
/// Average number of saved states per sequence, for caches that cannot be cut at any place (windows, recurrent states). See [`set_aside`].
const CHECKPOINTS: u64 = 2;

/// How a model is loaded: llama.cpp's context parameters, with every default filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of cells over all sequences (`n_ctx`).
    pub cells: u64,
    /// Number of sequences (`n_seq_max`).
    pub sequences: u64,
    /// Number of tokens per graph run (`n_ubatch`).
    pub ubatch: u64,
    /// Largest number of outputs that graphs are planned for (`n_outputs_max`).
    pub outputs: u64,
    /// Largest number of outputs that a call asks for.
    pub results: u64,
    /// Whether it computes embeddings (`embeddings`).
    pub vectors: bool,
    /// Element type of the K cache.
    pub keys: CacheType,
    /// Element type of the V cache.
    pub values: CacheType,
    /// Whether flash attention is on, or left to llama.cpp, which uses it wherever it works.
    pub flash: bool,
    /// Whether layers with a window get caches of full size.
    pub full_windows: bool,
    /// Whether each sequence has a cache of its own, an equal part of the cells (not `kv_unified`); else all share one.
    pub split: bool,
}

/// Memory on one device or on the host, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Weights; on the host they are mapped from the file.
    pub weights: u64,
    /// Keys, values, recurrent states.
    pub cache: u64,
    /// Buffers for graph runs.
    pub compute: u64,
    /// Buffer for results after the load; only on the host.
    pub output: u64,
    /// Growth of that buffer by the largest call; only on the host.
    pub growth: u64,
    /// Saved states of sequences to return to; only on the host, see [`set_aside`].
    pub kept: u64,
    /// The process itself on the host, the driver's context on a device.
    pub overhead: u64,
}

impl Place {
    /// The sum.
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

/// Memory on the GPU and on the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    pub device: Place,
    pub host: Place,
}

/// What a model takes with its last `offloaded` layers on a GPU; 0 = no GPU. llama.cpp counts everything after the layers as one more
/// layer, the first to be offloaded (`--gpu-layers`).
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
        // On a separate device the embedding is stored a second time.
        let copy = model.output.tied.unwrap_or(0);
        demand.device.weights = demand.device.weights.saturating_add(copy);
        &mut demand.device
    } else {
        &mut demand.host
    };
    end.weights = end.weights.saturating_add(model.output.weights);
    let graph = compute::graph(model, settings);
    if offloaded > 0 {
        // Matrices that stay on the host are copied to the device for prompts, one at a time.
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

/// Number of caches, over which the sequences are spread.
fn caches(settings: &Settings) -> u64 {
    if settings.split {
        settings.sequences.max(1)
    } else {
        1
    }
}

/// Number of cells of each layer without a window, in one cache.
fn cells(settings: &Settings) -> u64 {
    let part = settings.cells.min(1 << 32) / caches(settings);
    part.max(1).next_multiple_of(CELL_BLOCK)
}

/// Number of cells of each layer with a window, in one cache: what its sequences see, and one more graph run (llama-kv-cache-iswa.cpp).
fn window_cells(model: &Model, settings: &Settings) -> u64 {
    let all = cells(settings);
    if settings.full_windows {
        return all;
    }
    model
        .window
        .saturating_mul(settings.sequences / caches(settings))
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
    let cells = cells.saturating_mul(caches(settings));
    // Transposed values have the same width in all layers (llama-kv-cache.cpp, TAG_V_CACHE_VARIABLE).
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

/// Bytes for the states that an engine saves for all sequences: reserved for them, and the limit that `muster-llama` keeps. The largest
/// state (that of a single sequence, which may fill the cells of all windows) fits at least [`CHECKPOINTS`] times.
#[must_use]
pub fn set_aside(model: &Model, settings: &Settings) -> u64 {
    let one = Settings {
        sequences: 1,
        cells: cells(settings),
        split: false,
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
