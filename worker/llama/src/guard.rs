//! Checks of input that llama.cpp would answer with an abort, endless recursion or absurd memory (ENGINE.md, "Input that would abort the process").
//!
//! Pure. A GGML_ASSERT can't be caught: whatever may trip one is refused here, before the FFI.

use muster_proto::parameters::SAMPLING;

use crate::sampler::SamplerSpec;

/// Largest grammar, in bytes.
const GRAMMAR_BYTES: usize = 1 << 20;
/// Deepest nesting of groups in a grammar; llama.cpp's parser recurses once per level.
const GRAMMAR_DEPTH: usize = 256;
/// Largest JSON text (schema, tools, template arguments), in bytes.
const JSON_BYTES: usize = 4 << 20;
/// Longest `stop` list.
const STOPS: usize = 256;
/// Most choices of one request.
pub(crate) const CHOICES: u32 = 128;

/// What is wrong with an input: the field and one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) param: &'static str,
    pub(crate) message: String,
}

fn refuse<T>(param: &'static str, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal {
        param,
        message: message.into(),
    })
}

/// A GBNF grammar: bounded size and depth.
///
/// # Errors
/// It is too large or too deeply nested.
pub(crate) fn grammar(text: &str) -> Result<(), Refusal> {
    if text.len() > GRAMMAR_BYTES {
        return refuse(
            "grammar",
            format!("the grammar is larger than {GRAMMAR_BYTES} bytes"),
        );
    }
    if text.contains('\0') {
        // llama.cpp reads up to it, and an empty grammar binds nothing
        return refuse("grammar", "the grammar contains a NUL character");
    }
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let mut chars = text.chars();
    let mut closing = None;
    while let Some(char) = chars.next() {
        match (closing, char) {
            (_, '\\') => drop(chars.next()),
            (Some(end), char) if char == end => closing = None,
            (Some(_), _) => {}
            (None, '"') => closing = Some('"'),
            (None, '[') => closing = Some(']'),
            (None, '#') => closing = Some('\n'),
            (None, '(') => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            (None, ')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
    }
    if deepest > GRAMMAR_DEPTH {
        return refuse(
            "grammar",
            format!("the grammar nests deeper than {GRAMMAR_DEPTH} groups"),
        );
    }
    Ok(())
}

/// JSON that goes to C++: valid, bounded in size and (by serde_json, 128 levels) in depth.
///
/// # Errors
/// It is not JSON, too large or too deep.
pub(crate) fn json(param: &'static str, text: &str) -> Result<serde_json::Value, Refusal> {
    if text.len() > JSON_BYTES {
        return refuse(param, format!("`{param}` is larger than {JSON_BYTES} bytes"));
    }
    serde_json::from_str(text)
        .or_else(|error| refuse(param, format!("`{param}` is not usable JSON: {error}")))
}

/// A JSON schema: an object or a boolean, with bounded regular expressions and repetitions.
///
/// # Errors
/// See [`json`]; or a pattern in it nests too deeply.
pub(crate) fn schema(text: &str) -> Result<(), Refusal> {
    let value = json("json_schema", text)?;
    if !value.is_object() {
        return refuse("json_schema", "the schema is not a JSON object");
    }
    patterns(&value)
}

fn patterns(value: &serde_json::Value) -> Result<(), Refusal> {
    match value {
        serde_json::Value::Object(map) => {
            if let Some(pattern) = map.get("pattern").and_then(|p| p.as_str()) {
                grammar(pattern)?;
            }
            map.values().try_for_each(patterns)
        }
        serde_json::Value::Array(list) => list.iter().try_for_each(patterns),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => Ok(()),
    }
}

/// Stop strings.
///
/// # Errors
/// There are too many.
pub(crate) fn stops(stops: &[String]) -> Result<(), Refusal> {
    if stops.len() > STOPS {
        return refuse("stop", format!("more than {STOPS} stop strings"));
    }
    Ok(())
}

/// Sampling parameters.
///
/// # Errors
/// A value is out of range, not finite, or names what does not exist.
pub(crate) fn sampling(spec: &SamplerSpec, n_vocab: usize) -> Result<(), Refusal> {
    if let Err((param, message)) = SAMPLING.check(&spec.sampling) {
        return refuse(param, message);
    }
    let foreign = |token: i32| usize::try_from(token).map_or(true, |token| token >= n_vocab);
    let tokens = spec
        .logit_bias
        .iter()
        .map(|bias| bias.0)
        .chain(spec.never.iter().copied());
    if let Some(token) = tokens.into_iter().find(|token| foreign(*token)) {
        return refuse("logit_bias", format!("token {token} is outside the vocabulary"));
    }
    if spec.logit_bias.iter().any(|bias| !bias.1.is_finite()) {
        return refuse("logit_bias", "a bias is not a finite number");
    }
    Ok(())
}

/// Sizes of a context. llama.cpp aborts where a batch is smaller than the sequences it must hold.
///
/// # Errors
/// The sizes contradict each other or are absurd.
pub(crate) fn context(n_ctx: u32, n_batch: u32, n_ubatch: u32, sequences: u32) -> Result<(), Refusal> {
    const MOST_SEQUENCES: u32 = 256;
    if sequences == 0 || sequences > MOST_SEQUENCES {
        return refuse("sequences", format!("sequences must be 1 to {MOST_SEQUENCES}"));
    }
    if n_batch < sequences {
        return refuse("batch_size", "the batch is smaller than the number of sequences");
    }
    if n_ubatch == 0 || n_ubatch > n_batch {
        return refuse("ubatch_size", "the physical batch must be 1 to the logical batch");
    }
    if n_ctx == 0 || n_ctx < sequences || n_ctx > i32::MAX.unsigned_abs() {
        return refuse(
            "ctx_size",
            "the context is smaller than the number of sequences, or absurdly large",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_grammars_are_refused_and_quotes_do_not_count() {
        assert!(grammar(&format!("root ::= {}\"a\"{}", "(".repeat(300), ")".repeat(300))).is_err());
        assert!(grammar(&format!("root ::= \"{}\"", "(".repeat(300))).is_ok());
        assert!(grammar("root ::= [(\\]((] \"x\" # ((((\n").is_ok());
        assert!(grammar(&"a".repeat(GRAMMAR_BYTES + 1)).is_err());
        assert!(grammar("root ::= \0").is_err());
    }

    #[test]
    fn deep_or_broken_json_is_refused() {
        assert!(json("x", &"[".repeat(100_000)).is_err());
        assert!(schema("[]").is_err());
        assert!(schema(r#"{"type":"string","pattern":"^a(b|c)$"}"#).is_ok());
        let deep = format!(r#"{{"pattern":"{}"}}"#, "(".repeat(1000));
        assert!(schema(&deep).is_err());
    }

    #[test]
    fn sampling_values_are_checked() {
        let with = |change: fn(&mut SamplerSpec)| {
            let mut spec = SamplerSpec::default();
            change(&mut spec);
            sampling(&spec, 100).map_err(|refusal| refusal.param)
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|s| s.sampling.mirostat = Some(3)), Err("mirostat"));
        assert_eq!(
            with(|s| s.sampling.temperature = Some(f32::NAN)),
            Err("temperature")
        );
        assert_eq!(
            with(|s| s.sampling.repeat_penalty = Some(0.0)),
            Err("repeat_penalty")
        );
        // One divided by it is infinite.
        assert_eq!(
            with(|s| s.sampling.repeat_penalty = Some(1e-40)),
            Err("repeat_penalty")
        );
        assert_eq!(with(|s| s.sampling.top_p = Some(1.5)), Err("top_p"));
        assert_eq!(with(|s| s.logit_bias = vec![(100, 1.0)]), Err("logit_bias"));
        assert_eq!(with(|s| s.never = vec![-1]), Err("logit_bias"));
        assert_eq!(
            with(|s| s.logit_bias = vec![(1, f32::INFINITY)]),
            Err("logit_bias")
        );
    }

    #[test]
    fn context_sizes_are_checked() {
        assert!(context(4096, 2048, 512, 4).is_ok());
        assert!(context(4096, 2, 2, 4).is_err());
        assert!(context(4096, 512, 1024, 4).is_err());
        assert!(context(0, 512, 512, 1).is_err());
    }
}
