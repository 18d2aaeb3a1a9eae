//! Lemonade's own routes (seed 000).

use muster_proto::v1;
use serde_json::json;

use super::{admin::gpu, check, delete, get, post};
use crate::{
    controller::{Controller, Said},
    gateway::{self, Gateway},
    within,
};

/// A model with options, loaded with an automatic context.
fn model(id: &str, status: v1::ModelStatus) -> v1::Model {
    let settings = v1::ModelSettings {
        args: vec!["-fa".into(), "on".into()],
        ..v1::ModelSettings::default()
    };
    v1::Model {
        id: id.into(),
        r#type: v1::ModelType::Llm.into(),
        status: status.into(),
        runtime: "llama_cpp".into(),
        recipe: "llamacpp".into(),
        options_json: r#"{"ctx_size":8192,"llamacpp_args":"-fa on","llamacpp_backend":"cpu"}"#.into(),
        definition: Some(v1::ModelSettings::default()),
        settings: Some(settings),
        ..v1::Model::default()
    }
}

/// Every kind of device, two hosts, and a worker that is away.
fn fleet() -> (Vec<v1::DeviceStatus>, Vec<v1::WorkerStatus>) {
    let kind = |id: &str, kind: v1::DeviceKind| {
        let mut status = gpu(id, id);
        if let Some(device) = &mut status.device {
            device.set_kind(kind);
        }
        status
    };
    let devices = vec![
        gpu("GPU-1", "NVIDIA H100"),
        gpu("GPU-2", "AMD Radeon PRO"),
        kind("cpu", v1::DeviceKind::Cpu),
        kind("npu", v1::DeviceKind::Npu),
        kind("sim:0", v1::DeviceKind::Sim),
    ];
    let worker = |id: &str, connected| v1::WorkerStatus {
        worker_id: id.into(),
        host_id: format!("host-of-{id}"),
        connected,
        version: "0.1.0".into(),
        runtimes: vec![v1::RuntimeInfo {
            name: "llama_cpp".into(),
            ..v1::RuntimeInfo::default()
        }],
        ..v1::WorkerStatus::default()
    };
    (devices, vec![worker("w", true), worker("gone", false)])
}

async fn start() -> (Gateway, Controller) {
    let (devices, workers) = fleet();
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![v1::ModelSummary {
            status: v1::ModelStatus::Loaded.into(),
            device_kinds: vec!["gpu".into()],
            ..gateway::model("warm")
        }],
        catalogue: vec![
            model("org/cold", v1::ModelStatus::Unloaded),
            model("warm", v1::ModelStatus::Loaded),
        ],
        load: Some(Ok(model("org/cold", v1::ModelStatus::Loaded))),
        unload: Some(Ok(model("warm", v1::ModelStatus::Unloaded))),
        devices,
        workers,
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    within(async { while gateway.get("/v1/health").await.1["model_loaded"] != "warm" {} }).await;
    (gateway, controller)
}

#[tokio::test]
async fn answers_about_models_are_as_the_document_says() {
    let (gateway, _controller) = start().await;
    let (options, of_cold, of_nobody) = (
        "/v1/models/{id}/options",
        "/v1/models/org/cold/options",
        "/v1/models/nobody/options",
    );
    let nobody = json!({"model_name": "nobody"});
    let user = json!({"model_name": "user.m", "checkpoint": "o/n:Q4_0", "recipe": "llamacpp"});
    let dry = json!({"ctx_size": 512, "llamacpp_backend": null, "dry_run": true});
    let cases = [
        post("/v1/load", json!({"model_name": "org/cold"})),
        post("/v1/load", nobody.clone()).is(404),
        post("/v1/load", json!({})).is(400),
        post("/v1/unload", json!({"model_name": "warm"})),
        post("/v1/unload", nobody.clone()).is(404),
        post("/v1/pull", user.clone()),
        post("/v1/pull", json!({"model_name": "broken"})).is(502),
        get("/v1/pull/variants").at("/v1/pull/variants?checkpoint=org/Bge-Reranker-GGUF:Q4_0"),
        get("/v1/pull/variants").is(400),
        get("/v1/downloads"),
        post("/v1/downloads/control", json!({"id": "m", "action": "pause"})),
        post(
            "/v1/downloads/control",
            json!({"id": "nobody", "action": "cancel"}),
        )
        .is(404),
        post("/v1/downloads/control", json!({"id": "m", "action": "dance"})).is(400),
        post("/v1/delete", json!({"model_name": "m"})),
        post("/v1/delete", nobody.clone()).is(422),
        post("/v1/models/register", user),
        post(
            "/v1/models/register",
            json!({"model_name": "user.m", "labels": 3}),
        )
        .is(400),
        get(options).at(of_cold),
        get(options).at(of_nobody).is(404),
        post(options, dry).at(of_cold),
        post(options, json!({"ctx_size": 512})).at(of_cold),
        post(options, json!({"pinned": true})).at(of_cold).is(400),
        delete(options).at(of_cold),
        delete(options).at(of_nobody).is(404),
        get("/internal/aliases"),
        post("/internal/aliases", json!({"alias": "gpt-4o", "model_name": "m"})),
        post(
            "/internal/aliases",
            json!({"alias": "gpt-4o", "model_name": "nobody"}),
        )
        .is(404),
        delete("/internal/aliases/{alias}").at("/internal/aliases/gpt-4o"),
        delete("/internal/aliases/{alias}")
            .at("/internal/aliases/nobody")
            .is(404),
        post("/internal/pin", json!({"model_name": "warm", "pinned": true})),
        post("/internal/pin", json!({"model_name": "nobody", "pinned": true})).is(404),
    ];
    check(&gateway, cases).await;
}

#[tokio::test]
async fn answers_about_the_gateway_and_the_fleet_are_as_the_document_says() {
    let (gateway, controller) = start().await;
    let cases = [
        get("/v1/health"),
        get("/v1/stats"),
        get("/v1/system-info"),
        get("/v1/system-info").at("/v1/system-info?verbose=true"),
        post("/v1/log-level", json!({"level": "info"})),
        post("/v1/log-level", json!({"level": "loud"})).is(400),
        get("/internal/config"),
        post("/internal/set", json!({"log_level": "info"})),
        post("/internal/set", json!({})),
        post("/internal/set", json!({"port": 1})).is(400),
    ];
    check(&gateway, cases).await;
    controller.say(|said| {
        said.models.clear();
        said.devices.clear();
        said.workers.clear();
    });
    within(async { while !gateway.get("/v1/health").await.1["model_loaded"].is_null() {} }).await;
    check(&gateway, [get("/v1/health"), get("/v1/system-info")]).await;
}
