//! What OpenAI's answers look like, for the document only: they are written by hand (`dialects/openai/render`), field by field. Tests hold what is
//! written against this, in both directions.

#![allow(dead_code, reason = "read by the derive only")]

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

/// OpenAI's chat completion; fields of the engine's own may stand beside these.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatAnswer {
    /// Names the answer.
    id: String,
    /// `chat.completion`.
    object: String,
    /// Unix time in seconds.
    created: u64,
    /// As the client named it.
    model: String,
    /// As many as `n` says.
    choices: Vec<ChatChoice>,
    /// Token counts.
    usage: TokenUsage,
    /// If the engine measured.
    timings: Option<TokenTimings>,
}

/// One of the answers to a chat.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatChoice {
    /// Which choice, from 0.
    index: u32,
    /// What the model said.
    message: ChatReply,
    /// If they were asked for.
    logprobs: Option<ChatLogprobs>,
    /// Token ids, with llama.cpp's `return_tokens`.
    tokens: Option<Vec<i32>>,
    /// Why it ended.
    finish_reason: FinishWord,
}

/// What the model said.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatReply {
    /// `assistant`.
    role: String,
    /// Null if it only calls.
    content: Option<String>,
    /// What it thought.
    reasoning_content: Option<String>,
    /// What it wants called.
    tool_calls: Option<Vec<ChatCall>>,
}

/// What the model wants called.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatCall {
    /// Names the call.
    id: String,
    /// `function`.
    r#type: String,
    /// What is called.
    function: ChatCalled,
}

/// A function and what it is given.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatCalled {
    /// Of the function.
    name: String,
    /// JSON text.
    arguments: String,
}

/// Probabilities of a chat's tokens.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatLogprobs {
    /// Of each token, in order.
    content: Vec<ChatToken>,
}

/// A token and what might have stood in its place.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatToken {
    /// Its text.
    token: String,
    /// Natural logarithm; -9999 = impossible.
    logprob: Option<f64>,
    /// After the samplers, with llama.cpp's `post_sampling_probs`; instead of `logprob`.
    prob: Option<f64>,
    /// Of its text, which may be a part of a character.
    bytes: Vec<u32>,
    /// In the vocabulary, if the engine says.
    id: Option<i32>,
    /// The likeliest, descending.
    top_logprobs: Option<Vec<ChatAlternative>>,
    /// Instead of `top_logprobs`, with `post_sampling_probs`.
    top_probs: Option<Vec<ChatAlternative>>,
}

/// A token that might have been.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatAlternative {
    /// Its text.
    token: String,
    /// Natural logarithm; -9999 = impossible.
    logprob: Option<f64>,
    /// After the samplers.
    prob: Option<f64>,
    /// Of its text.
    bytes: Vec<u32>,
    /// In the vocabulary, if the engine says.
    id: Option<i32>,
}

