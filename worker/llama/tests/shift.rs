//! Texts that go on beyond their context: what is left out is left out wholly, on every kind of memory.
//!
//! As in tests/kinds.rs without flash attention and half precision in the caches, whose roundings change with the shape of a batch.
mod support;

use muster_proto::v1::{GenerateRequest, ModelSettings};
use support::{Engine, completion, settings, token_prompt};

const CONTEXT: usize = 256;

fn of(file: &str, args: &[&str]) -> ModelSettings {
    ModelSettings {
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        sequences: 1,
        ctx_size: 256,
        args: args.iter().map(|word| (*word).to_owned()).collect(),
        ..settings(file)
    }
}

fn request(prompt: Vec<i32>, tokens: Option<u32>, extra: &str) -> GenerateRequest {
    GenerateRequest {
        input: Some(muster_proto::v1::generate_request::Input::Prompt(token_prompt(
            prompt,
        ))),
        max_tokens: tokens,
        return_tokens: true,
        extra_json: extra.into(),
        ..completion("", 1)
    }
}

#[tokio::test]
async fn a_text_goes_on_as_if_what_was_left_out_had_never_been() {
    for file in [
        "tiny-chat.gguf",
        "tiny-swa.gguf",
        "tiny-mamba.gguf",
        "tiny-lfm2.gguf",
    ] {
        let prompt: Vec<i32> = (300..340).collect();
        let mut engine = Engine::with(of(file, &["--context-shift"])).await;
        let mut session = engine.session().await;
        for (extra, keep, count) in [
            (r#"{"n_keep": 8, "speculative.n_max": 0}"#, 8, (CONTEXT - 8) / 2),
            (
                r#"{"n_keep": -1, "n_discard": 50, "speculative.n_max": 8}"#,
                prompt.len(),
                50,
            ),
        ] {
            let answer = session.run(request(prompt.clone(), Some(500), extra)).await;
            assert_eq!(answer.end().generated, 500, "{file}");
            assert!(answer.end().truncated, "{file}");
            let said = &answer.choices[0].tokens;
            let mut text = prompt.clone();
            text.extend(&said[..CONTEXT - prompt.len()]);
            text.drain(keep..keep + count);
            let room = CONTEXT - text.len() - 1;
            let fresh = GenerateRequest {
                cache_prompt: Some(false),
                ..request(text, Some(u32::try_from(room).unwrap()), "")
            };
            let fresh = session.run(fresh).await;
            assert_eq!(
                fresh.choices[0].tokens,
                said[CONTEXT - prompt.len()..][..room],
                "{file} with {extra}"
            );
        }
    }
}

#[tokio::test]
async fn without_being_told_a_text_ends_with_its_context_and_with_it_not_without_end() {
    let prompt: Vec<i32> = (300..340).collect();
    for args in [&[][..], &["--context-shift", "--no-context-shift"]] {
        let mut engine = Engine::with(of("tiny-chat.gguf", args)).await;
        let mut session = engine.session().await;
        let answer = session
            .run(request(prompt.clone(), None, r#"{"n_keep": 3}"#))
            .await;
        assert!(answer.end().truncated && (answer.end().generated as usize) < CONTEXT);
    }
    let mut engine = Engine::with(of("tiny-chat.gguf", &["--context-shift", "--keep", "4"])).await;
    let mut session = engine.session().await;
    let wrong = session
        .run(request(prompt.clone(), Some(4), r#"{"n_keep": "all"}"#))
        .await;
    assert_eq!(wrong.code(), "invalid_request");
    let mut stream = session.generate(request(prompt, None, "")).await;
    for _ in 0..CONTEXT * 3 {
        stream.next().await;
    }
    session.cancel(stream.handle).await;
    assert_eq!(stream.answer().await.code(), "cancelled");
}
