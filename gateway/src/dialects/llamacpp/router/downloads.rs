//! `POST /models` and `DELETE /models`: downloads from the hub, and their removal.

use std::{borrow::Cow, sync::Arc, time::Duration};

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::{Code, Error, name::USER};
use muster_proto::v1::{DownloadAction, ModelDefinition, PullModelRequest};

use super::super::requests::DownloadBody;
use super::{DONE, Done};
use crate::{
    dispatch::unknown_model,
    fleet::models::Models,
    translate::{ModelName, object, read::Fields as _},
    web::{
        App,
        access::Access,
        engine::ModelQuery,
        extract::Query,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// How long a client waits to hear that the hub has no such files. After that the events say it.
const FIRST_WORD: Duration = Duration::from_secs(10);

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/models", Access::Admin, download)
            .summary("Begin to download a model from the hub, and register it")
            .description("`model` is `ORG/NAME:VARIANT`, under which it is found from then on. `/models/sse` tells how far it is, `/models/unload` ends it.")
            .takes::<DownloadBody>()
            .answers::<Done>("It has begun.")
            .change_errors(),
        Route::delete("/models", Access::Admin, delete)
            .summary("Unload a model and remove its files")
            .needs_query::<String>("model", "Name of the model.")
            .answers::<Done>("It is removed.")
            .change_errors(),
    ]
}

async fn download(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let DownloadBody {
        model: ModelName(name),
        revision,
    } = DownloadBody::body(&request.body)?;
    let known = known(&app, &name);
    if known.is_some() && revision.is_some() {
        let error = "is for a model that is not in the catalogue yet: this one has its own";
        return Err(object::invalid("revision", error).into());
    }
    if let Some(id) = &known
        && app
            .dispatcher
            .fleet
            .table()
            .model(id)
            .is_some_and(|summary| summary.downloaded)
    {
        return Err(object::invalid("model", "is here already").into());
    }
    let fleet = &app.dispatcher.fleet;
    let order = order(name, revision.unwrap_or_default(), known);
    let registered = order.definition.is_some().then(|| order.model.clone());
    // What the hub does not have is refused at once, as llama.cpp does.
    let begun = async { fleet.models().pull(order).await?.next().await };
    if let Ok(Err(error)) = tokio::time::timeout(FIRST_WORD, begun).await {
        forget(fleet.models(), registered).await;
        return Err(error.into());
    }
    Ok(reply::value(StatusCode::OK, &DONE))
}

/// Takes a model out again whose files do not exist.
async fn forget(models: Models, registered: Option<String>) {
    let Some(model) = registered else { return };
    if let Err(error) = models.delete(&model).await {
        tracing::warn!(
            model,
            error = error.message,
            "a model without files stays registered"
        );
    }
}

/// The pull of a model that a client calls `name`; `known`: the catalogue's name for it, if it has one.
fn order(name: String, revision: String, known: Option<String>) -> PullModelRequest {
    if let Some(model) = known {
        return PullModelRequest {
            model,
            definition: None,
        };
    }
    let model = format!("{USER}{name}");
    let definition = ModelDefinition {
        model: model.clone(),
        checkpoint: name,
        recipe: "llamacpp".to_owned(),
        revision,
        ..ModelDefinition::default()
    };
    PullModelRequest {
        model,
        definition: Some(definition),
    }
}

/// The id or alias of a model that a client calls `name`.
fn known(app: &App, name: &str) -> Option<String> {
    let table = app.dispatcher.fleet.table();
    table.known_as(name).map(Cow::into_owned)
}

/// Cancels the download of a model whose files are not here; false if there is none.
pub(super) async fn cancelled(app: &App, name: &str) -> Result<bool, Error> {
    let fleet = &app.dispatcher.fleet;
    let id = {
        let table = fleet.table();
        let summary = table
            .known_as(name)
            .and_then(|known| table.model(&known).cloned());
        match summary {
            Some(summary) if !summary.downloaded => summary.id.clone(),
            Some(_) | None => return Ok(false),
        }
    };
    match fleet.models().control_download(&id, DownloadAction::Cancel).await {
        Ok(_) => Ok(true),
        Err(error) if error.code == Code::NoSuchDownload => Ok(false),
        Err(error) => Err(error),
    }
}

async fn delete(State(app): State<Arc<App>>, Query(query): Query<ModelQuery>) -> Result<Response, Refusal> {
    let name = query
        .or(None)
        .ok_or_else(|| object::invalid("model", "is required"))?;
    let fleet = &app.dispatcher.fleet;
    let id = known(&app, &name)
        .and_then(|known| fleet.table().model(&known).map(|summary| summary.id.clone()))
        .ok_or_else(|| unknown_model(&name))?;
    fleet.models().delete(&id).await?;
    Ok(reply::value(StatusCode::OK, &DONE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_registered_and_one_that_is_known_is_pulled() {
        let new = order("o/n-GGUF:Q4_K_M".into(), "v1".into(), None);
        let definition = new.definition.unwrap();
        assert_eq!(
            (new.model.as_str(), definition.checkpoint.as_str()),
            ("user.o/n-GGUF:Q4_K_M", "o/n-GGUF:Q4_K_M")
        );
        assert_eq!(definition.revision, "v1");
        let known = order("o/n-GGUF:Q4_K_M".into(), String::new(), Some("mine".into()));
        assert!(known.definition.is_none() && known.model == "mine");
    }
}
