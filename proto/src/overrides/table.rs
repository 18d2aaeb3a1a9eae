//! The keys of a load's body (seed 001, Supported load override fields): each row has the key's family, values and meaning. Readers, errors
//! and the OpenAPI document use these rows. Settings with a field of their own (`muster_proto::settings`) that say `load` are keys as well.

use std::sync::LazyLock;

use muster_core::runtime::Family;

use crate::{llamacpp::Takes, settings::SETTINGS};

/// llama.cpp and vLLM count cells and tokens in signed 32-bit numbers.
const MOST_TOKENS: u64 = i32::MAX as u64;

/// The values of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Holds {
    /// An integer of at least 1, a multiple of `step`.
    Count {
        /// The largest value.
        most: u64,
        /// Step between values; 1 = any.
        step: u64,
    },
    /// Bits per element of a cache, 2 to 8.
    Bits,
    /// A number from 0 to 1.
    Share,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A word that is neither a flag nor a path.
    Name,
    /// A checkpoint on the hub, `ORG/NAME`.
    Checkpoint,
    /// `"<bits>"` or `"<k_bits>,<v_bits>"`.
    Quant,
    /// Any text.
    Text,
}

/// A key of a load's body.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    pub name: &'static str,
    /// The values that it takes.
    pub holds: Holds,
    /// Whether it may be null, which means the runtime's default.
    pub nullable: bool,
    /// The flags of llama.cpp that it sets (the first one is written), if it has no field of its own; empty = the runtime knows the key by
    /// its name.
    pub flags: &'static [&'static str],
    /// The sentence in the document.
    pub about: &'static str,
}

impl Key {
    const fn new(name: &'static str, holds: Holds, about: &'static str) -> Self {
        Self {
            name,
            holds,
            nullable: false,
            flags: &[],
            about,
        }
    }

    const fn or_null(self) -> Self {
        Self {
            nullable: true,
            ..self
        }
    }

    const fn flags(self, flags: &'static [&'static str]) -> Self {
        Self { flags, ..self }
    }

    /// The family that the key belongs to; none if it belongs to no single one.
    #[must_use]
    pub fn family(&self) -> Option<Family> {
        const PREFIXES: [(&str, Family); 4] = [
            ("gguf_", Family::LlamaCpp),
            ("exllama_", Family::ExLlamaV3),
            ("vllm_", Family::Vllm),
            ("llama_server_", Family::LlamaServer),
        ];
        let found = PREFIXES.iter().find(|(prefix, _)| self.name.starts_with(prefix));
        found.map(|(_, family)| *family)
    }
}

const TOKENS: Holds = Holds::Count {
    most: MOST_TOKENS,
    step: 1,
};

const fn count(most: u64) -> Holds {
    Holds::Count { most, step: 1 }
}

pub(super) const QUANT: &str = "exllama_cache_quant";
pub(super) const K_BITS: &str = "exllama_cache_k_bits";
pub(super) const V_BITS: &str = "exllama_cache_v_bits";

/// Keys of settings without a field of their own.
const OWN: [Key; 16] = [
    Key::new(
        "exllama_cache_size",
        Holds::Count {
            most: MOST_TOKENS,
            step: 256,
        },
        "Tokens of the cache.",
    ),
    Key::new(QUANT, Holds::Quant, "Bits of the cache's elements: `\"<bits>\"` or `\"<k_bits>,<v_bits>\"`; null = fp16.").or_null(),
    Key::new(K_BITS, Holds::Bits, "Bits of the K cache; with `exllama_cache_v_bits`, never with `exllama_cache_quant`; both null = fp16.").or_null(),
    Key::new(V_BITS, Holds::Bits, "Bits of the V cache; with `exllama_cache_k_bits`.").or_null(),
    Key::new("exllama_max_rq_tokens", TOKENS, "Most tokens of one request."),
    Key::new("vllm_max_model_len", TOKENS, "Context length in tokens."),
    // vLLM itself knows which types it supports (seed 001: any dtype string it supports).
    Key::new("vllm_kv_cache_dtype", Holds::Name, "Element type of the KV cache, any that vLLM supports."),
    Key::new("vllm_kv_cache_memory_bytes", count(i64::MAX as u64), "Bytes of the KV cache, in place of a share of the GPU."),
    Key::new("vllm_max_pixels", TOKENS, "Most pixels of an image."),
    Key::new("vllm_speculative_method", Holds::Name, "How tokens are drafted: `mtp`, `draft_model`, `mlp_speculator`, …; null = not at all.").or_null(),
    // Seed 001 takes local paths here as well; those come only from the configuration (proto/README.md, Trust).
    Key::new("vllm_speculative_model", Holds::Checkpoint, "Checkpoint of the draft model; null = none.").or_null(),
    Key::new("vllm_num_speculative_tokens", TOKENS, "Tokens that are drafted at a time."),
    Key::new("llama_server_image_max_tokens", TOKENS, "Most tokens of an image.").flags(&["--image-max-tokens"]),
    // An enum in `load_constraints`; null is allowed nevertheless (seed 001, llama-server load override notes).
    Key::new("llama_server_spec_type", Holds::Word(&["draft-mtp"]), "How tokens are drafted: `draft-mtp`; null = not at all.")
        .or_null()
        .flags(&["--spec-type"]),
    Key::new("llama_server_spec_draft_n_max", count(6), "Most tokens that are drafted at a time.")
        .flags(&["--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"]),
    Key::new("llama_server_spec_draft_p_min", Holds::Share, "Least probability of a drafted token.")
        .flags(&["--spec-draft-p-min", "--draft-p-min"]),
];

/// Further keys in messages: Lemonade's load options (seed 000, `POST /load`).
static WIRE: [Key; 2] = [
    Key::new("ctx_size", TOKENS, ""),
    Key::new("llamacpp_args", Holds::Text, ""),
];

/// The keys that a load's body may have, without `replicas`.
pub static KEYS: LazyLock<Vec<Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    for setting in SETTINGS {
        let holds = match setting.takes {
            Takes::Count => TOKENS,
            Takes::Word(words) => Holds::Word(words),
            Takes::Text => Holds::Text,
            // No setting that a load may set takes these; the test of the document would fail for one.
            Takes::Nothing
            | Takes::Layers
            | Takes::Integer
            | Takes::Number
            | Takes::Words(_)
            | Takes::Range
            | Takes::Parameter(_) => continue,
        };
        keys.extend(setting.load.iter().map(|name| Key {
            nullable: setting.nullable,
            ..Key::new(name, holds, setting.about)
        }));
    }
    keys.extend(OWN);
    keys
});

/// The key with this name in a load's body.
pub(super) fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// The key with this name in messages.
pub(super) fn wire_key(name: &str) -> Option<&'static Key> {
    key(name).or_else(|| WIRE.iter().find(|key| key.name == name))
}

/// Keys of settings that are flags of `llama-server` without a field of their own.
pub fn flag_keys() -> impl Iterator<Item = &'static Key> {
    KEYS.iter().filter(|key| !key.flags.is_empty())
}

/// The flag key with this name.
#[must_use]
pub fn flag_key(name: &str) -> Option<&'static Key> {
    flag_keys().find(|key| key.name == name)
}
