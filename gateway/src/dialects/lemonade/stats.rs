//! `GET stats` (seed 000): the last request of this gateway, whatever its dialect; among several keys the last one of the caller's own.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use http::StatusCode;

use crate::{
    stats::Last,
    web::{App, access::Caller, reply},
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
pub(super) async fn stats(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    reply::value(StatusCode::OK, &app.stats.last(&caller))
}
