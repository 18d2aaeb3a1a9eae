//! llama.cpp's own routes (seed 004), without a prefix. Errors are in its form, with the status as `code`.

mod ask;
mod completion;
mod generate;
mod health;
mod pass;
mod router;
mod settings;
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
    pass::props,
    pass::engine,
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
        .route("/live", get(health::liveness));
    let user = Router::new()
        .route("/completion", post(generate::complete))
        .route("/completions", post(generate::complete))
        .route("/infill", post(generate::infill))
        .route("/tokenize", post(ask::tokenize))
        .route("/detokenize", post(ask::detokenize))
        .route("/apply-template", post(ask::apply_template))
        .route("/embedding", post(ask::embedding))
        .route("/embeddings", post(ask::embedding))
        .route("/props", get(pass::props))
        .route("/slots", get(pass::engine))
        .route("/lora-adapters", get(pass::engine))
        .route("/metrics", get(pass::engine))
        .route("/models", get(router::list))
        .route("/models/sse", get(router::events));
    let admin = Router::new()
        .route("/props", post(pass::engine))
        .route("/slots/{id}", post(pass::slot))
        .route("/lora-adapters", post(pass::engine))
        .route("/models/load", post(router::load))
        .route("/models/unload", post(router::unload));
    surface(app, Access::Open, Form::Native, open)
        .merge(surface(app, Access::User, Form::Native, user))
        .merge(surface(app, Access::Admin, Form::Native, admin))
}
