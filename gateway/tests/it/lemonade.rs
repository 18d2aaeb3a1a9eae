//! Lemonade's own routes over HTTP (seed 000).

use std::collections::BTreeSet;

use muster_core::Code;
use muster_proto::v1;
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{self, Gateway, read},
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
    assert_eq!(heard.replacements[0].device_id, "gpu");
    assert_eq!(
        serde_json::from_str::<Value>(&heard.replacements[0].override_json).unwrap(),
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

/// The options were once saved before it was known whether the model could be loaded so.
#[tokio::test]
async fn a_load_that_cannot_be_saves_and_pins_nothing() {
    let (gateway, controller) = start().await;
    let refusal = Code::InsufficientMemory.error("far too large");
    controller.say(|said| said.load = Some(Err(refusal)));
    let body = json!({"model_name": "warm", "ctx_size": 900_000, "llamacpp_backend": "cpu", "save_options": true, "pinned": true});
    let (status, body) = post(&gateway, "/api/v1/load", body).await;
    assert_eq!(
        (status, &body["error"]["code"]),
        (507, &json!("insufficient_memory"))
    );
    let heard = controller.heard();
    let [asked] = heard.replacements.as_slice() else {
        panic!("{heard:?}")
    };
    assert_eq!(
        (
            asked.model.as_str(),
            asked.device_id.as_str(),
            asked.override_json.as_str()
        ),
        ("warm", "cpu", r#"{"gguf_n_ctx":900000}"#)
    );
    assert!(heard.unloads.is_empty() && heard.loads.is_empty());
    assert!(heard.pins.is_empty() && heard.options.is_empty());
}

#[tokio::test]
async fn options_are_saved_once_the_load_has_gone_well() {
    let (gateway, controller) = start().await;
    let body = json!({"model_name": "cold", "ctx_size": 8192, "save_options": true, "pinned": true});
    assert_eq!(post(&gateway, "/api/v1/load", body).await.0, 200);
    let heard = controller.heard();
    assert_eq!(heard.pins, [("cold".to_owned(), true)]);
    assert_eq!(
        heard.options,
        [("cold".to_owned(), r#"{"ctx_size":8192}"#.to_owned())]
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
    // Known but not loaded is 404 here, and 200 on the admin API (gateway/README.md, Lemonade).
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
async fn options_of_nobody_are_refused_in_lemonades_form() {
    let (gateway, _controller) = start().await;
    let (status, body) = gateway.get("/v1/models/nobody/options").await;
    assert_eq!((status.as_u16(), &body["status"]), (404, &json!("error")));
    assert_eq!(body["message"], body["error"]["message"]);
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

/// A summary of the seed's examples.
fn listed(id: &str, checkpoint: &str, labels: &[&str], megabytes: u64) -> v1::ModelSummary {
    v1::ModelSummary {
        checkpoint: checkpoint.into(),
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        created: Some(prost_types::Timestamp {
            seconds: 1_744_173_590,
            nanos: 0,
        }),
        size_bytes: megabytes * 1_000_000,
        ..gateway::model(id)
    }
}

async fn listing(models: Vec<v1::ModelSummary>) -> (Gateway, Controller) {
    let controller = Controller::start(Said {
        epoch: 1,
        models,
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    (gateway, controller)
}

#[tokio::test]
async fn seed_000_example_of_health() {
    let loaded =
        |id: &str, checkpoint: &str, kind: v1::ModelType, at: (i64, i32), devices: &[&str], url: &str| {
            v1::ModelSummary {
                status: v1::ModelStatus::Loaded.into(),
                r#type: kind.into(),
                last_used: Some(prost_types::Timestamp {
                    seconds: at.0,
                    nanos: at.1,
                }),
                device_kinds: devices.iter().map(|kind| (*kind).to_owned()).collect(),
                backend_urls: vec![url.into()],
                ..listed(id, checkpoint, &[], 1000)
            }
        };
    let llm = "amd/Llama-3.2-1B-Instruct-awq-g128-int4-asym-fp16-onnx-hybrid";
    let embedding = "nomic-ai/nomic-embed-text-v1-GGUF:Q4_K_S";
    let (gateway, _controller) = listing(vec![
        loaded(
            "Llama-3.2-1B-Instruct-Hybrid",
            llm,
            v1::ModelType::Llm,
            (1_732_123_456, 789_000_000),
            &["gpu", "npu"],
            "http://127.0.0.1:8001/v1",
        ),
        loaded(
            "nomic-embed-text-v1-GGUF",
            embedding,
            v1::ModelType::Embedding,
            (1_732_123_450, 123_000_000),
            &["gpu"],
            "http://127.0.0.1:8002/v1",
        ),
        gateway::model("unloaded"),
    ])
    .await;
    let (status, mut health) = gateway.get("/api/v1/health").await;
    assert_eq!(status, 200);
    // Beyond the seed, as Lemonade of today has it.
    assert!(health.as_object_mut().unwrap().remove("version").is_some());
    // Ours.
    let ours = health.as_object_mut().unwrap();
    assert_eq!(ours.remove("controller"), Some(json!("ok")));
    assert_eq!(ours.remove("troubles"), Some(json!([])));
    for key in ["max_models", "pinned_models"] {
        assert!(ours.remove(key).is_some(), "{key}");
    }
    for row in health["all_models_loaded"].as_array_mut().unwrap() {
        let row = row.as_object_mut().unwrap();
        for key in [
            "recipe",
            "pid",
            "launch_command",
            "pinned",
            "is_busy",
            "is_streaming",
        ] {
            assert!(row.remove(key).is_some(), "{key}");
        }
    }
    let expected = json!({
        "status": "ok",
        "checkpoint_loaded": llm,
        "model_loaded": "Llama-3.2-1B-Instruct-Hybrid",
        "all_models_loaded": [
            {
                "model_name": "Llama-3.2-1B-Instruct-Hybrid",
                "checkpoint": llm,
                "last_use": 1_732_123_456.789,
                "type": "llm",
                "device": "gpu npu",
                "backend_url": "http://127.0.0.1:8001/v1"
            },
            {
                "model_name": "nomic-embed-text-v1-GGUF",
                "checkpoint": embedding,
                "last_use": 1_732_123_450.123,
                "type": "embedding",
                "device": "gpu",
                "backend_url": "http://127.0.0.1:8002/v1"
            }
        ]
    });
    assert_eq!(health, expected);
    let (empty, _controller) = listing(Vec::new()).await;
    let (_, health) = empty.get("/v1/health").await;
    assert_eq!(
        (
            &health["model_loaded"],
            &health["checkpoint_loaded"],
            &health["all_models_loaded"]
        ),
        (&Value::Null, &Value::Null, &json!([]))
    );
}

#[tokio::test]
async fn seed_000_example_of_models() {
    let absent = v1::ModelSummary {
        downloaded: false,
        ..listed("Absent-GGUF", "x/Absent-GGUF:Q4_0", &[], 0)
    };
    let (gateway, _controller) = listing(vec![
        listed(
            "Qwen3-0.6B-GGUF",
            "unsloth/Qwen3-0.6B-GGUF:Q4_0",
            &["reasoning", "suggested"],
            380,
        ),
        listed(
            "Gemma-3-4b-it-GGUF",
            "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M",
            &["hot", "vision"],
            3610,
        ),
        absent,
    ])
    .await;
    let (_, all) = gateway.get("/api/v1/models?show_all=true").await;
    let ids = |list: &Value| -> Vec<Value> {
        let rows = list["data"].as_array().unwrap();
        rows.iter().map(|row| row["id"].clone()).collect()
    };
    assert_eq!(
        ids(&all),
        ["Absent-GGUF", "Gemma-3-4b-it-GGUF", "Qwen3-0.6B-GGUF"]
    );
    assert_eq!(all["data"][0]["downloaded"], false);
    assert!(
        all["data"][0].get("size").is_none(),
        "omitted where it is not known"
    );
    let (_, here) = gateway.get("/api/v1/models").await;
    assert_eq!(ids(&here), ["Gemma-3-4b-it-GGUF", "Qwen3-0.6B-GGUF"]);
    assert_eq!(here["object"], "list");
    let (_, one) = gateway.get("/api/v1/models/Qwen3-0.6B-GGUF").await;
    assert_eq!(one, here["data"][1]);
    for (key, value) in [
        ("id", json!("Qwen3-0.6B-GGUF")),
        ("created", json!(1_744_173_590)),
        ("object", json!("model")),
        ("owned_by", json!("lemonade")),
        ("checkpoint", json!("unsloth/Qwen3-0.6B-GGUF:Q4_0")),
        ("recipe", json!("llamacpp")),
        ("size", json!(0.38)),
        ("downloaded", json!(true)),
        ("suggested", json!(true)),
    ] {
        assert_eq!(one[key], value, "{key}");
    }
    assert_eq!(here["data"][0]["labels"], json!(["hot", "vision"]));
    let (status, error) = gateway.get("/api/v1/models/Llama-3.2-1B-Instruct-Hybrid").await;
    assert_eq!(
        (
            status.as_u16(),
            &error["error"]["message"],
            &error["error"]["type"]
        ),
        (
            404,
            &json!("Model Llama-3.2-1B-Instruct-Hybrid has not been found"),
            &json!("not_found")
        )
    );
}

#[tokio::test]
async fn an_unload_waits_for_what_somebody_else_began() {
    let (gateway, controller) = start().await;
    let is = |id: &'static str, status: v1::ModelStatus| {
        move |said: &mut Said| {
            let found = said.catalogue.iter_mut().find(|model| model.id == id);
            found.unwrap().set_status(status);
        }
    };
    let send = |path: &str, name: &str| {
        let request = gateway.client.post(format!("{}{path}", gateway.url));
        tokio::spawn(request.json(&json!({"model_name": name})).send())
    };
    controller.say(|said| {
        is("warm", v1::ModelStatus::Unloading)(said);
        said.unload = Some(Ok(model("warm", v1::ModelStatus::Unloading)));
    });
    let unload = send("/api/v1/unload", "warm");
    controller.hears(|heard| heard.unloads.len() == 1).await;
    assert!(!unload.is_finished());
    controller.say(is("warm", v1::ModelStatus::Unloaded));
    assert_eq!(within(unload).await.unwrap().unwrap().status(), 200);
}
