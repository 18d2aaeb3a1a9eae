//! Any request at all.

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
            let code = error.code.http();
            prop_assert!((400..500).contains(&code), "{error}");
        }
    }

    #[test]
    fn any_bytes_are_refused_politely(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        prop_assert!(chat(&bytes).is_err());
        prop_assert!(completions(&bytes).is_err());
    }
}
