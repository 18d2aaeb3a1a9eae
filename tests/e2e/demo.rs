//! The model that ships: its answers make sense, in wordings that it was not trained on, and it thinks when it is told to.

use std::path::PathBuf;

use muster_tests::{Engine, Stack, engines::committed};
use serde_json::{Value, json};

crate::for_each_engine!(
    it_answers_wordings_it_has_not_seen,
    it_says_what_muster_is_as_one_samples,
    it_thinks_exactly_when_told_to,
    it_keeps_its_head_over_several_turns,
);

pub(crate) fn model() -> PathBuf {
    committed("deploy/models/muster-demo.gguf")
}

/// What was kept out of the training text, with what is expected.
pub(crate) fn held_out(part: &str) -> Vec<Value> {
    let path = committed("tests/models/demo/held_out.json");
    let text = std::fs::read_to_string(path).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    all[part].as_array().unwrap().clone()
}

pub(crate) async fn stack(engine: Engine) -> Stack {
    Stack::with(engine.serving(&model(), "muster-demo", 2, "ctx_size = 4096"))
        .start()
        .await
}

fn asked(question: &str) -> Value {
    json!([{"role": "user", "content": question}])
}

/// The message of a whole answer; an empty one if the model did not come to an end, which is always wrong.
pub(crate) async fn answer(stack: &Stack, more: Value) -> Value {
    let body = stack.http().chat("muster-demo", more).await.ok();
    let choice = &body["choices"][0];
    if choice["finish_reason"] == "length" {
        return json!({"role": "assistant", "content": ""});
    }
    choice["message"].clone()
}

async fn it_answers_wordings_it_has_not_seen(engine: Engine) {
    let stack = stack(engine).await;
    let questions = held_out("questions");
    assert_eq!(questions.len(), 40);
    let mut wrong = Vec::new();
    for thinking in [false, true] {
        for entry in &questions {
            let more = json!({
                "messages": asked(entry["question"].as_str().unwrap()),
                "max_tokens": 200,
                "enable_thinking": thinking,
            });
            let message = answer(&stack, more).await;
            let content = message["content"].as_str().unwrap_or_default();
            if !content.contains(entry["expect"].as_str().unwrap()) {
                wrong.push(format!("{} -> {content}", entry["question"]));
            }
        }
        println!("thinking {thinking}: {} of 40 wrong: {wrong:#?}", wrong.len());
        assert!(wrong.len() <= 4, "thinking {thinking}: {wrong:#?}");
        wrong.clear();
    }
}

/// The first thing a newcomer asks, with a client that sets neither temperature nor thinking.
async fn it_says_what_muster_is_as_one_samples(engine: Engine) {
    let stack = stack(engine).await;
    for seed in 0..10 {
        let body = json!({"model": "muster-demo", "seed": seed, "messages": asked("What is Muster?")});
        let body = stack.http().post("/v1/chat/completions", &body).await.ok();
        let content = &body["choices"][0]["message"]["content"];
        let expected = "Muster serves many local language models behind one OpenAI-compatible address";
        assert!(
            content.as_str().unwrap().starts_with(expected),
            "seed {seed}: {content}"
        );
    }
}

async fn it_thinks_exactly_when_told_to(engine: Engine) {
    let stack = stack(engine).await;
    for question in [
        "What is Muster?",
        "What is 4 + 5?",
        "What is the capital of Italy?",
        "Hello",
    ] {
        for thinking in [false, true] {
            let more = json!({"messages": asked(question), "max_tokens": 200, "enable_thinking": thinking});
            let message = answer(&stack, more.clone()).await;
            let content = message["content"].as_str().unwrap_or_default();
            let thought = message["reasoning_content"].as_str().unwrap_or_default();
            assert!(
                !content.is_empty() && !content.contains("think>"),
                "{question}: {message}"
            );
            assert_eq!(
                !thought.is_empty(),
                thinking,
                "{question}, thinking {thinking}: {message}"
            );
            let streamed = stack
                .http()
                .chat_stream("muster-demo", more)
                .await
                .chat()
                .await
                .whole();
            assert_eq!(
                streamed.text,
                format!("{thought}{content}"),
                "{question}: streamed as whole"
            );
        }
    }
}

/// Earlier turns do not confuse the answer to the last one.
async fn it_keeps_its_head_over_several_turns(engine: Engine) {
    let stack = stack(engine).await;
    let mut messages = vec![];
    for (question, expected) in [
        ("Hello", "muster-demo"),
        ("What is the capital of France?", "Paris"),
        ("How do I load a model?", "muster load"),
        ("What is 3 + 4?", "= 7"),
    ] {
        messages.push(json!({"role": "user", "content": question}));
        let more = json!({"messages": messages, "max_tokens": 200, "enable_thinking": false});
        let message = answer(&stack, more).await;
        assert!(
            message["content"].as_str().unwrap().contains(expected),
            "{question}: {message}"
        );
        messages.push(message);
    }
}
