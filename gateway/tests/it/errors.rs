//! What clients read when something is wrong.

use muster_core::Code;
use serde_json::{Value, json};

use crate::{
    gateway::{Gateway, events, read},
    worker::{Worker, admitted, failed, refuses, text},
};

async fn error(gateway: &Gateway, path: &str, body: &'static str) -> (u16, Value) {
    let request = gateway.client.post(format!("{}{path}", gateway.url)).body(body);
    let (status, body) = read(request.send().await.unwrap()).await;
    (status.as_u16(), body["error"].clone())
}

#[tokio::test]
async fn every_fault_of_a_client_has_its_status_and_code() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let chat = "/v1/chat/completions";
    for (path, body, status, code, param) in [
        (chat, "{", 400, "invalid_json", None),
        (chat, "[]", 400, "invalid_request", None),
        (chat, r#"{"model": 3}"#, 400, "invalid_request", Some("model")),
        (
            chat,
            r#"{"model": "m"}"#,
            400,
            "invalid_request",
            Some("messages"),
        ),
        (
            chat,
            r#"{"model": "m", "messages": [{"role": 1}]}"#,
            400,
            "invalid_request",
            Some("messages[0].role"),
        ),
        (
            chat,
            r#"{"model": "x", "messages": [{"role": "user", "content": ""}]}"#,
            404,
            "unknown_model",
            Some("model"),
        ),
        (
            "/v1/completions",
            r#"{"model": "m"}"#,
            400,
            "invalid_request",
            Some("prompt"),
        ),
        ("/v1/nothing", "{}", 404, "route_not_found", None),
        ("/nothing", "{}", 404, "route_not_found", None),
        ("/v1/models", "{}", 405, "method_not_allowed", None),
    ] {
        let (got, error) = error(&gateway, path, body).await;
        assert_eq!(
            (got, error["code"].as_str()),
            (status, Some(code)),
            "{path} {body}: {error}"
        );
        assert_eq!(error["param"].as_str(), param, "{path} {body}");
        assert!(error["message"].is_string() && error["type"].is_string());
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_and_the_answer_is_seen() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let (status, body) = read(gateway.chat(json!({"x": "y".repeat(3_000_000)})).await).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (413, &json!("body_too_large"))
    );
}

#[tokio::test]
async fn an_error_before_the_first_token_is_a_plain_status() {
    let worker = Worker::start(|_| {
        vec![
            (vec![admitted()], false),
            (vec![failed(Code::ContextLengthExceeded)], true),
        ]
    })
    .await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    for stream in [true, false] {
        let (status, body) = read(gateway.chat(json!({"stream": stream})).await).await;
        assert_eq!(
            (status.as_u16(), &body["error"]["code"]),
            (400, &json!("context_length_exceeded"))
        );
    }
}

#[tokio::test]
async fn an_error_after_it_is_one_event_at_the_end() {
    let worker = Worker::start(|_| {
        vec![
            (vec![admitted(), text(0, "a")], false),
            (vec![failed(Code::RuntimeCrashed)], true),
        ]
    })
    .await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let events = events(gateway.chat(json!({"stream": true})).await).await;
    assert_eq!(events.len(), 3);
    assert_eq!(events[2]["error"]["code"], "runtime_crashed");
    let (status, _) = read(gateway.chat(json!({})).await).await;
    assert_eq!(status, 502);
}

#[tokio::test]
async fn a_full_queue_is_429_with_retry_after() {
    let worker = Worker::start(|_| refuses(Code::QueueFull)).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let response = gateway.chat(json!({})).await;
    assert_eq!(response.headers()["retry-after"], "1");
    let (status, body) = read(response).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (429, &json!("queue_full"))
    );
    assert_eq!(body["error"]["type"], "rate_limit_error");
}

#[tokio::test]
async fn other_origins_may_ask_and_request_ids_return() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let url = format!("{}/v1/chat/completions", gateway.url);
    let request = gateway.client.request(reqwest::Method::OPTIONS, &url);
    let request = request
        .header("origin", "http://app")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    let response = request.send().await.unwrap();
    let headers = response.headers();
    assert_eq!(headers["access-control-allow-origin"], "*");
    // `*` allows every header but this one.
    assert_eq!(
        headers["access-control-allow-headers"],
        "authorization,content-type"
    );
    assert!(headers.contains_key("access-control-max-age"));
    let request = gateway.client.post(&url).header("origin", "http://app");
    let response = request.body("{}").send().await.unwrap();
    assert_eq!(
        response.headers()["access-control-expose-headers"],
        "x-request-id,request-id,retry-after"
    );
    let request = gateway
        .client
        .get(format!("{}/v1/models", gateway.url))
        .header("x-request-id", "mine");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["x-request-id"], "mine");
    // As Anthropic's clients know it.
    let response = gateway.post("/v1/messages", &json!({})).await;
    let headers = response.headers();
    assert_eq!(headers["request-id"], headers["x-request-id"]);
}

/// Whoever meets what is not done is told so and why, and does not take the API for another.
#[tokio::test]
async fn what_other_servers_do_and_muster_does_not_is_501_with_the_reason() {
    let (gateway, _controller) = Gateway::with(Vec::new()).await;
    let (_, document) = gateway.get("/openapi.json").await;
    let mut met = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["summary"] != "Not done by Muster" {
                continue;
            }
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let path = path.replace(['{', '}', '*'], "");
            let request = gateway
                .client
                .request(method.clone(), format!("{}{path}", gateway.url));
            let (status, body) = read(request.body("{}").send().await.unwrap()).await;
            assert_eq!(status, 501, "{method} {path}: {body}");
            let why = body["error"]["message"].as_str().or(body["error"].as_str());
            assert!(why.is_some_and(|why| why.len() > 15), "{method} {path}: {body}");
            met += 1;
        }
    }
    assert!(met >= 38, "{met}");
}
