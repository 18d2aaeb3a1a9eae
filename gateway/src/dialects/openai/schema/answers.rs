//! What OpenAI's answers look like, for the document only: they are written by hand (`dialects/openai/render`), field by field. Tests hold what is
//! written against this, in both directions.

#![allow(dead_code, reason = "read by the derive only")]

use std::collections::HashMap;

use serde::Serialize;
use utoipa::ToSchema;

/// OpenAI's chat completion; fields of the engine's own may stand beside these.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatAnswer {
    /// Identifies this answer.
    id: String,
    /// `chat.completion`.
    object: String,
    /// Unix time in seconds.
    created: u64,
    /// The model's name, as the client gave it.
    model: String,
    /// The answers; as many as `n` asks for.
    choices: Vec<ChatChoice>,
    /// Token counts.
    usage: TokenUsage,
    /// Times, if the engine measures them.
    timings: Option<TokenTimings>,
}

/// One of the answers to a chat.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatChoice {
    /// Number of the choice, counted from 0.
    index: u32,
    /// The model's answer.
    message: ChatReply,
    /// Probabilities of the tokens; only if the request asks for them.
    logprobs: Option<ChatLogprobs>,
    /// Token ids, with llama.cpp's `return_tokens`.
    tokens: Option<Vec<i32>>,
    /// Why the choice ended.
    finish_reason: FinishWord,
}

/// The model's answer.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatReply {
    /// `assistant`.
    role: String,
    /// The text; null if the answer is tool calls alone.
    content: Option<String>,
    /// The model's reasoning.
    reasoning_content: Option<String>,
    /// Functions that the model wants to call.
    tool_calls: Option<Vec<ChatCall>>,
}

/// A function call that the model asks for.
#[derive(ToSchema)]
pub(in crate::dialects) struct ChatCall {
    /// Identifies the call; the tool's answer names it.
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
    /// The arguments, as JSON text.
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
    /// Probability after the samplers; with llama.cpp's `post_sampling_probs`, instead of `logprob`.
    prob: Option<f64>,
    /// Bytes of the token's text, which may end in the middle of a character.
    bytes: Vec<u32>,
    /// The token's id in the vocabulary, if the engine tells it.
    id: Option<i32>,
    /// The likeliest tokens, most probable first.
    top_logprobs: Option<Vec<ChatAlternative>>,
    /// Replaces `top_logprobs` with `post_sampling_probs`.
    top_probs: Option<Vec<ChatAlternative>>,
}

/// A token that could have been chosen instead.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct ChatAlternative {
    /// The token's text.
    token: String,
    /// Natural logarithm of its probability; -9999 = impossible.
    logprob: Option<f64>,
    /// Probability after the samplers.
    prob: Option<f64>,
    /// Bytes of the token's text.
    bytes: Vec<u32>,
    /// The token's id in the vocabulary, if the engine tells it.
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
    /// Tokens of the prompt, cached ones included.
    prompt_tokens: u32,
    /// Tokens generated, over all choices.
    completion_tokens: u32,
    /// Tokens of the prompt and of the answer together.
    total_tokens: u64,
    /// How much of the prompt came from the cache.
    prompt_tokens_details: PromptDetails,
    /// Details of the answer; absent if the engine does not count reasoning tokens.
    completion_tokens_details: Option<OutputDetails>,
}

/// How much of a prompt came from the cache.
#[derive(ToSchema)]
pub(in crate::dialects) struct PromptDetails {
    /// Tokens of the prompt that were in the cache.
    cached_tokens: u32,
}

/// How much of an answer was reasoning.
#[derive(ToSchema)]
pub(in crate::dialects) struct OutputDetails {
    /// Tokens of the model's reasoning.
    reasoning_tokens: u32,
}

/// llama.cpp's measurements (seed 004, `timings`).
#[derive(Serialize, ToSchema)]
pub(in crate::dialects) struct TokenTimings {
    /// Prompt tokens taken from the cache.
    cache_n: u32,
    /// Prompt tokens read.
    prompt_n: u32,
    /// Milliseconds to read the prompt tokens.
    prompt_ms: f64,
    /// Milliseconds per prompt token.
    prompt_per_token_ms: f64,
    /// Prompt tokens read per second.
    prompt_per_second: f64,
    /// Tokens generated.
    predicted_n: u32,
    /// Milliseconds to generate the tokens.
    predicted_ms: f64,
    /// Milliseconds per generated token.
    predicted_per_token_ms: f64,
    /// Tokens generated per second.
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
    /// Identifies this answer.
    id: String,
    /// `text_completion`.
    object: String,
    /// Unix time in seconds.
    created: u64,
    /// The model's name, as the client gave it.
    model: String,
    /// The continuations: `n` for each prompt, in the prompts' order.
    choices: Vec<CompletionChoice>,
    /// Token counts.
    usage: TokenUsage,
    /// Times, if the engine measures them.
    timings: Option<TokenTimings>,
}

/// One continuation of a text.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionChoice {
    /// Number of the choice, counted from 0.
    index: u32,
    /// The generated text; with `echo`, the prompt comes first.
    text: String,
    /// Probabilities of the tokens; only if the request asks for them.
    logprobs: Option<CompletionLogprobs>,
    /// Token ids, with llama.cpp's `return_tokens`.
    tokens: Option<Vec<i32>>,
    /// Why the choice ended.
    finish_reason: FinishWord,
}

/// Probabilities of a completion's tokens, in lists of the same length.
#[derive(ToSchema)]
pub(in crate::dialects) struct CompletionLogprobs {
    /// Texts of the tokens.
    tokens: Vec<String>,
    /// Natural logarithms of the tokens' probabilities; -9999 = impossible.
    token_logprobs: Vec<f64>,
    /// Alternatives for each token, by their text; null where there are none.
    top_logprobs: Vec<Option<HashMap<String, f64>>>,
    /// Characters before each token.
    text_offset: Vec<u64>,
}

/// A list of vectors.
#[derive(ToSchema)]
pub(in crate::dialects) struct EmbeddingList {
    /// `list`.
    object: String,
    /// The vectors, in input order.
    data: Vec<EmbeddingOne>,
    /// The model's name, as the client gave it.
    model: String,
    /// Token counts.
    usage: PromptUsage,
}

/// One input's vector.
#[derive(ToSchema)]
pub(in crate::dialects) struct EmbeddingOne {
    /// `embedding`.
    object: String,
    /// Number of the input, counted from 0.
    index: u32,
    /// The vector.
    embedding: EmbeddingValues,
}

/// A vector in the form that `encoding_format` asks for.
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
    /// As `prompt_tokens`: nothing is generated.
    total_tokens: u32,
}

/// Documents with their scores.
#[derive(ToSchema)]
pub(in crate::dialects) struct RerankList {
    /// The model's name, as the client gave it.
    model: String,
    /// `list`.
    object: String,
    /// Results in input order; with `top_n`, the best ones, highest score first.
    results: Vec<RerankOne>,
    /// Token counts.
    usage: PromptUsage,
}

/// One document's score.
#[derive(ToSchema)]
pub(in crate::dialects) struct RerankOne {
    /// Number of the document, counted from 0.
    index: u32,
    /// The model's score; higher is more relevant.
    relevance_score: f64,
    /// The document, if `return_documents` asks for it.
    document: Option<RerankDocument>,
}

/// A document.
#[derive(ToSchema)]
pub(in crate::dialects) struct RerankDocument {
    /// The document's text, as the client sent it.
    text: String,
}
