//! Loading on demand, coalescing, and making room.

use std::time::Duration;

use muster_proto::v1::ModelStatus;
use muster_tests::{Engine, Stack, http};
use serde_json::json;

crate::for_each_runtime!(a_cold_model_loads_on_demand, two_models_share_one_slot);

const LIMIT: Duration = Duration::from_secs(30);

async fn a_cold_model_loads_on_demand(engine: Engine) {
    let stack = Stack::with(engine.model("m", 2, "")).start().await;
    assert_eq!(stack.model("m").await.status(), ModelStatus::Unloaded);
    let reply = stack.http().chat("m", json!({"max_tokens": 4})).await;
    assert!(!reply.chat_text().is_empty());
    let model = stack.model("m").await;
    assert_eq!(model.status(), ModelStatus::Loaded);
    assert_eq!(model.instances.len(), 1);
    assert_eq!(stack.stats().await.loads_started, 1);
}

async fn two_models_share_one_slot(engine: Engine) {
    let config = format!(
        "[policy]\nmax_loaded_models = 1\n{}{}",
        engine.model("a", 2, ""),
        engine.model("b", 2, "")
    );
    let stack = Stack::with(config).start().await;
    for (wanted, other) in [("a", "b"), ("b", "a"), ("a", "b")] {
        let reply = stack.http().chat(wanted, json!({"max_tokens": 4})).await;
        assert!(!reply.chat_text().is_empty());
        assert_eq!(stack.model(wanted).await.status(), ModelStatus::Loaded);
        stack.model_is(other, ModelStatus::Unloaded, LIMIT).await;
    }
    let stats = stack.stats().await;
    assert_eq!((stats.loads_started, stats.evictions), (3, 2));
}

#[tokio::test]
async fn a_hundred_callers_of_a_cold_model_cause_one_load() {
    let stack = Stack::with(Engine::Stub.model("m", 8, "stub.load_time_ms = 300"))
        .start()
        .await;
    let http = stack.http();
    let replies = http::all(100, |_| http.chat("m", json!({"max_tokens": 2}))).await;
    for reply in replies {
        assert!(!reply.chat_text().is_empty());
    }
    let stats = stack.stats().await;
    assert_eq!(stats.loads_started, 1);
    assert_eq!(stack.model("m").await.instances.len(), 1);
}

#[tokio::test]
async fn the_least_recently_used_model_makes_room() {
    let models: String = ["a", "b", "c"].map(|id| Engine::Stub.model(id, 2, "")).concat();
    let stack = Stack::with(format!("[policy]\nmax_loaded_models = 2\n{models}"))
        .start()
        .await;
    for id in ["a", "b", "a", "c"] {
        stack.http().chat(id, json!({"max_tokens": 2})).await.ok();
    }
    stack.model_is("b", ModelStatus::Unloaded, LIMIT).await;
    for id in ["a", "c"] {
        assert_eq!(stack.model(id).await.status(), ModelStatus::Loaded, "{id}");
    }
}

#[tokio::test]
async fn a_busy_model_is_not_evicted() {
    let slow = Engine::Stub.model("slow", 2, "stub.tokens_per_second = 50");
    let config = format!(
        "[policy]\nmax_loaded_models = 1\n{slow}{}",
        Engine::Stub.model("other", 2, "")
    );
    let stack = Stack::with(config).start().await;
    let mut stream = stack.http().chat_stream("slow", json!({"max_tokens": 40})).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    // The other one waits until the stream has ended; nothing of the stream is lost.
    let http = stack.http();
    let (reply, rest) = tokio::join!(http.chat("other", json!({"max_tokens": 2})), stream.chat());
    assert!(rest.error.is_none() && rest.done, "{:?}", rest.error);
    assert!(!reply.chat_text().is_empty());
    stack.model_is("slow", ModelStatus::Unloaded, LIMIT).await;
}

#[tokio::test]
async fn a_failed_load_says_why_and_is_not_repeated_at_once() {
    let stack = Stack::with(Engine::Stub.model("m", 1, "stub.fail = 'load'"))
        .start()
        .await;
    let reply = stack.http().chat("m", json!({})).await;
    let error = reply.error(500);
    assert_eq!(error["code"], "model_load_failed");
    let again = stack.http().chat("m", json!({})).await;
    assert_eq!(again.error(409)["code"], "model_failed");
    let model = stack.model("m").await;
    assert_eq!(model.status(), ModelStatus::Failed);
    assert!(model.last_error.is_some());
}

#[tokio::test]
async fn a_model_whose_file_is_missing_says_so() {
    let stack = Stack::with("[models.m]\nruntime = 'llama_cpp'\ncheckpoint = '/nowhere/m.gguf'\n")
        .start()
        .await;
    let reply = stack.http().chat("m", json!({})).await;
    let error = reply.error(500);
    assert_eq!(error["code"], "file_not_found");
    assert!(
        error["message"].as_str().unwrap().contains("/nowhere/m.gguf"),
        "{error}"
    );
}
