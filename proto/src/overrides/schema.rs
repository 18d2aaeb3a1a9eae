//! The shape of a load's body: what any runtime could take (422).

use serde_json::{Map, Value};

use super::Draft;
use crate::{Code, ErrorExt as _, llamacpp::Takes, settings, v1::ErrorInfo};

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// An integer of at least 1.
    Positive,
    /// An integer of at least 1, or null.
    PositiveOrNull,
    /// Any number.
    Number,
    /// A string.
    Text,
    /// A string or null.
    TextOrNull,
}

/// Keys of settings that have no field of their own (seed 001, Supported load override fields).
const KEYS: [(&str, Kind); 16] = [
    ("exllama_cache_size", Kind::Positive),
    ("exllama_cache_quant", Kind::TextOrNull),
    ("exllama_cache_k_bits", Kind::PositiveOrNull),
    ("exllama_cache_v_bits", Kind::PositiveOrNull),
    ("exllama_max_rq_tokens", Kind::Positive),
    ("vllm_max_model_len", Kind::Positive),
    ("vllm_kv_cache_dtype", Kind::Text),
    ("vllm_kv_cache_memory_bytes", Kind::Positive),
    ("vllm_max_pixels", Kind::Positive),
    ("vllm_speculative_method", Kind::TextOrNull),
    ("vllm_speculative_model", Kind::TextOrNull),
    ("vllm_num_speculative_tokens", Kind::Positive),
    ("llama_server_image_max_tokens", Kind::Positive),
    // An enum in `load_constraints`; null is legal all the same (seed 001, llama-server load override notes).
    ("llama_server_spec_type", Kind::TextOrNull),
    ("llama_server_spec_draft_n_max", Kind::Positive),
    ("llama_server_spec_draft_p_min", Kind::Number),
];

/// Further keys between our processes: Lemonade's load options (seed 000, `POST /load`).
const WIRE_KEYS: [(&str, Kind); 2] = [("ctx_size", Kind::Positive), ("llamacpp_args", Kind::Text)];

pub(super) fn draft(body: &[u8]) -> Result<Draft, ErrorInfo> {
    let mut fields = object(body)?;
    let replicas = fields.remove("replicas");
    let replicas = replicas.as_ref().map(count).transpose()?;
    check(&mut fields, &[&KEYS])?;
    Ok(Draft { replicas, fields })
}

pub(super) fn wire(json: &str) -> Result<Draft, ErrorInfo> {
    let mut fields = object(json.as_bytes())?;
    check(&mut fields, &[&KEYS, &WIRE_KEYS])?;
    Ok(Draft {
        replicas: None,
        fields,
    })
}

pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, ErrorInfo> {
    if body.trim_ascii().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(other) => Err(malformed(format!(
            "the body must be a JSON object, not {}",
            describe(&other)
        ))),
        Err(error) => Err(malformed(format!("the body is not JSON: {error}"))),
    }
}

fn check(fields: &mut Map<String, Value>, tables: &[&[(&str, Kind)]]) -> Result<(), ErrorInfo> {
    for (key, value) in fields.iter_mut() {
        let known = tables.iter().copied().flatten().find(|(name, _)| name == key);
        let Some(kind) = known.map(|(_, kind)| *kind).or_else(|| of_setting(key)) else {
            return Err(wrong(key, "is no load override"));
        };
        match kind {
            Kind::PositiveOrNull if value.is_null() => {}
            Kind::Positive | Kind::PositiveOrNull => {
                if let Some(count) = positive(key, value)? {
                    *value = count.into();
                }
            }
            Kind::Number if value.is_number() => {}
            Kind::Text | Kind::TextOrNull if value.is_string() => {}
            Kind::TextOrNull if value.is_null() => {}
            Kind::Number => return Err(type_of(key, "a number", value)),
            Kind::Text => return Err(type_of(key, "a string", value)),
            Kind::TextOrNull => return Err(type_of(key, "a string or null", value)),
        }
    }
    Ok(())
}

/// What a setting with a field of its own may hold, if a load may set it by this key.
fn of_setting(key: &str) -> Option<Kind> {
    let setting = settings::named(key).filter(|setting| setting.load.contains(&key))?;
    Some(match (setting.takes, setting.nullable) {
        (Takes::Count | Takes::Layers | Takes::Integer, false) => Kind::Positive,
        (Takes::Count | Takes::Layers | Takes::Integer, true) => Kind::PositiveOrNull,
        (Takes::Number, _) => Kind::Number,
        (Takes::Word(_) | Takes::Words(_) | Takes::Text, false) => Kind::Text,
        (Takes::Word(_) | Takes::Words(_) | Takes::Text, true) => Kind::TextOrNull,
        (Takes::Nothing | Takes::Parameter(_), _) => return None,
    })
}

fn count(value: &Value) -> Result<u32, ErrorInfo> {
    let count = positive("replicas", value)?;
    // More than any `replica_max`.
    Ok(count
        .and_then(|count| u32::try_from(count).ok())
        .unwrap_or(u32::MAX))
}

/// An integer of at least 1; `3.0` counts as one. None for one that is larger than any setting: it stays as it was written, for the values' own
/// bounds to refuse.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number from 1 up to 2^53, which both types hold exactly"
)]
fn positive(key: &str, value: &Value) -> Result<Option<u64>, ErrorInfo> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = match value {
        Value::Number(number) => number,
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            return Err(type_of(key, "an integer", value));
        }
    };
    if let Some(count) = number.as_u64().filter(|count| *count > 0) {
        return Ok(Some(count));
    }
    match number.as_f64() {
        Some(count) if count.fract() == 0.0 && (1.0..=EXACT).contains(&count) => Ok(Some(count as u64)),
        Some(count) if count.fract() == 0.0 && count > EXACT => Ok(None),
        Some(count) if count.fract() == 0.0 => {
            Err(wrong(key, format_args!("must be at least 1, not {number}")))
        }
        Some(_) | None => Err(wrong(key, format_args!("must be an integer, not {number}"))),
    }
}

fn malformed(message: String) -> ErrorInfo {
    Code::InvalidSchema.error(message)
}

fn wrong(key: &str, message: impl std::fmt::Display) -> ErrorInfo {
    malformed(format!("`{key}` {message}")).with_param(key)
}

fn type_of(key: &str, want: &str, value: &Value) -> ErrorInfo {
    wrong(key, format_args!("must be {want}, not {}", describe(value)))
}

const fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}
