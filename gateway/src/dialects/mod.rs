//! The dialects: each has its routes, reads its requests (`translate`) and writes its answers (`render`). What several share is in
//! [`crate::translate`] and [`crate::render`].
//!
//! Architecture invariant: dialects know each other's readers at most, never each other's routes.

mod admin;
pub(crate) mod anthropic;
mod lemonade;
pub(crate) mod llamacpp;
pub(crate) mod ollama;
pub(crate) mod openai;

use std::sync::Arc;

use axum::Router;
use utoipa::OpenApi as _;

use crate::{openapi, render::error::Form, web::App};

/// Where the routes of OpenAI, Anthropic and Lemonade stand (seeds 000 and 004; Lemonade's clients know `v0` as well).
const PREFIXES: [&str; 4] = ["/v1", "/api/v1", "/v0", "/api/v0"];

/// The form of errors at a path without a route: Ollama's clients ask below `/api`, all others know OpenAI's.
pub(crate) fn form_at(path: &str) -> Form {
    let under = |prefix: &str| {
        path.strip_prefix(prefix)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    if under("/api") && !PREFIXES.iter().any(|prefix| under(prefix)) {
        Form::Ollama
    } else {
        Form::OpenAi
    }
}

/// All routes.
pub(crate) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let prefixed = openai::routes(app)
        .merge(anthropic::routes(app))
        .merge(admin::routes(app))
        .merge(lemonade::routes(app))
        .merge(llamacpp::prefixed::routes(app));
    let router = llamacpp::routes(app)
        .merge(ollama::routes(app))
        .merge(lemonade::bare_routes(app))
        .merge(openapi::routes(app));
    PREFIXES
        .iter()
        .fold(router, |router, prefix| router.nest(prefix, prefixed.clone()))
}

/// The document of all routes, under the first of the prefixes.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    let mut document = openai::Doc::openapi();
    for more in [
        admin::Doc::openapi(),
        anthropic::Doc::openapi(),
        ollama::Doc::openapi(),
        lemonade::Doc::openapi(),
        llamacpp::Doc::openapi(),
    ] {
        document.merge(more);
    }
    document
}
