//! What Ollama's answers look like, for the document only; tests hold what is written against it.

#![allow(dead_code, reason = "read by the derive only")]

use std::collections::HashMap;

use serde_json::Value;
use utoipa::ToSchema;

/// A chat's answer, and each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaChatAnswer {
    /// As the client named it.
    model: String,
    created_at: String,
    message: OllamaMessage,
    /// The last line.
    done: bool,
    /// `stop`, `length`, `load` or `unload`; once it is done.
    done_reason: Option<String>,
    /// Nanoseconds.
    total_duration: Option<u64>,
    /// Nanoseconds.
    load_duration: Option<u64>,
    /// Tokens of the prompt.
    prompt_eval_count: Option<u32>,
    /// Nanoseconds.
    prompt_eval_duration: Option<u64>,
    /// Tokens generated.
    eval_count: Option<u32>,
    /// Nanoseconds.
    eval_duration: Option<u64>,
}

/// What the model said.
#[derive(ToSchema)]
pub(super) struct OllamaMessage {
    /// `assistant`.
    role: String,
    content: String,
    /// What it thought.
    thinking: Option<String>,
    tool_calls: Option<Vec<OllamaCall>>,
}

/// What the model wants called.
#[derive(ToSchema)]
pub(super) struct OllamaCall {
    id: String,
    function: OllamaCalled,
}

/// A function and what it is given.
#[derive(ToSchema)]
pub(super) struct OllamaCalled {
    name: String,
    /// An object.
    arguments: Value,
}

/// A text's continuation, and each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaGenerateAnswer {
    /// As the client named it.
    model: String,
    created_at: String,
    response: String,
    /// What it thought.
    thinking: Option<String>,
    /// The last line.
    done: bool,
    /// `stop`, `length`, `load` or `unload`; once it is done.
    done_reason: Option<String>,
    /// Nanoseconds.
    total_duration: Option<u64>,
    /// Nanoseconds.
    load_duration: Option<u64>,
    /// Tokens of the prompt.
    prompt_eval_count: Option<u32>,
    /// Nanoseconds.
    prompt_eval_duration: Option<u64>,
    /// Tokens generated.
    eval_count: Option<u32>,
    /// Nanoseconds.
    eval_duration: Option<u64>,
}

/// Vectors.
#[derive(ToSchema)]
pub(super) struct OllamaEmbedAnswer {
    /// As the client named it.
    model: String,
    /// In input order.
    embeddings: Vec<Vec<f64>>,
    /// Nanoseconds.
    total_duration: u64,
    /// Nanoseconds.
    load_duration: u64,
    /// Tokens of all inputs.
    prompt_eval_count: u32,
}

/// One vector.
#[derive(ToSchema)]
pub(super) struct OllamaEmbeddingsAnswer {
    embedding: Vec<f64>,
}

/// Models that are here.
#[derive(ToSchema)]
pub(super) struct OllamaTags {
    models: Vec<OllamaModel>,
}

/// A model that is here.
#[derive(ToSchema)]
pub(super) struct OllamaModel {
    /// Id in the catalogue.
    name: String,
    /// The same.
    model: String,
    modified_at: String,
    /// Bytes of its files.
    size: u64,
    /// Names the entry and changes with it; no hash of the files.
    digest: String,
    details: OllamaDetails,
}

/// What kind of model.
#[derive(ToSchema)]
pub(super) struct OllamaDetails {
    parent_model: String,
    format: String,
    family: String,
    families: Vec<String>,
    /// For example `4.3B`; empty while it is not loaded.
    parameter_size: String,
    quantization_level: String,
}

/// Models that are loaded.
#[derive(ToSchema)]
pub(super) struct OllamaLoaded {
    models: Vec<OllamaLoadedModel>,
}

/// A model that is loaded.
#[derive(ToSchema)]
pub(super) struct OllamaLoadedModel {
    /// Id in the catalogue.
    name: String,
    /// The same.
    model: String,
    modified_at: String,
    /// Bytes of its files.
    size: u64,
    digest: String,
    details: OllamaDetails,
    /// Bytes on GPUs.
    size_vram: u64,
    expires_at: String,
    /// Tokens that one request may use.
    context_length: u32,
}

/// What is known of a model.
#[derive(ToSchema)]
pub(super) struct OllamaShown {
    modelfile: String,
    parameters: String,
    template: String,
    license: String,
    modified_at: String,
    details: OllamaDetails,
    /// `completion`, `tools`, `vision`, `thinking`, `embedding`.
    capabilities: Vec<String>,
    /// Under names of GGUF's.
    model_info: HashMap<String, Value>,
}

/// The version of Ollama's API.
#[derive(ToSchema)]
pub(super) struct OllamaVersion {
    version: String,
}
