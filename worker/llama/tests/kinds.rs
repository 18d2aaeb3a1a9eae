//! Every kind of memory: plain attention, sliding windows, recurrent states, both. What an engine did before must never show in an answer.
//!
//! The measure is always what an engine answers that has seen nothing but the prompt. Without flash attention and half precision in the caches, whose
//! roundings change with the shape of a batch (tests/models/llama.py).
mod support;

use std::collections::HashMap;

use muster_proto::v1::{GenerateRequest, ModelSettings};
use support::{Engine, Session, completion, settings};

const KINDS: [&str; 6] = [
    "tiny-chat.gguf",
    "tiny-swa.gguf",
    "tiny-gpt-oss.gguf",
    "tiny-mamba.gguf",
    "tiny-lfm2.gguf",
    "tiny-granite.gguf",
];
const TOKENS: u32 = 16;

fn of(file: &str) -> ModelSettings {
    ModelSettings {
        flash_attention: "off".into(),
        cache_type_k: "f32".into(),
        cache_type_v: "f32".into(),
        ..settings(file)
    }
}

/// Longer than the windows of these models, in words of their vocabulary.
fn story(words: usize) -> String {
    let all = "the house of the people was near the water and every day the children went there to hear a story of the world ";
    all.split_inclusive(' ').cycle().take(words).collect()
}

/// An engine that forgets after each answer.
struct Fresh {
    _engine: Engine,
    session: Session,
    known: HashMap<String, String>,
}

impl Fresh {
    async fn new(file: &str) -> Self {
        let mut engine = Engine::with(ModelSettings {
            sequences: 1,
            ..of(file)
        })
        .await;
        let session = engine.session().await;
        Self {
            _engine: engine,
            session,
            known: HashMap::new(),
        }
    }

    async fn answer(&mut self, prompt: &str) -> String {
        if let Some(known) = self.known.get(prompt) {
            return known.clone();
        }
        let request = GenerateRequest {
            cache_prompt: Some(false),
            ..completion(prompt, TOKENS)
        };
        let text = self.session.run(request).await.text().to_owned();
        self.known.insert(prompt.to_owned(), text.clone());
        text
    }
}

/// Prompts that share beginnings of any length with each other, in an order that goes back and forth.
fn prompts() -> Vec<String> {
    let mut prompts = Vec::new();
    for round in 0..3 {
        for words in [300, 150, 299, 20, 301, 0, 220, 150] {
            prompts.push(format!("{}then number {words} of {round} came", story(words)));
        }
        prompts.push(format!("{}then number 300 of 0 came", story(300)));
    }
    prompts
}

#[tokio::test]
async fn a_prompt_that_diverges_is_answered_as_if_it_were_the_first() {
    for file in KINDS {
        let mut fresh = Fresh::new(file).await;
        let mut engine = Engine::with(ModelSettings {
            sequences: 1,
            ..of(file)
        })
        .await;
        let mut session = engine.session().await;
        let mut reused = 0;
        for prompt in prompts() {
            let answer = session.run(completion(&prompt, TOKENS)).await;
            assert_eq!(answer.code(), "", "{file}: {:?}", answer.failed);
            assert_eq!(answer.text(), fresh.answer(&prompt).await, "{file}: {prompt:?}");
            reused += answer.usage().cached_tokens;
        }
        assert!(reused > 0, "{file}: nothing was ever reused");
    }
}

#[tokio::test]
async fn shared_beginnings_in_company_disturb_nobody() {
    for file in KINDS {
        let mut fresh = Fresh::new(file).await;
        let mut engine = Engine::with(ModelSettings {
            ctx_size: 4096,
            ..of(file)
        })
        .await;
        let mut session = engine.session().await;
        let prompts = prompts();
        let (mut other, mut all) = (0, 0);
        for four in prompts.chunks(4) {
            let mut streams = Vec::new();
            for prompt in four {
                streams.push((prompt, session.generate(completion(prompt, TOKENS)).await));
            }
            for (prompt, stream) in streams {
                let answer = stream.answer().await;
                assert_eq!(answer.code(), "", "{file}: {:?}", answer.failed);
                assert_eq!(answer.usage().completion_tokens, TOKENS);
                all += 1;
                other += i32::from(answer.text() != fresh.answer(prompt).await);
            }
        }
        // who is in a batch with whom changes roundings, and so, rarely, a word
        assert!(other * 10 <= all, "{file}: {other} of {all} answers are others");
    }
}

#[tokio::test]
async fn the_preempted_go_on_where_they_were() {
    for file in KINDS {
        let mut fresh = Fresh::new(file).await;
        // four prompts of 170 tokens and their answers want more than these cells; recurrent states want none
        let mut engine = Engine::with(ModelSettings {
            ctx_size: 768,
            ..of(file)
        })
        .await;
        let mut session = engine.session().await;
        let prompt = |i: usize| format!("{i} {}", story(130));
        let (mut other, mut all) = (0, 0);
        for _ in 0..3 {
            let mut streams = Vec::new();
            for i in 0..4 {
                let choices = GenerateRequest {
                    n: 2,
                    ..completion(&prompt(i), 200)
                };
                streams.push((prompt(i), session.generate(choices).await));
            }
            for (prompt, stream) in streams {
                let answer = stream.answer().await;
                if answer.code() == "no_room" {
                    continue;
                }
                assert_eq!(answer.code(), "", "{file}: {:?}", answer.failed);
                let alone = fresh.answer(&prompt).await;
                for choice in &answer.choices {
                    all += 1;
                    other += i32::from(!choice.content.starts_with(&alone));
                }
            }
        }
        assert!(
            all > 0 && other * 10 <= all,
            "{file}: {other} of {all} answers are others"
        );
    }
}
