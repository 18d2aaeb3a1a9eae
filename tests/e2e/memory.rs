//! How much memory a model takes: computed before it is loaded, seen once it is, and refused where it can never be had.

use std::time::Duration;

use muster_proto::v1::{EstimateSource, Model};
use muster_tests::{Engine, Role, Stack, engines, eventually};
use serde_json::json;

const MIB: u64 = 1 << 20;

#[tokio::test]
async fn a_model_larger_than_every_device_is_refused_at_once_with_numbers() {
    let large = Engine::LlamaCpp.serving(&engines::test_model("bench-chat"), "large", 2, "ctx_size = 4096");
    let stack = Stack::with(large).devices(&["sim:small:64MiB"]).start().await;
    let wanted = stack.model("large").await;
    assert_eq!(wanted.estimate_source(), EstimateSource::Computed);
    let body = json!({"model": "large", "messages": [{"role": "user", "content": "hi"}]});
    let reply = stack.http().post("/v1/chat/completions", &body).await;
    let error = reply.error(507);
    assert_eq!(error["code"], "insufficient_memory", "{error}");
    let number = |key: &str| -> u64 { error["details"][key].as_str().unwrap().parse().unwrap() };
    assert_eq!(number("wanted_bytes"), wanted.estimate_bytes);
    assert!(number("possible_bytes") <= 64 * MIB, "{error}");
    assert!(stack.model("large").await.instances.is_empty());
}

#[tokio::test]
async fn what_an_engine_used_is_the_next_estimate_and_outlives_the_controller() {
    let model = Engine::LlamaCpp.serving(&engines::test_model("bench-chat"), "m", 2, "ctx_size = 8192");
    let mut stack = Stack::with(model).start().await;
    let before = stack.model("m").await;
    assert_eq!(before.estimate_source(), EstimateSource::Computed);
    stack.http().chat("m", json!({"max_tokens": 8})).await;
    // Of the weights only the touched pages count, of the cache all: the two agree, if not by the byte. What was seen grows as pages are touched.
    let computed = before.estimate_bytes;
    let observed = observed_estimate(&stack, computed / 2).await.estimate_bytes;
    println!("computed {} MiB, observed {} MiB", computed / MIB, observed / MIB);
    assert!(observed < computed + computed / 4, "{computed} and {observed}");
    stack.kill(Role::Controller);
    stack.start_process(Role::Controller).await;
    assert!(observed_estimate(&stack, 0).await.estimate_bytes >= observed);
}

async fn observed_estimate(stack: &Stack, more_than: u64) -> Model {
    let probe = async || {
        let model = stack.model("m").await;
        if model.estimate_source() == EstimateSource::Observed && model.estimate_bytes > more_than {
            Ok(model)
        } else {
            Err((model.estimate_source(), model.estimate_bytes))
        }
    };
    eventually("an observed estimate", Duration::from_secs(30), probe)
        .await
        .0
}
