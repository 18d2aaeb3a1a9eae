//! LoRA adapters: our engine applies them as llama.cpp's own server does.

use muster_tests::{Engine, Stack, engines::test_model};
use serde_json::{Value, json};

/// What an engine says with scales from 0 to 1, in two dialects.
async fn says(engine: Engine) -> Vec<Value> {
    let adapters = [test_model("tiny-lora"), test_model("tiny-lora-b")];
    let [first, second] = adapters.map(|path| path.display().to_string());
    // Without the roundings that change with the shape of a batch.
    let more = format!(
        "lora = [{first:?}, \"{second}=0.5\"]\nflash_attn = \"off\"\ncache_type_k = \"f32\"\ncache_type_v = \"f32\""
    );
    let stack = Stack::with(engine.model("m", 2, &more)).start().await;
    let http = stack.http();
    let mut said = Vec::new();
    for lora in [
        json!(null),
        json!([]),
        json!([{"id": 1, "scale": 0.0}]),
        json!([{"id": 0, "scale": 1.0}]),
        json!([{"id": 1, "scale": 0.25}, {"id": 0, "scale": 0.5}]),
    ] {
        let mut body =
            json!({"model": "m", "prompt": "Once upon a time there was", "n_predict": 16, "temperature": 0});
        if !lora.is_null() {
            body["lora"] = lora;
        }
        said.push(http.post("/completion", &body).await.ok()["content"].clone());
    }
    let more = json!({"max_tokens": 16, "temperature": 0, "lora": [{"id": 0, "scale": 1}],
        "messages": [{"role": "user", "content": "Where is the house?"}]});
    let body = http.chat("m", more).await.ok();
    said.push(body["choices"][0]["message"]["content"].clone());
    let list = http.get("/lora-adapters?model=m").await.ok();
    let list = list.as_array().unwrap().iter();
    said.extend(list.map(|one| json!([one["id"], one["scale"], one["path"]])));
    said
}

#[tokio::test]
async fn adapters_make_of_a_model_what_they_make_of_it_in_llama_server() {
    let (ours, theirs) = tokio::join!(says(Engine::LlamaCpp), says(Engine::LlamaServer));
    assert_eq!(ours, theirs);
    assert_eq!(ours[0], ours[1], "an empty list names nothing");
    // Each of the others changes something.
    for (at, text) in ours[..5].iter().enumerate().skip(2) {
        assert!(!ours[..at].contains(text), "{ours:?}");
    }
}
