//! `POST models/check-updates` (Lemonade's public documentation): which downloaded models the hub has newer files of.

use std::{collections::BTreeMap, sync::Arc};

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::Error;
use muster_proto::{
    hub::Revision,
    v1::{ModelUpdate, UpdateStatus},
};

use super::{
    answers::{SUCCESS, Update, Updates},
    load::not_found,
    requests::UpdatesBody,
};
use crate::{
    translate::read::Fields as _,
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/models/check-updates", Access::Admin, check)
            .summary("Ask the hub whether it has newer files of downloaded models; nothing is downloaded")
            .description(
                "Files count, not commits: a newer README makes no update. A hub that does not answer, or no longer shows a model, is that model's \
                 failure alone. `pull` fetches what is newer; what is loaded goes on with the old files until its next load.",
            )
            .may_take::<UpdatesBody>("All downloaded models of the hub without it.")
            .answers::<Updates>("What there is, and what could not be checked.")
            .refuses("There is no such model.")
            .fails("The controller is away."),
    ]
}

async fn check(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let models = names(&request.body)?;
    let checked = app
        .dispatcher
        .fleet
        .models()
        .check_updates(models)
        .await
        .map_err(not_found)?;
    Ok(reply::value(StatusCode::OK, &shown(checked)))
}

fn names(body: &[u8]) -> Result<Vec<String>, Error> {
    if body.trim_ascii().is_empty() {
        return Ok(Vec::new());
    }
    let UpdatesBody { models } = UpdatesBody::body(body)?;
    Ok(models.map(|models| models.0).unwrap_or_default())
}

fn shown(checked: Vec<ModelUpdate>) -> Updates {
    let outdated = checked
        .iter()
        .filter(|update| update.status() == UpdateStatus::Outdated);
    let mut models: Vec<String> = outdated.map(|update| update.model.clone()).collect();
    models.dedup();
    let failed = |update: &ModelUpdate| Some((update.model.clone(), update.error.as_ref()?.message.clone()));
    let failed_models: BTreeMap<String, String> = checked.iter().filter_map(failed).collect();
    Updates {
        status: if failed_models.is_empty() {
            SUCCESS
        } else {
            "failed"
        },
        updates_available: models.len(),
        models,
        failed_models,
        checked: checked.into_iter().map(one).collect(),
    }
}

fn one(update: ModelUpdate) -> Update {
    let status = update.status().as_str_name();
    let known = |text: String| (!text.is_empty()).then_some(text);
    let main = Revision::default();
    Update {
        model_name: update.model,
        checkpoint: update.checkpoint,
        revision: known(update.revision).unwrap_or_else(|| main.to_string()),
        status: status.trim_start_matches("UPDATE_STATUS_").to_lowercase(),
        cached_commit: known(update.cached_commit),
        hub_commit: known(update.hub_commit),
        changed_files: update.changed_files,
        host: known(update.host_id),
        error: update.error.map(|error| error.message),
    }
}

#[cfg(test)]
mod tests {
    use muster_core::Code;
    use serde_json::json;

    use super::*;

    #[test]
    fn lemonades_summary_stands_over_what_each_model_says() {
        let update = |model: &str, status: UpdateStatus, error: Option<Error>| ModelUpdate {
            model: model.to_owned(),
            status: status.into(),
            host_id: "h".to_owned(),
            error: error.map(Into::into),
            ..ModelUpdate::default()
        };
        let gated = Code::CheckpointForbidden.error("gated");
        let shown = shown(vec![
            update("a", UpdateStatus::Outdated, None),
            update("a", UpdateStatus::Outdated, None),
            update("b", UpdateStatus::Forbidden, Some(gated)),
            update("c", UpdateStatus::NotDownloaded, None),
        ]);
        let shown = serde_json::to_value(shown).unwrap();
        assert_eq!(
            (
                &shown["status"],
                &shown["updates_available"],
                &shown["models"],
                &shown["failed_models"]
            ),
            (&json!("failed"), &json!(1), &json!(["a"]), &json!({"b": "gated"}))
        );
        assert_eq!(shown["checked"][3]["status"], "not_downloaded");
        assert_eq!(shown["checked"][0]["revision"], "main");
        let nothing = serde_json::to_value(super::shown(Vec::new())).unwrap();
        let empty = json!({"status": "success", "updates_available": 0, "models": [], "failed_models": {}, "checked": []});
        assert_eq!(nothing, empty);
    }

    #[test]
    fn names_may_be_left_out() {
        assert_eq!(names(b" ").unwrap(), Vec::<String>::new());
        assert_eq!(names(b"{}").unwrap(), Vec::<String>::new());
        assert_eq!(names(br#"{"models": ["a"]}"#).unwrap(), ["a"]);
        assert!(names(br#"{"models": 3}"#).is_err());
    }
}
