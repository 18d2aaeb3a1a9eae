//! Operators over HTTP, through the real controller, worker and engine: the Runtime Admin API (seed 001), Lemonade's loads (seed 000),
//! llama.cpp's native routes (seed 004).

use muster_tests::{Engine, Stack, engines};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4})
}

async fn row(stack: &Stack) -> Value {
    stack.http().get("/v1/admin/models/m").await.ok()
}

#[tokio::test]
async fn a_strict_gateway_serves_only_what_an_operator_loaded() {
    let stack = Stack::with(Engine::Stub.model("m", 2, ""))
        .gateway_args(&["--autoload", "off"])
        .start()
        .await;
    assert_eq!(row(&stack).await["runtime_state"], "unloaded");
    let error = stack.http().post(CHAT, &hello()).await.error(409);
    assert_eq!(error["code"], "model_not_loaded");
    let loaded = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({}))
        .await
        .ok();
    assert_eq!(
        (&loaded["runtime_state"], &loaded["loaded_replicas"]),
        (&json!("loaded"), &json!(1))
    );
    stack.http().post(CHAT, &hello()).await.ok();
    // A second bare load changes nothing; an override while it is loaded is refused (seed 001).
    let again = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({}))
        .await
        .ok();
    assert_eq!(again["is_loaded"], true);
    let error = stack
        .http()
        .post("/v1/admin/models/m/load", &json!({"replicas": 1}))
        .await
        .error(400);
    assert_eq!(error["code"], "invalid_load_request");
    let unloaded = stack
        .http()
        .post("/v1/admin/models/m/unload", &json!({}))
        .await
        .ok();
    assert_eq!(unloaded["runtime_state"], "unloaded");
    let error = stack.http().post(CHAT, &hello()).await.error(409);
    assert_eq!(error["code"], "model_not_loaded");
}

#[tokio::test]
async fn an_override_is_what_the_engine_gets_and_dies_with_the_load() {
    let model = engines::test_model("tiny-chat");
    let entry = Engine::LlamaCpp.serving(&model, "m", 1, "ctx_size = 256");
    let stack = Stack::with(entry).start().await;
    let body = json!({"gguf_n_ctx": 512, "gguf_type_k": null});
    let loaded = stack.http().post("/v1/admin/models/m/load", &body).await.ok();
    assert_eq!(loaded["load_override"], body);
    assert_eq!(loaded["definition"]["gguf_n_ctx"], 256);
    let props = stack.http().get("/props").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 512);
    stack
        .http()
        .post("/api/v1/unload", &json!({"model_name": "m"}))
        .await
        .ok();
    assert_eq!(row(&stack).await["load_override"], json!({}));
    // Lemonade's own words for the same thing; other settings load it anew.
    stack
        .http()
        .post("/api/v1/load", &json!({"model_name": "m", "ctx_size": 384}))
        .await
        .ok();
    let props = stack.http().get("/props?model=m").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 384);
    stack
        .http()
        .post("/api/v1/load", &json!({"model_name": "m"}))
        .await
        .ok();
    let props = stack.http().get("/props?model=m").await.ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 256);
    assert_eq!(row(&stack).await["load_override"], json!({}));
}

#[tokio::test]
async fn native_routes_speak_to_the_engine() {
    let model = engines::test_model("tiny-chat");
    for engine in [Engine::LlamaCpp, Engine::LlamaServer] {
        let stack = Stack::with(engine.serving(&model, "m", 1, "")).start().await;
        stack
            .http()
            .post("/models/load", &json!({"model": "m"}))
            .await
            .ok();
        // Loads it, if the load has not ended.
        let body = json!({"model": "m", "prompt": "Hello", "n_predict": 4, "temperature": 0});
        let answer = stack.http().post("/completion", &body).await.ok();
        assert_eq!(answer["stop"], true, "{engine:?}");
        assert_eq!(answer["tokens_predicted"], 4, "{engine:?}");
        let tokens = stack
            .http()
            .post("/tokenize", &json!({"content": "Hello world"}))
            .await
            .ok();
        let text = stack
            .http()
            .post("/detokenize", &json!({"tokens": tokens["tokens"]}))
            .await
            .ok();
        assert_eq!(
            text["content"].as_str().unwrap_or_default().trim(),
            "Hello world",
            "{engine:?}"
        );
        let stats = stack.http().get("/api/v1/stats").await.ok();
        assert_eq!(stats["output_tokens"], 4, "{engine:?}");
        stack
            .http()
            .post("/models/unload", &json!({"model": "m"}))
            .await
            .ok();
    }
}
