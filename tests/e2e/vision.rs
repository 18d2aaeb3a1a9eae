//! Images in questions, through llama.cpp's own server with a projector: what is seen changes what is said, in every dialect that takes them.

use muster_tests::{Stack, engines::test_model};
use serde_json::{Value, json};

/// 1×1 pixels each.
const RED: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";
const BLUE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGNgYPgPAAEDAQAIicLsAAAAAElFTkSuQmCC";

/// A model that sees. No runtime is named: our engine takes no projector, so llama.cpp's server is chosen.
async fn stack() -> Stack {
    let (model, projector) = (test_model("tiny-chat"), test_model("tiny-vision"));
    let entry = format!(
        "[models.sees]\nrecipe = 'llamacpp'\ncheckpoint = {model:?}\nmmproj = {projector:?}\nctx_size = 512\nparallel = 1\nthreads = 1\n"
    );
    Stack::with(entry).start().await
}

async fn ask(stack: &Stack, path: &str, body: Value) -> Value {
    stack.http().post(path, &body).await.ok()
}

#[tokio::test]
async fn what_is_seen_changes_what_is_said() {
    let stack = stack().await;
    let chat = async |image: Option<&str>| {
        let mut parts = vec![json!({"type": "text", "text": "What is this?"})];
        parts.extend(image.map(
            |data| json!({"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{data}")}}),
        ));
        let messages = json!([{"role": "user", "content": parts}]);
        let body = json!({"model": "sees", "max_tokens": 12, "temperature": 0, "messages": messages});
        ask(&stack, "/v1/chat/completions", body).await
    };
    let [red, again, blue, nothing] = [
        chat(Some(RED)).await,
        chat(Some(RED)).await,
        chat(Some(BLUE)).await,
        chat(None).await,
    ];
    assert_eq!(stack.model("sees").await.runtime, "llama_server");
    let said = |answer: &Value| answer["choices"][0]["message"].clone();
    assert_eq!(said(&red), said(&again));
    assert_ne!(said(&red), said(&blue));
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&red) > tokens(&nothing), "{red} {nothing}");

    let other_dialects = async |image: &str| {
        let source = json!({"type": "base64", "media_type": "image/png", "data": image});
        let parts = json!([{"type": "text", "text": "What is this?"}, {"type": "image", "source": source}]);
        let messages = json!([{"role": "user", "content": parts}]);
        let body = json!({"model": "sees", "max_tokens": 12, "temperature": 0, "messages": messages});
        let anthropic = ask(&stack, "/v1/messages", body).await["content"].clone();
        let messages = json!([{"role": "user", "content": "What is this?", "images": [image]}]);
        let options = json!({"temperature": 0, "num_predict": 12});
        let body = json!({"model": "sees", "stream": false, "messages": messages, "options": options});
        let ollama = ask(&stack, "/api/chat", body).await["message"].clone();
        [anthropic, ollama]
    };
    let (red, blue) = (other_dialects(RED).await, other_dialects(BLUE).await);
    assert!(
        red.iter().zip(&blue).all(|(red, blue)| red != blue),
        "{red:?} {blue:?}"
    );
}

#[tokio::test]
async fn what_is_no_image_is_the_callers_fault_and_the_engine_lives() {
    let stack = stack().await;
    for url in [
        "data:image/png;base64,AAAA",
        "data:image/png;base64,!",
        "file:///etc/passwd",
    ] {
        let parts = json!([{"type": "image_url", "image_url": {"url": url}}]);
        let body =
            json!({"model": "sees", "max_tokens": 2, "messages": [{"role": "user", "content": parts}]});
        let reply = stack.http().post("/v1/chat/completions", &body).await;
        assert!(
            reply.status.is_client_error(),
            "{url}: {} {}",
            reply.status,
            reply.text
        );
    }
    let before = stack.stats().await.loads_started;
    let body = json!({"model": "sees", "max_tokens": 2, "messages": [{"role": "user", "content": "Hello!"}]});
    ask(&stack, "/v1/chat/completions", body).await;
    assert_eq!(stack.stats().await.loads_started, before);
}
