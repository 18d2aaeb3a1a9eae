//! What Anthropic's requests and answers look like, for the document only: requests are read by hand, and tests hold what is written against it.

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::translate::parameters::SamplingAsked;

/// Anthropic's message.
#[derive(ToSchema)]
pub(super) struct MessageAnswer {
    /// Identifies this answer.
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    /// The model's name, as the client gave it.
    model: String,
    /// Parts of the message, in the order in which they were generated.
    content: Vec<MessageBlock>,
    /// Why the message ended.
    stop_reason: MessageStop,
    /// The one of `stop_sequences` that ended the message.
    stop_sequence: Option<String>,
    /// Token counts.
    usage: MessageUsage,
}

/// A part of a message.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum MessageBlock {
    /// The model's reasoning.
    Thinking {
        /// Text.
        thinking: String,
        /// Always empty: nothing is signed.
        signature: String,
    },
    /// The model's text.
    Text {
        /// Text.
        text: String,
    },
    /// Functions that the model wants to call.
    ToolUse {
        /// Identifies the call; the tool's answer names it.
        id: String,
        /// Name of the tool.
        name: String,
        /// The arguments, as an object; empty if the call was cut short.
        input: Value,
    },
}

/// Why a message ended.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(super) enum MessageStop {
    EndTurn,
    MaxTokens,
    StopSequence,
    ToolUse,
    Refusal,
}

/// Token counts.
#[derive(ToSchema)]
pub(super) struct MessageUsage {
    /// Tokens of the prompt that were read; cached ones are not counted.
    input_tokens: u32,
    /// Always 0: caching is free here.
    cache_creation_input_tokens: u32,
    /// Tokens of the prompt that were in the cache.
    cache_read_input_tokens: u32,
    /// Tokens generated.
    output_tokens: u32,
}

/// A turn of a conversation.
#[derive(ToSchema)]
pub(super) struct MessageTurn {
    /// `user` or `assistant`.
    role: String,
    /// Content of the turn.
    content: MessageContent,
}

/// Text, or blocks: `text`, `image`, `thinking`, `tool_use`, `tool_result`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum MessageContent {
    Text(String),
    Blocks(Vec<Value>),
}

/// A function that the model may call.
#[derive(ToSchema)]
pub(super) struct MessageTool {
    /// Name by which the model calls the function.
    name: String,
    /// What the function does, told to the model.
    description: Option<String>,
    /// JSON schema of the arguments.
    input_schema: Option<Value>,
}

/// Anthropic's request for a message.
#[derive(ToSchema)]
#[schema(example = json!({"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello!"}]}))]
pub(super) struct MessageRequest {
    /// Id in the catalogue.
    model: String,
    /// Turns, `user` and `assistant`.
    messages: Vec<MessageTurn>,
    /// System prompt; comes before all turns.
    system: Option<MessageContent>,
    /// Most tokens to generate.
    max_tokens: Option<i64>,
    /// Strings that end the output.
    stop_sequences: Option<Vec<String>>,
    /// Answer with server-sent events instead of one body.
    stream: Option<bool>,
    /// Functions the model may call.
    tools: Option<Vec<MessageTool>>,
    /// `auto`, `any`, `tool` or `none`.
    tool_choice: Option<Value>,
    /// `enabled`, `adaptive` or `disabled`.
    thinking: Option<Value>,
    /// How tokens are chosen.
    sampling: SamplingAsked,
}
