//! `models/{id}/options`: options saved for all later loads of a model (Lemonade's public documentation). They override the model's
//! definition, and a load's own settings override them (controller/README.md, Settings).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::{Code, Error, runtime::Family};
use muster_proto::{
    llamacpp,
    overrides::Overrides,
    v1::{Model, ModelSettings},
};
use serde_json::{Map, Value, json};

use super::{
    answers::{LoadOptions, ModelOptions},
    load::not_found,
    requests::{Backend, OptionsBody},
};
use crate::{
    translate::{
        object::{self, Object},
        read::Fields as _,
    },
    web::{
        App,
        access::Access,
        extract::Path,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// Reads the changes and `dry_run`. Null removes an option, and so do the automatic context size and an empty text.
fn changes(body: &[u8]) -> Result<(Map<String, Value>, bool), Error> {
    let mut body = Object::body(object::text(body)?)?;
    let OptionsBody {
        ctx_size,
        llamacpp_backend,
        llamacpp_args,
        dry_run,
    } = OptionsBody::take_from(&mut body)?;
    body.discard(&["model_name", "model"]);
    if let Some(key) = body.first() {
        return Err(object::invalid(key, "is no option that can be saved"));
    }
    // What `effective` shows where nothing is set.
    let nothing = |value| {
        if value == json!(-1) || value == json!("") {
            Value::Null
        } else {
            value
        }
    };
    let given = [
        ("ctx_size", ctx_size.0.map(nothing)),
        ("llamacpp_backend", llamacpp_backend.0.map(nothing)),
        ("llamacpp_args", llamacpp_args.0.map(nothing)),
    ];
    let given = given
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Ok((given.collect(), dry_run.unwrap_or_default()))
}

/// The saved options after `changes`.
pub(super) fn merged(model: &Model, changes: Map<String, Value>) -> Map<String, Value> {
    let mut saved = saved(model);
    saved.extend(changes);
    saved.retain(|_, value| !value.is_null());
    saved
}

fn saved(model: &Model) -> Map<String, Value> {
    serde_json::from_str(&model.options_json).unwrap_or_default()
}

/// The body of a load that gives the model these `settings`.
fn load_body(model: &Model, settings: &ModelSettings, backend: &str) -> LoadOptions {
    LoadOptions {
        model_name: model.id.clone(),
        ctx_size: match settings.ctx_size {
            0 => -1,
            size => size.into(),
        },
        // The configuration's own arguments apply to every load and may be secret.
        llamacpp_args: shell_words::join(llamacpp::split(&settings.args).0),
        llamacpp_backend: backend.to_owned(),
    }
}

/// The settings of a model without its saved options.
fn defaults(model: &Model) -> ModelSettings {
    let settings = model.definition.as_ref().or(model.settings.as_ref());
    settings.cloned().unwrap_or_default()
}

fn shown(model: &Model) -> ModelOptions {
    let effective = model.settings.clone().unwrap_or_default();
    view(model, saved(model), &effective)
}

/// As [`shown`], with these options in place of the saved ones.
///
/// # Errors
/// `invalid_load_request`, as for saving them.
fn preview(model: &Model, options: Map<String, Value>) -> Result<ModelOptions, Error> {
    let mut settings = options.clone();
    if let Some(backend) = settings.remove("llamacpp_backend") {
        let known = backend
            .as_str()
            .is_some_and(|name| Backend::named(name).is_some());
        if !known || !Family::of(&model.runtime).is_llama_cpp() {
            let error =
                Code::InvalidLoadRequest.error("`llamacpp_backend` is no backend of this model's runtime");
            return Err(error.with_param("llamacpp_backend"));
        }
    }
    let mut effective = defaults(model);
    let text = Value::Object(settings).to_string();
    Overrides::from_json(Family::of(&model.runtime), &text)?.apply(&mut effective)?;
    let mut view = view(model, options, &effective);
    // The saved options have not changed.
    view.saved = saved(model);
    Ok(view)
}

fn view(model: &Model, options: Map<String, Value>, effective: &ModelSettings) -> ModelOptions {
    let backend = options.get("llamacpp_backend").and_then(Value::as_str);
    ModelOptions {
        model_name: model.id.clone(),
        recipe: model.recipe.clone(),
        effective: load_body(model, effective, backend.unwrap_or_default()),
        defaults: load_body(model, &defaults(model), ""),
        resolved_ctx_size: resolved(model, effective),
        saved: options,
    }
}

/// The context size after a load; none if it is automatic, and neither a loaded instance nor llama.cpp's rule tells it.
fn resolved(model: &Model, effective: &ModelSettings) -> Option<u32> {
    if effective.ctx_size > 0 {
        return Some(effective.ctx_size);
    }
    let statuses = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref());
    let automatic = statuses.filter(|status| {
        let spec = status.spec.as_ref().and_then(|spec| spec.settings.as_ref());
        spec.is_some_and(|settings| settings.ctx_size == 0)
    });
    let lengths = automatic.filter_map(|status| Some(status.capabilities.as_ref()?.context_length));
    let known = lengths.into_iter().find(|length| *length > 0);
    known.or_else(|| {
        let trained = model.file.as_ref().map_or(0, |file| file.train_context_length);
        let llama = Family::of(&model.runtime).is_llama_cpp();
        llama.then(|| llamacpp::of_each(llamacpp::automatic_context(trained), effective))
    })
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/models/{*id}/options", Access::User, show)
            .summary("Options saved for a model's loads, and what they make of it")
            .part::<String>("id", "Id in the catalogue.")
            .answers::<ModelOptions>("The saved options, and what a load would have with them.")
            .refuses("There is no such model.")
            .fails("The controller is away."),
        Route::post("/v1/models/{*id}/options", Access::Admin, set)
            .summary("Save options for a model's loads; null takes one away")
            .part::<String>("id", "Id in the catalogue.")
            .takes::<OptionsBody>()
            .answers::<ModelOptions>("As they are now; with `dry_run`, `effective` as it would be.")
            .refuses("There is no such model, or an option is not for it.")
            .fails("It could not be done."),
        Route::delete("/v1/models/{*id}/options", Access::Admin, reset)
            .summary("Take all saved options of a model away")
            .part::<String>("id", "Id in the catalogue.")
            .answers::<ModelOptions>("As they are now.")
            .refuses("There is no such model.")
            .fails("It could not be done."),
    ]
}

async fn show(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let model = app
        .dispatcher
        .fleet
        .control()
        .model(&id)
        .await
        .map_err(not_found)?;
    Ok(reply::value(StatusCode::OK, &shown(&model)))
}

async fn set(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let (changes, dry) = changes(&request.body)?;
    let fleet = &app.dispatcher.fleet;
    let model = fleet.control().model(&id).await.map_err(not_found)?;
    if dry {
        // Check as for saving, but save nothing.
        let preview = preview(&model, merged(&model, changes))?;
        return Ok(reply::value(StatusCode::OK, &preview));
    }
    let text = Value::Object(merged(&model, changes)).to_string();
    let model = fleet.models().set_options(&id, text).await?;
    Ok(reply::value(StatusCode::OK, &shown(&model)))
}

async fn reset(State(app): State<Arc<App>>, Path(id): Path<String>) -> Result<Response, Refusal> {
    let model = app
        .dispatcher
        .fleet
        .models()
        .set_options(&id, String::new())
        .await;
    let model = model.map_err(not_found)?;
    Ok(reply::value(StatusCode::OK, &shown(&model)))
}

#[cfg(test)]
mod tests;
