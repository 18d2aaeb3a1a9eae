//! The HTTP surface around the dialects: who may ask, how errors look, and how one request runs.
//!
//! ```text
//!  request id ─► CORS ─► panics ─► [ form of errors ─► access ─► handler ] per surface of a dialect
//!                                                                  │ Asked ─► translate ─► run ─► render
//! ```
//!
//! Everything that is not an answer is an error of the catalogue ([`reply::Refusal`]) in its dialect's form.

pub(crate) mod access;
pub(crate) mod budget;
pub(crate) mod engine;
pub(crate) mod extract;
pub(crate) mod host;
mod layers;
pub(crate) mod reply;
pub(crate) mod run;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::{
    Router,
    extract::Request,
    middleware,
    response::{IntoResponse as _, Response},
};
use muster_proto::{Code, trust::Keys, v1::ErrorInfo};
use tokio_util::sync::CancellationToken;

use self::{access::Access, budget::Budget, host::Hosts, reply::Refusal};
use crate::{dialects, dispatch::Dispatcher, render::error::Form, stats::Stats};

/// What handlers of one I/O thread work with.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) dispatcher: Dispatcher,
    /// Largest request body in bytes.
    pub(crate) max_body: usize,
    /// Bytes of request bodies that the process may hold.
    pub(crate) bodies: Arc<Budget>,
    /// Who may ask.
    pub(crate) keys: Arc<Keys>,
    /// By which names requests may come.
    pub(crate) hosts: Arc<Hosts>,
    /// How the last request performed.
    pub(crate) stats: Arc<Stats>,
    /// The gateway is shutting down: it finishes what it has and is not ready for more.
    pub(crate) stopping: CancellationToken,
}

/// All routes.
pub(crate) fn router(app: Arc<App>) -> Router {
    let hosts = Arc::clone(&app.hosts);
    let router = dialects::routes(&app)
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(app);
    layers::wrap(router, hosts)
}

/// Routes of one dialect that the same callers may use and whose errors look the same.
pub(crate) fn surface(
    app: &Arc<App>,
    access: Access,
    form: Form,
    routes: Router<Arc<App>>,
) -> Router<Arc<App>> {
    let keys = Arc::clone(&app.keys);
    routes
        .route_layer(middleware::from_fn(move |request, next| {
            access::check(access, Arc::clone(&keys), request, next)
        }))
        .layer(middleware::map_response(move |response| async move {
            reply::write_error(form, response)
        }))
}

async fn not_found(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("there is no route {} {path}", request.method());
    refused(path, Code::RouteNotFound.error(message))
}

async fn method_not_allowed(request: Request) -> Response {
    let path = request.uri().path();
    let message = format!("{path} does not take {}", request.method());
    refused(path, Code::MethodNotAllowed.error(message))
}

/// No dialect has the route: in the form of the one whose clients ask there.
fn refused(path: &str, error: ErrorInfo) -> Response {
    let response = Refusal(error).into_response();
    reply::write_error(dialects::form_at(path), response)
}
