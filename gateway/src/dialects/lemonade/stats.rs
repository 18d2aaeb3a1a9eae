//! `GET stats` (seed 000): the last request of this gateway, whatever its dialect.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;

use crate::{
    routes::{App, reply},
    stats::Last,
};

#[utoipa::path(
    get,
    path = "/v1/stats",
    tag = "Lemonade",
    summary = "How the last request performed",
    responses(
        (status = 200, description = "The last request's figures.", body = Last),
    )
)]
pub(super) async fn stats(State(app): State<Arc<App>>) -> Response {
    reply::value(StatusCode::OK, &app.stats.last())
}
