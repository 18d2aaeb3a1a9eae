//! `/internal/aliases`: further names of models (Lemonade's public documentation).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::Alias;

use super::{
    answers::{AliasGone, AliasSet, Aliases, LemonadeError, SUCCESS},
    load::{model_name, not_found},
    shapes::AliasBody,
};
use crate::{
    translate::object::{self, Object},
    web::{
        App,
        extract::Path,
        reply::{self, Refusal},
        run::Asked,
    },
};

#[utoipa::path(
    get,
    path = "/internal/aliases",
    tag = "Lemonade",
    summary = "Further names of models",
    responses(
        (status = 200, description = "The model of each.", body = Aliases),
        (status = "5XX", description = "The controller is away.", body = LemonadeError),
    )
)]
pub(super) async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let aliases = app.dispatcher.fleet.models().aliases().await?;
    let aliases = aliases
        .into_iter()
        .map(|Alias { alias, model }| (alias, model))
        .collect();
    Ok(reply::value(StatusCode::OK, &Aliases { aliases }))
}

#[utoipa::path(
    post,
    path = "/internal/aliases",
    tag = "Lemonade",
    summary = "Give a model another name, or move that name to it",
    request_body = AliasBody,
    responses(
        (status = 200, description = "It has it.", body = AliasSet),
        (status = "4XX", description = "There is no such model, or the name is a model's own.", body = LemonadeError),
        (status = "5XX", description = "It could not be done.", body = LemonadeError),
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
    let shown = AliasSet {
        status: SUCCESS,
        alias: alias.clone(),
        model_name: model.clone(),
    };
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
        (status = 200, description = "It is gone.", body = AliasGone),
        (status = "4XX", description = "There is no such name.", body = LemonadeError),
        (status = "5XX", description = "It could not be done.", body = LemonadeError),
    )
)]
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Path(alias): Path<String>,
) -> Result<Response, Refusal> {
    app.dispatcher.fleet.models().delete_alias(&alias).await?;
    Ok(reply::value(
        StatusCode::OK,
        &AliasGone {
            status: SUCCESS,
            alias,
        },
    ))
}
