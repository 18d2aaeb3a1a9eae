//! Schemas of Ollama's answers, only for the OpenAPI document. `render` writes the answers; tests compare both.

#![allow(dead_code, reason = "read by the derive only")]

use serde_json::Value;
use utoipa::ToSchema;

/// An answer to a chat; also each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaChatAnswer {
    /// Name of the model as the client gave it.
    model: String,
    /// Time of the answer, as RFC 3339.
    created_at: String,
    /// The model's answer; in a stream, the next piece of it.
    message: OllamaMessage,
    /// Probabilities of the tokens, in OpenAI's form; only where they were asked for.
    logprobs: Option<Vec<Value>>,
    /// Whether this is the last line.
    done: bool,
    /// Why the answer ended: `stop`, `length`, `tool_calls`, `load` or `unload`; on the last line only.
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
    /// The text; empty if there are only tool calls.
    content: String,
    /// The model's reasoning.
    thinking: Option<String>,
    /// Functions that the model wants to call.
    tool_calls: Option<Vec<OllamaCall>>,
}

/// A function call that the model asks for.
#[derive(ToSchema)]
pub(super) struct OllamaCall {
    /// Id of the call; the tool's answer names it.
    id: String,
    /// The function and its arguments.
    function: OllamaCalled,
}

/// A function with its arguments.
#[derive(ToSchema)]
pub(super) struct OllamaCalled {
    /// Name of the function.
    name: String,
    /// The arguments as an object.
    arguments: Value,
}

/// The continuation of a text; also each line of a streamed one.
#[derive(ToSchema)]
pub(super) struct OllamaGenerateAnswer {
    /// Name of the model as the client gave it.
    model: String,
    /// Time of the answer, as RFC 3339.
    created_at: String,
    /// The generated text; in a stream, the next piece of it.
    response: String,
    /// The model's reasoning.
    thinking: Option<String>,
    /// Probabilities of the tokens, in OpenAI's form; only where they were asked for.
    logprobs: Option<Vec<Value>>,
    /// Whether this is the last line.
    done: bool,
    /// Why the answer ended: `stop`, `length`, `tool_calls`, `load` or `unload`; on the last line only.
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
