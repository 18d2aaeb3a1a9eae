//! An engine on a GPU that Vulkan finds. `tests/run gpu` builds the engine for it and runs these; Mesa's software driver is GPU enough.

use std::time::Duration;

use muster_proto::v1::EstimateSource;
use muster_tests::{Engine, Stack, StackBuilder, engines::test_model, processes, wait::eventually};
use serde_json::{Value, json};

const GPU: &str = "vulkan:0";
const MIB: u64 = 1 << 20;
/// Of full precision: Mesa 22's software driver crashes in ggml's kernels for quantised weights.
const MODEL: &str = "bench-chat";
/// Difference of log probabilities (of random weights, with sums in half precision) below which the CPU and a GPU, which add in another order, may choose differently.
const CLOSE: f64 = 0.3;
/// Tokens that they choose alike at least.
const ALIKE: usize = 4;

/// A stack whose engines are the one that was built for Vulkan.
fn stack(models: String, devices: &[&str]) -> StackBuilder {
    let engine = std::env::var("MUSTER_TEST_GPU_ENGINE").expect("tests/run gpu says where the engine is");
    let shown = std::env::var("GGML_VK_VISIBLE_DEVICES").unwrap_or_else(|_| "0".to_owned());
    let environment = [
        ("MUSTER_WORKER_ENGINE_LLAMA", engine.as_str()),
        // By itself ggml takes no driver that computes on the CPU.
        ("GGML_VK_VISIBLE_DEVICES", shown.as_str()),
    ];
    Stack::with(models).devices(devices).worker_env(&environment)
}

fn model(id: &str, more: &str) -> String {
    Engine::LlamaCpp.serving(&test_model(MODEL), id, 2, &format!("ctx_size = 2048\n{more}"))
}

/// The answer, with the two likeliest tokens at each place.
async fn answer(stack: &Stack, id: &str) -> Vec<Value> {
    let body = json!({
        "model": id,
        "messages": [{"role": "user", "content": "What is Muster?"}],
        "temperature": 0,
        "max_tokens": 24,
        "logprobs": true,
        "top_logprobs": 2,
    });
    let answer = stack.http().post("/v1/chat/completions", &body).await.ok();
    answer["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone()
}

/// Both choose the same tokens, up to the first one where two are as good as each other.
fn agree(one: &[Value], other: &[Value]) {
    let mut pairs = one.iter().zip(other).enumerate();
    let differ = pairs.find(|(_, (one, other))| one["token"] != other["token"]);
    if let Some((at, (token, other))) = differ {
        assert!(at >= ALIKE, "{at}: {token} and {other}");
        let top = |index: usize| token["top_logprobs"][index]["logprob"].as_f64().unwrap();
        let gap = top(0) - top(1);
        assert!(gap < CLOSE, "{token} and {other}");
    }
}

/// MiB in use, as the admin API shows them.
async fn used(stack: &Stack) -> u64 {
    let memory = stack.http().get("/v1/admin/gpu-memory").await.ok();
    memory["gpus"][0]["used_mib"].as_u64().unwrap()
}

/// Waits until so much is in use.
async fn used_is(stack: &Stack, mib: u64) {
    let probe = async || match used(stack).await {
        now if now == mib => Ok(()),
        now => Err(now),
    };
    eventually("memory of the GPU", Duration::from_secs(30), probe).await;
}

#[tokio::test]
#[ignore = "tests/run gpu"]
async fn a_model_on_a_gpu_says_what_it_says_on_the_cpu_and_what_it_took() {
    let cpu = stack(model("m", ""), &["cpu"]).start().await;
    let expected = answer(&cpu, "m").await;
    let gpu = stack(model("m", ""), &[GPU]).start().await;
    assert_eq!(used(&gpu).await, 0);
    agree(&answer(&gpu, "m").await, &expected);
    let file = std::fs::metadata(test_model(MODEL)).unwrap().len();
    assert!(used(&gpu).await * MIB > file / 2, "{}", used(&gpu).await);
    let probe = async || {
        let source = gpu.model("m").await.estimate_source();
        if source == EstimateSource::Observed {
            Ok(())
        } else {
            Err(source)
        }
    };
    eventually("an observed estimate", Duration::from_secs(30), probe).await;
}

#[tokio::test]
#[ignore = "tests/run gpu"]
async fn some_layers_on_a_gpu_and_the_rest_on_the_cpu() {
    let whole = stack(model("m", ""), &[GPU]).start().await;
    let expected = answer(&whole, "m").await;
    let all = used(&whole).await;
    let part = stack(model("m", "gpu_layers = 2"), &["vulkan:0,cpu"])
        .start()
        .await;
    agree(&answer(&part, "m").await, &expected);
    let some = used(&part).await;
    assert!(some > 0 && some < all, "{some} of {all} MiB");
}

#[tokio::test]
#[ignore = "tests/run gpu"]
async fn models_take_turns_on_a_gpu_and_give_all_of_it_back() {
    let models = format!(
        "[policy]\nmax_loaded_models = 1\n{}{}",
        model("a", ""),
        model("b", "")
    );
    let stack = stack(models, &[GPU]).start().await;
    let first = answer(&stack, "a").await;
    let alone = used(&stack).await;
    agree(&answer(&stack, "b").await, &first);
    used_is(&stack, alone).await;
    agree(&answer(&stack, "a").await, &first);
    stack.http().post("/v1/unload", &json!({})).await.ok();
    used_is(&stack, 0).await;
}

#[tokio::test]
#[ignore = "tests/run gpu"]
async fn an_engine_that_dies_on_a_gpu_gives_it_back_and_comes_again() {
    let stack = stack(model("m", ""), &[GPU]).start().await;
    let first = answer(&stack, "m").await;
    let took = used(&stack).await;
    for engine in stack.instance(0, "m").await.engine {
        processes::kill(engine.pid);
    }
    used_is(&stack, 0).await;
    agree(&answer(&stack, "m").await, &first);
    assert_eq!(used(&stack).await, took);
}

/// A model that was placed on the CPU takes nothing of a GPU that its engine could use.
#[tokio::test]
#[ignore = "tests/run gpu"]
async fn a_model_on_the_cpu_sees_no_gpu() {
    let models = format!(
        "{}{}",
        model("c", "device = \"cpu\""),
        model("g", "device = \"gpu\"")
    );
    let stack = stack(models, &[GPU, "cpu"]).start().await;
    answer(&stack, "c").await;
    assert_eq!(used(&stack).await, 0);
    answer(&stack, "g").await;
    assert!(used(&stack).await > 0);
}
