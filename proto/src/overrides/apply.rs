//! Applies overrides to settings: typed fields, llama.cpp's flags, and settings that only the runtime knows.

use muster_core::Error;
use serde_json::{Map, Value};

use super::{refused, table};
use crate::{llamacpp, settings, v1::ModelSettings};

pub(super) fn apply(fields: &Map<String, Value>, settings: &mut ModelSettings) -> Result<(), Error> {
    // First, since it replaces the words that flags are added to.
    if let Some(Value::String(args)) = fields.get("llamacpp_args") {
        let words = shell_words::split(args).map_err(|error| {
            refused(
                "llamacpp_args",
                format_args!("cannot be split into words: {error}"),
            )
        })?;
        // A request cannot remove flags that only the configuration sets.
        let (_, configured) = llamacpp::split(&settings.args);
        settings.args = configured.into_iter().chain(words).collect();
    }
    for (key, value) in fields.iter().filter(|(key, _)| *key != "llamacpp_args") {
        if let Some(setting) = settings::named(key) {
            (setting.set)(settings, value);
        } else if let Some(own) = table::flag_key(key) {
            set_flag(&mut settings.args, own.flags, value);
        } else {
            set_own(&mut settings.runtime_json, key, value);
        }
    }
    settings.load_override_json = match fields.is_empty() {
        true => String::new(),
        false => Value::Object(fields.clone()).to_string(),
    };
    Ok(())
}

/// Replaces a flag of a command line, or removes it for null. The first of `flags` is the one that is written.
fn set_flag(words: &mut Vec<String>, flags: &[&str], value: &Value) {
    let mut kept = Vec::with_capacity(words.len() + 2);
    let mut given = std::mem::take(words).into_iter();
    while let Some(word) = given.next() {
        let (name, joined) = match word.split_once('=') {
            Some((name, _)) => (name, true),
            None => (word.as_str(), false),
        };
        if !flags.contains(&name) {
            kept.push(word);
        } else if !joined {
            // Its value is removed as well.
            given.next();
        }
    }
    let value = match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => Some(value.to_string()),
    };
    if let (Some(flag), Some(value)) = (flags.first(), value) {
        kept.push((*flag).to_owned());
        kept.push(value);
    }
    *words = kept;
}

/// Sets a setting that only the runtime knows.
fn set_own(json: &mut String, key: &str, value: &Value) {
    let mut own: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    own.insert(key.to_owned(), value.clone());
    *json = Value::Object(own).to_string();
}
