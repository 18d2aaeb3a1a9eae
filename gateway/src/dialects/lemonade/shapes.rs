//! What Lemonade's requests and short answers look like, for the document only: requests are read by hand.

#![allow(dead_code, reason = "read by the derive only")]

use utoipa::ToSchema;

/// It is done.
#[derive(ToSchema)]
#[schema(as = LemonadeDone, example = json!({"status": "success", "message": "Loaded model: Qwen2.5-0.5B-Instruct-CPU"}))]
pub(super) struct Done {
    /// `success`.
    status: String,
    /// What was done.
    message: String,
}

/// A model to load, and with what. What is not given is as saved for the model, else as defined, else as the command line says.
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
    /// Never evicted by policy, or again; outlives the load.
    pinned: Option<bool>,
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
    /// As in `log-level`.
    log_level: Option<String>,
}

/// A model to pin or unpin.
#[derive(ToSchema)]
#[schema(as = LemonadePin, example = json!({"model_name": "Qwen3-0.6B-GGUF", "pinned": true}))]
pub(super) struct PinBody {
    /// Id in the catalogue.
    model_name: String,
    /// Never evicted by policy, or again.
    pinned: bool,
}
