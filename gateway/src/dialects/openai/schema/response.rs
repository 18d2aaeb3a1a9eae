//! Schemas of OpenAI's Responses, only for the OpenAPI document; see [`super::answers`].

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::answers::{ChatToken, OutputDetails, PromptDetails};

/// OpenAI's response. Fields repeated from the request stand as the client wrote them.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseAnswer {
    /// Id of the response.
    id: String,
    /// `response`.
    object: String,
    /// Unix time in seconds.
    created_at: u64,
    /// Unix time in seconds when the response was completed; null before.
    completed_at: Option<u64>,
    /// Whether the response is complete.
    status: ResponseStatus,
    /// Always false: responses do not run in the background.
    background: bool,
    /// Why the response failed; null if it did not.
    error: Option<ResponseFailure>,
    /// Why the response is not complete; null if it is.
    incomplete_details: Option<ResponseCut>,
    /// Name of the model as the client gave it.
    model: String,
    /// Items of the answer, in the order in which they were generated.
    output: Vec<ResponseItem>,
    /// Always null: nothing is stored.
    previous_response_id: Option<String>,
    /// Always false.
    store: bool,
    /// `default`.
    service_tier: String,
    /// The request's `instructions`.
    instructions: Option<String>,
    /// The request's `max_output_tokens`.
    max_output_tokens: Option<i64>,
    /// The request's `max_tool_calls`.
    max_tool_calls: Option<i64>,
    /// The request's `metadata`: an object of strings.
    metadata: Value,
    /// The request's `parallel_tool_calls`; true by default.
    parallel_tool_calls: bool,
    /// The request's `reasoning`.
    reasoning: Value,
    /// The request's `temperature`; null = the model's own setting.
    temperature: Option<f64>,
    /// The request's `text`: the form of the output.
    text: Value,
    /// The request's `tool_choice`; `auto` by default.
    tool_choice: Value,
    /// The request's `tools`.
    tools: Vec<Value>,
    /// The request's `top_p`; null = the model's own setting.
    top_p: Option<f64>,
    /// `disabled`.
    truncation: String,
    /// The request's `user`.
    user: Option<String>,
    /// Token counts; null until the response is complete.
    usage: Option<ResponseUsage>,
}

/// Whether a response or an item of it is complete.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(in crate::dialects) enum ResponseStatus {
    InProgress,
    Completed,
    /// A limit ended it before it was complete.
    Incomplete,
    Failed,
}

/// Why a response failed.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseFailure {
    /// Code of the error catalogue.
    code: String,
    /// One sentence for people.
    message: String,
}

/// Why a response is not complete.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseCut {
    /// `max_output_tokens` or `content_filter`.
    reason: String,
}

/// An item of a response.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(in crate::dialects) enum ResponseItem {
    /// The model's reasoning.
    Reasoning {
        /// Id of the item.
        id: String,
        /// Whether the item is complete.
        status: ResponseStatus,
        /// Always empty: `content` has the reasoning.
        summary: Vec<Value>,
        /// The reasoning's text.
        content: Vec<ResponseThought>,
    },
    /// The model's text.
    Message {
        /// Id of the item.
        id: String,
        /// Whether the item is complete.
        status: ResponseStatus,
        /// `assistant`.
        role: String,
        /// The message's text.
        content: Vec<ResponseText>,
    },
    /// A function call that the model asks for.
    FunctionCall {
        /// Id of the item.
        id: String,
        /// Whether the item is complete.
        status: ResponseStatus,
        /// Id of the call; the call's output names it.
        call_id: String,
        /// Name of the function.
        name: String,
        /// The arguments as JSON text.
        arguments: String,
    },
}

/// Text of a reasoning item.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ResponseThought {
    /// `reasoning_text`.
    r#type: String,
    /// The model's reasoning.
    text: String,
}

/// Text of a message.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ResponseText {
    /// `output_text`.
    r#type: String,
    /// The model's text.
    text: String,
    /// Always empty.
    annotations: Vec<Value>,
    /// Probabilities of the tokens; empty unless requested.
    logprobs: Vec<ChatToken>,
}

/// Token counts of a response.
#[derive(ToSchema)]
pub(in crate::dialects) struct ResponseUsage {
    /// Tokens of the prompt, those from the cache included.
    input_tokens: u32,
    /// Details of the prompt's tokens.
    input_tokens_details: PromptDetails,
    /// Tokens generated.
    output_tokens: u32,
    /// Details of the answer's tokens. `reasoning_tokens` is 0 if the engine does not count them.
    output_tokens_details: OutputDetails,
    /// Tokens of the prompt and of the answer together.
    total_tokens: u64,
}
