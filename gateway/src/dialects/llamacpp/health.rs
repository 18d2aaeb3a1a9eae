//! llama.cpp's health (seed 004, `GET /health`), which is also the gateway's own.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use serde_json::json;

use super::{
    model_query::{ModelQuery, Query},
    schema,
    shapes::NativeHealth,
};
use crate::{
    fleet::table::is_loaded,
    web::{App, reply},
};

/// The gateway's own readiness, with what it hears from the controller; with `?model=` that model's, with llama.cpp's 503 while it is not loaded (seed 004; gateway/README.md, Lemonade).
#[utoipa::path(
    get,
    path = "/health",
    tag = "llama.cpp",
    summary = "Whether the gateway, or with `model` that model, takes requests",
    params(("model" = Option<String>, Query, description = "Id in the catalogue.")),
    responses(
        (status = 200, description = "It does.", body = NativeHealth),
        (status = 400, description = "The query is wrong.", body = schema::NativeError),
        (status = 503, description = "The gateway is shutting down, or the model is not loaded: `Loading model`.", body = schema::NativeError),
    )
)]
pub(super) async fn readiness(State(app): State<Arc<App>>, Query(which): Query<ModelQuery>) -> Response {
    if app.stopping.is_cancelled() {
        return unavailable("shutting down");
    }
    let table = app.dispatcher.fleet.table();
    match which.model {
        Some(model) if !table.model(&model).is_some_and(|summary| is_loaded(summary)) => {
            unavailable("Loading model")
        }
        Some(_) | None => {
            let (controller, troubles) = (app.dispatcher.fleet.contact(), app.dispatcher.fleet.troubles());
            let own = json!({"status": "ok", "controller": controller, "troubles": *troubles});
            reply::value(StatusCode::OK, &own)
        }
    }
}

/// llama.cpp's answer while it cannot serve.
pub(super) fn unavailable(message: &str) -> Response {
    let body = json!({"error": {"code": 503, "message": message, "type": "unavailable_error"}});
    reply::value(StatusCode::SERVICE_UNAVAILABLE, &body)
}

/// The process answers.
#[utoipa::path(
    get,
    path = "/live",
    tag = "llama.cpp",
    summary = "The process answers",
    responses(
        (status = 200, description = "It does.", body = NativeHealth),
    )
)]
pub(super) async fn liveness() -> Response {
    reply::value(StatusCode::OK, &json!({"status": "ok"}))
}
