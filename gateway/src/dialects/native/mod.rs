//! llama.cpp's own routes (seed 004), without a prefix.

mod health;

use std::sync::Arc;

use axum::{Router, routing::get};

use crate::{
    render::error::Form,
    routes::{App, access::Access, surface},
};

/// The routes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let open = Router::new()
        .route("/health", get(health::readiness))
        .route("/live", get(health::liveness));
    surface(app, Access::Open, Form::Native, open)
}
