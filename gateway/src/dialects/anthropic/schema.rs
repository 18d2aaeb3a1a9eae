//! What Anthropic's answers look like, for the document only; tests hold what is written against it.

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// Anthropic's message.
#[derive(ToSchema)]
pub(super) struct MessageAnswer {
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    /// As the client named it.
    model: String,
    content: Vec<MessageBlock>,
    stop_reason: MessageStop,
    /// The one of `stop_sequences` that ended it.
    stop_sequence: Option<String>,
    usage: MessageUsage,
}

/// A part of a message.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum MessageBlock {
    /// What the model thought.
    Thinking {
        thinking: String,
        /// Always empty: nothing is signed.
        signature: String,
    },
    /// What it said.
    Text { text: String },
    /// What it wants called.
    ToolUse {
        id: String,
        name: String,
        /// An object; empty if it was cut short.
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
    /// Without cached ones.
    input_tokens: u32,
    /// Always 0: what is cached costs nothing here.
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

/// Tokens of a prompt.
#[derive(ToSchema)]
pub(super) struct CountAnswer {
    input_tokens: u64,
}
