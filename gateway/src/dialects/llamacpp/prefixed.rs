//! llama.cpp's routes that Lemonade has under the prefixes too (its public `docs/api/llamacpp.md`): `slots`, `slots/{id}`, `tokenize`. Without a
//! model's name they mean the llama.cpp model that was used last.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
    routing::{get, post},
};
use muster_proto::v1::ModelSummary;

use super::{
    model_query::{ModelQuery, Query},
    passthrough::{self, About},
    queries, schema,
    shapes::{NativeSlot, SlotDone, SlotFile},
};
use crate::{
    fleet::table::{Table, is_loaded},
    render::error::Form,
    web::{
        App,
        access::{Access, Caller},
        reply::Refusal,
        run::Asked,
        surface,
    },
};

/// The routes under each of the prefixes.
pub(crate) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let user = Router::new()
        .route("/slots", get(slots))
        .route("/tokenize", post(tokenize));
    let admin = Router::new().route("/slots/{id}", post(slot));
    surface(app, Access::User, Form::Native, user).merge(surface(app, Access::Admin, Form::Native, admin))
}

/// The id of the loaded llama.cpp model that was used last.
fn recent(table: &Table) -> Option<String> {
    let used = |summary: &&Arc<ModelSummary>| {
        let at = summary.last_used.unwrap_or_default();
        (at.seconds, at.nanos)
    };
    let loaded = table.models().filter(|summary| is_loaded(summary));
    let llama = loaded.filter(|summary| matches!(summary.runtime.as_str(), "llama_cpp" | "llama_server"));
    llama.max_by_key(used).map(|summary| summary.id.clone())
}

fn or_recent(named: Option<String>, app: &App) -> Option<String> {
    let named = named.filter(|name| !name.is_empty());
    named.or_else(|| recent(&app.dispatcher.fleet.table()))
}

#[utoipa::path(
    get,
    path = "/v1/slots",
    tag = "llama.cpp",
    summary = "As `/slots`, of the llama.cpp model used last unless one is named",
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
        ("fail_on_no_slot" = Option<String>, Query, description = "503 where none is free."),
    ),
    responses(
        (status = 200, description = "Each of them, in order.", body = Vec<NativeSlot>),
        (status = "4XX", description = "The model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "501 where it is switched off; 503 where none is free.", body = schema::NativeError),
    )
)]
pub(super) async fn slots(
    State(app): State<Arc<App>>,
    caller: Extension<Caller>,
    Query(mut about): Query<About>,
) -> Result<Response, Refusal> {
    about.model = or_recent(about.model, &app);
    passthrough::slots(State(app), caller, Query(about)).await
}

#[utoipa::path(
    post,
    path = "/v1/slots/{id}",
    tag = "llama.cpp",
    summary = "As `/slots/{id}`, of the llama.cpp model used last unless one is named",
    request_body = SlotFile,
    params(
        ("id" = u32, Path, description = "Number of the sequence, from 0."),
        ("action" = String, Query, description = "`save`, `restore` or `erase`."),
        ("model" = Option<String>, Query, description = "Id in the catalogue."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "What was done.", body = SlotDone),
        (status = "4XX", description = "The request is wrong, or the model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "501 where it is switched off or the runtime cannot.", body = schema::NativeError),
    )
)]
pub(super) async fn slot(
    State(app): State<Arc<App>>,
    id: Result<Path<u32>, PathRejection>,
    Query(mut about): Query<About>,
    asked: Asked,
) -> Result<Response, Refusal> {
    about.model = or_recent(about.model, &app);
    passthrough::slot(State(app), id, Query(about), asked).await
}

#[utoipa::path(
    post,
    path = "/v1/tokenize",
    tag = "llama.cpp",
    summary = "As `/tokenize`, on the llama.cpp model used last unless one is named",
    request_body = schema::TokenizeRequest,
    responses(
        (status = 200, description = "`tokens`.", body = schema::Tokens),
        (status = "4XX", description = "The request is wrong, or the model is not loaded.", body = schema::NativeError),
    )
)]
pub(super) async fn tokenize(
    State(app): State<Arc<App>>,
    Query(which): Query<ModelQuery>,
    asked: Asked,
) -> Result<Response, Refusal> {
    let model = or_recent(which.model, &app);
    queries::tokenize(State(app), Query(ModelQuery { model }), asked).await
}
