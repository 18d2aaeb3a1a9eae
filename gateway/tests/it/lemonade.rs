//! Lemonade's own routes over HTTP (seed 000).

use std::collections::BTreeSet;

use muster_proto::{Code, v1};
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{Gateway, read},
    within,
    worker::{Worker, says},
};

fn model(id: &str, status: v1::ModelStatus) -> v1::Model {
    v1::Model {
        id: id.into(),
        r#type: v1::ModelType::Llm.into(),
        status: status.into(),
        runtime: "llama_cpp".into(),
        settings: Some(v1::ModelSettings::default()),
        ..v1::Model::default()
    }
}

async fn start() -> (Gateway, Controller) {
    let controller = Controller::start(Said {
        epoch: 1,
        catalogue: vec![
            model("cold", v1::ModelStatus::Unloaded),
            model("warm", v1::ModelStatus::Loaded),
            model("coming", v1::ModelStatus::Loading),
        ],
        load: Some(Ok(model("cold", v1::ModelStatus::Loaded))),
        unload: Some(Ok(model("warm", v1::ModelStatus::Unloaded))),
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    (gateway, controller)
}

async fn post(gateway: &Gateway, path: &str, body: Value) -> (u16, Value) {
    let (status, body) = read(gateway.post(path, &body).await).await;
    (status.as_u16(), body)
}

#[tokio::test]
async fn seed_000_load_with_custom_settings() {
    let (gateway, controller) = start().await;
    let body = json!({"model_name": "cold", "ctx_size": 8192, "llamacpp_backend": "rocm", "llamacpp_args": "--flash-attn on --no-mmap"});
    let answer = post(&gateway, "/api/v1/load", body).await;
    assert_eq!(
        answer,
        (200, json!({"status": "success", "message": "Loaded model: cold"}))
    );
    let heard = controller.heard();
    assert_eq!(heard.loads[0].device_id, "gpu");
    assert_eq!(
        serde_json::from_str::<Value>(&heard.loads[0].override_json).unwrap(),
        json!({"gguf_n_ctx": 8192, "llamacpp_args": "--flash-attn on --no-mmap"})
    );
    // Seed 000: arguments must not conflict with managed ones.
    let body = json!({"model_name": "cold", "llamacpp_args": "--port 1"});
    let (status, body) = post(&gateway, "/api/v1/load", body).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (400, &json!("invalid_load_request"))
    );
}

#[tokio::test]
async fn seed_000_errors_have_both_shapes() {
    let (gateway, _controller) = start().await;
    for path in ["/api/v1/load", "/api/v1/unload", "/v1/load"] {
        let (status, body) = post(&gateway, path, json!({"model_name": "Nobody"})).await;
        assert_eq!((status, &body["status"]), (404, &json!("error")), "{path}");
        assert_eq!(body["error"]["code"], "unknown_model");
        assert_eq!(body["error"]["message"], body["message"]);
    }
    let (status, body) = post(&gateway, "/api/v1/load", json!({})).await;
    assert_eq!((status, &body["error"]["param"]), (400, &json!("model_name")));
}

#[tokio::test]
async fn seed_000_unload_one_or_all() {
    let (gateway, controller) = start().await;
    let done = json!({"status": "success", "message": "Model unloaded successfully"});
    let answer = post(&gateway, "/api/v1/unload", json!({"model_name": "warm"})).await;
    assert_eq!(answer, (200, done.clone()));
    // Known but not loaded is 404 here, and 200 on the admin API (DECISIONS.md, Lemonade).
    let (status, _) = post(&gateway, "/api/v1/unload", json!({"model_name": "cold"})).await;
    assert_eq!(status, 404);
    let request = gateway.client.post(format!("{}/api/v1/unload", gateway.url));
    let (status, body) = read(within(request.send()).await.unwrap()).await;
    assert_eq!((status.as_u16(), body), (200, done));
    let names: Vec<_> = controller
        .heard()
        .unloads
        .into_iter()
        .map(|one| (one.model, one.cancel_load))
        .collect();
    let pair = |name: &str| (name.to_owned(), true);
    // All at once, in no order.
    assert_eq!(names[0], pair("warm"));
    assert_eq!(
        names[1..].iter().cloned().collect::<BTreeSet<_>>(),
        [pair("warm"), pair("coming")].into()
    );
    assert_eq!(names.len(), 3);
}

#[tokio::test]
async fn a_refused_load_says_why() {
    let (gateway, controller) = start().await;
    controller
        .say(|said| said.load = Some(Err(Code::SlotsPinned.error("only pinned models stand in the way"))));
    let (status, body) = post(&gateway, "/v1/load", json!({"model_name": "cold"})).await;
    assert_eq!((status, &body["error"]["code"]), (409, &json!("slots_pinned")));
}

#[tokio::test]
async fn seed_000_stats_of_the_last_request() {
    let worker = Worker::start(|_| says(&["a", "b"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let (status, before) = gateway.get("/api/v1/stats").await;
    assert_eq!((status.as_u16(), &before["output_tokens"]), (200, &json!(0)));
    assert_eq!(gateway.chat(json!({})).await.status(), 200);
    let (_, after) = gateway.get("/api/v1/stats").await;
    assert_eq!(after["decode_token_times"].as_array().unwrap().len(), 2);
    assert!(after["time_to_first_token"].as_f64().unwrap() > 0.0);
    for key in [
        "tokens_per_second",
        "input_tokens",
        "output_tokens",
        "prompt_tokens",
        "cache_tokens",
    ] {
        assert!(after[key].is_number(), "{key}");
    }
}

#[tokio::test]
async fn seed_000_system_info() {
    let (gateway, _controller) = start().await;
    let (status, info) = gateway.get("/api/v1/system-info?verbose=true").await;
    assert_eq!(status, 200);
    for key in [
        "OS Version",
        "Processor",
        "Physical Memory",
        "devices",
        "hosts",
        "workers",
    ] {
        assert!(info.get(key).is_some(), "{key}");
    }
    assert!(info["devices"]["cpu"]["threads"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn settings_change_while_it_runs() {
    let (gateway, controller) = start().await;
    let (status, body) = post(&gateway, "/api/v1/log-level", json!({"level": "debug"})).await;
    assert_eq!((status, &body["level"]), (200, &json!("debug")));
    let (_, config) = gateway.get("/internal/config").await;
    assert_eq!(config["log_level"], "debug");
    let answer = post(&gateway, "/internal/set", json!({"log_level": "info"})).await;
    assert_eq!(
        answer,
        (
            200,
            json!({"status": "success", "updated": {"log_level": "info"}})
        )
    );
    let (status, _) = post(
        &gateway,
        "/internal/set",
        json!({"log_level": "error", "port": 1}),
    )
    .await;
    assert_eq!(status, 400);
    let (_, config) = gateway.get("/internal/config").await;
    assert_eq!(config["log_level"], "info", "all or nothing");
    let answer = post(
        &gateway,
        "/internal/pin",
        json!({"model_name": "warm", "pinned": true}),
    )
    .await;
    assert_eq!(
        answer,
        (
            200,
            json!({"status": "success", "model_name": "warm", "pinned": true})
        )
    );
    assert_eq!(controller.heard().pins, [("warm".to_owned(), true)]);
}
