//! `generation_settings`: what a request comes to, with llama.cpp's defaults of today for what it does not say (seed 004; gateway/README.md, llama.cpp's routes).

use muster_proto::v1::{GenerateRequest, generate_request::Constraint, logit_bias::Target};
use serde_json::{Value, json};

/// llama.cpp's order of samplers.
const SAMPLERS: [&str; 9] = [
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
];
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The settings of a request.
pub(super) fn generation_settings(work: &GenerateRequest) -> Value {
    let chosen = work.sampling.clone().unwrap_or_default();
    let limit = work.max_tokens.map_or(-1, i64::from);
    let (grammar, schema) = match &work.constraint {
        Some(Constraint::Grammar(grammar)) => (grammar.as_str(), None),
        Some(Constraint::JsonSchema(schema)) => ("", serde_json::from_str::<Value>(schema).ok()),
        Some(Constraint::JsonObject(_)) => ("", Some(json!({"type": "object"}))),
        None => ("", None),
    };
    let bias: Vec<Value> = chosen
        .logit_bias
        .iter()
        .map(|one| {
            let bias = if one.never { json!(false) } else { json!(one.bias) };
            match &one.target {
                Some(Target::Token(token)) => json!([token, bias]),
                Some(Target::Text(text)) => json!([text, bias]),
                None => json!([null, bias]),
            }
        })
        .collect();
    let mut settings = json!({
        "seed": chosen.seed.filter(|seed| *seed >= 0).unwrap_or(u32::MAX.into()),
        "temperature": chosen.temperature.unwrap_or(0.8),
        "dynatemp_range": chosen.dynatemp_range.unwrap_or(0.0),
        "dynatemp_exponent": chosen.dynatemp_exponent.unwrap_or(1.0),
        "top_k": chosen.top_k.unwrap_or(40),
        "top_p": chosen.top_p.unwrap_or(0.95),
        "min_p": chosen.min_p.unwrap_or(0.05),
        "top_n_sigma": chosen.top_n_sigma.unwrap_or(-1.0),
        "xtc_probability": chosen.xtc_probability.unwrap_or(0.0),
        "xtc_threshold": chosen.xtc_threshold.unwrap_or(0.1),
        "typical_p": chosen.typical_p.unwrap_or(1.0),
        "repeat_last_n": chosen.repeat_last_n.unwrap_or(64),
        "repeat_penalty": chosen.repeat_penalty.unwrap_or(1.0),
        "presence_penalty": chosen.presence_penalty.unwrap_or(0.0),
        "frequency_penalty": chosen.frequency_penalty.unwrap_or(0.0),
        "dry_multiplier": chosen.dry_multiplier.unwrap_or(0.0),
        "dry_base": chosen.dry_base.unwrap_or(1.75),
        "dry_allowed_length": chosen.dry_allowed_length.unwrap_or(2),
        "dry_penalty_last_n": chosen.dry_penalty_last_n.unwrap_or(64),
        "mirostat": chosen.mirostat.unwrap_or(0),
        "mirostat_tau": chosen.mirostat_tau.unwrap_or(5.0),
        "mirostat_eta": chosen.mirostat_eta.unwrap_or(0.1),
        "logit_bias": bias,
        "min_keep": chosen.min_keep.unwrap_or(0),
        // Nothing is ever shifted out of a context here, so nothing is kept or discarded.
        "n_keep": 0,
        "n_discard": 0,
        "lora": [],
        "ignore_eos": chosen.ignore_eos.unwrap_or(false),
        "stop": work.stop,
        "max_tokens": limit,
        "n_predict": limit,
        "n_probs": work.top_logprobs,
        "post_sampling_probs": work.post_sampling_probs,
        "stream": work.stream,
        "timings_per_token": work.timings_per_token,
        "cache_prompt": work.cache_prompt.unwrap_or(true),
        "return_tokens": work.return_tokens,
        "id_slot": work.id_slot.map_or(-1, i64::from),
        "n_indent": work.min_indent,
        "t_max_predict_ms": work.max_predict_ms.unwrap_or(0),
        "grammar": grammar,
    });
    settings["dry_sequence_breakers"] = match chosen.dry_sequence_breakers_set {
        true => json!(chosen.dry_sequence_breakers),
        false => json!(BREAKERS),
    };
    settings["samplers"] = match chosen.samplers.is_empty() {
        true => json!(SAMPLERS),
        false => json!(chosen.samplers),
    };
    if let Some(schema) = schema {
        settings["json_schema"] = schema;
    }
    settings
}
