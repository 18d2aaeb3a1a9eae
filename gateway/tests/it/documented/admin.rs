//! The Runtime Admin API (seed 001).

use muster_core::Code;
use muster_proto::v1;
use serde_json::json;

use super::{check, get, post};
use crate::{
    controller::{Controller, Said},
    gateway::Gateway,
};

/// A GPU and its memory.
pub(super) fn gpu(id: &str, name: &str) -> v1::DeviceStatus {
    v1::DeviceStatus {
        host_id: "h".into(),
        device: Some(v1::Device {
            device_id: id.into(),
            kind: v1::DeviceKind::Gpu.into(),
            name: name.into(),
            capacity_bytes: 80 << 30,
            exclusive: true,
            index: Some(0),
            driver_version: "580.82".into(),
            api: "cuda".into(),
        }),
        sample: Some(v1::DeviceSample {
            device_id: id.into(),
            capacity_bytes: 80 << 30,
            ..v1::DeviceSample::default()
        }),
        ..v1::DeviceStatus::default()
    }
}

fn model(id: &str, runtime: &str, status: v1::ModelStatus) -> v1::Model {
    v1::Model {
        id: id.into(),
        r#type: v1::ModelType::Llm.into(),
        status: status.into(),
        runtime: runtime.into(),
        enabled: true,
        replica_max: 2,
        settings: Some(v1::ModelSettings {
            ctx_size: 4096,
            ..v1::ModelSettings::default()
        }),
        ..v1::Model::default()
    }
}

#[tokio::test]
async fn operators_answers_are_as_the_document_says() {
    let failed = v1::Model {
        last_error: Some(Code::ModelLoadFailed.error("no such tensor").into()),
        ..model("broken", "vllm", v1::ModelStatus::Failed)
    };
    let controller = Controller::start(Said {
        epoch: 1,
        catalogue: vec![
            model("cold", "llama_cpp", v1::ModelStatus::Unloaded),
            model("org/warm", "llama_server", v1::ModelStatus::Loaded),
            model("ex", "exllamav3", v1::ModelStatus::Loading),
            failed,
        ],
        devices: vec![gpu("GPU-1", "NVIDIA H100")],
        load: Some(Ok(model("cold", "llama_cpp", v1::ModelStatus::Loaded))),
        evicts: vec!["org/warm".into()],
        unload: Some(Ok(model("org/warm", "llama_server", v1::ModelStatus::Unloaded))),
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (one, load, unload) = (
        "/v1/admin/models/{name}",
        "/v1/admin/models/{name}/load",
        "/v1/admin/models/{name}/unload",
    );
    let cases = [
        get("/v1/admin/models"),
        get(one).at("/v1/admin/models/org/warm"),
        get(one).at("/v1/admin/models/nobody").is(404),
        post(load, json!({"gguf_n_ctx": 8192})).at("/v1/admin/models/cold/load"),
        post(load, json!({"gguf_n_ctx": 0}))
            .at("/v1/admin/models/cold/load")
            .is(422),
        post(load, json!({"vllm_max_pixels": 9}))
            .at("/v1/admin/models/cold/load")
            .is(400),
        post(unload, json!({})).at("/v1/admin/models/org/warm/unload"),
        post(unload, json!({}))
            .at("/v1/admin/models/nobody/unload")
            .is(404),
        get("/v1/admin/gpu-memory"),
    ];
    check(&gateway, cases).await;
    controller.say(|said| said.devices.clear());
    check(&gateway, [get("/v1/admin/gpu-memory")]).await;
}
