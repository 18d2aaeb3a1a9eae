//! What OpenAI's Responses look like, for the document only; see [`super::answers`].

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answers::{ChatToken, OutputDetails, PromptDetails};

/// OpenAI's response. What it repeats of the request stands as the client wrote it.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseAnswer {
    /// Names the response.
    id: String,
    /// `response`.
    object: String,
    /// Unix time in seconds.
    created_at: u64,
    /// Unix time in seconds, of a completed one.
    completed_at: Option<u64>,
    /// How far it is.
    status: ResponseStatus,
    /// Always false.
    background: bool,
    /// Why it failed, if it did.
    error: Option<ResponseFailure>,
    /// Why it is not complete, if it is not.
    incomplete_details: Option<ResponseCut>,
    /// As the client named it.
    model: String,
    /// In the order it was made.
    output: Vec<ResponseItem>,
    /// Always null: nothing is stored.
    previous_response_id: Option<String>,
    /// Always false.
    store: bool,
    /// `default`.
    service_tier: String,
    /// As asked.
    instructions: Option<String>,
    /// As asked.
    max_output_tokens: Option<i64>,
    /// As asked.
    max_tool_calls: Option<i64>,
    /// As asked: an object of texts.
    metadata: Value,
    /// As asked; yes by default.
    parallel_tool_calls: bool,
    /// As asked.
    reasoning: Value,
    /// Null = the model's own settings decide.
    temperature: Option<f64>,
    /// As asked: what the output must look like.
    text: Value,
    /// As asked; `auto` by default.
    tool_choice: Value,
    /// As asked.
    tools: Vec<Value>,
    /// Null = the model's own settings decide.
    top_p: Option<f64>,
    /// `disabled`.
    truncation: String,
    /// As asked.
    user: Option<String>,
    /// Null until the end.
    usage: Option<ResponseUsage>,
}

/// How far a response or an item of it is.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::dialects) enum ResponseStatus {
    InProgress,
    Completed,
    /// A limit ended it.
    Incomplete,
    Failed,
}

/// Why a response failed.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseFailure {
    /// Key of the error catalogue.
    code: String,
    /// One sentence for a person.
    message: String,
}

/// Why a response is not complete.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseCut {
    /// `max_output_tokens` or `content_filter`.
    reason: String,
}

/// A part of a response.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::dialects) enum ResponseItem {
    /// What the model thought.
    Reasoning {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ResponseStatus,
        /// Always empty: what it thought stands in `content`.
        summary: Vec<Value>,
        /// Its text.
        content: Vec<ResponseThought>,
    },
    /// What it said.
    Message {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ResponseStatus,
        /// `assistant`.
        role: String,
        /// Its text.
        content: Vec<ResponseText>,
    },
    /// What it wants called.
    FunctionCall {
        /// Names the item.
        id: String,
        /// How far it is.
        status: ResponseStatus,
        /// Names the call, for its output.
        call_id: String,
        /// Of the function.
        name: String,
        /// JSON text.
        arguments: String,
    },
}

/// Text of a reasoning item.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ResponseThought {
    /// `reasoning_text`.
    r#type: String,
    /// What the model thought.
    text: String,
}

/// Text of a message.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ResponseText {
    /// `output_text`.
    r#type: String,
    /// What the model said.
    text: String,
    /// Always empty.
    annotations: Vec<Value>,
    /// Empty unless they were asked for.
    logprobs: Vec<ChatToken>,
}

/// Token counts of a response.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseUsage {
    /// Cached ones included.
    input_tokens: u32,
    /// What of the prompt was read before.
    input_tokens_details: PromptDetails,
    /// Tokens generated.
    output_tokens: u32,
    /// `reasoning_tokens` is 0 also where the engine does not count them.
    output_tokens_details: OutputDetails,
    /// Both together.
    total_tokens: u64,
}
