//! Lemonade's `load` over a model that is loaded, and under another name (seed 000; controller/README.md, Settings).

use std::time::{Duration, Instant};

use muster_proto::v1::{Instance, Model, ModelStatus};
use muster_tests::{Engine, Role, Stack, engines, eventually, http::Reply, processes};
use rustix::process::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

async fn stack() -> Stack {
    let model = engines::test_model("tiny-chat");
    Stack::with(Engine::LlamaCpp.serving(&model, "m", 1, "ctx_size = 256"))
        .start()
        .await
}

async fn load(stack: &Stack, body: Value) -> Reply {
    stack.http().post("/api/v1/load", &body).await
}

/// The context that the loaded engine has.
async fn context(stack: &Stack) -> Value {
    let props = stack.http().get("/props?model=m").await.ok();
    props["default_generation_settings"]["n_ctx"].clone()
}

/// Each of these once unloaded the model first and failed afterwards, the options saved.
#[tokio::test]
async fn a_load_that_cannot_be_leaves_what_is_loaded() {
    let stack = stack().await;
    let seed = json!({"model_name": "m", "ctx_size": 512, "llamacpp_backend": "cpu", "llamacpp_args": "--flash-attn on --no-mmap"});
    load(&stack, seed).await.ok();
    assert_eq!(context(&stack).await, 512);
    let loads = stack.stats().await.loads_started;
    for (body, status, param) in [
        (
            json!({"ctx_size": 640, "llamacpp_args": "--grp-attn-n 2"}),
            400,
            json!("llamacpp_args"),
        ),
        (json!({"llamacpp_args": "-t many"}), 400, json!("llamacpp_args")),
        (
            json!({"llamacpp_backend": "vulkan"}),
            503,
            json!("llamacpp_backend"),
        ),
        (json!({"ctx_size": 900_000_000}), 507, Value::Null),
        (json!({"ctx_sise": 640}), 400, json!("ctx_sise")),
    ] {
        let mut body = body;
        body["model_name"] = json!("m");
        body["save_options"] = json!(true);
        let begun = Instant::now();
        let error = load(&stack, body.clone()).await.error(status);
        assert_eq!(error["param"], param, "{body}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{body}");
        assert_eq!(context(&stack).await, 512, "{body}");
    }
    let options = stack.http().get("/api/v1/models/m/options").await.ok();
    assert_eq!(options["saved"], json!({}));
    assert_eq!(
        stack.stats().await.loads_started,
        loads,
        "nothing was loaded anew"
    );
    let answer = stack.http().chat("m", json!({"max_tokens": 2})).await;
    answer.ok();
}

/// What only the engine can tell: the model is loaded again as it was.
#[tokio::test]
async fn a_load_that_fails_in_the_engine_brings_back_what_was_loaded() {
    let stack = stack().await;
    load(&stack, json!({"model_name": "m", "ctx_size": 512}))
        .await
        .ok();
    let body =
        json!({"model_name": "m", "ctx_size": 640, "llamacpp_args": "-b 4 -np 8", "save_options": true});
    let error = load(&stack, body).await.error(400);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.ends_with("m is loaded again as it was before"),
        "{message}"
    );
    assert_eq!(error["details"]["restored"], "true");
    assert_eq!(context(&stack).await, 512);
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    let options = stack.http().get("/api/v1/models/m/options").await.ok();
    assert_eq!(options["saved"], json!({}));
}

/// Whether the model is in a state, and all of it has such a context.
async fn stands(stack: &Stack, status: ModelStatus, context: u32) -> Result<(), Model> {
    let model = stack.model("m").await;
    let settings = |instance: &Instance| instance.status.clone()?.spec?.settings;
    let mut all = model.instances.iter().filter_map(settings);
    if model.status() == status && all.all(|settings| settings.ctx_size == context) {
        return Ok(());
    }
    Err(model)
}

/// The gateway once unloaded, loaded and restored by itself: one that died midway left the model unloaded.
#[tokio::test]
async fn a_gateway_that_dies_while_a_model_is_replaced_leaves_it_loaded() {
    let mut stack = stack().await;
    load(&stack, json!({"model_name": "m", "ctx_size": 512}))
        .await
        .ok();
    let worker = stack.process(Role::Worker(0)).pid();
    processes::signal(worker, Signal::STOP);
    let http = stack.http();
    let asked = tokio::spawn(async move {
        let body = json!({"model_name": "m", "ctx_size": 640});
        http.post("/api/v1/load", &body).await
    });
    eventually("it is being unloaded", LIMIT, || {
        stands(&stack, ModelStatus::Unloading, 512)
    })
    .await;
    stack.kill(Role::Gateway);
    assert!(asked.await.is_err(), "nobody answers");
    processes::signal(worker, Signal::CONT);
    eventually("it is loaded as wanted", LIMIT, || {
        stands(&stack, ModelStatus::Loaded, 640)
    })
    .await;
}

#[tokio::test]
async fn a_load_waits_for_the_load_that_somebody_else_began() {
    let model = Engine::Stub.model("m", 1, "stub.load_time_ms = 1000");
    let stack = Stack::with(model).start().await;
    let first = load(&stack, json!({"model_name": "m"}));
    let second = async {
        let loading = || stands(&stack, ModelStatus::Loading, 0);
        eventually("it is being loaded", LIMIT, loading).await;
        let answer = load(&stack, json!({"model_name": "m"})).await;
        assert_eq!(stack.model("m").await.status(), ModelStatus::Loaded);
        answer
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.ok(), second.ok());
    assert_eq!(stack.stats().await.loads_started, 1);
}

#[tokio::test]
async fn a_model_is_loaded_and_unloaded_by_any_of_its_names() {
    let checkpoint = engines::test_model("tiny-chat");
    let entry = format!(
        "[models.m]\nruntime = 'llama_cpp'\ncheckpoint = {checkpoint:?}\nctx_size = 256\nthreads = 1\n"
    );
    let stack = Stack::with(entry).start().await;
    let http = stack.http();
    let alias = json!({"alias": "gpt-4o", "model_name": "m"});
    http.post("/internal/aliases", &alias).await.ok();
    let named = json!({"model_name": "gpt-4o"});
    let loaded = load(&stack, named.clone()).await.ok();
    assert_eq!(loaded["message"], "Loaded model: gpt-4o");
    let row = http.get("/v1/admin/models/gpt-4o").await.ok();
    assert_eq!((&row["name"], &row["is_loaded"]), (&json!("m"), &json!(true)));
    // Nothing configured: as many at once as the engine does, said the same everywhere (seed 001).
    assert_eq!(row["definition"]["target_inflight"], 4);
    assert_eq!(row["configured_target_inflight"], 4);
    assert_eq!(row["effective_target_inflight"], 4);
    let unloaded = http.post("/api/v1/unload", &named).await.ok();
    assert_eq!(unloaded["status"], "success");
    assert_eq!(stack.model("m").await.status(), ModelStatus::Unloaded);
    let loaded = http.post("/v1/admin/models/gpt-4o/load", &json!({})).await.ok();
    assert_eq!(
        (&loaded["name"], &loaded["runtime_state"]),
        (&json!("m"), &json!("loaded"))
    );
    http.post("/v1/admin/models/gpt-4o/unload", &json!({})).await.ok();
    let gone = async || {
        let state = http.get("/v1/admin/models/m").await.ok()["runtime_state"].clone();
        if state == "unloaded" { Ok(()) } else { Err(state) }
    };
    eventually("it is unloaded", LIMIT, gone).await;
}
