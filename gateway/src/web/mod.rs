//! The HTTP surface around the dialects: who may ask, how errors look, and how one request runs.
//!
//! ```text
//!  request id ─► CORS ─► panics ─► [ form of errors ─► access ─► handler ] per route of a dialect
//!                                                                  │ ClientRequest ─► translate ─► run ─► render
//! ```
//!
//! Architecture invariant: this module knows no dialect; it gets their routes as values.
//!
//! Every failure is an error of the catalogue ([`reply::Refusal`]) in the form of its dialect.

pub(crate) mod access;
pub(crate) mod budget;
pub(crate) mod engine;
pub(crate) mod extract;
pub(crate) mod host;
mod layers;
pub(crate) mod lists;
pub(crate) mod reply;
pub(crate) mod route;
pub(crate) mod run;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{
    Router,
    extract::Request,
    middleware,
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, future::RouteFuture},
};
use muster_core::{Code, Error};
use muster_proto::trust::Keys;
use tokio_util::sync::CancellationToken;
use tower::Service;

use self::{
    budget::Budget,
    host::Hosts,
    lists::Lists,
    reply::Refusal,
    route::{Dialect, Route, Slashes},
};
use crate::{
    dispatch::Dispatcher,
    render::{error::ErrorForm, native::Answerer},
    stats::Stats,
    translate::{Asked, Common},
};

/// What handlers of one I/O thread share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) dispatcher: Dispatcher,
    /// Largest request body in bytes.
    pub(crate) max_body: usize,
    /// The limit on bytes of request bodies in the process.
    pub(crate) bodies: Arc<Budget>,
    /// The API keys.
    pub(crate) keys: Arc<Keys>,
    /// The host names that requests may have.
    pub(crate) hosts: Arc<Hosts>,
    /// Lists of models as they were answered last.
    pub(crate) lists: Lists,
    /// Figures about the last request.
    pub(crate) stats: Arc<Stats>,
    /// Cancelled when the gateway shuts down: it finishes running requests and is not ready for more.
    pub(crate) stopping: CancellationToken,
}

impl App {
    /// What is known of the model that answers. Once a request is admitted its model is loaded, and the table knows how.
    pub(crate) fn answerer(&self, model: &str) -> Answerer {
        let table = self.dispatcher.fleet.table();
        let targets = table.targets(model);
        let capabilities = targets
            .iter()
            .find_map(|target| target.route.capabilities.as_ref());
        Answerer {
            model: model.to_owned(),
            context: table.model(model).map_or(0, |summary| summary.ctx_size),
            speculation: capabilities.map_or_else(String::new, |can| can.speculation.clone()),
        }
    }

    /// What a request says, with the model that is meant.
    ///
    /// # Errors
    /// `invalid_request`: it names none, and it is not clear which one is meant.
    pub(crate) fn common(&self, asked: Asked) -> Result<Common, Error> {
        let Asked {
            model,
            user,
            thinking,
        } = asked;
        let model = self.dispatcher.fleet.table().meant(model.as_deref())?;
        Ok(Common {
            model,
            user,
            thinking,
        })
    }
}

/// How errors look at a path.
pub(crate) type FormAt = fn(&str) -> &'static ErrorForm;

/// All routes, with checks that need the path before a router sees it.
#[derive(Clone, Debug)]
pub(crate) struct Surface {
    slashes: Arc<Slashes>,
    router: Router,
}

impl From<Router> for Surface {
    fn from(router: Router) -> Self {
        let slashes = Arc::default();
        Self { slashes, router }
    }
}

impl Service<Request> for Surface {
    type Response = Response;
    type Error = Infallible;
    type Future = RouteFuture<Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request) -> Self::Future {
        self.slashes.encode(&mut request);
        self.router.call(request)
    }
}

/// A surface of these routes. `form_at` gives the form of errors at a path without a route.
pub(crate) fn surface(
    app: Arc<App>,
    routes: impl Iterator<Item = (&'static Dialect, Route)>,
    form_at: FormAt,
) -> Surface {
    let hosts = Arc::clone(&app.hosts);
    let mut slashes = Slashes::default();
    let mut router = Router::new();
    for (dialect, route) in routes {
        slashes.learn(&route);
        let handler = guard(&app, dialect, &route);
        for path in route.paths() {
            router = router.route(&path.pattern(), handler.clone());
        }
    }
    let router = router
        .fallback(async move |request: Request| not_found(form_at, &request))
        .method_not_allowed_fallback(async move |request: Request| method_not_allowed(form_at, &request))
        .with_state(app);
    Surface {
        slashes: Arc::new(slashes),
        router: layers::wrap(router, hosts, form_at),
    }
}

/// A route's handler behind the access check, with errors in its dialect's form.
fn guard(app: &App, dialect: &'static Dialect, route: &Route) -> MethodRouter<Arc<App>> {
    let (access, keys) = (route.access, Arc::clone(&app.keys));
    let handler = route.handler.clone();
    handler
        .route_layer(middleware::from_fn(move |request, next| {
            access::check(access, Arc::clone(&keys), request, next)
        }))
        .layer(middleware::map_response(move |response| async move {
            reply::write_error(dialect.errors, response)
        }))
}

fn not_found(form_at: FormAt, request: &Request) -> Response {
    let path = request.uri().path();
    let message = format!("there is no route {} {path}", request.method());
    refused(form_at(path), Code::RouteNotFound.error(message))
}

fn method_not_allowed(form_at: FormAt, request: &Request) -> Response {
    let path = request.uri().path();
    let message = format!("{path} does not take {}", request.method());
    refused(form_at(path), Code::MethodNotAllowed.error(message))
}

/// The error for a path or method that no dialect has.
fn refused(form: &ErrorForm, error: Error) -> Response {
    reply::write_error(form, Refusal(error).into_response())
}
