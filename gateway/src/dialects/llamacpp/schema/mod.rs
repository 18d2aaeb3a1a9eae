//! What llama.cpp's own answers look like (seed 004), for the document only: answers are written as their text.

#![allow(dead_code, reason = "read by the derive only")]

pub(super) mod engine;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use self::engine::GenerationSettings;
use crate::dialects::openai::schema::answers::{ChatToken, TokenTimings};

/// One answer; of several prompts a list of them, in their order.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum LlamaCppCompletions {
    One(Box<LlamaCppCompletion>),
    Several(Vec<LlamaCppCompletion>),
}

/// llama.cpp's answer, and each event of its streams as far as it knows the fields then. With `response_fields`, those alone: what stands deeper
/// comes under its whole path, for example `generation_settings/n_predict`.
#[derive(Serialize, ToSchema)]
pub(super) struct LlamaCppCompletion {
    /// Which prompt, from 0.
    index: Option<u32>,
    /// Text; in a stream the next piece of it.
    content: Option<String>,
    /// Token ids, if asked for or streamed.
    tokens: Option<Vec<i32>>,
    /// Number of the sequence that made it; -1 = not known.
    id_slot: Option<i64>,
    /// False while the output goes on.
    stop: Option<bool>,
    /// Id in the catalogue.
    model: Option<String>,
    /// What was read: text, or as it came.
    prompt: Option<Value>,
    /// Settings, defaults filled in.
    generation_settings: Option<GenerationSettings>,
    /// `none`, `eos`, `limit` or `word`.
    stop_type: Option<String>,
    /// The string that ended the output; empty if none did.
    stopping_word: Option<String>,
    /// The output has a line break.
    has_new_line: Option<bool>,
    /// Tokens generated.
    tokens_predicted: Option<u32>,
    /// Tokens of the prompt.
    tokens_evaluated: Option<u32>,
    /// Tokens of the prompt that were still there.
    tokens_cached: Option<u32>,
    /// The context ran out.
    truncated: Option<bool>,
    /// Probabilities, if asked for.
    completion_probabilities: Option<Vec<ChatToken>>,
    /// Counts and times; null if the engine measured none.
    timings: Option<TokenTimings>,
    /// How much of the prompt is read; in a stream, with `return_progress`.
    prompt_progress: Option<LlamaCppProgress>,
}

/// How much of a prompt is read.
#[derive(Serialize, ToSchema)]
pub(super) struct LlamaCppProgress {
    /// Its tokens.
    total: u32,
    /// Those that were still there.
    cache: u32,
    /// Those that are read, with the ones that were still there.
    processed: u32,
    /// Milliseconds since reading began.
    time_ms: f64,
}
