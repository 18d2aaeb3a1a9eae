//! llama.cpp's own routes over HTTP (seed 004).

use muster_proto::v1;
use serde_json::json;

use crate::{
    controller::{Controller, Said},
    gateway::{Gateway, events, model, read},
    worker::{Worker, says},
};

#[tokio::test]
async fn seed_004_a_completion_of_the_only_loaded_model() {
    let worker = Worker::start(|_| says(&["a", "b"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let body = json!({"prompt": "p", "n_predict": 4});
    for path in ["/completion", "/completions", "/completion?model=m"] {
        let (status, answer) = read(gateway.post(path, &body).await).await;
        assert_eq!(
            (status.as_u16(), &answer["content"]),
            (200, &json!("ab")),
            "{path}"
        );
        assert_eq!((&answer["stop"], &answer["model"]), (&json!(true), &json!("m")));
        assert_eq!(answer["generation_settings"]["n_predict"], 4);
    }
    let (status, answer) = read(gateway.post("/completion?model=nobody", &body).await).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!(404)));
}

#[tokio::test]
async fn a_native_stream_ends_with_stop() {
    let worker = Worker::start(|_| says(&["a", "b"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let body = json!({"prompt": "p", "stream": true});
    let events = events(gateway.post("/completion", &body).await).await;
    let text: String = events
        .iter()
        .filter_map(|event| event["content"].as_str())
        .collect();
    assert_eq!(text, "ab");
    let stops: Vec<_> = events.iter().map(|event| event["stop"] == json!(true)).collect();
    assert_eq!(stops.iter().filter(|stop| **stop).count(), 1);
    assert_eq!(stops.last(), Some(&true));
}

#[tokio::test]
async fn what_is_switched_off_is_501() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    for path in ["/slots", "/lora-adapters", "/metrics?model=m"] {
        let (status, answer) = gateway.get(path).await;
        assert_eq!(status, 501, "{path}");
        assert_eq!(
            (&answer["error"]["code"], &answer["error"]["type"]),
            (&json!(501), &json!("not_supported_error"))
        );
    }
    let (status, props) = gateway.get("/props").await;
    assert_eq!(status, 200);
    assert_eq!(props["default_generation_settings"]["params"]["top_k"], 40);
    assert_eq!(props["model_path"], "/models/m.gguf");
}

#[tokio::test]
async fn one_of_several_replicas_must_be_named() {
    let worker = Worker::start(|_| says(&["a"])).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i"), worker.route("m", "k")]).await;
    let (status, answer) = gateway.get("/props").await;
    assert_eq!(status, 409);
    assert!(answer["error"]["message"].as_str().unwrap().contains('k'));
    assert_eq!(gateway.get("/props?instance=k").await.0, 200);
}

#[tokio::test]
async fn without_a_loaded_model_one_must_be_named_and_nothing_is_loaded() {
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![model("cold")],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, _) = read(gateway.post("/tokenize", &json!({"content": "x"})).await).await;
    assert_eq!(status, 400);
    let (status, _) = read(
        gateway
            .post("/tokenize", &json!({"content": "x", "model": "cold"}))
            .await,
    )
    .await;
    assert_eq!(status, 409);
    assert!(controller.heard().wishes.is_empty());
    let (status, list) = gateway.get("/models").await;
    assert_eq!(
        (status.as_u16(), &list["data"][0]["status"]["value"]),
        (200, &json!("unloaded"))
    );
}

#[tokio::test]
async fn a_router_load_answers_when_it_has_begun() {
    let controller = Controller::start(Said {
        epoch: 1,
        models: vec![model("cold")],
        catalogue: vec![v1::Model {
            id: "cold".into(),
            ..v1::Model::default()
        }],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    let (status, answer) = read(gateway.post("/models/load", &json!({"model": "cold"})).await).await;
    assert_eq!((status.as_u16(), answer), (200, json!({"success": true})));
    assert_eq!(controller.heard().loads[0].model, "cold");
}
