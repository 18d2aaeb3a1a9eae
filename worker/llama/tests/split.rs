//! A cache that is split (`--no-kv-unified`): each sequence has a part of its own, and what is as long as that part fits beside any others.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use muster_proto::v1::{GenerateRequest, ModelSettings, Sampling};
use support::{Engine, completion, greedy, settings, token_prompt};

/// Cells of each of four sequences: llama.cpp rounds 512 / 4 up.
const PART: u32 = 256;

async fn split(file: &str) -> Engine {
    Engine::with(ModelSettings {
        ctx_size: 512,
        args: vec!["--no-kv-unified".to_owned()],
        ..settings(file)
    })
    .await
}

/// As long as the prompt's part lets it be.
fn filling(prompt: Vec<i32>) -> GenerateRequest {
    GenerateRequest {
        input: Some(muster_proto::v1::generate_request::Input::Prompt(token_prompt(
            prompt,
        ))),
        sampling: Some(Sampling {
            ignore_eos: Some(true),
            ..greedy()
        }),
        ..completion("", 1000)
    }
}

#[tokio::test]
async fn each_sequence_fills_its_part_whatever_the_others_do() {
    for file in [
        "tiny-chat.gguf",
        "tiny-swa.gguf",
        "tiny-mamba.gguf",
        "tiny-lfm2.gguf",
    ] {
        let mut engine = split(file).await;
        let can = engine.description.capabilities.clone().unwrap();
        assert_eq!(can.context_length, PART, "{file}");
        let mut session = engine.session().await;
        let prompts: Vec<Vec<i32>> = (0..4).map(|first| vec![first + 20; 100]).collect();
        let mut streams = Vec::new();
        for prompt in &prompts {
            streams.push(session.generate(filling(prompt.clone())).await);
        }
        let mut together = Vec::new();
        for stream in streams {
            let answer = stream.answer().await;
            assert_eq!(answer.usage().completion_tokens, PART - 100, "{file}");
            together.push(answer.text().to_owned());
        }
        // What others wrote beside it is in nobody's answer.
        let alone = session.run(filling(prompts[0].clone())).await;
        assert_eq!(alone.text(), together[0], "{file}");
    }
}

#[tokio::test]
async fn what_is_longer_than_a_part_is_refused_with_its_size() {
    let mut engine = split("tiny-chat.gguf").await;
    let mut session = engine.session().await;
    let answer = session.run(filling(vec![20; 300])).await;
    assert_eq!(answer.code(), "context_length_exceeded");
    let error = answer.failed.unwrap();
    assert!(error.message.contains("256"), "{error:?}");
}

/// llama.cpp asserts where a part of a sequence is copied to another cache.
#[tokio::test]
async fn several_choices_have_copies_of_one_prompt() {
    for file in ["tiny-chat.gguf", "tiny-swa.gguf", "tiny-lfm2.gguf"] {
        let mut engine = split(file).await;
        let mut session = engine.session().await;
        let prompt: Vec<i32> = (20..80).collect();
        let two = GenerateRequest {
            n: 2,
            max_tokens: Some(12),
            ..filling(prompt.clone())
        };
        let answer = session.run(two.clone()).await;
        assert_eq!(answer.text(), answer.choices[1].content, "{file}");
        // Beside another's prompt that begins the same.
        let beside = session.generate(filling(prompt[..40].to_vec())).await;
        let again = session.run(two).await;
        assert_eq!(again.text(), answer.text(), "{file}");
        assert_eq!(again.choices[1].content, answer.text(), "{file}");
        assert_eq!(
            beside.answer().await.usage().completion_tokens,
            PART - 40,
            "{file}"
        );
    }
}
