//! Errors as OpenAI's clients read them: `{"error": {message, type, param, code}}` with the right status.

use muster_tests::{Engine, Stack, engines};
use reqwest::Method;
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

async fn stack() -> Stack {
    Stack::with(Engine::Stub.model("m", 2, ""))
        .gateway_args(&["--max-body-bytes", "100000"])
        .start()
        .await
}

#[tokio::test]
async fn malformed_json_is_400() {
    let stack = stack().await;
    for body in ["{\"model\":", "", "nonsense"] {
        let reply = stack.http().send(Method::POST, CHAT, body.to_owned()).await;
        let error = reply.error(400);
        assert_eq!(error["code"], "invalid_json", "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn wrong_types_name_the_field() {
    let stack = stack().await;
    let hello = json!([{"role": "user", "content": "hi"}]);
    let cases = [
        (
            json!({"model": "m", "messages": hello, "temperature": "hot"}),
            "temperature",
        ),
        (
            json!({"model": "m", "messages": hello, "max_tokens": "many"}),
            "max_tokens",
        ),
        (json!({"model": "m", "messages": hello, "stream": 1}), "stream"),
        (json!({"model": 5, "messages": hello}), "model"),
        (json!({"model": "m", "messages": "hi"}), "messages"),
        (
            json!({"model": "m", "messages": [{"role": "user", "content": 7}]}),
            "messages[0].content",
        ),
        (
            json!({"model": "m", "messages": [{"role": 1, "content": "x"}]}),
            "messages[0].role",
        ),
        (json!({"model": "m", "messages": hello, "stop": [1]}), "stop"),
    ];
    for (body, param) in cases {
        let reply = stack.http().post(CHAT, &body).await;
        let error = reply.error(400);
        let named = error["param"].as_str().unwrap_or_default();
        assert!(named.starts_with(param), "`{param}` is named: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn missing_fields_are_named() {
    let stack = stack().await;
    for (path, body, param) in [
        // Without a name the only model is meant.
        (CHAT, json!({"messages": []}), "messages"),
        (CHAT, json!({"model": "m"}), "messages"),
        (
            CHAT,
            json!({"model": "m", "messages": [{"content": "x"}]}),
            "messages[0].role",
        ),
        ("/v1/completions", json!({"model": "m"}), "prompt"),
    ] {
        let error = stack.http().post(path, &body).await.error(400);
        assert_eq!(error["param"], param, "{error}");
    }
}

#[tokio::test]
async fn unknown_things_are_404() {
    let stack = stack().await;
    let reply = stack.http().chat("nobody", json!({})).await;
    let error = reply.error(404);
    assert!(error["message"].as_str().unwrap().contains("nobody"), "{error}");
    stack.http().get("/v1/models/nobody").await.error(404);
    assert_eq!(
        stack.http().get("/v1/nothing").await.error(404)["code"],
        "route_not_found"
    );
    assert_eq!(stack.stats().await.loads_started, 0);
}

#[tokio::test]
async fn a_wrong_method_is_405() {
    let stack = stack().await;
    for (method, path) in [
        (Method::GET, CHAT),
        (Method::DELETE, CHAT),
        (Method::POST, "/v1/models"),
    ] {
        let reply = stack.http().send(method, path, "{}".to_owned()).await;
        assert_eq!(reply.error(405)["code"], "method_not_allowed");
        assert!(reply.headers.contains_key("allow"), "{:?}", reply.headers);
    }
}

#[tokio::test]
async fn too_large_a_body_is_413() {
    let stack = stack().await;
    let long = "x".repeat(200_000);
    let reply = stack
        .http()
        .chat("m", json!({"messages": [{"role": "user", "content": long}]}))
        .await;
    assert_eq!(reply.error(413)["code"], "body_too_large");
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
}

#[tokio::test]
async fn a_full_queue_is_429_and_says_when_to_come_back() {
    let model = Engine::Stub.model("m", 1, "queue_limit = 2\nstub.tokens_per_second = 20");
    let stack = Stack::with(model).start().await;
    stack.http().chat("m", json!({"max_tokens": 1})).await.ok();
    let http = stack.http();
    let replies = muster_tests::http::all(8, |_| http.chat("m", json!({"max_tokens": 10}))).await;
    let full: Vec<_> = replies.iter().filter(|reply| reply.status == 429).collect();
    let ok = replies.iter().filter(|reply| reply.status == 200).count();
    assert_eq!(ok + full.len(), 8, "{replies:?}");
    assert_eq!(ok, 3, "one runs and two wait: {replies:?}");
    for reply in full {
        let error = reply.error(429);
        assert_eq!(error["code"], "queue_full");
        assert!(reply.headers.contains_key("retry-after"), "{:?}", reply.headers);
    }
}

async fn context_overflow(engine: Engine) {
    let stack = Stack::with(engine.model("m", 1, "ctx_size = 512")).start().await;
    let long = "ships and the sea ".repeat(1000);
    for stream in [false, true] {
        let more = json!({"stream": stream, "messages": [{"role": "user", "content": long}]});
        let reply = stack
            .http()
            .post(CHAT, &muster_tests::http::chat_body("m", stream, more))
            .await;
        let error = reply.error(400);
        assert_eq!(error["code"], "context_length_exceeded", "{error}");
    }
    let reply = stack.http().chat("m", json!({"max_tokens": 2})).await;
    assert!(!reply.chat_text().is_empty(), "a later request is answered");
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_400_in_llama_cpp() {
    context_overflow(Engine::LlamaCpp).await;
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_400_in_llama_server() {
    context_overflow(Engine::LlamaServer).await;
}

#[tokio::test]
async fn a_chat_with_an_embedding_model_is_refused_before_any_load() {
    let stack = Stack::with(Engine::Stub.model("e", 1, "labels = ['embeddings']"))
        .start()
        .await;
    let reply = stack.http().chat("e", json!({})).await;
    assert!(reply.status.is_client_error(), "{reply:?}");
    assert_eq!(stack.stats().await.loads_started, 0);
}

#[tokio::test]
async fn a_wrong_configuration_names_every_problem() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("bad.toml");
    std::fs::write(
        &config,
        "[policy]\nmax_loaded_models = 0\n[models.x]\nrecipe = 'unheard-of'\n",
    )
    .unwrap();
    let output = std::process::Command::new(muster_tests::binaries::find("muster-controller"))
        .args(["--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .arg("--state-dir")
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    for word in ["bad.toml", "max_loaded_models", "models.x"] {
        assert!(said.contains(word), "`{word}` is named: {said}");
    }
}

#[tokio::test]
async fn the_example_configuration_is_accepted() {
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/muster.example.toml");
    let stack = Stack::with(std::fs::read_to_string(example).unwrap())
        .start()
        .await;
    // Its files are not there, so `/v1/models` lists only what needs none.
    let listed = stack
        .control()
        .list_models(muster_proto::v1::ListModelsRequest::default())
        .await
        .unwrap();
    let ids: Vec<_> = listed
        .into_inner()
        .models
        .into_iter()
        .map(|model| model.id)
        .collect();
    assert_eq!(
        ids,
        [
            "acme/assistant.server",
            "assistant",
            "embedder",
            "reranker",
            "stub"
        ]
    );
}

/// A request the model's template cannot render, or a grammar that is none, is the client's mistake and harms nobody.
#[tokio::test]
async fn bad_grammars_are_400_in_llama_cpp() {
    drop(engines::test_model("tiny-chat"));
    let stack = Stack::with(Engine::LlamaCpp.model("m", 1, "")).start().await;
    let reply = stack.http().chat("m", json!({"grammar": "root ::= ((("})).await;
    assert!(reply.status.is_client_error(), "{reply:?}");
    assert!(
        !stack
            .http()
            .chat("m", json!({"max_tokens": 2}))
            .await
            .chat_text()
            .is_empty()
    );
    assert_eq!(stack.stats().await.loads_started, 1, "the engine lived on");
}
