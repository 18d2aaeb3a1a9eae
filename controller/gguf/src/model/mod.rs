//! The shape of a model: what each layer weighs, caches and computes.
//!
//! The rules are llama.cpp's (`llama_model_base::load_hparams`, `create_memory`, and `llama-hparams.cpp` of the version that `muster-llama`
//! builds). llama.cpp often decides by architecture; if the tensors tell the same, they decide here: a layer with `ssm_…` tensors keeps a
//! recurrent state, one with `attn_k` keys and values. This also works for architectures that this crate does not know.

mod keys;
mod layers;
mod windows;

use keys::Keys;

use crate::{Error, Gguf};

/// llama.cpp's `LLAMA_MAX_LAYERS`.
const LAYER_LIMIT: u64 = 512;
/// Widths, heads and tokens above this are nonsense. Products of four of them and the layers still fit 128 bits, and sums saturate.
const WIDTH_LIMIT: u64 = 1 << 32;

/// Architectures that keep no cache between calls (`create_memory` makes none).
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

/// The shape of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Name of its architecture, as llama.cpp calls it.
    pub architecture: String,
    /// Context length in tokens that it was trained with; 0 if unknown.
    pub context: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Number of tokens in its vocabulary.
    pub vocabulary: u64,
    /// Number of cells that layers with a window see; 0 = no such layers.
    pub window: u64,
    /// Whether it keeps keys and values, or states, between calls.
    pub stateful: bool,
    /// Its layers in order.
    pub layers: Vec<Layer>,
    /// Bytes of tensors that always stay in host memory: the token embedding and similar ones.
    pub input: u64,
    /// The tensors after the layers. They are offloaded as one more layer.
    pub output: Output,
    /// Size of all files in bytes.
    pub files: u64,
}

/// The tensors after the layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Output {
    /// Size of the tensors in bytes.
    pub weights: u64,
    /// Whether it computes one number per token of the vocabulary.
    pub head: bool,
    /// Size in bytes of the token embedding, if that is used again instead of a matrix of its own. On another device it is stored a second
    /// time.
    pub tied: Option<u64>,
}

/// One layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layer {
    /// Size of its tensors in bytes.
    pub weights: u64,
    /// Size of its largest tensor in bytes.
    pub largest: u64,
    /// Number of elements in the key of one cell; 0 = it caches none.
    pub key: u64,
    /// Number of elements in the value of one cell; 0 if the key is both (MLA).
    pub value: u64,
    /// Whether it sees only a window.
    pub windowed: bool,
    /// Number of elements of recurrent state per sequence.
    pub state: u64,
    /// Number of query heads.
    pub heads: u64,
    /// Number of elements in one query head.
    pub key_head: u64,
    /// Number of elements in one head of attention's result.
    pub value_head: u64,
    /// Number of elements in one query head before it becomes latent (MLA); else 0.
    pub latent_head: u64,
    /// Width of the dense feed-forward part, shared experts included; 0 = none.
    pub feed_forward: u64,
    /// Whether the feed-forward part has a gate.
    pub gated: bool,
    /// Number of experts; 0 = none.
    pub experts: u64,
    /// Number of experts used per token.
    pub experts_used: u64,
    /// Width of one expert.
    pub expert_width: u64,
    /// Width inside the recurrent part; 0 = none.
    pub inner: u64,
}

impl Model {
    /// Reads the shape from the headers.
    ///
    /// # Errors
    /// [`Error::Key`] if a key is missing that llama.cpp needs as well, [`Error::Absurd`] for numbers that no model has.
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

    /// Size of all weights in bytes, each counted once.
    #[must_use]
    pub fn weights(&self) -> u64 {
        let layers = self.layers.iter().map(|layer| layer.weights);
        layers.fold(
            self.input.saturating_add(self.output.weights),
            u64::saturating_add,
        )
    }

    /// Adds the tensors outside the layers (llama.cpp's `LLM_TENSOR_LAYER_INPUT` and `…_OUTPUT`).
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

/// The number of tokens: the length of the tokenizer's list, or else the number of rows of the embedding.
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
