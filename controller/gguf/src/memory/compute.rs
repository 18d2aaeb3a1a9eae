//! Buffers of a graph run.
//!
//! llama.cpp lets tensors of a graph share memory if they are not needed at the same time. So a buffer is as large as the tensors at the
//! fullest moment of the graph: inside a layer's attention, its feed-forward part, its recurrent part, or at the results. Inputs are needed
//! in all layers.

use super::{MIB, Settings, caches, cells, window_cells};
use crate::{Model, model::Layer};

const FLOAT: u64 = 4;
const HALF: u64 = 2;
const LONG: u64 = 8;
/// Number of copies of the residual stream at a layer's fullest moment: the stream, its norm, and the gaps that tensors of its size leave.
/// Measured; the same for all architectures tried.
const STREAMS: u64 = 5;

/// The memory of a graph run, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Graph {
    /// Masks, positions and places in the cache, which are copied to the device.
    pub(super) inputs: u64,
    /// The embeddings of the prompt's tokens.
    pub(super) embedded: u64,
    /// The fullest moment, without the fields above.
    peak: u64,
}

impl Graph {
    pub(super) const fn total(self) -> u64 {
        self.inputs.saturating_add(self.peak)
    }
}

/// Number of tokens in the largest graph run: llama.cpp reserves a whole number per sequence (`graph_reserve`).
fn tokens(settings: &Settings) -> u64 {
    let tokens = settings
        .ubatch
        .min(cells(settings).saturating_mul(caches(settings)))
        .max(1);
    tokens.next_multiple_of(settings.sequences.clamp(1, 1 << 16))
}

fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1_u64, |product, factor| product.saturating_mul(*factor))
}

fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0_u64, |sum, term| sum.saturating_add(*term))
}

pub(super) fn graph(model: &Model, settings: &Settings) -> Graph {
    let tokens = tokens(settings);
    let embedded = product(&[tokens, model.width, FLOAT]);
    let layers = model
        .layers
        .iter()
        .map(|layer| moment(model, settings, layer, tokens))
        .max()
        .unwrap_or(0);
    Graph {
        inputs: inputs(model, settings, tokens),
        embedded,
        peak: layers.max(results(model, settings, tokens)),
    }
}

fn inputs(model: &Model, settings: &Settings, tokens: u64) -> u64 {
    let element = if settings.flash { HALF } else { FLOAT };
    let seen = if model.stateful { cells(settings) } else { tokens };
    let attends = |windowed| {
        model
            .layers
            .iter()
            .any(|layer| layer.heads > 0 && layer.windowed == windowed)
    };
    let full = if attends(false) { seen } else { 0 };
    let windowed = match (attends(true), model.stateful) {
        (false, _) => 0,
        (true, true) => window_cells(model, settings),
        (true, false) => seen,
    };
    let masks = product(&[tokens, full.saturating_add(windowed), element]);
    // Without flash attention values are stored one by one, each at its own place.
    let values = model.layers.iter().map(|layer| layer.value).max().unwrap_or(0);
    let places = if settings.flash || !model.stateful {
        1
    } else {
        values
    };
    sum(&[
        masks,
        product(&[tokens, places, LONG]),
        product(&[tokens, 4, LONG]),
    ])
}

/// Bytes at the fullest moment of one layer.
fn moment(model: &Model, settings: &Settings, layer: &Layer, tokens: u64) -> u64 {
    let stream = product(&[tokens, model.width, FLOAT]);
    let parts = [
        attention(model, settings, layer, tokens),
        // Both factors of a gated unit and their product. Without a gate everything is done in place.
        product(&[tokens, layer.feed_forward, if layer.gated { 3 } else { 1 }, FLOAT]),
        experts(model, layer, tokens),
        recurrent(settings, layer, tokens),
    ];
    let part = parts.into_iter().max().unwrap_or(0);
    sum(&[product(&[STREAMS, stream]), part])
}

fn attention(model: &Model, settings: &Settings, layer: &Layer, tokens: u64) -> u64 {
    let queries = product(&[tokens, layer.heads, layer.key_head, FLOAT]);
    let mixed = product(&[tokens, layer.heads, layer.value_head, FLOAT]);
    // Latent attention: the queries before they have the width of the keys.
    let narrow = product(&[tokens, layer.heads, layer.latent_head, FLOAT]);
    if settings.flash {
        return sum(&[queries, mixed, narrow]);
    }
    let seen = match (model.stateful, layer.windowed) {
        (false, _) => tokens,
        (true, true) => window_cells(model, settings),
        (true, false) => cells(settings),
    };
    let scores = product(&[tokens, layer.heads, seen, FLOAT]);
    sum(&[queries, scores, mixed, narrow])
}

fn experts(model: &Model, layer: &Layer, tokens: u64) -> u64 {
    if layer.experts == 0 {
        return 0;
    }
    let routed = product(&[tokens, layer.experts, 2, FLOAT]);
    let inside = product(&[tokens, layer.experts_used, layer.expert_width, 3, FLOAT]);
    let given = product(&[tokens, layer.experts_used, model.width, FLOAT]);
    sum(&[routed, inside.max(given)])
}

fn recurrent(settings: &Settings, layer: &Layer, tokens: u64) -> u64 {
    if layer.inner == 0 || layer.state == 0 {
        return 0;
    }
    let states = product(&[settings.sequences, layer.state, FLOAT]);
    sum(&[product(&[tokens, layer.inner, 7, FLOAT]), states])
}

/// Bytes at the end of the graph: outputs over the whole vocabulary, if the model has them.
fn results(model: &Model, settings: &Settings, tokens: u64) -> u64 {
    let outputs = settings.outputs.min(tokens);
    let stream = product(&[outputs, model.width, 2, FLOAT]);
    let logits = if model.output.head { model.vocabulary } else { 0 };
    sum(&[stream, product(&[outputs, logits, FLOAT])])
}

/// Size of the buffer for results (`output_reserve`). It has room for logits even if the model computes none.
pub(super) fn output(model: &Model, settings: &Settings, outputs: u64) -> u64 {
    let vector = if settings.vectors { model.width } else { 0 };
    product(&[outputs, model.vocabulary.saturating_add(vector), FLOAT])
}

/// Size of the CPU backend's work buffer: the widest input of a matrix, converted to the type of its weights.
pub(super) fn scratch(model: &Model, settings: &Settings) -> u64 {
    let widest = model.layers.iter().map(|layer| {
        let experts = product(&[layer.experts_used, layer.expert_width]);
        layer.feed_forward.max(experts).max(layer.inner).max(model.width)
    });
    let widest = widest.max().unwrap_or(model.width);
    product(&[tokens(settings), widest, HALF]).max(MIB)
}
