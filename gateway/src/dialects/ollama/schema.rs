//! What Ollama's requests and answers look like, for the document only: requests are read by hand, and tests hold what is written against it.

#![allow(dead_code, reason = "read by the derive only")]

use serde_json::Value;
use utoipa::ToSchema;

use crate::{dialects::openai::schema::requests::Stop, openapi::parameters::SamplingAsked};

/// A chat's answer, and each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaChatAnswer {
    /// As the client named it.
    model: String,
    /// RFC 3339.
    created_at: String,
    /// What the model said; in a stream the next piece of it.
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
    /// Text; empty if it only calls.
    content: String,
    /// What it thought.
    thinking: Option<String>,
    /// What it wants called.
    tool_calls: Option<Vec<OllamaCall>>,
}

/// What the model wants called.
#[derive(ToSchema)]
pub(super) struct OllamaCall {
    /// Names the call.
    id: String,
    /// What is called.
    function: OllamaCalled,
}

/// A function and what it is given.
#[derive(ToSchema)]
pub(super) struct OllamaCalled {
    /// Of the function.
    name: String,
    /// An object.
    arguments: Value,
}

/// A text's continuation, and each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaGenerateAnswer {
    /// As the client named it.
    model: String,
    /// RFC 3339.
    created_at: String,
    /// Text; in a stream the next piece of it.
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
    /// Of the prompt.
    embedding: Vec<f64>,
}

/// Ollama's chat request.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": false}))]
pub(super) struct OllamaChatRequest {
    /// Id in the catalogue; `:latest` may be added.
    model: String,
    /// Turns; none = only load the model.
    messages: Option<Vec<Value>>,
    /// Lines as they come; the default.
    stream: Option<bool>,
    /// Functions the model may call.
    tools: Option<Vec<Value>>,
    /// `json` or a JSON schema.
    format: Option<Value>,
    /// A switch, or `low`, `medium`, `high`.
    think: Option<Value>,
    /// How the answer is made.
    options: Option<OllamaOptions>,
}

/// How an answer is made.
#[derive(ToSchema)]
pub(super) struct OllamaOptions {
    /// Most tokens to generate; -1 = until the context is full.
    num_predict: Option<i32>,
    /// Strings that end the output.
    stop: Option<Stop>,
    /// How tokens are chosen.
    sampling: SamplingAsked,
}

/// Ollama's request for text.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "prompt": "Hello!", "stream": false}))]
pub(super) struct OllamaGenerateRequest {
    /// Id in the catalogue; `:latest` may be added.
    model: String,
    /// What the user says; none = only load the model.
    prompt: Option<String>,
    /// Text after a gap that is to be filled.
    suffix: Option<String>,
    /// What comes before.
    system: Option<String>,
    /// Not through the chat template.
    raw: Option<bool>,
    /// Lines as they come; the default.
    stream: Option<bool>,
    /// `json` or a JSON schema.
    format: Option<Value>,
    /// How the answer is made.
    options: Option<OllamaOptions>,
}

/// Ollama's request for vectors.
#[derive(ToSchema)]
pub(super) struct OllamaEmbedRequest {
    /// Id in the catalogue; `:latest` may be added.
    model: String,
    /// Text or several.
    input: Value,
    /// Shorten vectors to this length.
    dimensions: Option<i64>,
}

/// Ollama's older request for one vector.
#[derive(ToSchema)]
pub(super) struct OllamaEmbeddingsRequest {
    /// Id in the catalogue; `:latest` may be added.
    model: String,
    /// The text.
    prompt: String,
}

/// Names a model.
#[derive(ToSchema)]
pub(super) struct OllamaShowRequest {
    /// Id in the catalogue; `:latest` may be added.
    model: String,
}
