//! Checks the values of a load's body for one runtime (400 `invalid_load_request`).

use muster_core::{Error, runtime::Family};
use serde_json::{Map, Value};

use super::{
    Overrides, refused,
    table::{self, Holds, K_BITS, QUANT, V_BITS},
};
use crate::{hub::is_repo, llamacpp};

/// Bits per element of an ExLlamaV3 cache.
const BITS: std::ops::RangeInclusive<u64> = 2..=8;

pub(super) fn check(family: Family, mut fields: Map<String, Value>) -> Result<Overrides, Error> {
    common(family, &mut fields)?;
    for (key, value) in &fields {
        let owner = table::key(key).and_then(table::Key::family);
        if owner.is_some_and(|owner| owner != family) {
            let message = format_args!("is no setting of {}", family.name());
            return Err(refused(key, message));
        }
        one(key, value)?;
    }
    args(family, &fields)?;
    bits(&mut fields)?;
    Ok(Overrides(fields))
}

/// Renames Lemonade's keys to the family's own names, if it has any.
fn common(family: Family, fields: &mut Map<String, Value>) -> Result<(), Error> {
    if fields.contains_key("llamacpp_args") && !family.is_llama_cpp() {
        return Err(refused("llamacpp_args", "is for llama.cpp's runtimes only"));
    }
    let own = match family {
        Family::LlamaCpp => "gguf_n_ctx",
        Family::LlamaServer => "llama_server_n_ctx",
        Family::ExLlamaV3 => "exllama_cache_size",
        Family::Vllm => "vllm_max_model_len",
        Family::Other => "ctx_size",
    };
    if let Some(size) = fields.remove("ctx_size") {
        // Checked under the name that the caller used.
        one("ctx_size", &size)?;
        fields.insert(own.to_owned(), size);
    }
    Ok(())
}

/// Checks one value, which has the right type or is an allowed null.
fn one(name: &str, value: &Value) -> Result<(), Error> {
    let Some(key) = table::wire_key(name) else {
        return Ok(());
    };
    match key.holds {
        Holds::Count { most, step } => {
            at_most(name, value, most)?;
            match value.as_u64() {
                Some(count) if !count.is_multiple_of(step) => Err(refused(
                    name,
                    format_args!("must be a multiple of {step}, not {count}"),
                )),
                Some(_) | None => Ok(()),
            }
        }
        Holds::Share => match value.as_f64() {
            Some(share) if !(0.0..=1.0).contains(&share) => Err(refused(
                name,
                format_args!("must be between 0.0 and 1.0, not {share}"),
            )),
            Some(_) | None => Ok(()),
        },
        Holds::Word(words) => text(
            name,
            value,
            |text| words.contains(&text),
            |text| format!("must be one of {}, not `{text}`", words.join(", ")),
        ),
        Holds::Name => text(name, value, is_name, |_| {
            "must be a name: letters, digits, `_`, `-` and `.`".to_owned()
        }),
        Holds::Checkpoint => text(name, value, is_repo, |_| {
            "must be a checkpoint of the hub, ORG/NAME: only the configuration names files".to_owned()
        }),
        Holds::Quant => text(
            name,
            value,
            |text| quant(text).is_some(),
            |text| format!("must be \"<bits>\" or \"<k_bits>,<v_bits>\" with bits from 2 to 8, not `{text}`"),
        ),
        // `bits` checks K and V together.
        Holds::Bits | Holds::Text => Ok(()),
    }
}

/// Checks a text; the schema let null pass only where it is allowed.
fn text(
    name: &str,
    value: &Value,
    fits: impl Fn(&str) -> bool,
    must: impl Fn(&str) -> String,
) -> Result<(), Error> {
    match value.as_str() {
        Some(text) if !fits(text) => Err(refused(name, must(text))),
        Some(_) | None => Ok(()),
    }
}

fn at_most(key: &str, value: &Value, most: u64) -> Result<(), Error> {
    let within = match value {
        // A number without a `u64` is larger than all of those (schema).
        Value::Number(number) => number.as_u64().is_some_and(|given| given <= most),
        Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => true,
    };
    if within {
        return Ok(());
    }
    Err(refused(key, format_args!("must be at most {most}, not {value}")))
}

/// Whether a word is neither a flag nor a path.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
}

/// Checks llama.cpp's arguments: requests may set them, and the runtime has them. A request never chooses another runtime.
fn args(family: Family, fields: &Map<String, Value>) -> Result<(), Error> {
    let words = flags(fields)?;
    match family {
        Family::LlamaCpp => llamacpp::check(&words),
        Family::LlamaServer | Family::ExLlamaV3 | Family::Vllm | Family::Other => Ok(()),
    }
}

/// The words of `llamacpp_args`, all of which requests may set.
pub(super) fn flags(fields: &Map<String, Value>) -> Result<Vec<String>, Error> {
    const KEY: &str = "llamacpp_args";
    let given = fields.get(KEY).and_then(Value::as_str).unwrap_or_default();
    let words = shell_words::split(given)
        .map_err(|error| refused(KEY, format_args!("cannot be split into words: {error}")))?;
    llamacpp::requested(&words)?;
    Ok(words)
}

/// Bits of K and V.
fn quant(text: &str) -> Option<(u64, u64)> {
    let bits = |text: &str| {
        let digit = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|bits| digit && BITS.contains(bits))
    };
    match text.split_once(',') {
        Some((k, v)) => Some((bits(k)?, bits(v)?)),
        None => bits(text).map(|both| (both, both)),
    }
}

/// Replaces `exllama_cache_k_bits` and `exllama_cache_v_bits` by `exllama_cache_quant`. The two come together, and never with that one.
fn bits(fields: &mut Map<String, Value>) -> Result<(), Error> {
    let (k, v) = match (fields.remove(K_BITS), fields.remove(V_BITS)) {
        (None, None) => return Ok(()),
        (Some(k), Some(v)) => (k, v),
        (Some(_), None) => return Err(refused(K_BITS, format_args!("needs `{V_BITS}` beside it"))),
        (None, Some(_)) => return Err(refused(V_BITS, format_args!("needs `{K_BITS}` beside it"))),
    };
    if fields.contains_key(QUANT) {
        return Err(refused(
            QUANT,
            format_args!("cannot be given with `{K_BITS}` and `{V_BITS}`"),
        ));
    }
    for (key, value) in [(K_BITS, &k), (V_BITS, &v)] {
        if let Some(bits) = value.as_u64().filter(|bits| !BITS.contains(bits)) {
            return Err(refused(key, format_args!("must be between 2 and 8, not {bits}")));
        }
    }
    let quant = match (k.as_u64(), v.as_u64()) {
        (Some(k), Some(v)) => Value::String(format!("{k},{v}")),
        (None, None) => Value::Null,
        (Some(_), None) => {
            return Err(refused(
                V_BITS,
                format_args!("must be an integer as `{K_BITS}` is"),
            ));
        }
        (None, Some(_)) => {
            return Err(refused(
                K_BITS,
                format_args!("must be an integer as `{V_BITS}` is"),
            ));
        }
    };
    fields.insert(QUANT.to_owned(), quant);
    Ok(())
}
