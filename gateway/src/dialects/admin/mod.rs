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

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::runtime::Family;
use muster_proto::{
    overrides::Draft,
    v1::{LoadModelRequest, ModelStatus, ReloadResponse, UnloadModelRequest},
};
use serde::Serialize;
use utoipa::ToSchema;

use self::{memory::GpuMemory, row::Row, schema::LoadBody};
use crate::{
    render::error::{self, OpenAiError},
    web::{
        App,
        access::Access,
        extract::Path,
        reply::{self, Refusal},
        route::{Dialect, Named, Route},
        run::ClientRequest,
    },
};

/// The routes of the Runtime Admin API.
pub(super) static DIALECT: Dialect = Dialect {
    name: "Admin",
    errors: &error::OPENAI,
    error: Named::of::<OpenAiError<'_>>(),
    routes,
};

/// All models.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminModels)]
struct List {
    /// Models in the order of their names.
    models: Vec<Row>,
}

fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/admin/models", Access::Admin, list)
            .summary("All models with their definition and live state")
            .answers::<List>("All models, in the order of their names.")
            .change_errors(),
        Route::get("/v1/admin/models/{*name}", Access::Admin, one)
            .summary("One model with its definition and live state")
            .part::<String>("name", "The model's name; slashes may stand as they are.")
            .answers::<Row>("The model.")
            .change_errors(),
        Route::post("/v1/admin/models/{*name}/load", Access::Admin, load)
            .summary("Load a model, with settings for this one load if any, and wait for the end")
            .part::<String>("name", "The model's name; slashes may stand as they are.")
            .may_take::<LoadBody>("Settings for this one load; may be absent.")
            .answers::<Row>("The final state: it is `loaded`, or `loading` for somebody else.")
            .error("400", "`invalid_load_request`: values that the backend does not take, or settings for a model that is loaded.")
            .error("404", "`unknown_model`.")
            .error("409", "`model_loading` (with settings), `model_unloading`, `slots_pinned`.")
            .error("422", "`invalid_schema`: no JSON object, an unknown key, a wrong type, 0 where a positive integer is wanted.")
            .fails("The load failed; the model is `failed` and keeps `last_error`."),
        Route::post("/v1/admin/models/{*name}/unload", Access::Admin, unload)
            .summary("Unload a model: nothing new is taken, what runs finishes; waits for the end")
            .part::<String>("name", "The model's name; slashes may stand as they are.")
            .answers::<Row>("It is `unloaded` (or was, or stays `failed`), or `unloading` for somebody else.")
            .error("404", "`unknown_model`.")
            .error("409", "`model_loading`: a load is not cut short.")
            .fails("It could not be done."),
        Route::post("/v1/admin/reload", Access::Admin, reload)
            .summary("Read the configuration again and take over what has changed")
            .answers::<Reloaded>("What has changed; nothing that runs was interrupted.")
            .error("400", "`invalid_configuration`: every problem with its file and key; nothing has changed.")
            .fails("It could not be done."),
        Route::get("/v1/admin/gpu-memory", Access::Admin, gpu_memory)
            .summary("Memory of all GPUs, and what each model takes")
            .answers::<GpuMemory>("`gpus`, `models`, and in `error` why there are no GPUs.")
            .change_errors(),
    ]
}

/// What a reload has changed.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminReloaded)]
struct Reloaded {
    /// Models that are new.
    added: Vec<String>,
    /// Models that are defined otherwise. One that is loaded is loaded anew when it is idle.
    changed: Vec<String>,
    /// Models that are gone. One that is loaded goes when it is idle.
    removed: Vec<String>,
    /// Whether policy has other settings.
    policy: bool,
    /// Tables that have changed and count after a restart only.
    restart: Vec<String>,
}

async fn reload(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let ReloadResponse {
        added,
        changed,
        removed,
        restart,
        policy,
    } = app.dispatcher.fleet.control().reload().await?;
    let reloaded = Reloaded {
        added,
        changed,
        removed,
        policy,
        restart,
    };
    Ok(reply::value(StatusCode::OK, &reloaded))
}

async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let models = app.dispatcher.fleet.control().models().await?;
    let models = models.iter().map(|model| Row::new(model, Vec::new())).collect();
    Ok(reply::value(StatusCode::OK, &List { models }))
}

async fn one(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Response, Refusal> {
    let model = app.dispatcher.fleet.control().model(&name).await?;
    Ok(reply::value(StatusCode::OK, &Row::new(&model, Vec::new())))
}

async fn load(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let control = app.dispatcher.fleet.control();
    let model = control.clone().model(&name).await?;
    let draft = Draft::parse(&request.body)?;
    let replicas = draft.replicas().unwrap_or_default();
    let overrides = draft.check(Family::of(&model.runtime), row::replica_max(&model))?;
    let request = LoadModelRequest {
        model: name,
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

/// Unloads a model. The body is ignored.
async fn unload(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
    _body: ClientRequest,
) -> Result<Response, Refusal> {
    let request = UnloadModelRequest {
        model: name,
        ..UnloadModelRequest::default()
    };
    let model = app.dispatcher.fleet.control().unload(request).await?;
    Ok(reply::value(StatusCode::OK, &Row::new(&model, Vec::new())))
}

async fn gpu_memory(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let control = || app.dispatcher.fleet.control();
    let (devices, models, workers) =
        tokio::try_join!(control().devices(), control().models(), control().workers())?;
    Ok(reply::value(
        StatusCode::OK,
        &GpuMemory::new(&devices, &models, &workers),
    ))
}
