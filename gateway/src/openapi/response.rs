//! What OpenAI's Responses look like, for the document only; see [`super::answers`].

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answers::{ChatToken, OutputDetails, PromptDetails};

/// OpenAI's response. What it repeats of the request stands as the client wrote it.
#[derive(ToSchema)]
pub(crate) struct ResponseAnswer {
    id: String,
    /// `response`.
    object: String,
    /// Unix time in seconds.
    created_at: u64,
    /// Unix time in seconds, of a completed one.
    completed_at: Option<u64>,
    status: ResponseStatus,
    /// Always false.
    background: bool,
    error: Option<ResponseFailure>,
    incomplete_details: Option<ResponseCut>,
    /// As the client named it.
    model: String,
    output: Vec<ResponseItem>,
    /// Always null: nothing is stored.
    previous_response_id: Option<String>,
    /// Always false.
    store: bool,
    /// `default`.
    service_tier: String,
    instructions: Option<String>,
    max_output_tokens: Option<i64>,
    max_tool_calls: Option<i64>,
    metadata: Value,
    parallel_tool_calls: bool,
    reasoning: Value,
    /// Null = the model's own settings decide.
    temperature: Option<f64>,
    text: Value,
    tool_choice: Value,
    tools: Vec<Value>,
    /// Null = the model's own settings decide.
    top_p: Option<f64>,
    truncation: String,
    user: Option<String>,
    /// Null until the end.
    usage: Option<ResponseUsage>,
}

/// How far a response or an item of it is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    /// A limit ended it.
    Incomplete,
    Failed,
}

/// Why a response failed.
#[derive(ToSchema)]
pub(crate) struct ResponseFailure {
    /// Key of the error catalogue.
    code: String,
    /// One sentence for a person.
    message: String,
}

/// Why a response is not complete.
#[derive(ToSchema)]
pub(crate) struct ResponseCut {
    /// `max_output_tokens` or `content_filter`.
    reason: String,
}

/// A part of a response.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ResponseItem {
    /// What the model thought.
    Reasoning {
        id: String,
        status: ResponseStatus,
        /// Always empty: what it thought stands in `content`.
        summary: Vec<Value>,
        content: Vec<ResponseThought>,
    },
    /// What it said.
    Message {
        id: String,
        status: ResponseStatus,
        /// `assistant`.
        role: String,
        content: Vec<ResponseText>,
    },
    /// What it wants called.
    FunctionCall {
        id: String,
        status: ResponseStatus,
        call_id: String,
        name: String,
        /// JSON text.
        arguments: String,
    },
}

/// Text of a reasoning item.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResponseThought {
    /// `reasoning_text`.
    r#type: String,
    text: String,
}

/// Text of a message.
#[derive(Serialize, ToSchema)]
pub(crate) struct ResponseText {
    /// `output_text`.
    r#type: String,
    text: String,
    /// Always empty.
    annotations: Vec<Value>,
    /// Empty unless they were asked for.
    logprobs: Vec<ChatToken>,
}

/// Token counts of a response.
#[derive(ToSchema)]
pub(crate) struct ResponseUsage {
    /// Cached ones included.
    input_tokens: u32,
    input_tokens_details: PromptDetails,
    output_tokens: u32,
    /// `reasoning_tokens` is 0 also where the engine does not count them.
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}
