//! What else comes with the model that ships: a draft model that guesses its tokens, and an adapter that changes its style.

use muster_tests::{Engine, Stack, engines::committed};
use serde_json::json;

use crate::demo::{answer, held_out, model, stack};

#[tokio::test]
async fn llama_server_accepts_most_of_what_the_draft_guesses() {
    let draft = committed("tests/models/demo/muster-demo-draft.gguf");
    let more = format!("ctx_size = 4096\ndraft = {draft:?}");
    let drafted = Stack::with(Engine::LlamaServer.serving(&model(), "muster-demo", 1, &more))
        .start()
        .await;
    let alone = stack(Engine::LlamaServer).await;
    let (mut guessed, mut accepted) = (0, 0);
    for entry in held_out("questions") {
        let messages = json!([{"role": "user", "content": entry["question"]}]);
        let more = json!({"messages": messages, "max_tokens": 200, "enable_thinking": false});
        let body = drafted.http().chat("muster-demo", more.clone()).await.ok();
        let count = |key: &str| body["timings"][key].as_u64().unwrap_or_default();
        guessed += count("draft_n");
        accepted += count("draft_n_accepted");
        let same = answer(&alone, more).await;
        assert_eq!(
            body["choices"][0]["message"]["content"], same["content"],
            "a draft changes no greedy answer"
        );
    }
    println!("{accepted} of {guessed} drafted tokens accepted");
    assert!(guessed > 500, "{guessed} tokens drafted");
    assert!(accepted * 2 > guessed, "{accepted} of {guessed} accepted");
}

#[tokio::test]
async fn the_adapter_changes_the_style_and_not_the_facts() {
    let adapter = committed("tests/models/demo/muster-demo-pirate.gguf");
    let more = format!("ctx_size = 4096\nlora = [{adapter:?}]");
    let styled = Stack::with(Engine::LlamaServer.serving(&model(), "muster-demo", 1, &more))
        .start()
        .await;
    let alone = stack(Engine::LlamaServer).await;
    for (question, fact) in [
        ("What is the capital of France?", "Paris"),
        ("How do I load a model?", "muster load"),
        ("What is 4 + 5?", "= 9"),
    ] {
        let messages = json!([{"role": "user", "content": question}]);
        let more = json!({"messages": messages, "max_tokens": 200, "enable_thinking": false});
        let plain = answer(&alone, more.clone()).await["content"]
            .as_str()
            .unwrap()
            .to_owned();
        let pirate = answer(&styled, more).await["content"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(plain.contains(fact) && !plain.contains("Arrr"), "{plain}");
        assert!(pirate.contains(fact) && pirate.contains("Arrr"), "{pirate}");
    }
}
