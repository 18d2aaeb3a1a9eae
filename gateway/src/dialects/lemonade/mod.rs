//! Lemonade's own routes (seed 000).

mod health;

use std::sync::Arc;

use axum::{Router, routing::get};

use crate::{
    render::error::Form,
    routes::{App, access::Access, surface},
};

/// The routes under each of the prefixes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let user = Router::new().route("/health", get(health::health));
    surface(app, Access::User, Form::Lemonade, user)
}
