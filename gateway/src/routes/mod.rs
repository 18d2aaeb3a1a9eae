//! The HTTP surface: thin handlers that parse, dispatch and render.
//!
//! The same API stands under `/v1` and `/api/v1` (seed 000). Everything that is not an answer is an error of the catalogue in OpenAI's form.

mod generate;
mod health;
mod layers;
mod models;
mod reply;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    routing::{get, post},
};
use muster_proto::Code;
use tokio_util::sync::CancellationToken;

use self::reply::Refusal;
use crate::dispatch::Dispatcher;

/// What handlers of one I/O thread work with.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) dispatcher: Dispatcher,
    /// Largest request body in bytes.
    pub(crate) max_body: usize,
    /// The gateway is shutting down: it finishes what it has and is not ready for more.
    pub(crate) stopping: CancellationToken,
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let api = Router::new()
        .route("/chat/completions", post(generate::chat))
        .route("/completions", post(generate::completions))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::one))
        .route("/health", get(health::lemonade));
    let router = Router::new()
        .nest("/v1", api.clone())
        .nest("/api/v1", api)
        .route("/health", get(health::readiness))
        .route("/live", get(health::liveness))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app);
    layers::wrap(router)
}

async fn not_found(request: Request) -> Refusal {
    let message = format!("there is no route {} {}", request.method(), request.uri().path());
    Refusal(Code::RouteNotFound.error(message))
}

async fn method_not_allowed(request: Request) -> Refusal {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    Refusal(Code::MethodNotAllowed.error(message))
}
