//! `/internal/aliases`: further names of models (Lemonade's public documentation).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::Alias;
use serde_json::{Map, Value, json};

use super::load::{model_name, not_found};
use super::shapes::AliasBody;
use crate::{
    openapi::schema,
    routes::{
        App,
        extract::Path,
        reply::{self, Refusal},
        run::Asked,
    },
    translate::object::{self, Object},
};

#[utoipa::path(
    get,
    path = "/internal/aliases",
    tag = "Lemonade",
    summary = "Further names of models",
    responses(
        (status = 200, description = "`aliases`: the model of each.", body = serde_json::Value),
        (status = "5XX", description = "The controller is away.", body = schema::Error),
    )
)]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let aliases = app.dispatcher.fleet.models().aliases().await?;
    let shown: Map<String, Value> = aliases
        .into_iter()
        .map(|Alias { alias, model }| (alias, model.into()))
        .collect();
    Ok(reply::value(StatusCode::OK, &json!({"aliases": shown})))
}

#[utoipa::path(
    post,
    path = "/internal/aliases",
    tag = "Lemonade",
    summary = "Give a model another name, or move that name to it",
    request_body = AliasBody,
    responses(
        (status = 200, description = "It has it.", body = serde_json::Value),
        (status = "4XX", description = "There is no such model, or the name is a model's own.", body = schema::Error),
        (status = "5XX", description = "It could not be done.", body = schema::Error),
    )
)]
pub(super) async fn set(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let alias = body.need("alias")?.string()?;
    let target = body.take("target").map(|target| target.string()).transpose()?;
    let model = match target {
        Some(target) => target,
        None => model_name(&mut body)?.ok_or_else(|| object::invalid("model_name", "is required"))?,
    };
    let shown = json!({"status": "success", "alias": alias, "model_name": model});
    let set = app
        .dispatcher
        .fleet
        .models()
        .set_alias(Alias { alias, model })
        .await;
    set.map_err(not_found)?;
    Ok(reply::value(StatusCode::OK, &shown))
}

#[utoipa::path(
    delete,
    path = "/internal/aliases/{alias}",
    tag = "Lemonade",
    summary = "Take a further name of a model away",
    params(("alias" = String, Path, description = "The name.")),
    responses(
        (status = 200, description = "It is gone.", body = serde_json::Value),
        (status = "4XX", description = "There is no such name.", body = schema::Error),
        (status = "5XX", description = "It could not be done.", body = schema::Error),
    )
)]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Path(alias): Path<String>,
) -> Result<Response, Refusal> {
    app.dispatcher.fleet.models().delete_alias(&alias).await?;
    Ok(reply::value(
        StatusCode::OK,
        &json!({"status": "success", "alias": alias}),
    ))
}
