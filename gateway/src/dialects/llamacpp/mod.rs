//! llama.cpp's own routes (seed 004), without a prefix. Errors are in its form, with the status as `code`.

pub(crate) mod completion;
mod generate;
mod health;
mod model_query;
mod passthrough;
pub(super) mod prefixed;
mod props;
mod queries;
mod router;
mod schema;
mod settings;
mod shapes;

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};
use utoipa::OpenApi;

use crate::{
    render::error::Form,
    web::{App, access::Access, surface},
};

/// What the document says of them.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    health::readiness,
    health::liveness,
    generate::complete,
    generate::infill,
    queries::tokenize,
    queries::detokenize,
    queries::apply_template,
    queries::embedding,
    queries::rerank,
    props::get,
    props::set,
    passthrough::slots,
    passthrough::slot,
    passthrough::adapters,
    passthrough::set_adapters,
    passthrough::counters,
    prefixed::slots,
    prefixed::slot,
    prefixed::tokenize,
    router::list,
    router::load,
    router::unload,
    router::events
))]
pub(super) struct Doc;

/// The routes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let open = Router::new()
        .route("/health", get(health::readiness))
        .route("/live", get(health::liveness))
        // Seed 004: "this endpoint is public (no API key check)".
        .route("/props", get(props::get));
    let user = Router::new()
        .route("/completion", post(generate::complete))
        .route("/completions", post(generate::complete))
        .route("/infill", post(generate::infill))
        .route("/tokenize", post(queries::tokenize))
        .route("/detokenize", post(queries::detokenize))
        .route("/apply-template", post(queries::apply_template))
        .route("/embedding", post(queries::embedding))
        .route("/embeddings", post(queries::embedding))
        .route("/rerank", post(queries::rerank))
        .route("/reranking", post(queries::rerank))
        .route("/slots", get(passthrough::slots))
        .route("/lora-adapters", get(passthrough::adapters))
        .route("/metrics", get(passthrough::counters))
        .route("/models", get(router::list))
        .route("/models/sse", get(router::events));
    let admin = Router::new()
        .route("/props", post(props::set))
        .route("/slots/{id}", post(passthrough::slot))
        .route("/lora-adapters", post(passthrough::set_adapters))
        .route("/models/load", post(router::load))
        .route("/models/unload", post(router::unload));
    surface(app, Access::Open, Form::Native, open)
        .merge(surface(app, Access::User, Form::Native, user))
        .merge(surface(app, Access::Admin, Form::Native, admin))
}
