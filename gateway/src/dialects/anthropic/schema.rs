//! What Anthropic's requests and answers look like, for the document only: requests are read by hand, and tests hold what is written against it.

#![allow(dead_code, reason = "read by the derive only")]

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::openapi::parameters::SamplingAsked;

/// Anthropic's message.
#[derive(ToSchema)]
pub(super) struct MessageAnswer {
    /// Names the answer.
    id: String,
    /// `message`.
    r#type: String,
    /// `assistant`.
    role: String,
    /// As the client named it.
    model: String,
    /// In the order it was made.
    content: Vec<MessageBlock>,
    /// Why it ended.
    stop_reason: MessageStop,
    /// The one of `stop_sequences` that ended it.
    stop_sequence: Option<String>,
    /// Token counts.
    usage: MessageUsage,
}

/// A part of a message.
#[derive(Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum MessageBlock {
    /// What the model thought.
    Thinking {
        /// Text.
        thinking: String,
        /// Always empty: nothing is signed.
        signature: String,
    },
    /// What it said.
    Text {
        /// Text.
        text: String,
    },
    /// What it wants called.
    ToolUse {
        /// Names the call.
        id: String,
        /// Of the tool.
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
    /// Tokens of the prompt that were still there.
    cache_read_input_tokens: u32,
    /// Tokens generated.
    output_tokens: u32,
}

/// A turn of Anthropic's.
#[derive(ToSchema)]
pub(super) struct MessageTurn {
    /// `user` or `assistant`.
    role: String,
    /// What it says.
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
    /// The model calls it by this.
    name: String,
    /// For the model.
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
    /// Before everything else.
    system: Option<MessageContent>,
    /// Most tokens to generate.
    max_tokens: Option<i64>,
    /// Strings that end the output.
    stop_sequences: Option<Vec<String>>,
    /// Server-sent events instead of one body.
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
