//! A model's shape: what each layer weighs, caches and computes.
//!
//! The rules are llama.cpp's (`llama_model_base::load_hparams`, `create_memory`, and `llama-hparams.cpp` of the version that
//! `muster-llama` builds). Where it decides by architecture but the tensors say the same, the tensors are asked: a layer with `ssm_…`
//! tensors keeps a recurrent state, one with `attn_k` keys and values. That also holds for architectures younger than this crate.

mod keys;
mod layers;
mod windows;

use keys::Keys;

use crate::{Error, Gguf};

/// llama.cpp's `LLAMA_MAX_LAYERS`.
const LAYER_LIMIT: u64 = 512;
/// Widths, heads and tokens beyond this are nonsense; products of four of them and the layers still fit 128 bits, and sums saturate.
const WIDTH_LIMIT: u64 = 1 << 32;

/// Architectures without any cache between calls (`create_memory` gives none).
const STATELESS: [&str; 14] = [
    "bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "eurobert",
    "modern-bert",
    "gemma-embedding",
    "dream",
    "llada",
    "llada-moe",
    "rnd1",
    "clef",
];

/// A model's shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// llama.cpp's name of its architecture.
    pub architecture: String,
    /// Context it was trained with, in tokens; 0 if unknown.
    pub context: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Tokens of its vocabulary.
    pub vocabulary: u64,
    /// Cells that layers with a window see; 0 if it has none.
    pub window: u64,
    /// It keeps keys and values, or states, between calls.
    pub stateful: bool,
    /// Its layers, the first one first.
    pub layers: Vec<Layer>,
    /// Bytes of tensors that stay in host memory whatever is offloaded: the token embedding and its like.
    pub input: u64,
    /// Bytes of the tensors after the layers; offloaded as one more layer.
    pub output: Output,
    /// Size of all files in bytes.
    pub files: u64,
}

/// What comes after the layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Output {
    /// Bytes of its tensors.
    pub weights: u64,
    /// It gives one number per token of the vocabulary.
    pub head: bool,
    /// It has no matrix of its own for that: the token embedding of these many bytes is used again, a second copy of it on another device.
    pub tied: Option<u64>,
}

/// One layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layer {
    /// Bytes of its tensors.
    pub weights: u64,
    /// Bytes of its largest tensor.
    pub largest: u64,
    /// Elements of the key of one cell; 0 = it caches none.
    pub key: u64,
    /// Elements of the value of one cell; 0 where the key is both (MLA).
    pub value: u64,
    /// It sees a window only.
    pub windowed: bool,
    /// Elements of recurrent state per sequence.
    pub state: u64,
    /// Heads of the queries.
    pub heads: u64,
    /// Elements of one head of the queries.
    pub key_head: u64,
    /// Elements of one head of what attention gives.
    pub value_head: u64,
    /// Elements of one head of the queries before they become latent (MLA); else 0.
    pub latent_head: u64,
    /// Width of the dense feed-forward part (shared experts too); 0 = none.
    pub feed_forward: u64,
    /// That part has a gate.
    pub gated: bool,
    /// Experts there are; 0 = none.
    pub experts: u64,
    /// Experts used per token.
    pub experts_used: u64,
    /// Width of one expert.
    pub expert_width: u64,
    /// Width inside a recurrent part; 0 = none.
    pub inner: u64,
}

impl Model {
    /// Reads the shape from the headers.
    ///
    /// # Errors
    /// [`Error::Key`] if a key is missing without which llama.cpp would not load the model either, [`Error::Absurd`] for numbers that
    /// no model has.
    pub fn read(gguf: &Gguf) -> Result<Self, Error> {
        let keys = Keys::of(gguf.metadata())?;
        let count = keys.required("block_count", LAYER_LIMIT)?;
        let width = keys.required("embedding_length", WIDTH_LIMIT)?;
        let window = windows::of(&keys, count)?;
        let mut model = Self {
            architecture: keys.architecture().to_owned(),
            context: keys.number("context_length", WIDTH_LIMIT)?.unwrap_or(0),
            width,
            vocabulary: vocabulary(gguf, &keys)?,
            window: window.cells,
            stateful: !STATELESS.contains(&keys.architecture()),
            layers: layers::read(&keys, gguf, count, width, &window)?,
            input: 0,
            output: Output::default(),
            files: gguf.len(),
        };
        model.weigh(gguf);
        Ok(model)
    }

    /// Bytes of all weights, each once.
    #[must_use]
    pub fn weights(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.weights);
        layers.fold(
            self.input.saturating_add(self.output.weights),
            u64::saturating_add,
        )
    }

    /// Adds up the tensors outside the layers (llama.cpp's `LLM_TENSOR_LAYER_INPUT` and `…_OUTPUT`).
    fn weigh(&mut self, gguf: &Gguf) {
        let mut embedding = 0;
        let mut own = false;
        for tensor in gguf
            .tensors()
            .filter(|tensor| layers::place(&tensor.name).is_none())
        {
            let name = tensor.name.as_str();
            if ["output", "cls", "dense", "dec.output"]
                .iter()
                .any(|part| name.starts_with(part))
            {
                own |= name == "output.weight";
                self.output.weights = self.output.weights.saturating_add(tensor.bytes);
            } else {
                if name == "token_embd.weight" {
                    embedding = tensor.bytes;
                }
                self.input = self.input.saturating_add(tensor.bytes);
            }
        }
        self.output.head = own || self.stateful;
        self.output.tied = (!own && self.stateful).then_some(embedding);
    }
}

/// The tokenizer's list decides; without one, the embedding's rows.
fn vocabulary(gguf: &Gguf, keys: &Keys<'_>) -> Result<u64, Error> {
    let listed = gguf.metadata().length("tokenizer.ggml.tokens");
    let rows = || {
        gguf.tensors()
            .find(|tensor| tensor.name == "token_embd.weight")
            .and_then(|tensor| tensor.shape.get(1).copied())
    };
    let tokens = match listed {
        Some(tokens) => Some(tokens),
        None => keys.number("vocab_size", WIDTH_LIMIT)?.or_else(rows),
    };
    Ok(tokens.unwrap_or(0).min(WIDTH_LIMIT))
}
