//! The form of a load's body: what any runtime could take (422).

use muster_core::{Code, Error};
use serde_json::{Map, Value};

use super::{
    Draft,
    table::{self, Holds, Key},
};

pub(super) fn draft(body: &[u8]) -> Result<Draft, Error> {
    let mut fields = object(body)?;
    let replicas = fields.remove("replicas");
    let replicas = replicas.as_ref().map(count).transpose()?;
    check(&mut fields, table::key)?;
    Ok(Draft { replicas, fields })
}

pub(super) fn wire(json: &str) -> Result<Draft, Error> {
    let mut fields = object(json.as_bytes())?;
    check(&mut fields, table::wire_key)?;
    Ok(Draft {
        replicas: None,
        fields,
    })
}

pub(super) fn object(body: &[u8]) -> Result<Map<String, Value>, Error> {
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

fn check(fields: &mut Map<String, Value>, find: fn(&str) -> Option<&'static Key>) -> Result<(), Error> {
    for (name, value) in fields.iter_mut() {
        let key = find(name).ok_or_else(|| wrong(name, "is no load override"))?;
        if key.nullable && value.is_null() {
            continue;
        }
        match key.holds {
            Holds::Count { .. } | Holds::Bits => {
                if let Some(count) = positive(name, value)? {
                    *value = count.into();
                }
            }
            Holds::Share if !value.is_number() => return Err(type_of(name, "a number", value)),
            Holds::Word(_) | Holds::Name | Holds::Checkpoint | Holds::Quant | Holds::Text
                if !value.is_string() =>
            {
                let want = if key.nullable {
                    "a string or null"
                } else {
                    "a string"
                };
                return Err(type_of(name, want, value));
            }
            Holds::Share | Holds::Word(_) | Holds::Name | Holds::Checkpoint | Holds::Quant | Holds::Text => {}
        }
    }
    Ok(())
}

fn count(value: &Value) -> Result<u32, Error> {
    let count = positive("replicas", value)?;
    // More than any `replica_max`.
    Ok(count
        .and_then(|count| u32::try_from(count).ok())
        .unwrap_or(u32::MAX))
}

/// An integer of at least 1; `3.0` counts as one. None for one that is larger than any setting: it stays as written and the value's own
/// limits refuse it.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a whole number from 1 up to 2^53, which both types hold exactly"
)]
fn positive(key: &str, value: &Value) -> Result<Option<u64>, Error> {
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

fn malformed(message: String) -> Error {
    Code::InvalidSchema.error(message)
}

fn wrong(key: &str, message: impl std::fmt::Display) -> Error {
    malformed(format!("`{key}` {message}")).with_param(key)
}

fn type_of(key: &str, want: &str, value: &Value) -> Error {
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
