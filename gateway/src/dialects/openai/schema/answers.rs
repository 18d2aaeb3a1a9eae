//! Schemas of OpenAI's answers, only for the OpenAPI document. `dialects/openai/render` writes the answers field by field; tests compare
//! both in both directions.

#![allow(dead_code, reason = "read by the derive only")]

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

pub(in crate::dialects) use crate::dialects::openai::render::rerank::RerankList;

/// OpenAI's chat completion. The engine may add fields of its own.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatAnswer {
    /// Id of this answer.
    id: String,
    /// `chat.completion`.
    object: String,
    /// Unix time in seconds.
    created: u64,
    /// Name of the model as the client gave it.
    model: String,
    /// Muster and its version.
    system_fingerprint: String,
    /// The answers, as many as `n` asks for.
    choices: Vec<ChatChoice>,
    /// Token counts.
    usage: TokenUsage,
    /// Times; absent if the engine does not measure them.
    timings: Option<TokenTimings>,
}

/// One of the answers to a chat.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatChoice {
    /// Index of the choice, from 0.
    index: u32,
    /// The model's answer.
    message: ChatReply,
    /// Probabilities of the tokens; absent unless requested.
    logprobs: Option<ChatLogprobs>,
    /// Token ids; only with llama.cpp's `return_tokens`.
    tokens: Option<Vec<i32>>,
    /// Why the choice ended.
    finish_reason: FinishWord,
}

/// The model's answer.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatReply {
    /// `assistant`.
    role: String,
    /// The text; null if the answer is only tool calls.
    content: Option<String>,
    /// The model's reasoning.
    reasoning_content: Option<String>,
    /// Functions that the model wants to call.
    tool_calls: Option<Vec<ChatCall>>,
}

/// A function call that the model asks for.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatCall {
    /// Id of the call; the tool's answer names it.
    id: String,
    /// `function`.
    r#type: String,
    /// The function and its arguments.
    function: ChatCalled,
}

/// A function with its arguments.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatCalled {
    /// Name of the function.
    name: String,
    /// The arguments as JSON text.
    arguments: String,
}

/// Probabilities of a chat's tokens.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatLogprobs {
    /// One entry for each token, in order.
    content: Vec<ChatToken>,
}

/// A token with its likeliest alternatives.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatToken {
    /// The token's text.
    token: String,
    /// Natural logarithm of its probability; -9999 = impossible.
    logprob: Option<f64>,
    /// Probability after sampling, instead of `logprob`; only with llama.cpp's `post_sampling_probs`.
    prob: Option<f64>,
    /// Bytes of the token's text. A token may end within a character.
    bytes: Vec<u32>,
    /// Id of the token in the vocabulary; absent if the engine does not tell.
    id: Option<i32>,
    /// The likeliest tokens, most probable first.
    top_logprobs: Option<Vec<ChatAlternative>>,
    /// Instead of `top_logprobs` with `post_sampling_probs`.
    top_probs: Option<Vec<ChatAlternative>>,
}

/// A token that could have been chosen instead.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatAlternative {
    /// The token's text.
    token: String,
    /// Natural logarithm of its probability; -9999 = impossible.
    logprob: Option<f64>,
    /// Probability after sampling.
    prob: Option<f64>,
    /// Bytes of the token's text.
    bytes: Vec<u32>,
    /// Id of the token in the vocabulary; absent if the engine does not tell.
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
    /// Tokens of the prompt, those from the cache included.
    prompt_tokens: u32,
    /// Tokens generated, over all choices.
    completion_tokens: u32,
    /// Tokens of the prompt and of the answer together.
    total_tokens: u64,
    /// Details of the prompt's tokens.
    prompt_tokens_details: PromptDetails,
    /// Details of the answer's tokens; absent if the engine does not count reasoning tokens.
    completion_tokens_details: Option<OutputDetails>,
}

/// Details of a prompt's tokens.
#[derive(ToSchema)]
pub(in crate::dialects) struct PromptDetails {
    /// Tokens of the prompt that came from the cache.
    cached_tokens: u32,
}

/// Details of an answer's tokens.
#[derive(ToSchema)]
pub(in crate::dialects) struct OutputDetails {
    /// Tokens of the model's reasoning.
    reasoning_tokens: u32,
}

/// Times of a request in llama.cpp's form (seed 004, `timings`).
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct TokenTimings {
    /// Prompt tokens taken from the cache.
    cache_n: u32,
    /// Prompt tokens that were read, not counting those from the cache.
    prompt_n: u32,
    /// Milliseconds spent reading the prompt.
    prompt_ms: f64,
    /// Milliseconds per prompt token.
    prompt_per_token_ms: f64,
    /// Prompt tokens read per second.
    prompt_per_second: f64,
    /// Tokens generated.
    predicted_n: u32,
    /// Milliseconds spent generating.
    predicted_ms: f64,
    /// Milliseconds per generated token.
    predicted_per_token_ms: f64,
    /// Tokens generated per second.
    predicted_per_second: f64,
    /// Milliseconds in the worker's queue; absent if the request did not wait.
    queue_ms: Option<f64>,
    /// Tokens that the draft model proposed; absent without a draft model.
    draft_n: Option<u32>,
    /// Proposed tokens that the model accepted.
    draft_n_accepted: Option<u32>,
}

/// OpenAI's text completion. The engine may add fields of its own.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionAnswer {
    /// Id of this answer.
    id: String,
    /// `text_completion`.
    object: String,
    /// Unix time in seconds.
    created: u64,
    /// Name of the model as the client gave it.
    model: String,
    /// Muster and its version.
    system_fingerprint: String,
    /// The continuations: `n` for each prompt, in the order of the prompts.
    choices: Vec<CompletionChoice>,
    /// Token counts.
    usage: TokenUsage,
    /// Times; absent if the engine does not measure them.
    timings: Option<TokenTimings>,
}

/// One continuation of a text.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionChoice {
    /// Index of the choice, from 0.
    index: u32,
    /// The generated text; with `echo` it begins with the prompt.
    text: String,
    /// Probabilities of the tokens; absent unless requested.
    logprobs: Option<CompletionLogprobs>,
    /// Token ids; only with llama.cpp's `return_tokens`.
    tokens: Option<Vec<i32>>,
    /// Why the choice ended.
    finish_reason: FinishWord,
}

/// Probabilities of a completion's tokens. All lists have the same length.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionLogprobs {
    /// Text of each token.
    tokens: Vec<String>,
    /// Natural logarithm of each token's probability; -9999 = impossible.
    token_logprobs: Vec<f64>,
    /// Alternatives for each token with their logarithms, by their text; null where there are none.
    top_logprobs: Vec<Option<HashMap<String, f64>>>,
    /// Number of characters before each token.
    text_offset: Vec<u64>,
}

/// The count of a prompt's tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::dialects) struct InputTokens {
    /// `response.input_tokens`.
    pub(in crate::dialects::openai) object: &'static str,
    /// Tokens of the prompt that the conversation makes.
    pub(in crate::dialects::openai) input_tokens: usize,
}
