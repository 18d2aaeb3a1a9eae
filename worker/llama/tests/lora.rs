//! LoRA adapters: what each request's scales make of the model, alone and beside others.
//!
//! As in `kinds.rs` the measure is what an engine answers that has seen nothing but the prompt.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use muster_core::Code;
use muster_proto::v1::{
    GenerateRequest, LoraAdapter, ModelSettings, ModelType, SlotActionCall, slot_action_call::Action,
};
use support::{Engine, completion, model, settings};

const TOKENS: u32 = 24;
const PROMPT: &str = "the house of the people was near the water and every day the children went there to hear a story \
                      of the world and of the people who lived there before";

fn with(adapters: &[(&str, f32)]) -> ModelSettings {
    let adapter = |(file, scale): &(&str, f32)| LoraAdapter {
        path: model(file),
        scale: *scale,
    };
    ModelSettings {
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        lora: adapters.iter().map(adapter).collect(),
        ..settings("tiny-chat.gguf")
    }
}

/// A completion that asks for scales.
fn asks(lora: &str) -> GenerateRequest {
    GenerateRequest {
        extra_json: format!(r#"{{"lora": {lora}}}"#),
        ..completion(PROMPT, TOKENS)
    }
}

async fn fresh(adapters: &[(&str, f32)]) -> String {
    let mut engine = Engine::with(with(adapters)).await;
    let mut session = engine.session().await;
    session.run(completion(PROMPT, TOKENS)).await.text().to_owned()
}

const BOTH: [(&str, f32); 2] = [("tiny-lora.gguf", 1.0), ("tiny-lora-b.gguf", 0.5)];

#[tokio::test]
async fn each_request_gets_the_adapters_it_asks_for_beside_others() {
    // What is asked for, and an engine that was loaded with just that.
    let cases = [
        (r#"[{"id": 0, "scale": 0}]"#, fresh(&[]).await),
        (
            r#"[{"id": 0, "scale": 1}]"#,
            fresh(&[("tiny-lora.gguf", 1.0)]).await,
        ),
        (
            r#"[{"id": 1, "scale": 0.25}]"#,
            fresh(&[("tiny-lora-b.gguf", 0.25)]).await,
        ),
        (
            r#"[{"id": 1, "scale": 0.5}, {"id": 0, "scale": 1.0}]"#,
            fresh(&BOTH).await,
        ),
    ];
    for (at, (lora, text)) in cases.iter().enumerate() {
        let other = cases[..at].iter().find(|(_, other)| other == text);
        assert!(other.is_none(), "{lora} says what {other:?} says");
    }
    let mut engine = Engine::with(with(&BOTH)).await;
    let mut session = engine.session().await;
    for (lora, text) in &cases {
        let answer = session.run(asks(lora)).await;
        assert_eq!(
            (answer.text(), answer.usage().cached_tokens),
            (&**text, 0),
            "{lora}"
        );
    }
    // As it was loaded, and with what the last one has read.
    let answer = session.run(completion(PROMPT, TOKENS)).await;
    assert_eq!(answer.text(), cases[3].1);
    assert!(answer.usage().cached_tokens > 0);

    for _ in 0..2 {
        let mut streams = Vec::new();
        for (lora, text) in &cases {
            streams.push((lora, text, session.generate(asks(lora)).await));
        }
        for (lora, text, stream) in streams {
            assert_eq!(stream.answer().await.text(), text, "{lora}");
        }
    }
}

#[tokio::test]
async fn what_other_adapters_read_is_not_reused() {
    let mut engine = Engine::with(with(&BOTH)).await;
    let mut session = engine.session().await;
    let one = r#"[{"id": 0, "scale": 1}]"#;
    session.run(asks(one)).await;
    let cached =
        async |session: &mut support::Session, lora| session.run(asks(lora)).await.usage().cached_tokens;
    assert_eq!(cached(&mut session, r#"[{"id": 0, "scale": 0.99}]"#).await, 0);
    assert!(cached(&mut session, one).await > 20);
    // Several answers to one prompt share what they read.
    let answer = session.run(GenerateRequest { n: 3, ..asks(one) }).await;
    assert_eq!(answer.choices.len(), 3);
    assert_eq!(answer.choices[0].content, answer.choices[2].content);
}

#[tokio::test]
async fn a_saved_sequence_knows_its_adapters() {
    let folder = tempfile::tempdir().unwrap();
    let of = |adapters: &[(&str, f32)]| ModelSettings {
        args: vec!["--slot-save-path".to_owned(), folder.path().display().to_string()],
        sequences: 1,
        ..with(adapters)
    };
    let act = async |engine: &mut Engine, action| {
        let call = SlotActionCall {
            action: Some(action),
            ..SlotActionCall::default()
        };
        engine.client.slot_action(call).await
    };
    let restore = || Action::Restore("a".to_owned());
    let mut engine = Engine::with(of(&BOTH)).await;
    let mut session = engine.session().await;
    let one = r#"[{"id": 0, "scale": 1}]"#;
    let expected = session.run(asks(one)).await.text().to_owned();
    act(&mut engine, Action::Save("a".to_owned())).await.unwrap();
    for (lora, reused) in [(r#"[{"id": 1, "scale": 1}]"#, false), (one, true)] {
        act(&mut engine, restore()).await.unwrap();
        let answer = session.run(asks(lora)).await;
        assert_eq!(answer.usage().cached_tokens > 0, reused, "{lora}");
        assert_eq!(answer.text() == expected, reused, "{lora}");
    }
    let mut other = Engine::with(of(&[BOTH[1], BOTH[0]])).await;
    let status = act(&mut other, restore()).await.unwrap_err();
    assert!(status.message().contains("other adapters"), "{status:?}");
}

#[tokio::test]
async fn requests_name_adapters_that_are_loaded_by_number() {
    let mut engine = Engine::with(with(&BOTH)).await;
    let mut session = engine.session().await;
    for wrong in [
        r#"[{"id": 2, "scale": 1}]"#,
        r#"[{"id": -1, "scale": 1}]"#,
        r#"[{"path": "/etc/passwd", "scale": 1}]"#,
        r#""tiny-lora.gguf""#,
        r#"[{"id": 0, "scale": "1"}]"#,
    ] {
        let failed = session.run(asks(wrong)).await.failed.unwrap();
        assert_eq!(
            (failed.code, failed.param.as_deref()),
            (Code::InvalidRequest, Some("lora")),
            "{wrong}"
        );
    }
    session.run(asks("null")).await.text();
}

#[tokio::test]
async fn a_file_that_is_no_adapter_of_the_model_is_refused() {
    for (file, why) in [
        ("tiny-lora-gemma.gguf", "another architecture"),
        ("tiny-chat-b.gguf", "no LoRA adapter"),
    ] {
        let error = Engine::bare().await.try_load(with(&[(file, 1.0)])).await;
        let error = error.unwrap_err();
        assert_eq!(error.code, Code::InvalidLoadRequest);
        assert!(error.message.contains(why), "{error:?}");
    }
    let mut missing = with(&BOTH);
    missing.lora[1].path = "/nowhere.gguf".to_owned();
    let error = Engine::bare().await.try_load(missing).await.unwrap_err();
    assert_eq!(error.code, Code::FileNotFound);
    // Of the same architecture, and of another size.
    let rows = ModelSettings {
        checkpoint: model("bench-chat.gguf"),
        ..with(&BOTH)
    };
    let error = Engine::bare().await.try_load(rows).await.unwrap_err();
    assert!(error.message.contains("of another model"), "{error:?}");
    let vectors = ModelSettings {
        checkpoint: model("tiny-embed.gguf"),
        r#type: ModelType::Embedding.into(),
        ..with(&BOTH)
    };
    let error = Engine::bare().await.try_load(vectors).await.unwrap_err();
    assert_eq!(error.code, Code::UnsupportedByRuntime, "{error:?}");
}
