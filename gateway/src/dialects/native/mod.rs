//! llama.cpp's own routes (seed 004), without a prefix. Errors are in its form, with the status as `code`.

mod ask;
pub(crate) mod completion;
mod generate;
mod health;
mod pass;
pub(super) mod prefixed;
mod props;
mod router;
mod schema;
mod settings;
mod shapes;
mod which;

use std::sync::Arc;

use axum::{
    Router,
    routing::{get, post},
};
use utoipa::OpenApi;

use crate::{
    render::error::Form,
    routes::{App, access::Access, surface},
};

/// What the document says of them.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    health::readiness,
    health::liveness,
    generate::complete,
    generate::infill,
    ask::tokenize,
    ask::detokenize,
    ask::apply_template,
    ask::embedding,
    ask::rerank,
    props::get,
    props::set,
    pass::slots,
    pass::slot,
    pass::adapters,
    pass::set_adapters,
    pass::counters,
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
        .route("/tokenize", post(ask::tokenize))
        .route("/detokenize", post(ask::detokenize))
        .route("/apply-template", post(ask::apply_template))
        .route("/embedding", post(ask::embedding))
        .route("/embeddings", post(ask::embedding))
        .route("/rerank", post(ask::rerank))
        .route("/reranking", post(ask::rerank))
        .route("/slots", get(pass::slots))
        .route("/lora-adapters", get(pass::adapters))
        .route("/metrics", get(pass::counters))
        .route("/models", get(router::list))
        .route("/models/sse", get(router::events));
    let admin = Router::new()
        .route("/props", post(props::set))
        .route("/slots/{id}", post(pass::slot))
        .route("/lora-adapters", post(pass::set_adapters))
        .route("/models/load", post(router::load))
        .route("/models/unload", post(router::unload));
    surface(app, Access::Open, Form::Native, open)
        .merge(surface(app, Access::User, Form::Native, user))
        .merge(surface(app, Access::Admin, Form::Native, admin))
}
