//! The dialects: each has its routes, reads its requests (`translate`) and writes its answers (`render`). What several share is in
//! [`crate::translate`] and [`crate::render`].
//!
//! Architecture invariant: dialects know each other's readers at most, never each other's routes.

mod anthropic;
mod lemonade;
mod native;
mod ollama;
pub(crate) mod openai;

use std::sync::Arc;

use axum::Router;

use crate::routes::App;

/// Where the routes of OpenAI, Anthropic and Lemonade stand (seeds 000 and 004; Lemonade's clients know `v0` as well).
const PREFIXES: [&str; 4] = ["/v1", "/api/v1", "/v0", "/api/v0"];

/// All routes.
pub(crate) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let prefixed = openai::routes(app)
        .merge(anthropic::routes(app))
        .merge(lemonade::routes(app));
    let router = native::routes(app).merge(ollama::routes(app));
    PREFIXES
        .iter()
        .fold(router, |router, prefix| router.nest(prefix, prefixed.clone()))
}
