//! `POST delete` (seed 000): unloaded, its files off the hosts' caches; a user's model leaves the catalogue.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use super::{
    answers::{Done, LemonadeError},
    load::{model_name, not_found, success},
    shapes::DeleteBody,
};
use crate::{
    translate::object::{self, Object},
    web::{App, reply::Refusal, run::Asked},
};

#[utoipa::path(
    post,
    path = "/v1/delete",
    tag = "Lemonade",
    summary = "Unload a model and remove its files; a user's model leaves the catalogue",
    request_body = DeleteBody,
    responses(
        (status = 200, description = "It is deleted.", body = Done),
        (status = "4XX", description = "There is no such model, or its files are not Muster's to remove.", body = LemonadeError),
        (status = "5XX", description = "It could not be done.", body = LemonadeError),
    )
)]
pub(super) async fn delete(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let name = model_name(&mut body)?.ok_or_else(|| object::invalid("model_name", "is required"))?;
    app.dispatcher
        .fleet
        .models()
        .delete(&name)
        .await
        .map_err(not_found)?;
    Ok(success(&format!("Deleted model: {name}")))
}
