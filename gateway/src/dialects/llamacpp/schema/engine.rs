//! What llama.cpp shows of an engine (seed 004), for the document only: these answers are written by hand, or by a `llama-server` itself, whose
//! version may show more than the seed knows. Tests hold what is written here against it.

#![allow(dead_code, reason = "read by the derive only")]

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::translate::parameters::SamplingShown;

/// What an engine is set to.
#[derive(ToSchema)]
pub(in crate::dialects::llamacpp) struct Props {
    /// The settings of a request that says nothing.
    default_generation_settings: LlamaCppSlot,
    /// Sequences that it works on at once; absent while it is not loaded.
    total_slots: Option<u32>,
    /// Id in the catalogue.
    model_alias: Option<String>,
    /// File of the model; from the hub, `ORG/NAME:VARIANT`.
    model_path: String,
    /// What it takes beside text.
    modalities: Option<LlamaCppModalities>,
    /// How the weights are stored.
    model_ftype: Option<String>,
    /// What stands for an image in a prompt.
    media_marker: Option<String>,
    /// The model's template, in Jinja.
    chat_template: Option<String>,
    /// What the template can express.
    chat_template_caps: Option<HashMap<String, bool>>,
    /// The token that begins a text.
    bos_token: Option<String>,
    /// The token that ends a text.
    eos_token: Option<String>,
    /// `slots` is switched on.
    endpoint_slots: Option<bool>,
    /// `POST /props` is switched on.
    endpoint_props: Option<bool>,
    /// `metrics` is switched on.
    endpoint_metrics: Option<bool>,
    /// The model is not loaded, and the next request loads it.
    is_sleeping: Option<bool>,
    /// llama.cpp's own page; Muster's is another.
    ui: Option<bool>,
    /// Settings of llama.cpp's own page: none.
    ui_settings: Option<Value>,
    /// llama.cpp's proxy for its page: none.
    cors_proxy_enabled: Option<bool>,
    /// Name and version of the engine; of the router, Muster's.
    build_info: Option<String>,
    /// The word `router`, where there are several models and none is named.
    role: Option<String>,
    /// Models of one type that may be loaded at once; 0 = no limit. Of the router only.
    max_instances: Option<i32>,
    /// Whether a request loads its model. Of the router only.
    models_autoload: Option<bool>,
}

/// Kinds of input beside text.
#[derive(ToSchema)]
pub(in crate::dialects::llamacpp) struct LlamaCppModalities {
    /// Images.
    vision: bool,
    /// Films.
    video: Option<bool>,
    /// Sound.
    audio: bool,
}

/// A sequence of an engine. In `props` a `llama-server` shows `n_ctx` and `params` alone.
#[derive(ToSchema)]
pub(in crate::dialects::llamacpp) struct LlamaCppSlot {
    /// Its number, from 0.
    id: Option<u32>,
    /// Number of the request that it serves; -1 = none.
    id_task: Option<i64>,
    /// Tokens that there is room for.
    n_ctx: u32,
    /// A draft model runs beside the model.
    speculative: Option<bool>,
    /// It serves a request.
    is_processing: Option<bool>,
    /// Tokens of the prompt.
    n_prompt_tokens: Option<u32>,
    /// Tokens of the prompt that were still there.
    n_prompt_tokens_cache: Option<u32>,
    /// Tokens of the prompt that had to be read.
    n_prompt_tokens_processed: Option<u32>,
    /// Settings of the request, defaults filled in. A `llama-server` shows none before its first request.
    params: Option<GenerationSettings>,
    /// Always empty: nobody's prompt is shown to others.
    prompt: Option<String>,
    /// How far it is.
    next_token: Option<LlamaCppNextTokens>,
}

/// As seed 004 has it, or in a list, as today's `llama-server` has it.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(in crate::dialects::llamacpp) enum LlamaCppNextTokens {
    One(LlamaCppNextToken),
    Several(Vec<LlamaCppNextToken>),
}

/// How far a sequence is.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects::llamacpp) struct LlamaCppNextToken {
    /// More will come.
    has_next_token: bool,
    /// The text so far has a line break.
    has_new_line: bool,
    /// Tokens that may still come; -1 = no limit.
    n_remain: i64,
    /// Tokens generated.
    n_decoded: u32,
    /// The string that ended the output; empty if none did.
    stopping_word: Option<String>,
}

