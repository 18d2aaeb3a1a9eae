//! Schemas of Anthropic's answers, only for the OpenAPI document. `render` writes the answers; tests compare both.

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

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
    /// The string of `stop_sequences` that ended the message; null if none did.
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
        /// Always empty: reasoning is not signed.
        signature: String,
    },
    /// The model's text.
    Text {
        /// Text.
        text: String,
    },
    /// A function call that the model asks for.
    ToolUse {
        /// Id of the call; the tool's result names it.
        id: String,
        /// Name of the function.
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
    /// Tokens of the prompt that were read; those from the cache are not counted.
    input_tokens: u32,
    /// Always 0.
    cache_creation_input_tokens: u32,
    /// Tokens of the prompt that came from the cache.
    cache_read_input_tokens: u32,
    /// Tokens generated.
    output_tokens: u32,
}
