//! `generation_settings`: what a request comes to (seed 004; gateway/README.md, llama.cpp's routes).

use muster_proto::{
    parameters::SAMPLING,
    v1::{GenerateRequest, LogitBias, Sampling, generate_request::Constraint, logit_bias::Target},
};
use serde_json::{Map, Value, json};

/// The settings of a request. Tokens are chosen as it asks, else as the engine says of its model (`own`), else as llama.cpp does by itself.
pub(crate) fn generation_settings(work: &GenerateRequest, own: &Sampling) -> Map<String, Value> {
    let mut chosen = work.sampling.clone().unwrap_or_default();
    // Any seed is shown as llama.cpp's highest.
    chosen.seed = chosen.seed.filter(|seed| *seed >= 0);
    SAMPLING.fill(&mut chosen, own);
    let limit = work.max_tokens.map_or(-1, i64::from);
    let (grammar, schema) = match &work.constraint {
        Some(Constraint::Grammar(grammar)) => (grammar.as_str(), None),
        Some(Constraint::JsonSchema(schema)) => ("", serde_json::from_str::<Value>(schema).ok()),
        Some(Constraint::JsonObject(_)) => ("", Some(json!({"type": "object"}))),
        None => ("", None),
    };
    let mut settings = Map::new();
    for parameter in SAMPLING.iter() {
        let set = (parameter.get)(&chosen).unwrap_or_else(|| parameter.default.into());
        settings.insert(parameter.name.to_owned(), set.into());
    }
    let more = json!({
        "logit_bias": biases(&chosen.logit_bias),
        "n_keep": asked_number(&work.extra_json, "n_keep"),
        "n_discard": asked_number(&work.extra_json, "n_discard"),
        "lora": [],
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
        // A plain prompt has no template, so its output is not taken apart.
        "grammar_lazy": false,
        "grammar_triggers": [],
        "preserved_tokens": [],
        "chat_format": "Content-only",
        "reasoning_format": "none",
        "reasoning_in_content": false,
        "generation_prompt": "",
        "backend_sampling": false,
    });
    put_speculation(&mut settings, "");
    if let Value::Object(more) = more {
        settings.extend(more);
    }
    if let Some(schema) = schema {
        settings.insert("json_schema".to_owned(), schema);
    }
    settings
}

/// What a request says of a number that only the engine knows; 0 if it does not.
fn asked_number(extra: &str, key: &str) -> i64 {
    let extra: Option<Value> = serde_json::from_str(extra).ok();
    extra
        .and_then(|extra| extra.get(key)?.as_i64())
        .unwrap_or_default()
}

/// Shows how tokens are guessed ahead (`Capabilities.speculation`).
pub(crate) fn put_speculation(settings: &mut Map<String, Value>, speculation: &str) {
    let shown = if speculation.is_empty() {
        "none"
    } else {
        speculation
    };
    settings.insert("speculative.types".to_owned(), shown.into());
}

fn biases(of: &[LogitBias]) -> Vec<Value> {
    let shown = |one: &LogitBias| {
        // As llama.cpp writes the logarithm of nothing.
        let bias = if one.never { Value::Null } else { json!(one.bias) };
        match &one.target {
            Some(Target::Token(token)) => json!({"token": token, "bias": bias}),
            Some(Target::Text(text)) => json!({"text": text, "bias": bias}),
            None => Value::Null,
        }
    };
    of.iter().map(shown).collect()
}

/// Puts in how tokens were really chosen, as far as the engine says.
pub(crate) fn put_sampling(settings: &mut Map<String, Value>, in_force: &Sampling) {
    let said = SAMPLING.said(in_force);
    settings.extend(said.map(|(name, value)| (name.to_owned(), value.into())));
    // Tokens that end a text are among them, where the request ignores them.
    if !in_force.logit_bias.is_empty() {
        settings.insert("logit_bias".to_owned(), biases(&in_force.logit_bias).into());
    }
}
