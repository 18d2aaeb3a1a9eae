//! What Lemonade's requests look like, for the document only: they are read by hand.

#![allow(dead_code, reason = "read by the derive only")]

use utoipa::ToSchema;

/// A model to load, and with what. What is not given is as saved for the model, else as defined, else as the command line says. Keys of Lemonade's
/// other recipes change nothing; any other key is refused.
#[derive(ToSchema)]
#[schema(as = LemonadeLoad, example = json!({"model_name": "llama-3.2-3b-instruct-GGUF", "ctx_size": 8192, "llamacpp_backend": "rocm", "llamacpp_args": "--flash-attn on --no-mmap"}))]
pub(super) struct LoadBody {
    /// Id in the catalogue.
    model_name: String,
    /// Context size in tokens; -1 = as if not given.
    #[schema(minimum = -1)]
    ctx_size: Option<i32>,
    /// llama.cpp's models: `vulkan`, `rocm`, `metal`, `cuda` or `cpu`.
    llamacpp_backend: Option<String>,
    /// llama.cpp's models: its own arguments, but for those that Muster sets itself (`-m`, `--port`, `--ctx-size`, `-ngl`, …).
    llamacpp_args: Option<String>,
    /// true = the policy never evicts the model; false = it may again. Stays so after the model is unloaded.
    pinned: Option<bool>,
    /// Save these settings for later loads too, as `models/{id}/options` does.
    save_options: Option<bool>,
}

/// A model to download; with `checkpoint` and `recipe` it is registered first, and its name begins with `user.`.
#[derive(ToSchema)]
#[schema(as = LemonadePull, example = json!({"model_name": "user.Phi-4-Mini-GGUF", "checkpoint": "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M", "recipe": "llamacpp"}))]
pub(super) struct PullBody {
    /// Id in the catalogue.
    model_name: String,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` of the hub; only the configuration names files.
    checkpoint: Option<String>,
    /// Software and kind of device, for example `llamacpp`.
    recipe: Option<String>,
    /// Label `reasoning`.
    reasoning: Option<bool>,
    /// Label `vision`.
    vision: Option<bool>,
    /// Label `embeddings`.
    embedding: Option<bool>,
    /// Label `reranking`.
    reranking: Option<bool>,
    /// File of the same repository with the multimodal projector.
    mmproj: Option<String>,
    /// Further labels.
    labels: Option<Vec<String>>,
    /// Answer with server-sent events `progress`, then `complete` or `error`.
    stream: Option<bool>,
}

/// A model of a user.
#[derive(ToSchema)]
#[schema(as = LemonadeRegister, example = json!({"model_name": "user.Phi-4-Mini-GGUF", "checkpoint": "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M", "recipe": "llamacpp"}))]
pub(super) struct RegisterBody {
    /// Id in the catalogue.
    model_name: String,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` of the hub; only the configuration names files.
    checkpoint: Option<String>,
    /// Software and kind of device, for example `llamacpp`.
    recipe: Option<String>,
    /// Label `reasoning`.
    reasoning: Option<bool>,
    /// Label `vision`.
    vision: Option<bool>,
    /// Label `embeddings`.
    embedding: Option<bool>,
    /// Label `reranking`.
    reranking: Option<bool>,
    /// File of the same repository with the multimodal projector.
    mmproj: Option<String>,
    /// Further labels.
    labels: Option<Vec<String>>,
}

/// A model to delete.
#[derive(ToSchema)]
#[schema(as = LemonadeDelete, example = json!({"model_name": "Qwen2.5-0.5B-Instruct-CPU"}))]
pub(super) struct DeleteBody {
    /// Id in the catalogue.
    model_name: String,
}

/// Options to save for a model's loads; null takes one away.
#[derive(ToSchema)]
#[schema(as = LemonadeOptions, example = json!({"ctx_size": 8192, "llamacpp_backend": "vulkan"}))]
pub(super) struct OptionsBody {
    /// Context size in tokens; -1 = none saved.
    #[schema(minimum = -1)]
    ctx_size: Option<i32>,
    /// llama.cpp's backend, as in `load`.
    llamacpp_backend: Option<String>,
    /// llama.cpp's own arguments, as in `load`.
    llamacpp_args: Option<String>,
    /// Check only, save nothing.
    dry_run: Option<bool>,
}

/// An alias for a model.
#[derive(ToSchema)]
#[schema(as = LemonadeAlias, example = json!({"alias": "gpt-4o", "model_name": "Qwen3-0.6B-GGUF"}))]
pub(super) struct AliasBody {
    /// The name.
    alias: String,
    /// Id in the catalogue.
    model_name: String,
}

/// A model to unload; without one, all.
#[derive(ToSchema)]
#[schema(as = LemonadeUnload, example = json!({"model_name": "Llama-3.2-1B-Instruct-Hybrid"}))]
pub(super) struct UnloadBody {
    /// Id in the catalogue.
    model_name: Option<String>,
}

/// A log level.
#[derive(ToSchema)]
#[schema(as = LemonadeLogLevel, example = json!({"level": "debug"}))]
pub(super) struct LevelBody {
    /// `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    level: String,
}

/// Settings to change.
#[derive(ToSchema)]
#[schema(as = LemonadeSet, example = json!({"log_level": "debug"}))]
pub(super) struct SetBody {
    /// Log level: `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    log_level: Option<String>,
}

/// A model to pin or unpin.
#[derive(ToSchema)]
#[schema(as = LemonadePin, example = json!({"model_name": "Qwen3-0.6B-GGUF", "pinned": true}))]
pub(super) struct PinBody {
    /// Id in the catalogue.
    model_name: String,
    /// true = the policy never evicts the model; false = it may again.
    pinned: bool,
}
