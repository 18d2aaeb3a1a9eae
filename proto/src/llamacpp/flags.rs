//! llama.cpp's flags as far as we know them: what each takes, who may say it, and whether our engine honours it.
//!
//! Flags of a setting with a field of its own stand in its row ([`crate::settings`]), those that set a parameter of requests for a whole model in that
//! parameter's ([`crate::parameters`]), all others in [`FLAGS`]. What is in none of them is the configuration's: a flag that llama.cpp gets tomorrow is refused from a request until somebody adds it here.

use serde_json::Value;

use crate::{
    parameters::{Kind, Parameter, SAMPLING},
    settings::SETTINGS,
};

/// What a flag takes, with `=` or as the next word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    /// Nothing: it stands alone.
    Nothing,
    /// A whole number, 0 or more.
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
    /// What the parameter takes that it sets; words are separated by semicolons.
    Parameter(Kind),
    /// Text, a path among others.
    Text,
}

/// Who may say a flag (proto/README.md, Trust).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A request, and the configuration.
    Request,
    /// The configuration only: paths, addresses, keys, tools, logs, what opens routes, and what Muster has keys of its own for.
    Configuration,
}

/// A flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// All its spellings.
    pub names: &'static [&'static str],
    /// What it takes.
    pub takes: Takes,
    /// Who may say it.
    pub by: By,
    /// `muster-llama` honours it.
    pub ours: bool,
}

impl Takes {
    /// The value that a word of a command line is, as far as that can be told without the model; none if a number is wanted and it is none.
    #[must_use]
    pub fn read(self, word: &str) -> Option<Value> {
        match self {
            Self::Nothing => None,
            Self::Count => word.parse::<u32>().ok().map(Value::from),
            Self::Layers if matches!(word, "all" | "auto") => Some((-1).into()),
            Self::Layers => word.parse::<i32>().ok().map(Value::from),
            Self::Integer => word.parse::<i64>().ok().map(Value::from),
            Self::Number => word.parse::<f64>().ok().map(Value::from),
            // Which words there are, the engine itself knows best.
            Self::Word(_) | Self::Words(_) | Self::Parameter(_) | Self::Text => Some(word.into()),
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
        }
    }

    /// One that only `llama-server` has.
    const fn theirs(names: &'static [&'static str], takes: Takes) -> Self {
        Self {
            names,
            takes,
            by: By::Request,
            ours: false,
        }
    }

    /// One that sets a parameter where a request does not. Only `llama-server` has these.
    const fn of<M>(parameter: &Parameter<M>) -> Self {
        let takes = match parameter.kind {
            Kind::Bool => Takes::Nothing,
            kind @ (Kind::Float { .. } | Kind::Int { .. } | Kind::Words { .. }) => Takes::Parameter(kind),
        };
        Self::theirs(parameter.flags, takes)
    }

    /// Whether a value is one that the flag takes.
    #[must_use]
    pub fn fits(&self, value: &str) -> bool {
        match self.takes {
            Takes::Nothing => false,
            Takes::Count => value.parse::<u32>().is_ok(),
            Takes::Layers => matches!(value, "all" | "auto") || value.parse::<i32>().is_ok(),
            Takes::Integer => value.parse::<i64>().is_ok(),
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
/// A switch with a mind of its own.
pub const SWITCH: [&str; 3] = ["on", "off", "auto"];
/// How the vectors of an embedding model's tokens become one.
pub const POOLING: [&str; 5] = ["none", "mean", "cls", "last", "rank"];
const ROPE: [&str; 3] = ["none", "linear", "yarn"];
const THOUGHTS: [&str; 4] = ["auto", "none", "deepseek", "deepseek-legacy"];
/// What drafts without a file of its own, or with the draft model that the configuration gives.
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

/// Those that are neither settings with a field of their own nor parameters of requests.
const FLAGS: &[Flag] = {
    use By::{Configuration, Request};
    use Takes::{Count, Integer, Nothing, Number, Text, Word, Words};
    &[
        // What our engine does too.
        Flag::ours(&["--jinja"], Nothing, Request),
        Flag::ours(&["-kvu", "--kv-unified"], Nothing, Request),
        Flag::ours(&["--no-context-shift"], Nothing, Request),
        Flag::ours(&["-cb", "--cont-batching"], Nothing, Request),
        Flag::ours(&["--no-warmup"], Nothing, Request),
        Flag::ours(&["--mmap"], Nothing, Request),
        Flag::ours(&["--no-mmap"], Nothing, Request),
        Flag::ours(&["--mlock"], Nothing, Request),
        // Requests have keys of their own for these, or none.
        Flag::ours(&["--embedding", "--embeddings"], Nothing, Configuration),
        Flag::ours(&["--rerank", "--reranking"], Nothing, Configuration),
        Flag::ours(&["--chat-template-file"], Text, Configuration),
        Flag::ours(&["--slots"], Nothing, Configuration),
        Flag::ours(&["--props"], Nothing, Configuration),
        // Context and caches.
        Flag::theirs(&["-no-kvu", "--no-kv-unified"], Nothing),
        Flag::theirs(&["-nocb", "--no-cont-batching"], Nothing),
        Flag::theirs(&["--warmup"], Nothing),
        Flag::theirs(&["--context-shift"], Nothing),
        Flag::theirs(&["--keep"], Integer),
        Flag::theirs(&["--cache-prompt"], Nothing),
        Flag::theirs(&["--no-cache-prompt"], Nothing),
        Flag::theirs(&["--cache-reuse"], Count),
        Flag::theirs(&["-sps", "--slot-prompt-similarity"], Number),
        Flag::theirs(&["--rope-scaling"], Word(&ROPE)),
        Flag::theirs(&["--rope-scale"], Number),
        Flag::theirs(&["--rope-freq-base"], Number),
        Flag::theirs(&["--rope-freq-scale"], Number),
        Flag::theirs(&["--yarn-orig-ctx"], Count),
        Flag::theirs(&["--yarn-ext-factor"], Number),
        Flag::theirs(&["--yarn-attn-factor"], Number),
        Flag::theirs(&["--yarn-beta-slow"], Number),
        Flag::theirs(&["--yarn-beta-fast"], Number),
        // Where a request for text says nothing.
        Flag::theirs(&["-n", "--predict", "--n-predict"], Integer),
        // Speculation with what the configuration gives.
        Flag::theirs(&["--spec-type"], Words(&DRAFTS)),
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
        // Prompts and thoughts.
        Flag::theirs(&["--spm-infill"], Nothing),
        Flag::theirs(&["--image-min-tokens"], Count),
        Flag::theirs(&["--image-max-tokens"], Count),
        Flag::theirs(&["--mtmd-batch-max-tokens"], Count),
        Flag::theirs(&["--reasoning-format"], Word(&THOUGHTS)),
        Flag::theirs(&["-rea", "--reasoning"], Word(&SWITCH)),
        Flag::theirs(&["--reasoning-budget"], Integer),
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
    });
    FLAGS.iter().copied().chain(fields).chain(set.map(Flag::of))
}

/// The flag of a name, if it is one of them.
#[must_use]
pub fn find(name: &str) -> Option<Flag> {
    flags().find(|flag| flag.names.contains(&name))
}
