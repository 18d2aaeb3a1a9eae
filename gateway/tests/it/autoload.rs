//! Requests for models that are not loaded, where requests may load none (seed 001, Request Behavior By Runtime State).

use muster_core::Code;
use muster_proto::v1::{self, ensure_loaded_event::Kind};
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{Gateway, chat, model, read},
};

async fn start(more: &[&str]) -> (Gateway, Controller) {
    let with = |id: &str, status: v1::ModelStatus, autoload| v1::ModelSummary {
        status: status.into(),
        autoload,
        ..model(id)
    };
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![
            with("unloaded", v1::ModelStatus::Unloaded, None),
            with("loading", v1::ModelStatus::Loading, None),
            with("unloading", v1::ModelStatus::Unloading, None),
            with("failed", v1::ModelStatus::Failed, None),
            with("eager", v1::ModelStatus::Unloaded, Some(true)),
        ],
        // What a wish for any model gets: it tells that there was one.
        answer: Some(Kind::Failed(Code::InsufficientMemory.error("no room").into())),
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, more).await;
    (gateway, controller)
}

async fn asked(gateway: &Gateway, query: &str, model: &str) -> (u16, Value) {
    let body = chat(json!({"model": model}));
    let response = gateway.post(&format!("/v1/chat/completions{query}"), &body).await;
    let (status, body) = read(response).await;
    (status.as_u16(), body["error"]["code"].clone())
}

#[tokio::test]
async fn seed_001_strict_codes_with_autoload_off() {
    let (gateway, controller) = start(&["--autoload", "off"]).await;
    for (model, status, code) in [
        ("unloaded", 409, "model_not_loaded"),
        ("loading", 409, "model_loading"),
        ("unloading", 409, "model_unloading"),
        ("failed", 409, "model_failed"),
        ("nobody", 404, "unknown_model"),
    ] {
        assert_eq!(asked(&gateway, "", model).await, (status, json!(code)), "{model}");
    }
    assert!(controller.heard().wishes.is_empty());
    // The model's own word, and the request's.
    assert_eq!(
        asked(&gateway, "", "eager").await,
        (507, json!("insufficient_memory"))
    );
    assert_eq!(
        asked(&gateway, "?autoload=off", "eager").await,
        (409, json!("model_not_loaded"))
    );
    assert_eq!(
        asked(&gateway, "?x=1&autoload=on", "unloaded").await,
        (507, json!("insufficient_memory"))
    );
    assert_eq!(
        asked(&gateway, "?autoload=maybe", "unloaded").await,
        (400, json!("invalid_request"))
    );
}

#[tokio::test]
async fn the_operator_may_lock_requests_out() {
    let (gateway, _controller) = start(&["--autoload", "off", "--lock-autoload"]).await;
    assert_eq!(
        asked(&gateway, "?autoload=on", "unloaded").await,
        (409, json!("model_not_loaded"))
    );
}

#[tokio::test]
async fn seed_001_every_inference_route_is_strict_with_autoload_off() {
    let of = |id: &str, kind: v1::ModelType| v1::ModelSummary {
        r#type: kind.into(),
        ..model(id)
    };
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![
            of("chat", v1::ModelType::Llm),
            of("embed", v1::ModelType::Embedding),
            of("rank", v1::ModelType::Reranking),
            v1::ModelSummary {
                runtime: "llama_server".into(),
                ..of("audio", v1::ModelType::Audio)
            },
        ],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &["--autoload", "off"]).await;
    let turns = json!([{"role": "user", "content": "hi"}]);
    for (path, body) in [
        (
            "/v1/chat/completions",
            json!({"model": "chat", "messages": turns}),
        ),
        ("/api/v1/completions", json!({"model": "chat", "prompt": "hi"})),
        ("/v0/responses", json!({"model": "chat", "input": "hi"})),
        (
            "/v1/messages",
            json!({"model": "chat", "max_tokens": 4, "messages": turns}),
        ),
        ("/v1/embeddings", json!({"model": "embed", "input": "hi"})),
        (
            "/v1/reranking",
            json!({"model": "rank", "query": "q", "documents": ["d"]}),
        ),
        (
            "/v1/reranker",
            json!({"model": "rank", "query": "q", "documents": ["d"]}),
        ),
        ("/v1/audio/transcriptions", json!({"model": "audio"})),
        ("/api/chat", json!({"model": "chat", "messages": turns})),
        ("/api/generate", json!({"model": "chat", "prompt": "hi"})),
        ("/api/embed", json!({"model": "embed", "input": "hi"})),
        ("/completion", json!({"model": "chat", "prompt": "hi"})),
        (
            "/infill",
            json!({"model": "chat", "input_prefix": "a", "input_suffix": "b"}),
        ),
        ("/embedding", json!({"model": "embed", "content": "hi"})),
    ] {
        let (status, body) = read(gateway.post(path, &body).await).await;
        assert_eq!(status, 409, "{path}: {body}");
    }
    assert!(controller.heard().wishes.is_empty());
}

/// A request of Ollama's that only loads a model once went past the request's own word.
#[tokio::test]
async fn what_only_loads_a_model_may_be_told_not_to() {
    let (gateway, controller) = start(&[]).await;
    for path in ["/api/chat", "/api/generate"] {
        let body = json!({"model": "unloaded"});
        let (status, _) = read(gateway.post(&format!("{path}?autoload=off"), &body).await).await;
        assert_eq!(status, 409, "{path}");
    }
    assert!(controller.heard().wishes.is_empty());
    let (status, _) = read(gateway.post("/api/chat", &json!({"model": "unloaded"})).await).await;
    assert_eq!((status.as_u16(), controller.heard().wishes.len()), (507, 1));
}

/// Ollama's way to unload a model; it once loaded it.
#[tokio::test]
async fn keep_alive_0_without_a_prompt_unloads() {
    let (gateway, controller) = start(&["--api-key", "user", "--admin-api-key", "admin"]).await;
    controller.say(|said| {
        said.catalogue = vec![v1::Model {
            id: "unloaded".into(),
            ..v1::Model::default()
        }];
        said.unload = Some(Ok(v1::Model::default()));
    });
    let ask = async |path: &str, key: &str| {
        let request = gateway
            .client
            .post(format!("{}{path}", gateway.url))
            .bearer_auth(key);
        let sent = request
            .json(&json!({"model": "unloaded:latest", "keep_alive": 0}))
            .send();
        let (status, body) = read(sent.await.unwrap()).await;
        (status.as_u16(), body)
    };
    for path in ["/api/chat", "/api/generate"] {
        let (status, body) = ask(path, "user").await;
        assert_eq!(status, 403, "{body}");
        let (status, body) = ask(path, "admin").await;
        assert_eq!((status, &body["done_reason"]), (200, &json!("unload")), "{body}");
    }
    let heard = controller.heard();
    let names: Vec<_> = heard.unloads.iter().map(|unload| unload.model.as_str()).collect();
    assert_eq!(names, ["unloaded", "unloaded"]);
    assert!(heard.wishes.is_empty());
}