/// Why a choice ended.
#[derive(ToSchema)]
#[schema(rename_all = "snake_case")]
pub(in crate::dialects) enum FinishWord {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

/// Token counts.
#[derive(ToSchema)]
pub(in crate::dialects) struct TokenUsage {
    /// Cached ones included.
    prompt_tokens: u32,
    /// Over all choices.
    completion_tokens: u32,
    /// Both together.
    total_tokens: u64,
    /// What of the prompt was read before.
    prompt_tokens_details: PromptDetails,
    /// Absent where the engine counted no reasoning.
    completion_tokens_details: Option<OutputDetails>,
}

/// What of a prompt was read before.
#[derive(ToSchema)]
pub(in crate::dialects) struct PromptDetails {
    /// Tokens that were still there.
    cached_tokens: u32,
}

/// What of an answer was reasoning.
#[derive(ToSchema)]
pub(in crate::dialects) struct OutputDetails {
    /// Tokens of what the model thought.
    reasoning_tokens: u32,
}

/// llama.cpp's measurements (seed 004, `timings`).
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct TokenTimings {
    /// Prompt tokens that were in memory.
    cache_n: u32,
    /// Prompt tokens read.
    prompt_n: u32,
    /// Milliseconds to read them.
    prompt_ms: f64,
    /// Milliseconds for each.
    prompt_per_token_ms: f64,
    /// Tokens per second.
    prompt_per_second: f64,
    /// Tokens generated.
    predicted_n: u32,
    /// Milliseconds to generate them.
    predicted_ms: f64,
    /// Milliseconds for each.
    predicted_per_token_ms: f64,
    /// Tokens per second.
    predicted_per_second: f64,
    /// Time in the worker's queue, if any.
    queue_ms: Option<f64>,
    /// Tokens drafted, if any.
    draft_n: Option<u32>,
    /// Tokens drafted that the model kept.
    draft_n_accepted: Option<u32>,
}

/// OpenAI's text completion; fields of the engine's own may stand beside these.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionAnswer {
    /// Names the answer.
    id: String,
    /// `text_completion`.
    object: String,
    /// Unix time in seconds.
    created: u64,
    /// As the client named it.
    model: String,
    /// `n` for each prompt, in the prompts' order.
    choices: Vec<CompletionChoice>,
    /// Token counts.
    usage: TokenUsage,
    /// If the engine measured.
    timings: Option<TokenTimings>,
}

/// One continuation of a text.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionChoice {
    /// Which choice, from 0.
    index: u32,
    /// With `echo`, the prompt before it.
    text: String,
    /// If they were asked for.
    logprobs: Option<CompletionLogprobs>,
    /// Token ids, with llama.cpp's `return_tokens`.
    tokens: Option<Vec<i32>>,
    /// Why it ended.
    finish_reason: FinishWord,
}

/// Probabilities of a completion's tokens, in lists of the same length.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionLogprobs {
    /// Their texts.
    tokens: Vec<String>,
    /// Natural logarithms; -9999 = impossible.
    token_logprobs: Vec<f64>,
    /// Alternatives by their text; null where there are none.
    top_logprobs: Vec<Option<HashMap<String, f64>>>,
    /// Characters before each token.
    text_offset: Vec<u64>,
}

/// A list of vectors.
#[derive(ToSchema)]
pub(in crate::dialects) struct EmbeddingList {
    /// `list`.
    object: String,
    /// In input order.
    data: Vec<EmbeddingOne>,
    /// As the client named it.
    model: String,
    /// Token counts.
    usage: PromptUsage,
}

/// One input's vector.
#[derive(ToSchema)]
pub(in crate::dialects) struct EmbeddingOne {
    /// `embedding`.
    object: String,
    /// Which input, from 0.
    index: u32,
    /// The vector.
    embedding: EmbeddingValues,
}

/// As `encoding_format` says.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(in crate::dialects) enum EmbeddingValues {
    Float(Vec<f64>),
    /// Little-endian floats of 32 bits.
    Base64(String),
}

/// Token counts of work that generates nothing.
#[derive(ToSchema)]
pub(in crate::dialects) struct PromptUsage {
    /// Tokens of all inputs.
    prompt_tokens: u32,
    /// The same.
    total_tokens: u32,
}

/// Scores.
#[derive(ToSchema)]
pub(in crate::dialects) struct RerankList {
    /// As the client named it.
    model: String,
    /// `list`.
    object: String,
    /// In input order; with `top_n` the best, descending.
    results: Vec<RerankOne>,
    /// Token counts.
    usage: PromptUsage,
}

/// One document's score.
#[derive(ToSchema)]
pub(in crate::dialects) struct RerankOne {
    /// Which document, from 0.
    index: u32,
    /// As the model gives it.
    relevance_score: f64,
    /// With `return_documents`.
    document: Option<RerankDocument>,
}

/// A document.
#[derive(ToSchema)]
pub(in crate::dialects) struct RerankDocument {
    /// As it was sent.
    text: String,
}
