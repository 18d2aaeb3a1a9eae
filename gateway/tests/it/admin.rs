//! The Runtime Admin API over HTTP (seed 001).

use muster_proto::{Code, v1};
use reqwest::Response;
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{Gateway, read},
    within,
};

/// A model as operators see it.
fn model(id: &str, runtime: &str, status: v1::ModelStatus) -> v1::Model {
    v1::Model {
        id: id.into(),
        r#type: v1::ModelType::Llm.into(),
        status: status.into(),
        runtime: runtime.into(),
        enabled: true,
        replica_max: 4,
        settings: Some(v1::ModelSettings {
            checkpoint: format!("/models/{id}.gguf"),
            ctx_size: 4096,
            ..v1::ModelSettings::default()
        }),
        ..v1::Model::default()
    }
}

async fn start(said: impl FnOnce(&mut Said)) -> (Gateway, Controller) {
    let mut all = Said {
        epoch: 1,
        catalogue: vec![
            model("gguf", "llama_cpp", v1::ModelStatus::Unloaded),
            model("ex", "exllamav3", v1::ModelStatus::Unloaded),
            model("org/name", "vllm", v1::ModelStatus::Loaded),
        ],
        ..Said::default()
    };
    said(&mut all);
    let controller = Controller::start(all).await;
    let gateway = Gateway::start(&controller.address).await;
    (gateway, controller)
}

async fn post(gateway: &Gateway, path: &str, body: &str) -> Response {
    let request = gateway
        .client
        .post(format!("{}/v1/admin/models/{path}", gateway.url));
    within(request.body(body.to_owned()).send()).await.unwrap()
}

async fn refused(gateway: &Gateway, path: &str, body: &str) -> (u16, Value) {
    let (status, body) = read(post(gateway, path, body).await).await;
    (status.as_u16(), body["error"]["code"].clone())
}

#[tokio::test]
async fn seed_001_models_are_listed_with_their_definition_and_state() {
    let (gateway, _controller) = start(|_| {}).await;
    let (status, body) = gateway.get("/v1/admin/models").await;
    assert_eq!(status, 200);
    let names: Vec<_> = body["models"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].clone())
        .collect();
    assert_eq!(names, ["gguf", "ex", "org/name"]);
    assert_eq!(body["models"][0]["definition"]["gguf_n_ctx"], 4096);
    assert_eq!(body["models"][0]["load_constraints"]["gguf_n_ctx"]["minimum"], 1);
    let (status, row) = gateway.get("/v1/admin/models/gguf").await;
    assert_eq!(status, 200);
    assert_eq!(row, body["models"][0], "one row is the list's row");
    for path in ["org/name", "org%2Fname"] {
        let (status, row) = gateway.get(&format!("/v1/admin/models/{path}")).await;
        assert_eq!((status.as_u16(), &row["name"]), (200, &json!("org/name")));
    }
    let (status, body) = gateway.get("/v1/admin/models/nobody").await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (404, &json!("unknown_model"))
    );
}

