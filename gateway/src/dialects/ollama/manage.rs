//! Models as Ollama's clients manage them: downloads, further names, removal. What needs Ollama's own registry or its model files is refused.
//!
//! Architecture invariant: the controller does all of it (`muster.v1.Models`); here are names and forms only.

use std::{borrow::Cow, convert::Infallible, sync::Arc};

use axum::{extract::State, response::Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, StatusCode};
use http_body::Frame;
use http_body_util::StreamBody;
use muster_core::{Error, name::USER};
use muster_proto::v1::{Alias, FetchProgress, ModelDefinition, PullModelRequest, pull_model_event::Kind};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    error::OllamaError,
    requests::{CopyBody, PullBody, ShowBody},
};
use crate::{
    fleet::models::Pull,
    translate::{ModelName, read::Fields as _},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::{JSON_LINES, Route},
        run::ClientRequest,
    },
};

/// Lemonade's recipe of models in GGUF.
pub(super) const RECIPE: &str = "llamacpp";
/// What begins the names of models that Ollama fetches from Hugging Face.
const HUB: [&str; 2] = ["hf.co/", "huggingface.co/"];

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/pull", Access::Admin, pull)
            .summary("Download a model of the catalogue, or of Hugging Face (`hf.co/ORG/NAME:VARIANT`)")
            .takes::<PullBody>()
            .answers::<OllamaStatus>("All files are there; lines of JSON unless `stream` is false.")
            .answers_as::<OllamaStatus>(JSON_LINES)
            .refuses("There is no such model.")
            .fails("The files cannot be downloaded."),
        Route::post("/api/copy", Access::Admin, copy)
            .summary("Give a model another name")
            .takes::<CopyBody>()
            .answers_text("text/plain", "Nothing: it is done.")
            .refuses("There is no such model, or the name is another model's."),
        Route::delete("/api/delete", Access::Admin, delete)
            .summary("Take a further name away; or unload a model and remove its files")
            .takes::<ShowBody>()
            .answers_text("text/plain", "Nothing: it is done.")
            .refuses("There is no such model, or its files are not Muster's to remove."),
        Route::not_done(
            &Method::POST,
            "/api/push",
            Access::Admin,
            "there is no registry here to push to",
        ),
    ]
}

/// How far something is.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(super) struct OllamaStatus {
    /// `pulling manifest`, `pulling FILE`, or `success` at the end.
    status: String,
    /// The file that is being downloaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Bytes of all files.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    /// Bytes that are here.
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<u64>,
}

impl OllamaStatus {
    pub(super) fn word(status: &str) -> Self {
        Self {
            status: status.to_owned(),
            ..Self::default()
        }
    }

    fn of(progress: FetchProgress) -> Self {
        Self {
            status: format!("pulling {}", progress.file),
            digest: Some(progress.file),
            total: Some(progress.bytes_total),
            completed: Some(progress.bytes_downloaded),
        }
    }
}

/// The pull of a model that Ollama's clients call `name`; `known`: the catalogue's name for it, if it has one.
fn order(name: String, known: Option<String>) -> PullModelRequest {
    let checkpoint = HUB.iter().find_map(|prefix| name.strip_prefix(prefix));
    match (known, checkpoint) {
        (None, Some(checkpoint)) => {
            // The whole name: clients go on to use it, and it is found without the `user.`.
            let model = format!("{USER}{name}");
            let definition = ModelDefinition {
                model: model.clone(),
                checkpoint: checkpoint.to_owned(),
                recipe: RECIPE.to_owned(),
                ..ModelDefinition::default()
            };
            PullModelRequest {
                model,
                definition: Some(definition),
            }
        }
        (known, _) => PullModelRequest {
            model: known.unwrap_or(name),
            definition: None,
        },
    }
}

/// The id or alias of a model that a client calls `name`.
pub(super) fn known(app: &App, name: &str) -> Option<String> {
    let table = app.dispatcher.fleet.table();
    table.known_as(name).map(Cow::into_owned)
}

async fn pull(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let PullBody {
        model: ModelName(name),
        stream,
    } = PullBody::body(&request.body)?;
    let known = known(&app, &name);
    let pull = app.dispatcher.fleet.models().pull(order(name, known)).await?;
    if stream == Some(false) {
        pull.done().await?;
        return Ok(reply::value(StatusCode::OK, &OllamaStatus::word("success")));
    }
    Ok(lines(pull))
}

/// Streams a download as Ollama's lines.
fn lines(pull: Pull) -> Response {
    let first = stream::iter([line(&OllamaStatus::word("pulling manifest"))]);
    let rest = stream::unfold(Some(pull), |pull| async {
        let mut pull = pull?;
        Some(match pull.next().await {
            Ok(Kind::Progress(progress)) => (line(&OllamaStatus::of(progress)), Some(pull)),
            Ok(Kind::Done(_)) => (line(&OllamaStatus::word("success")), None),
            Err(Error { message: error, .. }) => (line(&OllamaError { error: &error }), None),
        })
    });
    let frames = first
        .chain(rest)
        .map(|text| Ok::<_, Infallible>(Frame::data(text)));
    reply::lines(StreamBody::new(frames))
}

pub(super) fn line(value: &impl Serialize) -> Bytes {
    let value: Value = json!(value);
    format!("{value}\n").into()
}

async fn copy(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let CopyBody {
        source: ModelName(source),
        destination: ModelName(alias),
    } = CopyBody::body(&request.body)?;
    let model = id_of(&app, source);
    app.dispatcher
        .fleet
        .models()
        .set_alias(Alias { alias, model })
        .await?;
    Ok(reply::ok(Bytes::new()))
}

async fn delete(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let ModelName(name) = ShowBody::body(&request.body)?.model;
    let name = known(&app, &name).unwrap_or(name);
    let models = app.dispatcher.fleet.models();
    let id = id_of(&app, name.clone());
    if id == name {
        models.delete(&id).await?;
    } else {
        models.delete_alias(&name).await?;
    }
    Ok(reply::ok(Bytes::new()))
}

/// The id of a model by any name of it; what nobody has stays what it is.
fn id_of(app: &App, name: String) -> String {
    let table = app.dispatcher.fleet.table();
    let known = table
        .known_as(&name)
        .and_then(|known| table.model(&known).cloned());
    known.map_or(name, |summary| summary.id.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_hugging_face_is_registered_and_any_other_is_the_catalogues() {
        let new = order("hf.co/o/n-GGUF:Q4_K_M".into(), None);
        let definition = new.definition.unwrap();
        assert_eq!(
            (new.model.as_str(), definition.checkpoint.as_str()),
            ("user.hf.co/o/n-GGUF:Q4_K_M", "o/n-GGUF:Q4_K_M")
        );
        let known = order("hf.co/o/n-GGUF:Q4_K_M".into(), Some("user.mine".into()));
        assert!(known.definition.is_none() && known.model == "user.mine");
        assert_eq!(order("llama3".into(), None).model, "llama3");
    }

    #[test]
    fn progress_is_told_as_ollama_does() {
        let progress = FetchProgress {
            file: "m.gguf".into(),
            bytes_downloaded: 5,
            bytes_total: 9,
            ..FetchProgress::default()
        };
        assert_eq!(
            line(&OllamaStatus::of(progress)),
            "{\"completed\":5,\"digest\":\"m.gguf\",\"status\":\"pulling m.gguf\",\"total\":9}\n"
        );
        assert_eq!(line(&OllamaStatus::word("success")), "{\"status\":\"success\"}\n");
    }
}
