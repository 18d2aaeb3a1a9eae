//! What llama.cpp's own requests and answers look like (seed 004), for the document only: requests are read by hand, which names every fault.

#![allow(dead_code, reason = "read by the derive only")]

pub(super) mod engine;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use self::engine::GenerationSettings;
use crate::{
    dialects::openai::schema::answers::{ChatToken, TokenTimings},
    translate::parameters::LlamaCppSamplingAsked,
};

/// llama.cpp's request for a completion.
#[derive(ToSchema)]
#[schema(example = json!({"prompt": "Once upon a time", "n_predict": 16}))]
pub(super) struct LlamaCppCompletionRequest {
    /// Id in the catalogue; may be left out, or stand in the query, where one model is loaded.
    model: Option<String>,
    /// Text, token ids, a mixture, or several of these.
    prompt: Value,
    /// Most tokens to generate; -1 = until the context is full, 0 = only read the prompt.
    n_predict: Option<i32>,
    /// Server-sent events instead of one body.
    stream: Option<bool>,
    /// Strings that end the output.
    stop: Option<Value>,
    /// How tokens are chosen.
    sampling: LlamaCppSamplingAsked,
    /// Probabilities of so many tokens in each place, at most 1000.
    n_probs: Option<u32>,
    /// Probabilities after the samplers.
    post_sampling_probs: Option<bool>,
    /// Token ids beside the text.
    return_tokens: Option<bool>,
    /// Use what is left of earlier prompts.
    cache_prompt: Option<bool>,
    /// Only these fields in the answer, each at the top under its whole path.
    response_fields: Option<Vec<String>>,
    /// Speed in each event of a stream.
    timings_per_token: Option<bool>,
    /// Tokens or texts and their biases.
    logit_bias: Option<Value>,
    /// A schema the output must follow.
    json_schema: Option<Value>,
    /// A grammar the output must follow.
    grammar: Option<String>,
}

/// llama.cpp's request to fill a gap; it takes everything a completion takes.
#[derive(ToSchema)]
#[schema(example = json!({"input_prefix": "fn one() -> i32 {", "input_suffix": "}", "n_predict": 8}))]
pub(super) struct LlamaCppInfillRequest {
    /// Id in the catalogue; may be left out where one model is loaded.
    model: Option<String>,
    /// Text before the gap.
    input_prefix: String,
    /// Text after it.
    input_suffix: String,
    /// Other files: `filename` and `text` of each.
    input_extra: Option<Vec<Value>>,
    /// What the middle begins with. It is read at the end of the prefix, before the suffix's mark, as llama.cpp's own server has it.
    prompt: Option<Value>,
    /// Most tokens to generate.
    n_predict: Option<i32>,
    /// Server-sent events instead of one body.
    stream: Option<bool>,
    /// How tokens are chosen.
    sampling: LlamaCppSamplingAsked,
}

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

/// A conversation, with everything that a chat's request says of it.
#[derive(ToSchema)]
#[schema(example = json!({"messages": [{"role": "user", "content": "Hello!"}]}))]
pub(super) struct TemplateRequest {
    /// Id in the catalogue; may be left out where one model is loaded.
    model: Option<String>,
    /// Turns, oldest first.
    messages: Vec<Value>,
    /// Functions the model may call.
    tools: Option<Vec<Value>>,
}

/// A request for vectors.
#[derive(ToSchema)]
#[schema(example = json!({"content": "Hello!"}))]
pub(super) struct LlamaCppEmbeddingRequest {
    /// Id in the catalogue; may be left out where one model is loaded.
    model: Option<String>,
    /// Text, token ids, or several of these; or `input`.
    content: Option<Value>,
    /// As `content`.
    input: Option<Value>,
    /// -1 none, 0 by the largest, 1 taxicab, 2 Euclidean; where nothing is pooled, none by default.
    embd_normalize: Option<i32>,
}
