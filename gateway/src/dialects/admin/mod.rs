//! The Runtime Admin API (seed 001): models with their live state, loads with overrides, unloads, GPU memory.
//!
//! ```text
//!  unloaded ──► loading ──► loaded ──► unloading ──► unloaded        load and unload wait for the end of theirs;
//!                 │ ▲                                                who goes away stops neither
//!                 ▼ │ load
//!                failed
//! ```
//!
//! A load's body is checked in this order: 404 for the model, 422 for the body's shape, 400 for its values, then the model's state decides
//! (gateway/README.md, Runtime Admin API). The controller decides on states, so that two operators never both win.
//!
//! Architecture invariant: every answer is made from what the controller says now, never from the gateway's route table.

mod definition;
mod memory;
mod row;
mod schema;
mod tables;

use std::sync::Arc;

use axum::{Router, extract::State, response::Response, routing::get};
use http::StatusCode;
use muster_proto::{
    Code,
    overrides::Draft,
    v1::{LoadModelRequest, ModelStatus, UnloadModelRequest},
};
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

use self::{memory::GpuMemory, row::Row, schema::LoadBody};
use crate::{
    openapi::schema::Error,
    render::error::Form,
    web::{
        App,
        access::Access,
        extract::Path,
        reply::{self, Refusal},
        run::Asked,
        surface,
    },
};

/// What the document says of them.
#[derive(Debug, OpenApi)]
#[openapi(paths(list, one, load, unload, gpu_memory))]
pub(super) struct Doc;

/// The routes under each of the prefixes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let admin = Router::new()
        .route("/admin/models", get(list))
        // Names of models may hold slashes, so what follows them is told apart by hand.
        .route("/admin/models/{*path}", get(one).post(act))
        .route("/admin/gpu-memory", get(gpu_memory));
    surface(app, Access::Admin, Form::OpenAi, admin)
}

/// All models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminModels)]
struct List {
    /// In the order of their names.
    models: Vec<Row>,
}

#[utoipa::path(
    get,
    path = "/v1/admin/models",
    tag = "Admin",
    summary = "All models with their definition and live state",
    responses(
        (status = 200, description = "All models, in the order of their names.", body = List),
        (status = "4XX", description = "The request is wrong or refused.", body = Error),
        (status = "5XX", description = "It could not be done.", body = Error),
    )
)]
async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let models = app.dispatcher.fleet.control().models().await?;
    let models = models.iter().map(|model| Row::new(model, Vec::new())).collect();
    Ok(reply::value(StatusCode::OK, &List { models }))
}

#[utoipa::path(
    get,
    path = "/v1/admin/models/{name}",
    tag = "Admin",
    summary = "One model with its definition and live state",
    params(("name" = String, Path, description = "The model's name; slashes may stand as they are.")),
    responses(
        (status = 200, description = "The model.", body = Row),
        (status = "4XX", description = "The request is wrong or refused.", body = Error),
        (status = "5XX", description = "It could not be done.", body = Error),
    )
)]
async fn one(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    let model = app.dispatcher.fleet.control().model(&name).await?;
    Ok(reply::value(StatusCode::OK, &Row::new(&model, Vec::new())))
}

async fn act(
    State(app): State<Arc<App>>,
    Path(path): Path<String>,
    asked: Asked,
) -> Result<Response, Refusal> {
    match path.rsplit_once('/') {
        Some((name, "load")) => load(&app, name, &asked.body).await,
        Some((name, "unload")) => unload(&app, name).await,
        Some(_) | None => {
            let message = format!("there is no route POST /v1/admin/models/{path}");
            Err(Refusal(Code::RouteNotFound.error(message)))
        }
    }
}

#[utoipa::path(
    post,
    path = "/v1/admin/models/{name}/load",
    tag = "Admin",
    summary = "Load a model, with settings for this one load if any, and wait for the end",
    params(("name" = String, Path, description = "The model's name; slashes may stand as they are.")),
    request_body(content = Option<LoadBody>, description = "Settings for this one load; may be absent."),
    responses(
        (status = 200, description = "The final state: it is `loaded`, or `loading` for somebody else.", body = Row),
        (status = 400, description = "`invalid_load_request`: values that the backend does not take, or settings for a model that is loaded.", body = Error),
        (status = 404, description = "`unknown_model`.", body = Error),
        (status = 409, description = "`model_loading` (with settings), `model_unloading`, `slots_pinned`.", body = Error),
        (status = 422, description = "`invalid_schema`: no JSON object, an unknown key, a wrong type, 0 where a positive integer is wanted.", body = Error),
        (status = "5XX", description = "The load failed; the model is `failed` and keeps `last_error`.", body = Error),
    )
)]
async fn load(app: &App, name: &str, body: &[u8]) -> Result<Response, Refusal> {
    let control = app.dispatcher.fleet.control();
    let model = control.clone().model(name).await?;
    let draft = Draft::parse(body)?;
    let replicas = draft.replicas().unwrap_or_default();
    let overrides = draft.check(&model.runtime, row::replica_max(&model))?;
    let request = LoadModelRequest {
        model: name.to_owned(),
        replicas,
        override_json: overrides.to_json(),
        ..LoadModelRequest::default()
    };
    let done = control.load(request).await?;
    if done.model.status() == ModelStatus::Loaded {
        app.dispatcher.fleet.shows_loaded(&done.model.id).await;
    }
    Ok(reply::value(StatusCode::OK, &Row::new(&done.model, done.evicted)))
}

/// Any body is as good as none: there is nothing to say about an unload.
#[utoipa::path(
    post,
    path = "/v1/admin/models/{name}/unload",
    tag = "Admin",
    summary = "Unload a model: nothing new is taken, what runs finishes; waits for the end",
    params(("name" = String, Path, description = "The model's name; slashes may stand as they are.")),
    responses(
        (status = 200, description = "It is `unloaded` (or was, or stays `failed`), or `unloading` for somebody else.", body = Row),
        (status = 404, description = "`unknown_model`.", body = Error),
        (status = 409, description = "`model_loading`: a load is not cut short.", body = Error),
        (status = "5XX", description = "It could not be done.", body = Error),
    )
)]
async fn unload(app: &App, name: &str) -> Result<Response, Refusal> {
    let request = UnloadModelRequest {
        model: name.to_owned(),
        ..UnloadModelRequest::default()
    };
    let model = app.dispatcher.fleet.control().unload(request).await?;
    Ok(reply::value(StatusCode::OK, &Row::new(&model, Vec::new())))
}

#[utoipa::path(
    get,
    path = "/v1/admin/gpu-memory",
    tag = "Admin",
    summary = "Memory of all GPUs, and what each model takes",
    responses(
        (status = 200, description = "`gpus`, `models`, and in `error` why there are no GPUs.", body = GpuMemory),
        (status = "4XX", description = "The request is wrong or refused.", body = Error),
        (status = "5XX", description = "It could not be done.", body = Error),
    )
)]
async fn gpu_memory(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let control = || app.dispatcher.fleet.control();
    let (devices, models, workers) =
        tokio::try_join!(control().devices(), control().models(), control().workers())?;
    Ok(reply::value(
        StatusCode::OK,
        &GpuMemory::new(&devices, &models, &workers),
    ))
}
