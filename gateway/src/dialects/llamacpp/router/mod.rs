//! llama.cpp's router mode (its README, "Using multiple models"): its models with their state, loads and unloads; downloads (`downloads`) and events
//! (`events`).
//!
//! A load answers when it has begun; its end is told by the events. Unlike llama.cpp, loading what is loaded is no error.

mod downloads;
mod events;

use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::{Code, Error, name::USER};
use muster_proto::v1::{
    Download, DownloadState, FetchProgress, GenerateRequest, LoadModelRequest, ModelSummary, Sampling,
    UnloadModelRequest,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::requests::RouterBody;
use crate::{
    dialects::openai::{
        listing::{RouterStatus, Short},
        models::{self, Model},
    },
    dispatch::autoload::on_off,
    fleet::table::Table,
    render::settings::generation_settings,
    translate::{ModelName, object, read::Fields as _},
    web::{
        App,
        access::Access,
        extract::Query,
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
            .query::<bool>(
                "reload",
                "Read the configuration and watched folders again first; only administrators may ask this.",
            )
            .answers::<RouterList>("Also models whose files are not here.")
            .refuses("`reload` is neither yes nor no, or its sender may not ask for it."),
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
    ]
    .into_iter()
    .chain(downloads::routes())
    .chain(events::routes())
    .collect()
}

/// What a list may be asked for.
#[derive(Clone, Debug, Default, Deserialize)]
struct ListQuery {
    reload: Option<String>,
}

async fn list(
    State(app): State<Arc<App>>,
    Query(ListQuery { reload }): Query<ListQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    if reads_again(reload.as_deref())? {
        read_again(&app, &request).await?;
    }
    let coming = running_downloads(&app).await;
    let table = app.dispatcher.fleet.table();
    let row = |summary: &Arc<ModelSummary>| RouterModel::of(&table, summary, coming.get(summary.id.as_str()));
    let data: Vec<RouterModel> = table.models().map(row).collect();
    let models = match data.as_slice() {
        [only] => vec![Short::of(&only.model.id, &only.model.standing)],
        [] | [..] => Vec::new(),
    };
    let list = RouterList {
        object: "list",
        data,
        models,
    };
    Ok(reply::value(StatusCode::OK, &list))
}

/// Whether `?reload=` asks for it.
fn reads_again(reload: Option<&str>) -> Result<bool, Error> {
    let wrong = || object::invalid("reload", "must be `1` or `0`");
    reload.map_or(Ok(false), |text| on_off(text).ok_or_else(wrong))
}

/// Has the configuration read again, and waits until its models can be listed.
async fn read_again(app: &App, request: &ClientRequest) -> Result<(), Error> {
    if !request.administers {
        return Err(Code::Forbidden.error("reading the configuration again needs the admin key"));
    }
    let fleet = &app.dispatcher.fleet;
    let reloaded = fleet.control().reload().await?;
    fleet.shows_reloaded(&reloaded).await;
    Ok(())
}

/// The running downloads of models that are not here, by model; none while the controller is away.
async fn running_downloads(app: &App) -> BTreeMap<String, FetchProgress> {
    let fleet = &app.dispatcher.fleet;
    if fleet.table().models().all(|summary| summary.downloaded) {
        return BTreeMap::new();
    }
    let known = fleet.models().downloads().await.unwrap_or_default();
    let running = |download: &Download| download.state() == DownloadState::Running;
    let running = known.into_iter().filter(running);
    running
        .map(|download| (download.model, download.progress.unwrap_or_default()))
        .collect()
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
struct RouterList {
    /// The word `list`.
    object: &'static str,
    /// Models in the order of their ids.
    data: Vec<RouterModel>,
    /// Of a single model, its short form; absent where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<Short>,
}

/// A model as llama.cpp's router lists it, which names models of users without the `user.`.
#[derive(Debug, Serialize, ToSchema)]
struct RouterModel {
    #[serde(flatten)]
    model: Model,
    /// Its files are here.
    in_cache: bool,
    /// Its file; from the hub, `ORG/NAME:VARIANT`.
    path: String,
}

impl RouterModel {
    fn of(table: &Table, summary: &ModelSummary, coming: Option<&FetchProgress>) -> Self {
        let mut model = models::model(table, summary);
        shown_id(table, &summary.id).clone_into(&mut model.id);
        model.owned_by = "llamacpp";
        if let Some(progress) = coming {
            model.standing.status = RouterStatus::downloading(progress);
        }
        Self {
            model,
            in_cache: summary.downloaded,
            path: summary.checkpoint.clone(),
        }
    }
}

/// A model's name without `user.`, unless that is another one's: llama.cpp's clients look for a model under the name that they downloaded.
fn shown_id<'a>(table: &Table, id: &'a str) -> &'a str {
    id.strip_prefix(USER)
        .filter(|bare| !table.has_id(bare))
        .unwrap_or(id)
}

/// It was done.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RouterDone)]
pub(super) struct Done {
    /// True.
    success: bool,
}

pub(super) const DONE: Done = Done { success: true };

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
    let model = named_model(&request.body)?;
    if downloads::cancelled(&app, &model).await? {
        return Ok(reply::value(StatusCode::OK, &DONE));
    }
    let request = UnloadModelRequest {
        model,
        ..UnloadModelRequest::default()
    };
    app.dispatcher.fleet.control().unload(request).await?;
    Ok(reply::value(StatusCode::OK, &DONE))
}

/// What the router shows of itself where no model is meant: `max_instances` is the number of models of the type that may have most, 0 without a
/// limit, as in llama.cpp, and while the controller is away.
pub(super) async fn props(app: &App) -> Map<String, Value> {
    let limits = app.dispatcher.fleet.control().limits().await.unwrap_or_default();
    let unlimited = limits.iter().any(|limit| *limit < 0);
    let most = limits.into_iter().max().filter(|_| !unlimited).unwrap_or(0);
    let props = json!({
        "role": "router",
        "max_instances": most,
        "models_autoload": app.dispatcher.autoload.on,
        "model_alias": "muster",
        "model_path": "none",
        "default_generation_settings": {
            "params": generation_settings(&GenerateRequest::default(), &Sampling::default()),
            "n_ctx": 0,
        },
        "ui_settings": {},
        "build_info": format!("muster {}", muster_proto::VERSION),
        "cors_proxy_enabled": false,
    });
    serde_json::from_value(props).unwrap_or_default()
}
