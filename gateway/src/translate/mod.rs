//! From a client's JSON to one validated request, as typed events want it.
//!
//! ```text
//! body ── object ──► chat ──────┬─► GenerateRequest + View
//!                    completion ┘      ▲
//!                    messages, tools, sampling, output (shared parts)
//! ```
//!
//! OpenAI's fields and llama.cpp's (seed 004) are read by name, with their ranges; fields of OpenAI's own platform (`store`, `metadata`, …) are
//! accepted and dropped, since no engine could act on them; all others go on untouched as `extra_json`.
//!
//! Architecture invariant: pure functions; this module knows no fleet, no connection and no clock.

mod chat;
mod completion;
mod messages;
mod object;
mod output;
mod sampling;
mod tools;

use muster_proto::v1::{ErrorInfo, GenerateRequest};

use self::object::Object;
pub(crate) use self::{chat::chat, completion::completions};

/// What every inference request says beside the work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Common {
    /// Catalogue id.
    pub(crate) model: String,
    /// Who asks, for fairness between callers; empty = nobody said.
    pub(crate) user: String,
    /// Thinking was switched explicitly with seed 001's `thinking`, so the model must be able to.
    pub(crate) thinking: bool,
}

/// How the answer is to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Server-sent events instead of one body.
    pub(crate) stream: bool,
    /// A last chunk with token counts (`stream_options.include_usage`).
    pub(crate) include_usage: bool,
    /// Token probabilities were asked for.
    pub(crate) logprobs: bool,
    /// They are probabilities after sampling, not logarithms (seed 004, `post_sampling_probs`).
    pub(crate) post_sampling: bool,
    /// Token ids were asked for.
    pub(crate) tokens: bool,
    /// Choices per prompt.
    pub(crate) choices: u32,
}

/// A chat request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ChatCall {
    pub(crate) common: Common,
    pub(crate) view: View,
    pub(crate) work: GenerateRequest,
}

/// A completion request; several prompts are several pieces of work.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionCall {
    pub(crate) common: Common,
    pub(crate) view: View,
    pub(crate) work: Vec<GenerateRequest>,
    /// `echo`: the text to show before each prompt's output.
    pub(crate) echo: Option<Vec<String>>,
}

/// Fields of OpenAI's platform that no engine can act on. They are accepted, so that clients which always send them work.
const PLATFORM: [&str; 9] = [
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
    "verbosity",
    "user",
];

fn common(body: &mut Object<'_>) -> Result<Common, ErrorInfo> {
    let model = body.need("model")?;
    let name = model.string()?;
    if name.is_empty() {
        return Err(model.wrong("must not be empty"));
    }
    let user = match body.take("user") {
        Some(field) => field.string()?,
        None => String::new(),
    };
    body.discard(&PLATFORM);
    Ok(Common {
        model: name,
        user,
        thinking: false,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::Value;
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z\"\\\\ö]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            let key = prop_oneof![
                Just("role"),
                Just("content"),
                Just("type"),
                Just("text"),
                Just("function"),
                Just("name"),
                Just("parameters"),
                Just("tool_calls"),
                Just("image_url"),
                Just("schema"),
                Just("x"),
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key, inner), 0..4).prop_map(|fields| {
                    Value::Object(
                        fields
                            .into_iter()
                            .map(|(key, value)| (key.to_owned(), value))
                            .collect(),
                    )
                }),
            ]
        })
    }

    const FIELDS: [&str; 36] = [
        "messages",
        "prompt",
        "stream",
        "stop",
        "n",
        "tools",
        "tool_choice",
        "response_format",
        "logit_bias",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "max_completion_tokens",
        "stream_options",
        "temperature",
        "seed",
        "suffix",
        "echo",
        "best_of",
        "grammar",
        "json_schema",
        "samplers",
        "chat_template_kwargs",
        "reasoning_format",
        "reasoning_effort",
        "thinking",
        "enable_thinking",
        "id_slot",
        "n_predict",
        "dry_sequence_breakers",
        "mirostat",
        "functions",
        "user",
        "top_k",
        "modalities",
        "unknown",
    ];

    proptest! {
        #[test]
        fn any_body_is_accepted_or_refused_as_the_clients_fault(
            fields in prop::collection::vec((prop::sample::select(&FIELDS[..]), json()), 0..8),
            proper in any::<bool>(),
        ) {
            let mut body: serde_json::Map<_, _> =
                fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
            if proper {
                body.insert("model".into(), "m".into());
                body.entry("messages").or_insert(serde_json::json!([{"role": "user", "content": "hi"}]));
                body.entry("prompt").or_insert("hi".into());
            }
            let text = serde_json::Value::Object(body).to_string();
            for error in [chat(text.as_bytes()).err(), completions(text.as_bytes()).err()].into_iter().flatten() {
                let code = muster_proto::Code::parse(&error.code).http_number();
                prop_assert!((400..500).contains(&code), "{error}");
            }
        }

        #[test]
        fn any_bytes_are_refused_politely(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(chat(&bytes).is_err());
            prop_assert!(completions(&bytes).is_err());
        }
    }
}
