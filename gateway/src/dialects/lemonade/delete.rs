//! `POST delete` (seed 000): unloads a model, removes its files from the hosts' caches, and removes a user's model from the catalogue.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use muster_core::{Code, Error};

use super::{
    answers::Done,
    load::{not_found, success},
    requests::{DeleteBody, ModelName},
};
use crate::{
    translate::read::Fields as _,
    web::{App, access::Access, reply::Refusal, route::Route, run::ClientRequest},
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/delete", Access::Admin, delete)
            .summary("Unload a model and remove its files; a user's model leaves the catalogue")
            .takes::<DeleteBody>()
            .answers::<Done>("It is deleted.")
            .refuses("There is no such model, or its files are not Muster's to remove.")
            .fails("It could not be done."),
    ]
}

async fn delete(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let ModelName(name) = DeleteBody::body(&request.body)?.model_name;
    app.dispatcher
        .fleet
        .models()
        .delete(&name)
        .await
        .map_err(unprocessable)?;
    Ok(success(&format!("Deleted model: {name}")))
}

/// Lemonade's clients expect 422 here where there is no such model.
fn unprocessable(error: Error) -> Error {
    if error.code != Code::UnknownModel {
        return error;
    }
    Error {
        code: Code::InvalidSchema,
        ..not_found(error)
    }
}
