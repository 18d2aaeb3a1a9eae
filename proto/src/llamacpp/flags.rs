//! llama.cpp's flags: the values of each, who may set it, and whether our engine has it.
//!
//! Flags of settings with a field of their own are in the rows of [`crate::settings`], flags that set a request parameter for a whole model
//! in those of [`crate::parameters`], and all others in [`FLAGS`]. Only the configuration may set a flag that is in none of them: a future
//! flag of llama.cpp is refused from requests until it is added here.

use serde_json::Value;

use super::load_mode;
use crate::{
    parameters::{Kind, Parameter, SAMPLING},
    settings::SETTINGS,
};

/// The value of a flag, given with `=` or as the next word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    /// The flag has no value.
    Nothing,
    /// A whole number, at least 0.
    Count,
    /// A number of layers, `all` or `auto`.
    Layers,
    /// A whole number.
    Integer,
    /// Any finite number.
    Number,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Some of these words, separated by commas.
    Words(&'static [&'static str]),
    /// Two whole numbers, a word each.
    Range,
    /// The value of the parameter that it sets; words are separated by semicolons.
    Parameter(Kind),
    /// Text, for example a path.
    Text,
}

/// Who may set a flag (proto/README.md, Trust).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Requests and the configuration.
    Request,
    /// Only the configuration: paths, addresses, keys, tools, logs, flags that open routes, and flags for which Muster has keys of its own.
    Configuration,
}

/// A flag of llama.cpp.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// All its spellings.
    pub names: &'static [&'static str],
    /// The value that it takes.
    pub takes: Takes,
    /// Who may set it.
    pub by: By,
    /// Whether `muster-llama` has it.
    pub ours: bool,
    /// The words that `muster-llama` has; if empty, all.
    pub our_words: &'static [&'static str],
}

impl Takes {
    /// The value that a word of a command line means, as far as it can be told without the model; none if it should be a number and is not.
    #[must_use]
    pub fn read(self, word: &str) -> Option<Value> {
        match self {
            Self::Nothing => None,
            Self::Count => word.parse::<u32>().ok().map(Value::from),
            Self::Layers if matches!(word, "all" | "auto") => Some((-1).into()),
            Self::Layers => word.parse::<i32>().ok().map(Value::from),
            Self::Integer => word.parse::<i64>().ok().map(Value::from),
            Self::Number => word.parse::<f64>().ok().map(Value::from),
            // The engine itself knows which words there are.
            Self::Word(_) | Self::Words(_) | Self::Parameter(_) | Self::Range | Self::Text => {
                Some(word.into())
            }
        }
    }
}

impl Flag {
    const fn ours(names: &'static [&'static str], takes: Takes, by: By) -> Self {
        Self {
            names,
            takes,
            by,
            ours: true,
            our_words: &[],
        }
    }

    /// A flag that our engine has with some words only.
    const fn ours_with(
        names: &'static [&'static str],
        takes: Takes,
        our_words: &'static [&'static str],
    ) -> Self {
        Self {
            our_words,
            ..Self::ours(names, takes, By::Request)
        }
    }

    /// A flag that only `llama-server` has.
    const fn theirs(names: &'static [&'static str], takes: Takes) -> Self {
        Self {
            names,
            takes,
            by: By::Request,
            ours: false,
            our_words: &[],
        }
    }

    /// A flag that sets a parameter for requests that do not set it.
    const fn of<M>(parameter: &Parameter<M>) -> Self {
        let takes = match parameter.kind {
            Kind::Bool => Takes::Nothing,
            kind @ (Kind::Float { .. } | Kind::Int { .. } | Kind::Words { .. }) => Takes::Parameter(kind),
        };
        Self::ours(parameter.flags, takes, By::Request)
    }

    /// Whether `muster-llama` has the flag with this value.
    #[must_use]
    pub fn is_ours(&self, value: Option<&str>) -> bool {
        let words = self.our_words;
        self.ours && (words.is_empty() || value.is_none_or(|value| words.contains(&value)))
    }

    /// Whether the flag takes this value.
    #[must_use]
    pub fn fits(&self, value: &str) -> bool {
        match self.takes {
            Takes::Nothing => false,
            Takes::Count => value.parse::<u32>().is_ok(),
            Takes::Layers => matches!(value, "all" | "auto") || value.parse::<i32>().is_ok(),
            Takes::Integer | Takes::Range => value.parse::<i64>().is_ok(),
            Takes::Number => value.parse::<f64>().is_ok_and(f64::is_finite),
            Takes::Word(words) => words.contains(&value),
            Takes::Words(words) => value.split(',').all(|word| words.contains(&word)),
            Takes::Parameter(kind) => kind.fits(value),
            Takes::Text => true,
        }
    }
}

