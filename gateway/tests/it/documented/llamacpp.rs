//! llama.cpp's own routes (seed 004), and scores, which all dialects have in one form.

use muster_proto::v1::{self, event::Kind, start::Work};
use serde_json::{Value, json};

use super::{Document, check, get, post};
use crate::{
    contract::everything,
    controller::Controller,
    gateway::{Gateway, model},
    within,
    worker::{Tick, Worker, admitted, ended, event, finished, text},
};

/// As [`everything`], with scores, and with times where they are asked for.
fn script(start: &v1::Start) -> Vec<Tick> {
    match &start.work {
        Some(Work::Rerank(work)) => {
            let result = v1::RerankResult {
                scores: vec![0.5; work.documents.len()],
                ..v1::RerankResult::default()
            };
            vec![(vec![admitted(), event(Kind::Reranked(result)), finished()], true)]
        }
        Some(Work::Generate(work)) if work.timings_per_token => {
            let mut last = finished();
            if let Some(Kind::Finished(finished)) = &mut last.kind {
                finished.id_slot = Some(1);
                finished.timings = Some(v1::Timings {
                    prompt_n: 5,
                    prompt_ms: 2.5,
                    predicted_n: 3,
                    predicted_ms: 7.5,
                    ..v1::Timings::default()
                });
            }
            let end = ended(0, v1::FinishReason::Stop);
            vec![(vec![admitted(), text(0, "see"), end, last], true)]
        }
        Some(Work::Generate(_) | Work::Embed(_)) | None => everything(start),
    }
}

/// A chat model, vectors and scores, all loaded.
async fn start(args: &[&str]) -> (Gateway, Controller, Worker) {
    let worker = Worker::start(script).await.with_args(args);
    let routes = ["m", "e", "r"].map(|model| worker.route(model, &format!("instance-{model}")));
    let (gateway, controller) = Gateway::with(routes.to_vec()).await;
    controller.say(|said| {
        let of = |id: &str, kind: v1::ModelType| v1::ModelSummary {
            r#type: kind.into(),
            status: v1::ModelStatus::Loaded.into(),
            runtime: "llama_cpp".into(),
            ..model(id)
        };
        let failed = v1::ModelSummary {
            status: v1::ModelStatus::Failed.into(),
            ..model("failed")
        };
        said.models = vec![
            of("m", v1::ModelType::Llm),
            of("e", v1::ModelType::Embedding),
            of("r", v1::ModelType::Reranking),
            failed,
            model("cold"),
        ];
        said.catalogue = ["cold", "m"]
            .map(|id| v1::Model {
                id: id.into(),
                ..v1::Model::default()
            })
            .into();
        said.unload = Some(Ok(v1::Model::default()));
    });
    within(async { while gateway.get("/v1/models/r").await.0 != 200 {} }).await;
    (gateway, controller, worker)
}

#[tokio::test]
async fn llama_cpps_answers_are_as_the_document_says() {
    let (gateway, _controller, _worker) = start(&[]).await;
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    let with = |fields: Value| {
        let mut body = json!({"model": "m", "prompt": "hi"});
        for (key, value) in fields.as_object().unwrap() {
            body[key] = value.clone();
        }
        body
    };
    let chosen = json!({"n_probs": 1, "return_tokens": true, "logit_bias": [[7, -1.0], ["a", false]],
        "lora": [{"id": 0, "scale": 0.5}], "json_schema": {"type": "object"}, "stop": ["x"], "id_slot": 1});
    let gap = json!({"model": "m", "input_prefix": "a", "input_suffix": "b"});
    let scores =
        json!({"model": "r", "query": "q", "documents": ["a", "b"], "return_documents": true, "top_n": 1});
    let words = json!({"model": "m", "content": "one two", "with_pieces": true});
    let nobody = json!({"model": "nobody", "prompt": "hi", "content": "hi", "tokens": [1]});
    let cases = [
        post("/completion", with(json!({}))),
        post("/completion", with(chosen)),
        post("/completion", with(json!({"timings_per_token": true}))),
        post("/completion", with(json!({"prompt": ["a", [1, 2], ["b", 3]]}))),
        post("/completion", nobody.clone()).is(404),
        post("/infill", gap),
        post("/tokenize", json!({"model": "m", "content": "one two"})),
        post("/tokenize", words.clone()),
        post("/tokenize", nobody.clone()).is(404),
        post("/v1/tokenize", words),
        post("/detokenize", json!({"model": "m", "tokens": [1, 2]})),
        post("/detokenize", nobody).is(404),
        post("/apply-template", chat),
        post("/embedding", json!({"model": "e", "content": ["a", "b"]})),
        post("/reranking", scores.clone()),
        post("/rerank", scores.clone()),
        post("/v1/reranking", scores.clone()),
        post("/v1/rerank", scores),
        post(
            "/v1/rerank",
            json!({"model": "nobody", "query": "q", "documents": ["a"]}),
        )
        .is(404),
    ];
    check(&gateway, cases).await;
}

#[tokio::test]
async fn what_is_shown_of_an_engine_is_as_the_document_says() {
    let (gateway, _controller, _worker) = start(&["--slots", "--props", "--slot-save-path", "/slots"]).await;
    let cases = [
        get("/health"),
        get("/health").at("/health?model=m"),
        get("/health").at("/health?model=cold").is(503),
        get("/live"),
        get("/props").at("/props?model=m"),
        get("/props").at("/props?model=nobody").is(404),
        post("/props", json!({})).at("/props?model=m"),
        get("/slots").at("/slots?model=m"),
        get("/v1/slots").at("/v1/slots?model=m"),
        post("/slots/{id}", json!({})).at("/slots/0?action=erase&model=m"),
        post("/slots/{id}", json!({"filename": "a"})).at("/slots/0?action=save&model=m"),
        post("/v1/slots/{id}", json!({}))
            .at("/v1/slots/0?action=eat")
            .is(400),
        get("/lora-adapters").at("/lora-adapters?model=m"),
        post("/lora-adapters", json!([]))
            .at("/lora-adapters?model=m")
            .is(501),
        get("/props"),
        get("/models"),
        post("/models", json!({"model": "cold"})).is(400),
        post("/models", json!({"model": ""})).is(400),
        post("/models/load", json!({"model": "cold"})),
        post("/models/load", json!({})).is(400),
        post("/models/unload", json!({"model": "m"})),
    ];
    check(&gateway, cases).await;
}

/// Answers of a llama-server (xllamacpp as in `tests/requirements.txt`), which come through as they are: the document may know fewer fields than they have, but none otherwise.
#[tokio::test]
async fn what_a_llama_server_shows_of_itself_is_as_the_document_says() {
    let recorded: Value = serde_json::from_str(include_str!("llama_server.json")).unwrap();
    let (gateway, _controller, _worker) = start(&[]).await;
    let document = Document::open(&gateway).await;
    let mut faults = Vec::new();
    for answer in recorded.as_array().unwrap() {
        let (method, route) = (
            answer["method"].as_str().unwrap(),
            answer["route"].as_str().unwrap(),
        );
        let found = document.faults(method, route, 200, "application/json", &answer["answer"]);
        faults.extend(found.into_iter().map(|fault| format!("{method} {route} {fault}")));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
