//! `HEAD` and `POST /api/blobs/{digest}`: files that clients upload, to make models from them.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::StatusCode;
use muster_core::{Code, Error};
use muster_proto::hub::{Sum, SumError};

use crate::web::{
    App,
    access::Access,
    extract::Path,
    reply::{self, Refusal},
    route::Route,
};

const PATH: &str = "/api/blobs/{digest}";
const DIGEST: &str = "`sha256:` and the file's sum in hexadecimal";

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::head(PATH, Access::Admin, found)
            .summary("Whether a file has been uploaded")
            .part::<String>("digest", DIGEST)
            .answers_text("text/plain", "It is there.")
            .refuses("It is not there."),
        Route::post(PATH, Access::Admin, keep)
            .summary("Upload a GGUF, to make a model from it")
            .part::<String>("digest", DIGEST)
            .takes_bytes("The file.")
            .answers_text("text/plain", "Nothing: it is kept, on each host.")
            .refuses("It is no GGUF, or not what its digest says.")
            .fails("There is no room, or a worker was lost."),
    ]
}

/// Reads the sum of a file.
///
/// # Errors
/// `invalid_request`.
pub(super) fn sum(digest: &str, field: &str) -> Result<Sum, Error> {
    let wrong = |error: SumError| Code::InvalidRequest.error(error.to_string()).with_param(field);
    digest.parse().map_err(wrong)
}

async fn found(State(app): State<Arc<App>>, Path(digest): Path<String>) -> Result<Response, Refusal> {
    let there = app.dispatcher.uploaded(&sum(&digest, "digest")?).await?;
    Ok(reply::json(
        if there {
            StatusCode::OK
        } else {
            StatusCode::NOT_FOUND
        },
        "",
    ))
}

async fn keep(
    State(app): State<Arc<App>>,
    Path(digest): Path<String>,
    request: Request,
) -> Result<Response, Refusal> {
    let mut body = request.into_body();
    let kept = match sum(&digest, "digest") {
        Ok(sum) => app.dispatcher.upload(&sum, &mut body).await,
        Err(error) => Err(error),
    };
    reply::discard(body).await;
    kept?;
    Ok(reply::json(StatusCode::CREATED, ""))
}