#[tokio::test]
async fn a_load_is_checked_for_its_model_then_its_shape_then_its_values() {
    let (gateway, controller) = start(|_| {}).await;
    for (path, body, expected) in [
        ("nobody/load", "{", (404, "unknown_model")),
        ("nobody/unload", "", (404, "unknown_model")),
        ("gguf/load", "{", (422, "invalid_schema")),
        (
            "gguf/load",
            r#"{"gguf_n_ctx": 0, "gguf_type_k": "foo"}"#,
            (422, "invalid_schema"),
        ),
        (
            "gguf/load",
            r#"{"gguf_type_k": "q8-0"}"#,
            (400, "invalid_load_request"),
        ),
        (
            "gguf/load",
            r#"{"exllama_cache_size": 32768}"#,
            (400, "invalid_load_request"),
        ),
        ("gguf/load", r#"{"replicas": 5}"#, (400, "invalid_load_request")),
        (
            "ex/load",
            r#"{"exllama_cache_size": 8000}"#,
            (400, "invalid_load_request"),
        ),
        ("gguf/reload", "", (404, "route_not_found")),
    ] {
        assert_eq!(
            refused(&gateway, path, body).await,
            (expected.0, json!(expected.1)),
            "{path} {body}"
        );
    }
    let heard = controller.heard();
    assert!(
        heard.loads.is_empty() && heard.unloads.is_empty(),
        "a 4xx changes nothing: {heard:?}"
    );
}

#[tokio::test]
async fn a_load_waits_for_its_end_and_answers_the_whole_row() {
    let (gateway, controller) = start(|said| said.evicts = vec!["org/name".into()]).await;
    let load = tokio::spawn({
        let request = gateway
            .client
            .post(format!("{}/v1/admin/models/gguf/load", gateway.url))
            // Any Content-Type is accepted (DECISIONS.md).
            .header("content-type", "text/plain")
            .body(r#"{"replicas": 3, "gguf_n_ctx": 32768, "gguf_type_k": null}"#);
        request.send()
    });
    let heard = controller.hears(|heard| heard.loads.len() == 1).await;
    assert_eq!(heard.loads[0].replicas, 3);
    assert_eq!(
        heard.loads[0].override_json,
        r#"{"gguf_n_ctx":32768,"gguf_type_k":null}"#
    );
    assert!(!load.is_finished());
    controller.say(|said| said.load = Some(Ok(model("gguf", "llama_cpp", v1::ModelStatus::Loaded))));
    let (status, row) = read(within(load).await.unwrap().unwrap()).await;
    assert_eq!((status.as_u16(), &row["runtime_state"]), (200, &json!("loaded")));
    assert_eq!(row["evicted"], json!(["org/name"]));
    let (_, shown) = gateway.get("/v1/admin/models/gguf").await;
    let keys = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&row), keys(&shown));
}

#[tokio::test]
async fn what_the_controller_decides_about_states_is_the_answer() {
    let (gateway, controller) = start(|_| {}).await;
    for (error, expected) in [
        (Code::ModelUnloading.error("x"), (409, "model_unloading")),
        (
            Code::InvalidLoadRequest.error("it is loaded"),
            (400, "invalid_load_request"),
        ),
        (
            Code::ModelLoadFailed.error("no such tensor"),
            (500, "model_load_failed"),
        ),
        (Code::SlotsPinned.error("x"), (409, "slots_pinned")),
    ] {
        controller.say(|said| said.load = Some(Err(error)));
        assert_eq!(
            refused(&gateway, "gguf/load", "").await,
            (expected.0, json!(expected.1))
        );
    }
    controller.say(|said| said.unload = Some(Err(Code::ModelLoading.error("x"))));
    assert_eq!(
        refused(&gateway, "gguf/unload", "").await,
        (409, json!("model_loading"))
    );
    controller.say(|said| said.unload = Some(Ok(model("gguf", "llama_cpp", v1::ModelStatus::Unloaded))));
    let (status, row) = read(post(&gateway, "gguf/unload", "").await).await;
    assert_eq!(
        (status.as_u16(), &row["runtime_state"]),
        (200, &json!("unloaded"))
    );
}

#[tokio::test]
async fn seed_001_gpu_memory_without_a_gpu_says_why() {
    let (gateway, _controller) = start(|_| {}).await;
    let (status, body) = gateway.get("/v1/admin/gpu-memory").await;
    assert_eq!((status.as_u16(), &body["gpus"]), (200, &json!([])));
    assert!(body["error"].is_string());
    assert_eq!(body["models"][0]["name"], "gguf");
    assert_eq!(body["models"][0]["vram_estimate_mib"], Value::Null);
}

#[tokio::test]
async fn without_a_controller_the_admin_api_is_unavailable() {
    let (gateway, controller) = start(|_| {}).await;
    controller.kill();
    let (status, body) = gateway.get("/v1/admin/models").await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (503, &json!("controller_unavailable"))
    );
}

#[tokio::test]
async fn the_admin_key_guards_it() {
    let controller = Controller::start(Said::default()).await;
    let keys = ["--api-key", "user", "--admin-api-key", "admin"];
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &keys).await;
    for (key, status) in [("user", 403), ("wrong", 401), ("admin", 200)] {
        let request = gateway
            .client
            .get(format!("{}/v1/admin/models", gateway.url))
            .bearer_auth(key);
        assert_eq!(within(request.send()).await.unwrap().status(), status, "{key}");
    }
}