/// GGML's names of cache types (seed 001, `gguf_type_k`).
pub const CACHE_TYPES: [&str; 9] = [
    "f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1",
];
/// The values of a switch that can also be automatic.
pub const SWITCH: [&str; 3] = ["on", "off", "auto"];
/// How an embedding model's token vectors become one.
pub const POOLING: [&str; 5] = ["none", "mean", "cls", "last", "rank"];
/// The folder in which the caches of sequences are saved.
pub const SLOT_FILES: &str = "--slot-save-path";
/// The cache is one for all sequences, which is how it is by default.
pub(super) const UNIFIED: [&str; 2] = ["-kvu", "--kv-unified"];
/// The cache is split: each sequence has a part of its own.
pub(super) const SPLIT: [&str; 2] = ["-no-kvu", "--no-kv-unified"];
const ROPE: [&str; 3] = ["none", "linear", "yarn"];
const NUMA: [&str; 3] = ["distribute", "isolate", "numactl"];
/// How a model is spread over several devices. llama.cpp has `tensor` as well, an experiment.
const SPREAD: [&str; 3] = ["none", "layer", "row"];
const THOUGHTS: [&str; 4] = ["auto", "none", "deepseek", "deepseek-legacy"];
/// How tokens can be drafted without a file, or with the draft model of the configuration.
const DRAFTS: [&str; 9] = [
    "none",
    "draft-simple",
    "draft-eagle3",
    "draft-mtp",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
];

/// Whether texts go on beyond the context, and what they keep then.
pub(super) const SHIFT: &str = "--context-shift";
pub(super) const NO_SHIFT: &str = "--no-context-shift";
pub(super) const KEEP: &str = "--keep";
/// How tokens are drafted; our engine looks for earlier places in the text unless told `none`.
pub(super) const SPEC_TYPE: &str = "--spec-type";
/// Nothing is drafted.
pub(super) const NO_DRAFTS: &str = "none";
const OUR_DRAFTS: [&str; 2] = [NO_DRAFTS, "ngram-simple"];

