//! `audio/*` and `images/*` (seed 002, model types audio and image): checked here, answered by the engine.

use muster_proto::v1;
use reqwest::Response;
use serde_json::{Value, json};

use crate::{
    controller::{Controller, Said},
    gateway::{Gateway, model, read},
    within,
    worker::{Worker, says},
};

async fn start() -> (Gateway, Controller, Worker) {
    let worker = Worker::start(|_| says(&["a"])).await;
    let of = |id: &str, runtime: &str, kind: v1::ModelType| v1::ModelSummary {
        runtime: runtime.into(),
        r#type: kind.into(),
        ..model(id)
    };
    let controller = Controller::start(Said {
        epoch: 1,
        routes: vec![worker.route("whisper", "i")],
        models: vec![
            v1::ModelSummary {
                status: v1::ModelStatus::Loaded.into(),
                ..of("whisper", "llama_server", v1::ModelType::Audio)
            },
            of("sd", "llama_cpp", v1::ModelType::Image),
            of("chat", "llama_server", v1::ModelType::Llm),
        ],
        ..Said::default()
    })
    .await;
    let gateway = Gateway::start(&controller.address).await;
    (gateway, controller, worker)
}

/// A form as a browser sends it.
async fn form(gateway: &Gateway, path: &str, model: &str) -> Response {
    parts(gateway, path, &[("file", "RIFF"), ("model", model)]).await
}

async fn parts(gateway: &Gateway, path: &str, parts: &[(&str, &str)]) -> Response {
    let part = |name: &str, text: &str| {
        format!("--b0undary\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n")
    };
    let all: String = parts.iter().map(|(name, text)| part(name, text)).collect();
    let body = format!("{all}--b0undary--\r\n");
    let request = gateway
        .client
        .post(format!("{}{path}", gateway.url))
        .header("content-type", "multipart/form-data; boundary=b0undary");
    within(request.body(body).send()).await.unwrap()
}

#[tokio::test]
async fn a_transcription_goes_to_the_engine_as_it_came() {
    let (gateway, _controller, _worker) = start().await;
    let (status, told) = read(form(&gateway, "/api/v1/audio/transcriptions", "whisper").await).await;
    assert_eq!(status, 201, "{told}");
    let expected = json!({
        "asked": "POST /v1/audio/transcriptions",
        "content_type": "multipart/form-data; boundary=b0undary",
        "bytes": 148,
        "work": true,
    });
    assert_eq!(told, expected);
}

/// Only the first part of a name was judged, and a form that was none went to the engine, which might read it otherwise.
#[tokio::test]
async fn no_form_takes_an_address_past_the_gateway() {
    let (gateway, _controller, _worker) = start().await;
    let path = "/v1/audio/transcriptions";
    let data = ("url", "data:audio/wav;base64,AA==");
    let twice = [("model", "whisper"), data, ("url", "http://10.0.0.1/x.wav")];
    let (status, body) = read(parts(&gateway, path, &twice).await).await;
    let error = &body["error"];
    assert_eq!(
        (status.as_u16(), &error["code"]),
        (400, &json!("media_url_refused"))
    );
    assert_eq!(error["param"], "url");
    let (status, _) = read(parts(&gateway, path, &twice[..2]).await).await;
    assert_eq!(status, 201);
    let cut = "--b0undary\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper";
    let request = gateway.client.post(format!("{}{path}", gateway.url));
    let request = request.header("content-type", "multipart/form-data; boundary=b0undary");
    let (status, body) = read(within(request.body(cut).send()).await.unwrap()).await;
    assert_eq!(
        (status.as_u16(), &body["error"]["code"]),
        (400, &json!("invalid_request"))
    );
}

#[tokio::test]
async fn what_a_model_or_its_runtime_cannot_do_is_refused_before_any_load() {
    let (gateway, controller, _worker) = start().await;
    let code = |body: &Value| body["error"]["code"].clone();
    let (status, body) = read(form(&gateway, "/v1/audio/transcriptions", "chat").await).await;
    assert_eq!(
        (status.as_u16(), code(&body)),
        (400, json!("unsupported_by_runtime"))
    );
    for (path, model, expected) in [
        ("/v1/audio/speech", "whisper", (400, "unsupported_by_runtime")),
        ("/v1/audio/speech", "nobody", (404, "unknown_model")),
        ("/v1/images/generations", "sd", (400, "unsupported_by_runtime")),
        ("/v1/images/generations", "chat", (400, "unsupported_by_runtime")),
        ("/v1/images/paint", "sd", (404, "route_not_found")),
    ] {
        let body = json!({"model": model, "prompt": "hi", "input": "hi"});
        let (status, body) = read(gateway.post(path, &body).await).await;
        assert_eq!(
            (status.as_u16(), code(&body)),
            (expected.0, json!(expected.1)),
            "{path}"
        );
    }
    let (status, body) = read(
        gateway
            .post("/v1/images/generations", &json!({"prompt": "hi"}))
            .await,
    )
    .await;
    assert_eq!((status.as_u16(), &body["error"]["param"]), (400, &json!("model")));
    assert!(controller.heard().wishes.is_empty());
}
