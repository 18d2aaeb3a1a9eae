//! llama.cpp's router mode (its README, "Using multiple models"): `GET /models`, `POST /models/load`, `POST /models/unload`, `GET /models/sse`.
//!
//! A load answers when it has begun; its end is told by the events. Unlike llama.cpp, loading what is loaded is no error.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use axum::{body::Body, extract::State, response::Response};
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use muster_core::Error;
use muster_proto::v1::{LoadModelRequest, ModelStatus, ModelSummary, UnloadModelRequest};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::requests::RouterBody;
use crate::{
    fleet::{Fleet, table::Table},
    translate::{ModelName, read::Fields as _},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/models", Access::User, list)
            .summary("All models with their status, as llama.cpp's router lists them")
            .answers::<RouterList>("`data` with `id`, `in_cache`, `path`, `status`."),
        Route::post("/models/load", Access::Admin, load)
            .summary("Begin to load a model")
            .takes::<RouterBody>()
            .answers::<Done>("It has begun.")
            .change_errors(),
        Route::post("/models/unload", Access::Admin, unload)
            .summary("Unload a model")
            .takes::<RouterBody>()
            .answers::<Done>("It is unloaded.")
            .change_errors(),
        Route::get("/models/sse", Access::User, events)
            .summary("What happens to models, as server-sent events")
            .streams()
            .answer_text("`model`, `event` and `data` each."),
    ]
}

async fn list(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let data = table.models().map(|summary| RouterModel::of(summary)).collect();
    reply::value(StatusCode::OK, &RouterList { object: "list", data })
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
struct RouterList<'a> {
    /// `list`.
    object: &'static str,
    /// In the order of their ids.
    data: Vec<RouterModel<'a>>,
}

/// A model as llama.cpp's router lists it.
#[derive(Debug, Serialize, ToSchema)]
struct RouterModel<'a> {
    /// Id in the catalogue.
    id: &'a str,
    /// `model`.
    object: &'static str,
    /// `llamacpp`.
    owned_by: &'static str,
    /// When it came into the catalogue, in Unix seconds.
    created: i64,
    /// Its files are here.
    in_cache: bool,
    /// Its file; from the hub, `ORG/NAME:VARIANT`.
    path: &'a str,
    /// Further names of the model.
    aliases: &'a [String],
    /// Labels of the model.
    tags: &'a [String],
    /// How it stands.
    status: RouterStatus,
}

impl<'a> RouterModel<'a> {
    fn of(summary: &'a ModelSummary) -> Self {
        Self {
            id: &summary.id,
            object: "model",
            owned_by: "llamacpp",
            created: summary.created.as_ref().map_or(0, |created| created.seconds),
            in_cache: summary.downloaded,
            path: &summary.checkpoint,
            aliases: &summary.aliases,
            tags: &summary.labels,
            status: RouterStatus::of(summary),
        }
    }
}

/// How a model stands.
#[derive(Debug, Serialize, ToSchema)]
struct RouterStatus {
    /// `unloaded`, `loading` or `loaded`.
    value: &'static str,
    /// True if the last load failed; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<bool>,
}

impl RouterStatus {
    /// llama.cpp has no word for a failed load but a flag.
    fn of(summary: &ModelSummary) -> Self {
        let (value, failed) = match word(summary) {
            "failed" => ("unloaded", Some(true)),
            word => (word, None),
        };
        Self { value, failed }
    }
}

/// It was done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RouterDone)]
pub(super) struct Done {
    /// True.
    success: bool,
}

pub(super) const DONE: Done = Done { success: true };

fn word(summary: &ModelSummary) -> &'static str {
    match ModelStatus::try_from(summary.status).unwrap_or_default() {
        ModelStatus::Unloaded | ModelStatus::Unspecified => "unloaded",
        ModelStatus::Loading => "loading",
        // Until the memory is free it is there.
        ModelStatus::Loaded | ModelStatus::Unloading => "loaded",
        ModelStatus::Failed => "failed",
    }
}

fn named_model(body: &[u8]) -> Result<String, Error> {
    let ModelName(model) = RouterBody::body(body)?.model;
    Ok(model)
}

async fn load(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let request = LoadModelRequest {
        model: named_model(&request.body)?,
        ..LoadModelRequest::default()
    };
    app.dispatcher.fleet.control().begin_load(request).await?;
    Ok(reply::value(StatusCode::OK, &DONE))
}

async fn unload(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let request = UnloadModelRequest {
        model: named_model(&request.body)?,
        ..UnloadModelRequest::default()
    };
    app.dispatcher.fleet.control().unload(request).await?;
    Ok(reply::value(StatusCode::OK, &DONE))
}

async fn events(State(app): State<Arc<App>>) -> Response {
    let fleet = Arc::clone(&app.dispatcher.fleet);
    let stopping = app.stopping.clone();
    let seen = words(&fleet.table());
    let changes = fleet.changes();
    let events = futures::stream::unfold((fleet, changes, seen), |(fleet, mut changes, mut seen)| async {
        loop {
            changes.changed().await.ok()?;
            let text = changed(&fleet, &mut seen);
            if !text.is_empty() {
                return Some((Ok::<_, Infallible>(Bytes::from(text)), (fleet, changes, seen)));
            }
        }
    });
    let events = futures::StreamExt::take_until(events, stopping.cancelled_owned());
    let mut response = Response::new(Body::from_stream(events));
    let kind = HeaderValue::from_static("text/event-stream");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

type Words = BTreeMap<String, &'static str>;

fn words(table: &Table) -> Words {
    table
        .models()
        .map(|summary| (summary.id.clone(), word(summary)))
        .collect()
}

fn changed(fleet: &Fleet, seen: &mut Words) -> String {
    let now = words(&fleet.table());
    let text = differences(seen, &now);
    *seen = now;
    text
}

/// The events between two looks.
fn differences(before: &Words, now: &Words) -> String {
    let mut text = String::new();
    for (model, word) in now
        .iter()
        .filter(|(model, word)| before.get(*model) != Some(word))
    {
        let data = match *word {
            "failed" => json!({"status": "unloaded", "failed": true}),
            word => json!({"status": word}),
        };
        push(
            &mut text,
            &json!({"model": model, "event": "model_status", "data": data}),
        );
    }
    for model in before.keys().filter(|model| !now.contains_key(*model)) {
        push(&mut text, &json!({"model": model, "event": "model_remove"}));
    }
    text
}

fn push(text: &mut String, event: &Value) {
    text.push_str("data: ");
    text.push_str(&event.to_string());
    text.push_str("\n\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_of_a_model_is_an_event() {
        let words = |pairs: &[(&str, &'static str)]| -> Words {
            pairs
                .iter()
                .map(|(model, word)| ((*model).to_owned(), *word))
                .collect()
        };
        let before = words(&[("a", "loading"), ("b", "loaded"), ("c", "unloaded")]);
        let now = words(&[("a", "failed"), ("b", "loaded"), ("d", "loaded")]);
        let text = differences(&before, &now);
        let events: Vec<Value> = text
            .split_terminator("\n\n")
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect();
        assert_eq!(
            events,
            [
                json!({"model": "a", "event": "model_status", "data": {"status": "unloaded", "failed": true}}),
                json!({"model": "d", "event": "model_status", "data": {"status": "loaded"}}),
                json!({"model": "c", "event": "model_remove"}),
            ]
        );
        assert!(differences(&now, &now).is_empty());
    }
}
