//! `GET stats` (seed 000): the last request of this gateway in any dialect. If there are several keys, the last request of the caller's
//! key. Totals are those of the same requests.

use std::sync::Arc;

use axum::{Extension, extract::State, response::Response};
use http::StatusCode;

use crate::{
    stats::Figures,
    web::{
        App,
        access::{Access, Caller},
        reply,
        route::Route,
    },
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/stats", Access::User, stats)
            .summary("How the last request performed")
            .answers::<Figures>("The last request's figures, and totals."),
    ]
}

async fn stats(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Response {
    let own = (!caller.oversees).then_some(caller.key.as_str());
    reply::value(StatusCode::OK, &app.stats.figures(own))
}
