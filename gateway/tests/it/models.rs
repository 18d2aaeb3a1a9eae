//! Lemonade's pull, delete and registration (seed 000) over a scripted controller, whose answers depend on the model's name only.

use std::pin::Pin;

use muster_core::Code;
use muster_proto::{
    StatusExt as _,
    v1::{self, models_server::Models, pull_model_event::Kind},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::{
    controller::Heard,
    gateway::{Gateway, read},
};

type Events = Pin<Box<dyn Stream<Item = Result<v1::PullModelEvent, Status>> + Send>>;

/// The catalogue: there is no model `nobody`, and the download of `broken` breaks off.
#[derive(Debug)]
pub(crate) struct Catalogue(watch::Sender<Heard>);

impl Catalogue {
    /// One that writes down what it hears.
    pub(crate) fn new(heard: watch::Sender<Heard>) -> Self {
        Self(heard)
    }
}

fn known(id: &str) -> Result<v1::Model, Status> {
    if id == "nobody" {
        let error = Code::UnknownModel.error("no such model").with_detail("model", id);
        return Err(error.into_status());
    }
    Ok(v1::Model {
        id: id.to_owned(),
        ..v1::Model::default()
    })
}

#[tonic::async_trait]
impl Models for Catalogue {
    type PullModelStream = Events;

    async fn pull_model(&self, request: Request<v1::PullModelRequest>) -> Result<Response<Events>, Status> {
        let model = known(&request.into_inner().model)?;
        let progress = |bytes_downloaded| {
            let progress = v1::FetchProgress {
                file: "model.gguf".to_owned(),
                file_index: 1,
                total_files: 1,
                bytes_downloaded,
                bytes_total: 200,
                ..v1::FetchProgress::default()
            };
            Ok(Kind::Progress(progress))
        };
        let last = if model.id == "broken" {
            Err(Code::HubUnavailable.error("the line is cut").into_status())
        } else {
            Ok(Kind::Done(model))
        };
        let events = [progress(50), progress(200), last]
            .map(|kind| kind.map(|kind| v1::PullModelEvent { kind: Some(kind) }));
        Ok(Response::new(Box::pin(tokio_stream::iter(events))))
    }

    async fn delete_model(
        &self,
        request: Request<v1::DeleteModelRequest>,
    ) -> Result<Response<v1::DeleteModelResponse>, Status> {
        known(&request.into_inner().model)?;
        Ok(Response::new(v1::DeleteModelResponse::default()))
    }

    async fn register_model(
        &self,
        request: Request<v1::RegisterModelRequest>,
    ) -> Result<Response<v1::RegisterModelResponse>, Status> {
        let definition = request.into_inner().definition.unwrap_or_default();
        let model = v1::Model {
            checkpoint: definition.checkpoint,
            recipe: definition.recipe,
            ..known(&definition.model)?
        };
        Ok(Response::new(v1::RegisterModelResponse { model: Some(model) }))
    }

    async fn set_model_options(
        &self,
        request: Request<v1::SetModelOptionsRequest>,
    ) -> Result<Response<v1::SetModelOptionsResponse>, Status> {
        let v1::SetModelOptionsRequest { model, options_json } = request.into_inner();
        let known = v1::Model {
            options_json: options_json.clone(),
            ..known(&model)?
        };
        self.0
            .send_modify(|heard| heard.options.push((model, options_json)));
        Ok(Response::new(v1::SetModelOptionsResponse { model: Some(known) }))
    }

    async fn list_variants(
        &self,
        request: Request<v1::ListVariantsRequest>,
    ) -> Result<Response<v1::ListVariantsResponse>, Status> {
        let listing = v1::HubListing {
            repo: request.into_inner().repo,
            mmproj_files: vec!["mmproj.gguf".to_owned()],
            variants: vec![v1::HubVariant {
                name: "Q4_0".to_owned(),
                files: vec!["1-of-2.gguf".to_owned(), "2-of-2.gguf".to_owned()],
                size_bytes: 382_000_000,
            }],
        };
        Ok(Response::new(v1::ListVariantsResponse {
            listing: Some(listing),
        }))
    }

    async fn set_alias(
        &self,
        request: Request<v1::SetAliasRequest>,
    ) -> Result<Response<v1::SetAliasResponse>, Status> {
        known(&request.into_inner().alias.unwrap_or_default().model)?;
        Ok(Response::new(v1::SetAliasResponse {}))
    }

    async fn delete_alias(
        &self,
        request: Request<v1::DeleteAliasRequest>,
    ) -> Result<Response<v1::DeleteAliasResponse>, Status> {
        known(&request.into_inner().alias)?;
        Ok(Response::new(v1::DeleteAliasResponse {}))
    }

    async fn list_aliases(
        &self,
        _: Request<v1::ListAliasesRequest>,
    ) -> Result<Response<v1::ListAliasesResponse>, Status> {
        let alias = v1::Alias {
            alias: "gpt-4o".to_owned(),
            model: "m".to_owned(),
        };
        Ok(Response::new(v1::ListAliasesResponse { aliases: vec![alias] }))
    }
}

/// The events of a streamed pull: kind and data.
async fn streamed(gateway: &Gateway, model: &str) -> Vec<(String, Value)> {
    let body = json!({"model_name": model, "stream": true});
    let response = gateway.post("/api/v1/pull", &body).await;
    assert_eq!(response.status(), 200);
    let text = response.text().await.unwrap();
    let event = |frame: &str| {
        let (kind, data) = frame.split_once('\n').unwrap();
        let kind = kind.strip_prefix("event: ").unwrap().to_owned();
        (
            kind,
            serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap(),
        )
    };
    text.trim_end().split("\n\n").map(event).collect()
}

#[tokio::test]
async fn seed_000_pull_streams_progress_and_one_last_event() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let events = streamed(&gateway, "m").await;
    let progress = |done: u32, percent: u32| {
        let data = json!({
            "file": "model.gguf", "file_index": 1, "total_files": 1,
            "bytes_downloaded": done, "bytes_total": 200, "percent": percent
        });
        ("progress".to_owned(), data)
    };
    let complete = json!({"file_index": 1, "total_files": 1, "percent": 100});
    assert_eq!(
        events,
        [
            progress(50, 25),
            progress(200, 100),
            ("complete".to_owned(), complete)
        ]
    );
    let events = streamed(&gateway, "broken").await;
    let (kind, data) = events.last().unwrap();
    assert_eq!(
        (kind.as_str(), &data["error"]),
        ("error", &json!("the line is cut"))
    );
    assert_eq!(data["details"]["code"], "hub_unavailable");
}

#[tokio::test]
async fn seed_000_pull_and_delete_answer_as_the_seed_says() {
    let (gateway, _controller) = Gateway::with(vec![]).await;
    let post = async |path: &str, model: &str| {
        let (status, body) = read(gateway.post(path, &json!({"model_name": model})).await).await;
        (status.as_u16(), body)
    };
    let success = |message: &str| (200, json!({"status": "success", "message": message}));
    assert_eq!(post("/api/v1/pull", "m").await, success("Installed model: m"));
    assert_eq!(post("/v1/delete", "m").await, success("Deleted model: m"));
    let (status, body) = post("/api/v1/pull", "broken").await;
    assert_eq!(
        (status, &body["status"], &body["message"]),
        (502, &json!("error"), &json!("the line is cut"))
    );
    for path in ["/api/v1/pull", "/api/v1/delete"] {
        let (status, body) = post(path, "nobody").await;
        assert_eq!(
            (status, &body["message"]),
            (404, &json!("Model not found: nobody")),
            "{path}"
        );
    }
}
