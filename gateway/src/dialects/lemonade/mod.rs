//! Lemonade's own routes (seed 000). Errors carry its shape and OpenAI's in one body (gateway/README.md, Lemonade).

mod aliases;
mod answers;
mod delete;
mod health;
mod info;
mod internal;
mod load;
pub(super) mod options;
mod pull;
mod register;
mod reload;
mod shapes;
mod stats;
mod system;

use std::sync::Arc;

use axum::{
    Router,
    routing::{delete, get, post},
};
use utoipa::OpenApi;

use crate::{
    render::error::Form,
    web::{App, access::Access, surface},
};

/// What the document says of them.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    health::health,
    stats::stats,
    system::info,
    load::load,
    load::unload,
    pull::pull,
    pull::variants,
    delete::delete,
    register::register,
    options::show,
    options::set,
    options::reset,
    aliases::list,
    aliases::set,
    aliases::delete,
    internal::log_level,
    internal::config,
    internal::set,
    internal::pin
))]
pub(super) struct Doc;

/// The routes under each of the prefixes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let user = Router::new()
        .route("/health", get(health::health))
        .route("/stats", get(stats::stats))
        .route("/system-info", get(system::info));
    let admin = Router::new()
        .route("/load", post(load::load))
        .route("/unload", post(load::unload))
        .route("/pull", post(pull::pull))
        .route("/pull/variants", get(pull::variants))
        .route("/delete", post(delete::delete))
        .route("/models/register", post(register::register))
        .route("/models/{*id}", post(options::set).delete(options::reset))
        .route("/log-level", post(internal::log_level));
    surface(app, Access::User, Form::Lemonade, user).merge(surface(app, Access::Admin, Form::Lemonade, admin))
}

/// The routes without a prefix.
pub(super) fn bare_routes(app: &Arc<App>) -> Router<Arc<App>> {
    let internal = Router::new()
        .route("/internal/config", get(internal::config))
        .route("/internal/set", post(internal::set))
        .route("/internal/pin", post(internal::pin))
        .route("/internal/aliases", get(aliases::list).post(aliases::set))
        .route("/internal/aliases/{*alias}", delete(aliases::delete));
    surface(app, Access::Internal, Form::Lemonade, internal)
}
