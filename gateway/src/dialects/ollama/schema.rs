//! What Ollama's requests and answers look like, for the document only: requests are read by hand, and tests hold what is written against it.

#![allow(dead_code, reason = "read by the derive only")]

use serde_json::Value;
use utoipa::ToSchema;

use crate::{dialects::openai::schema::requests::Stop, openapi::parameters::SamplingAsked};

/// A chat's answer, and each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaChatAnswer {
    /// The model's name, as the client gave it.
    model: String,
    /// Time of the answer, as RFC 3339 has it.
    created_at: String,
    /// The model's answer; in a stream, the next piece of it.
    message: OllamaMessage,
    /// Whether this is the last line.
    done: bool,
    /// Why the answer ended: `stop`, `length`, `load` or `unload`; on the last line only.
    done_reason: Option<String>,
    /// Nanoseconds for the whole request.
    total_duration: Option<u64>,
    /// Nanoseconds to load the model.
    load_duration: Option<u64>,
    /// Tokens of the prompt.
    prompt_eval_count: Option<u32>,
    /// Nanoseconds to read the prompt.
    prompt_eval_duration: Option<u64>,
    /// Tokens generated.
    eval_count: Option<u32>,
    /// Nanoseconds to generate the tokens.
    eval_duration: Option<u64>,
}

/// The model's answer.
#[derive(ToSchema)]
pub(super) struct OllamaMessage {
    /// `assistant`.
    role: String,
    /// Text; empty if it only calls.
    content: String,
    /// The model's reasoning.
    thinking: Option<String>,
    /// Functions that the model wants to call.
    tool_calls: Option<Vec<OllamaCall>>,
}

/// A function call that the model asks for.
#[derive(ToSchema)]
pub(super) struct OllamaCall {
    /// Identifies the call; the tool's answer names it.
    id: String,
    /// The function and its arguments.
    function: OllamaCalled,
}

/// A function with its arguments.
#[derive(ToSchema)]
pub(super) struct OllamaCalled {
    /// Name of the function.
    name: String,
    /// The arguments, as an object.
    arguments: Value,
}

/// A text's continuation, and each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaGenerateAnswer {
    /// The model's name, as the client gave it.
    model: String,
    /// Time of the answer, as RFC 3339 has it.
    created_at: String,
    /// The generated text; in a stream, the next piece of it.
    response: String,
    /// The model's reasoning.
    thinking: Option<String>,
    /// Whether this is the last line.
    done: bool,
    /// Why the answer ended: `stop`, `length`, `load` or `unload`; on the last line only.
    done_reason: Option<String>,
    /// Nanoseconds for the whole request.
    total_duration: Option<u64>,
    /// Nanoseconds to load the model.
    load_duration: Option<u64>,
    /// Tokens of the prompt.
    prompt_eval_count: Option<u32>,
    /// Nanoseconds to read the prompt.
    prompt_eval_duration: Option<u64>,
    /// Tokens generated.
    eval_count: Option<u32>,
    /// Nanoseconds to generate the tokens.
    eval_duration: Option<u64>,
}

/// Vectors.
#[derive(ToSchema)]
pub(super) struct OllamaEmbedAnswer {
    /// The model's name, as the client gave it.
    model: String,
    /// The vectors, in input order.
    embeddings: Vec<Vec<f64>>,
    /// Nanoseconds for the whole request.
    total_duration: u64,
    /// Nanoseconds to load the model.
    load_duration: u64,
    /// Tokens of all inputs.
    prompt_eval_count: u32,
}

/// One vector.
#[derive(ToSchema)]
pub(super) struct OllamaEmbeddingsAnswer {
    /// The vector of the prompt.
    embedding: Vec<f64>,
}

/// Ollama's chat request.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "stream": false}))]
pub(super) struct OllamaChatRequest {
    /// Id in the catalogue; `:latest` may be added.
    model: String,
    /// Turns of the chat, oldest first; none = only load the model.
    messages: Option<Vec<Value>>,
    /// Answer with lines as they are generated (default), or with one body.
    stream: Option<bool>,
    /// Functions the model may call.
    tools: Option<Vec<Value>>,
    /// `json` or a JSON schema.
    format: Option<Value>,
    /// Whether the model reasons first: true, false, or how much: `low`, `medium`, `high`.
    think: Option<Value>,
    /// Options of the generation.
    options: Option<OllamaOptions>,
}

/// Options of a generation.
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
    /// The user's text; none = only load the model.
    prompt: Option<String>,
    /// Text after a gap that is to be filled.
    suffix: Option<String>,
    /// System prompt; comes before the user's text.
    system: Option<String>,
    /// Use the prompt as it is, without the chat template.
    raw: Option<bool>,
    /// Answer with lines as they are generated (default), or with one body.
    stream: Option<bool>,
    /// `json` or a JSON schema.
    format: Option<Value>,
    /// Options of the generation.
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