/// Flags that are neither settings with a field of their own nor request parameters.
const FLAGS: &[Flag] = {
    use By::{Configuration, Request};
    use Takes::{Count, Integer, Nothing, Number, Range, Text, Word, Words};
    &[
        // Flags that our engine has as well.
        Flag::ours(&["--jinja"], Nothing, Request),
        Flag::ours(&UNIFIED, Nothing, Request),
        Flag::ours(&SPLIT, Nothing, Request),
        Flag::ours(&[SHIFT], Nothing, Request),
        Flag::ours(&[NO_SHIFT], Nothing, Request),
        Flag::ours(&[KEEP], Integer, Request),
        Flag::ours(&["-cb", "--cont-batching"], Nothing, Request),
        Flag::ours(&["--no-warmup"], Nothing, Request),
        Flag::ours(&["--mmap"], Nothing, Request),
        Flag::ours(&["--no-mmap"], Nothing, Request),
        Flag::ours(&["--mlock"], Nothing, Request),
        Flag::ours(&load_mode::NAMES, Word(&load_mode::WORDS), Request),
        Flag::ours(&["--warmup"], Nothing, Request),
        Flag::ours(&["--cache-prompt"], Nothing, Request),
        Flag::ours(&["--no-cache-prompt"], Nothing, Request),
        Flag::ours(&["--rope-scaling"], Word(&ROPE), Request),
        Flag::ours(&["--rope-scale"], Number, Request),
        Flag::ours(&["--rope-freq-base"], Number, Request),
        Flag::ours(&["--rope-freq-scale"], Number, Request),
        Flag::ours(&["--yarn-orig-ctx"], Count, Request),
        Flag::ours(&["--yarn-ext-factor"], Number, Request),
        Flag::ours(&["--yarn-attn-factor"], Number, Request),
        Flag::ours(&["--yarn-beta-slow"], Number, Request),
        Flag::ours(&["--yarn-beta-fast"], Number, Request),
        // Used if a request for text sets nothing.
        Flag::ours(&["-n", "--predict", "--n-predict"], Integer, Request),
        Flag::ours(&["--spm-infill"], Nothing, Request),
        Flag::ours(&["--reasoning-format"], Word(&THOUGHTS), Request),
        Flag::ours(&["-rea", "--reasoning"], Word(&SWITCH), Request),
        Flag::ours(&["--reasoning-budget"], Integer, Request),
        Flag::ours(&["--reasoning-budget-message"], Text, Configuration),
        // Where weights, caches and computation go: the box is the operator's.
        Flag::ours(&["-sm", "--split-mode"], Word(&SPREAD), Configuration),
        Flag::ours(&["-ts", "--tensor-split"], Text, Configuration),
        Flag::ours(&["-mg", "--main-gpu"], Count, Configuration),
        Flag::ours(&["-ot", "--override-tensor"], Text, Configuration),
        Flag::ours(&["-cmoe", "--cpu-moe"], Nothing, Configuration),
        Flag::ours(&["-ncmoe", "--n-cpu-moe"], Count, Configuration),
        Flag::ours(&["-ncffn", "--n-cpu-ffn"], Count, Configuration),
        Flag::ours(&["-kvo", "--kv-offload"], Nothing, Configuration),
        Flag::ours(&["-nkvo", "--no-kv-offload"], Nothing, Configuration),
        Flag::ours(&["--op-offload"], Nothing, Configuration),
        Flag::ours(&["--no-op-offload"], Nothing, Configuration),
        Flag::ours(&["--repack"], Nothing, Configuration),
        Flag::ours(&["-nr", "--no-repack"], Nothing, Configuration),
        Flag::ours(&["--no-host"], Nothing, Configuration),
        Flag::ours(&["--numa"], Word(&NUMA), Configuration),
        Flag::ours(&["-lzm", "--lazy-mode"], Word(&SWITCH), Configuration),
        Flag::ours(&["--check-tensors"], Nothing, Configuration),
        Flag::ours(&["--override-kv"], Text, Configuration),
        Flag::ours(&["--control-vector"], Text, Configuration),
        Flag::ours(&["--control-vector-scaled"], Text, Configuration),
        Flag::ours(&["--control-vector-layer-range"], Range, Configuration),
        // Requests have keys of their own for these, or cannot set them.
        Flag::ours(&["--embedding", "--embeddings"], Nothing, Configuration),
        Flag::ours(&["--rerank", "--reranking"], Nothing, Configuration),
        Flag::ours(&["--chat-template-file"], Text, Configuration),
        Flag::ours(&["--slots"], Nothing, Configuration),
        Flag::ours(&["--props"], Nothing, Configuration),
        Flag::ours(&["--metrics"], Nothing, Configuration),
        Flag::ours(&[SLOT_FILES], Text, Configuration),
        // Context and caches.
        Flag::theirs(&["-nocb", "--no-cont-batching"], Nothing),
        Flag::theirs(&["--cache-reuse"], Count),
        Flag::theirs(&["-sps", "--slot-prompt-similarity"], Number),
        // Speculative decoding with the configuration's draft model.
        Flag::ours_with(&[SPEC_TYPE], Words(&DRAFTS), &OUR_DRAFTS),
        Flag::theirs(&["--spec-draft-n-max"], Count),
        Flag::theirs(&["--spec-draft-n-min"], Count),
        Flag::theirs(&["--spec-draft-p-split", "--draft-p-split"], Number),
        Flag::theirs(&["--spec-draft-p-min", "--draft-p-min"], Number),
        Flag::theirs(
            &["--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"],
            Word(&CACHE_TYPES),
        ),
        Flag::theirs(
            &["--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"],
            Word(&CACHE_TYPES),
        ),
        Flag::theirs(&["--spec-ngram-mod-n-min"], Count),
        Flag::theirs(&["--spec-ngram-mod-n-max"], Count),
        Flag::theirs(&["--spec-ngram-mod-n-match"], Count),
        Flag::theirs(&["--spec-ngram-simple-size-n"], Count),
        Flag::theirs(&["--spec-ngram-simple-size-m"], Count),
        Flag::theirs(&["--spec-ngram-simple-min-hits"], Count),
        Flag::theirs(&["--spec-ngram-map-k-size-n"], Count),
        Flag::theirs(&["--spec-ngram-map-k-size-m"], Count),
        Flag::theirs(&["--spec-ngram-map-k-min-hits"], Count),
        Flag::theirs(&["--spec-ngram-map-k4v-size-n"], Count),
        Flag::theirs(&["--spec-ngram-map-k4v-size-m"], Count),
        Flag::theirs(&["--spec-ngram-map-k4v-min-hits"], Count),
        // Images.
        Flag::theirs(&["--image-min-tokens"], Count),
        Flag::theirs(&["--image-max-tokens"], Count),
        Flag::theirs(&["--mtmd-batch-max-tokens"], Count),
    ]
};

/// All flags.
pub fn flags() -> impl Iterator<Item = Flag> {
    let set = SAMPLING.iter().filter(|parameter| !parameter.flags.is_empty());
    let fields = SETTINGS.iter().filter(|setting| !setting.flags.is_empty());
    let fields = fields.map(|setting| Flag {
        names: setting.flags,
        takes: setting.takes,
        by: setting.by,
        ours: setting.ours,
        our_words: &[],
    });
    FLAGS.iter().copied().chain(fields).chain(set.map(Flag::of))
}

/// The flag with this name.
#[must_use]
pub fn find(name: &str) -> Option<Flag> {
    flags().find(|flag| flag.names.contains(&name))
}
