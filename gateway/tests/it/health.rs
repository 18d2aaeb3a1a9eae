//! What Lemonade's health says beyond seed 000: engines, how busy they are, limits (Lemonade's public documentation).

use muster_proto::v1;
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{self, Gateway, chat, read},
    within,
    worker::{Worker, admitted, finished, text},
};

/// A controller with model `m`, which `worker` serves.
async fn controller(worker: &Worker) -> Controller {
    let status = v1::InstanceStatus {
        engine: vec![v1::ProcessId {
            pid: 4711,
            ..v1::ProcessId::default()
        }],
        launch_command: ["llama-server", "-m", "/models/m.gguf"].map(String::from).into(),
        ..v1::InstanceStatus::default()
    };
    let model = v1::Model {
        id: "m".into(),
        r#type: v1::ModelType::Llm.into(),
        status: v1::ModelStatus::Loaded.into(),
        pinned: true,
        instances: vec![v1::Instance {
            status: Some(status),
            ..v1::Instance::default()
        }],
        ..v1::Model::default()
    };
    Controller::start(Said {
        epoch: 1,
        routes: vec![worker.route("m", "i")],
        models: vec![v1::ModelSummary {
            status: v1::ModelStatus::Loaded.into(),
            ..gateway::model("m")
        }],
        catalogue: vec![model],
        limits: vec![3, 2, 1, -1, 0],
        ..Said::default()
    })
    .await
}

async fn health(gateway: &Gateway, key: &str) -> Value {
    let request = gateway.client.get(format!("{}/api/v1/health", gateway.url));
    let response = within(request.bearer_auth(key).send()).await.unwrap();
    let (status, health) = read(response).await;
    assert_eq!(status, 200, "{health}");
    health
}

async fn until(gateway: &Gateway, wanted: impl Fn(&Value) -> bool) -> Value {
    let looks = async {
        loop {
            let health = health(gateway, "").await;
            if wanted(&health) {
                return health;
            }
        }
    };
    within(looks).await
}

#[tokio::test]
async fn health_names_engines_and_limits_and_is_null_about_them_without_the_controller() {
    let worker = Worker::start(|_| Vec::new()).await;
    let controller = controller(&worker).await;
    let gateway = Gateway::start(&controller.address).await;
    let health = until(&gateway, |health| {
        !health["max_models"].is_null() && health["model_loaded"] == "m"
    })
    .await;
    let row = &health["all_models_loaded"][0];
    for (key, value) in [
        ("recipe", json!("llamacpp")),
        ("pid", json!(4711)),
        ("launch_command", json!(["llama-server", "-m", "/models/m.gguf"])),
        ("pinned", json!(true)),
        ("is_busy", json!(false)),
        ("is_streaming", json!(false)),
    ] {
        assert_eq!(row[key], value, "{key}");
    }
    let limits = json!({"llm": 3, "embedding": 2, "reranking": 1, "audio": -1, "transcription": -1, "tts": -1, "image": 0});
    assert_eq!(health["max_models"], limits);
    let pinned = json!({"llm": 1, "embedding": 0, "reranking": 0, "audio": 0, "transcription": 0, "tts": 0, "image": 0});
    assert_eq!(health["pinned_models"], pinned);
    drop(controller);
    let health = until(&gateway, |health| health["controller"] != "ok").await;
    let row = &health["all_models_loaded"][0];
    assert_eq!(
        (&row["model_name"], &row["is_busy"]),
        (&json!("m"), &json!(false))
    );
    let unknown = [
        &row["pid"],
        &row["launch_command"],
        &row["pinned"],
        &health["max_models"],
        &health["pinned_models"],
    ];
    assert!(unknown.iter().all(|value| value.is_null()), "{health}");
}

/// A command line tells paths of the host: operators may see it, users may not.
#[tokio::test]
async fn health_shows_command_lines_to_administrators_only() {
    let worker = Worker::start(|_| Vec::new()).await;
    let controller = controller(&worker).await;
    let keys = ["--api-key", "user", "--admin-api-key", "admin"];
    let gateway = Gateway::start_with("127.0.0.1:0", &controller.address, &keys).await;
    for (key, shown) in [("user", false), ("admin", true)] {
        let looks = async {
            loop {
                let health = health(&gateway, key).await;
                let row = health["all_models_loaded"][0].clone();
                if row["pid"] == 4711 {
                    return row;
                }
            }
        };
        let row = within(looks).await;
        assert_eq!(row["launch_command"].is_array(), shown, "{key}: {row}");
    }
}

#[tokio::test]
async fn health_says_whether_a_model_is_busy_and_whether_it_streams() {
    let worker = Worker::start(|_| Vec::new()).await;
    let controller = controller(&worker).await;
    let gateway = Gateway::start(&controller.address).await;
    let is = |busy: bool, streaming: bool| {
        move |health: &Value| {
            let row = &health["all_models_loaded"][0];
            row["is_busy"] == busy && row["is_streaming"] == streaming
        }
    };
    until(&gateway, is(false, false)).await;
    let url = format!("{}/v1/chat/completions", gateway.url);
    let sent = gateway
        .client
        .post(url)
        .json(&chat(json!({"stream": true})))
        .send();
    let sent = tokio::spawn(sent);
    let at = worker.first_start().await;
    until(&gateway, is(true, false)).await;
    worker.send(at, vec![admitted(), text(0, "hi")], false);
    let response = within(sent).await.unwrap().unwrap();
    until(&gateway, is(true, true)).await;
    worker.send(at, vec![finished()], true);
    within(response.text()).await.unwrap();
    until(&gateway, is(false, false)).await;
}