/// What is in force: a request's own settings, and the model's for what it does not say. Of its own slots a `llama-server` leaves some out.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects::llamacpp) struct GenerationSettings {
    /// Id in the catalogue; in a completion only.
    model: Option<String>,
    /// Tokens that there is room for; in a completion only.
    n_ctx: Option<u32>,
    /// How tokens are chosen.
    sampling: SamplingShown,
    /// Tokens or texts with their biases.
    logit_bias: Option<Vec<ShownBias>>,
    /// Tokens of the beginning that are kept when the context is shifted (`--context-shift`), as the request said; below 0 = the prompt.
    n_keep: i32,
    /// Tokens left out when the context is shifted, as the request said; 0 = half of those that are not kept.
    n_discard: i32,
    /// Of a `llama-server` only: adapters for this request. Else empty: they are as the model was loaded.
    lora: Vec<AdapterScale>,
    /// Strings that end the output.
    stop: Option<Vec<String>>,
    /// As `n_predict`.
    max_tokens: i64,
    /// Most tokens to generate; -1 = until the context is full.
    n_predict: i64,
    /// Probabilities of so many tokens in each place.
    n_probs: u32,
    /// Probabilities after the samplers.
    post_sampling_probs: bool,
    /// The answer comes as server-sent events.
    stream: bool,
    /// Times in each of them.
    timings_per_token: bool,
    /// Use what is left of earlier prompts.
    cache_prompt: Option<bool>,
    /// Token ids beside the text.
    return_tokens: Option<bool>,
    /// The sequence that was asked for; -1 = any.
    id_slot: Option<i64>,
    /// Fewest blanks at the start of a line, in an infill.
    n_indent: Option<u32>,
    /// Most milliseconds to generate after the first line break; 0 = no limit.
    t_max_predict_ms: Option<u64>,
    /// The grammar that the output must follow; empty = none.
    grammar: Option<String>,
    /// The JSON schema that the output must follow, if one was given.
    json_schema: Option<Value>,
    /// The grammar counts from a trigger on only.
    grammar_lazy: Option<bool>,
    /// What makes a lazy grammar count.
    grammar_triggers: Option<Vec<Value>>,
    /// Tokens that are shown though they are special.
    preserved_tokens: Option<Vec<i32>>,
    /// How the output is taken apart; `Content-only` = not at all.
    chat_format: Option<String>,
    /// Where reasoning is shown.
    reasoning_format: Option<String>,
    /// Reasoning is a part of the content in streams.
    reasoning_in_content: Option<bool>,
    /// What the prompt ends with, where an answer begins.
    generation_prompt: Option<String>,
    /// Ways to guess tokens ahead, or `none`.
    #[serde(rename = "speculative.types")]
    speculative_types: Option<String>,
    /// Tokens are chosen on the device.
    backend_sampling: Option<bool>,
}

/// The bias of a token or of all tokens of a text.
#[derive(Serialize, ToSchema)]
pub(in crate::dialects::llamacpp) struct ShownBias {
    /// Token id.
    token: Option<i32>,
    /// Text, if the bias was given for one.
    text: Option<String>,
    /// What is added to the token's logit; null = the token never comes.
    bias: Option<f32>,
}

/// What was done to a sequence's cache.
#[derive(ToSchema)]
pub(in crate::dialects::llamacpp) struct SlotDone {
    /// Number of the sequence.
    id_slot: u32,
    /// The file that was saved to or restored from.
    filename: Option<String>,
    /// Tokens that were saved.
    n_saved: Option<u64>,
    /// Bytes that were written.
    n_written: Option<u64>,
    /// Tokens that were restored.
    n_restored: Option<u64>,
    /// Bytes that were read.
    n_read: Option<u64>,
    /// Tokens that were erased.
    n_erased: Option<u64>,
    /// How long it took to save or restore.
    timings: Option<SlotTimes>,
}

/// How long it took.
#[derive(ToSchema)]
pub(in crate::dialects::llamacpp) struct SlotTimes {
    /// Milliseconds to save.
    save_ms: Option<f64>,
    /// Milliseconds to restore.
    restore_ms: Option<f64>,
}

/// A LoRA adapter of a loaded model; a `llama-server` may show more of it.
#[derive(ToSchema)]
pub(in crate::dialects::llamacpp) struct Adapter {
    /// Its number, from 0.
    id: u32,
    /// Its file.
    path: String,
    /// How much of it is applied; 0 = none, 1 = all.
    scale: f64,
}

/// How much of a LoRA adapter is applied.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"id": 0, "scale": 0.5}))]
pub(in crate::dialects::llamacpp) struct AdapterScale {
    /// Its number, from 0.
    id: u32,
    /// 0 = none, 1 = all.
    scale: f64,
}
