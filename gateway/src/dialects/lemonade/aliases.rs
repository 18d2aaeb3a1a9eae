//! `/internal/aliases`: further names of models (Lemonade's public documentation).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::Alias;

use super::{
    answers::{AliasGone, AliasSet, Aliases, SUCCESS},
    load::not_found,
    requests::{AliasBody, ModelName},
};
use crate::{
    translate::{object, read::Fields as _},
    web::{
        App,
        access::Access,
        extract::Path,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/internal/aliases", Access::Internal, list)
            .summary("Further names of models")
            .answers::<Aliases>("The model of each.")
            .fails("The controller is away."),
        Route::post("/internal/aliases", Access::Internal, set)
            .summary("Give a model another name, or move that name to it")
            .takes::<AliasBody>()
            .answers::<AliasSet>("The model has the name.")
            .refuses("There is no such model, or the name is a model's own.")
            .fails("It could not be done."),
        Route::delete("/internal/aliases/{*alias}", Access::Internal, delete)
            .summary("Take a further name of a model away")
            .part::<String>("alias", "The name.")
            .answers::<AliasGone>("The name is gone.")
            .refuses("There is no such name.")
            .fails("It could not be done."),
    ]
}

async fn list(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let aliases = app.dispatcher.fleet.models().aliases().await?;
    let aliases = aliases
        .into_iter()
        .map(|Alias { alias, model }| (alias, model))
        .collect();
    Ok(reply::value(StatusCode::OK, &Aliases { aliases }))
}

async fn set(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let AliasBody {
        alias,
        model_name,
        target,
    } = AliasBody::body(&request.body)?;
    let name = target.or(model_name.map(|ModelName(name)| name));
    let model = name.ok_or_else(|| object::invalid("model_name", "is required"))?;
    let shown = AliasSet {
        status: SUCCESS,
        alias: alias.clone(),
        model_name: model.clone(),
        target: model.clone(),
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

async fn delete(State(app): State<Arc<App>>, Path(alias): Path<String>) -> Result<Response, Refusal> {
    app.dispatcher.fleet.models().delete_alias(&alias).await?;
    Ok(reply::value(
        StatusCode::OK,
        &AliasGone {
            status: SUCCESS,
            alias,
        },
    ))
}
