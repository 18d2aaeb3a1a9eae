//! `POST load` and `POST unload` (seed 000).
//!
//! The settings of a load end with its unload. An unknown key is refused: a typo in `ctx_size` must not load the model with the defaults.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::{Code, Error, runtime::Family};
use muster_proto::{
    overrides::Overrides,
    v1::{LoadModelRequest, Model, ModelStatus, UnloadModelRequest},
};
use serde_json::{Map, Value};

use super::{
    answers::{Done, SUCCESS},
    options,
    requests::{AnyBackend, LoadBody, UnloadBody},
};
use crate::{
    fleet::control::Pin,
    translate::{
        object::{self, Object},
        read::{Fields as _, Int},
    },
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// Keys of Lemonade's `load` for recipes that Muster does not have, or for Lemonade's own configuration. They are ignored.
const OTHERS: [&str; 7] = [
    "whispercpp_backend",
    "whispercpp_args",
    "steps",
    "cfg_scale",
    "width",
    "height",
    "merge_args",
];

/// The contents of a load's body.
#[derive(Clone, Debug, Default, PartialEq)]
struct LoadCall {
    model: String,
    /// Settings with the names of `LoadModelRequest.override_json`.
    options: Map<String, Value>,
    /// Kind of device to load on; empty = as defined.
    device: &'static str,
    pinned: Option<bool>,
    /// Options to save for later loads too (`save_options`); none if that was not asked for.
    save: Option<Map<String, Value>>,
}

impl LoadCall {
    fn parse(body: &[u8]) -> Result<Self, Error> {
        let mut body = Object::body(object::text(body)?)?;
        let load = LoadBody::take_from(&mut body)?;
        body.discard(&OTHERS);
        if let Some(unknown) = body.first() {
            return Err(object::invalid(unknown, "is nothing that `load` takes"));
        }
        let mut options = Map::new();
        match load.ctx_size {
            Some(Int(0)) => return Err(object::invalid("ctx_size", "must be positive, or -1")),
            // -1 is the automatic size, the same as no size.
            Some(Int(-1)) | None => {}
            Some(Int(size)) => drop(options.insert("ctx_size".to_owned(), size.into())),
        }
        let args = load.llamacpp_args;
        options.extend(args.map(|args| ("llamacpp_args".to_owned(), args.into())));
        let mut saved = options.clone();
        let backend = load.llamacpp_backend.and_then(|AnyBackend(backend)| backend);
        let device = backend.as_ref().map_or("", |backend| backend.device);
        saved.extend(backend.map(|backend| ("llamacpp_backend".to_owned(), backend.name.into())));
        Ok(Self {
            save: (load.save_options == Some(true)).then_some(saved),
            model: load.model_name.0,
            options,
            device,
            pinned: load.pinned,
        })
    }

    /// The settings for one load of a model.
    fn overrides(&self, model: &Model) -> Result<Overrides, Error> {
        if !self.device.is_empty() && !Family::of(&model.runtime).is_llama_cpp() {
            let error = Code::InvalidLoadRequest.error("`llamacpp_backend` is for llama.cpp's runtimes only");
            return Err(error.with_param("llamacpp_backend"));
        }
        Overrides::from_json(
            Family::of(&model.runtime),
            &Value::from(self.options.clone()).to_string(),
        )
    }
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/load", Access::Admin, load)
            .summary("Load a model and wait until it is loaded")
            .takes::<LoadBody>()
            .answers::<Done>("It is loaded as asked.")
            .change_errors(),
        Route::post("/v1/unload", Access::Admin, unload)
            .summary("Unload one model, or all, and wait until it is unloaded")
            .may_take::<UnloadBody>("May be absent.")
            .answers::<Done>("It is unloaded.")
            .change_errors(),
    ]
}

async fn load(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let wanted = LoadCall::parse(&request.body)?;
    let done = success(&format!("Loaded model: {}", wanted.model));
    // The load and what follows go on if the caller leaves. The task ends with the gateway's thread.
    let task = tokio::spawn(async move { wanted.load(&app).await });
    let ended = task.await;
    ended.map_err(|error| Code::Internal.error(format!("the load was cut short: {error}")))??;
    Ok(done)
}

impl LoadCall {
    /// Loads the model, and saves options and pin if the load succeeded.
    async fn load(self, app: &App) -> Result<(), Error> {
        let fleet = &app.dispatcher.fleet;
        let model = fleet.control().model(&self.model).await.map_err(not_found)?;
        let overrides = self.overrides(&model)?;
        let request = LoadModelRequest {
            model: model.id.clone(),
            device_id: self.device.to_owned(),
            override_json: overrides.to_json(),
            // "Installs the model if necessary" (seed 000).
            download: true,
            ..LoadModelRequest::default()
        };
        fleet.control().replace(request).await.map_err(|error| {
            let nowhere = error.code == Code::NoWorker && !self.device.is_empty();
            if nowhere {
                error.with_param("llamacpp_backend")
            } else {
                error
            }
        })?;
        fleet.shows_loaded(&model.id).await;
        if let Some(pinned) = self.pinned {
            let pin = if pinned { Pin::WhileLoaded } else { Pin::Not };
            fleet.control().pin(&model.id, pin).await?;
        }
        if let Some(save) = self.save {
            let saved = Value::Object(options::merged(&model, save)).to_string();
            fleet.models().set_options(&model.id, saved).await?;
        }
        Ok(())
    }
}

/// Unloads one model, or all of them if none is named: pinned ones as well, and loads that wait or run are cancelled (gateway/README.md,
/// Lemonade).
async fn unload(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let control = || app.dispatcher.fleet.control();
    match unload_name(&request.body)? {
        Some(name) => {
            let model = control().model(&name).await.map_err(not_found)?;
            if matches!(model.status(), ModelStatus::Unloaded | ModelStatus::Failed) {
                let error = Code::UnknownModel.error(format!("Model not loaded: {name}"));
                return Err(error.with_param("model_name").into());
            }
            unload_one(&app, &model.id).await?;
        }
        None => {
            let models = control().models().await?;
            let there =
                |model: &&Model| !matches!(model.status(), ModelStatus::Unloaded | ModelStatus::Failed);
            let unloads = models.iter().filter(there);
            let unloads = unloads.map(|model| unload_one(&app, &model.id));
            futures::future::try_join_all(unloads).await?;
        }
    }
    Ok(success("Model unloaded successfully"))
}

async fn unload_one(app: &App, id: &str) -> Result<(), Error> {
    let fleet = &app.dispatcher.fleet;
    let mut changes = fleet.changes();
    let request = UnloadModelRequest {
        model: id.to_owned(),
        force: false,
        cancel_load: true,
    };
    let mut model = fleet.control().unload(request).await?;
    // A call that joins an unload in progress is answered at once.
    while model.status() == ModelStatus::Unloading {
        changes.mark_unchanged();
        model = fleet.control().model(id).await?;
        if model.status() == ModelStatus::Unloading {
            // The watch channel changes when the unload ends. An error means that the fleet task has ended.
            drop(changes.changed().await);
        }
    }
    Ok(())
}

fn unload_name(body: &[u8]) -> Result<Option<String>, Error> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    let UnloadBody { model_name } = UnloadBody::body(body)?;
    Ok(model_name.filter(|name| !name.is_empty()))
}

/// The error with seed 000's text (`POST /unload`).
pub(super) fn not_found(error: Error) -> Error {
    if error.code != Code::UnknownModel {
        return error;
    }
    let name = error.details.get("model").cloned().unwrap_or_default();
    Error {
        message: format!("Model not found: {name}"),
        ..error
    }
}

/// Seed 000's answer to a request that succeeded.
pub(super) fn success(message: &str) -> Response {
    reply::value(
        StatusCode::OK,
        &Done {
            status: SUCCESS,
            message,
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(body: &Value) -> Result<LoadCall, Error> {
        LoadCall::parse(body.to_string().as_bytes())
    }

    #[test]
    fn seed_000_example_loads() {
        let plain = wanted(&json!({"model_name": "Qwen2.5-0.5B-Instruct-CPU"})).unwrap();
        assert_eq!(plain.model, "Qwen2.5-0.5B-Instruct-CPU");
        assert!(plain.options.is_empty() && plain.device.is_empty());
        let custom = wanted(&json!({
            "model_name": "llama-3.2-3b-instruct-GGUF",
            "ctx_size": 8192,
            "llamacpp_backend": "rocm",
            "llamacpp_args": "--flash-attn on --no-mmap"
        }));
        let custom = custom.unwrap();
        assert_eq!(custom.device, "gpu");
        assert_eq!(
            Value::from(custom.options),
            json!({"ctx_size": 8192, "llamacpp_args": "--flash-attn on --no-mmap"})
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (body, param) in [
            (json!({}), "model_name"),
            (json!({"model_name": 3}), "model_name"),
            (json!({"model_name": "m", "ctx_size": 0}), "ctx_size"),
            (json!({"model_name": "m", "ctx_size": "big"}), "ctx_size"),
            (
                json!({"model_name": "m", "llamacpp_backend": "abacus"}),
                "llamacpp_backend",
            ),
            (
                json!({"model_name": "m", "llamacpp_args": ["-v"]}),
                "llamacpp_args",
            ),
            (json!({"model_name": "m", "ctx_sise": 4096}), "ctx_sise"),
            (json!({"model_name": "m", "n_ctx": null}), "n_ctx"),
        ] {
            let error = wanted(&body).unwrap_err();
            assert_eq!(
                (error.code, error.param.as_deref().unwrap_or_default()),
                (Code::InvalidRequest, param),
                "{body}"
            );
        }
        let others = wanted(&json!({"model_name": "m", "steps": 20, "merge_args": false})).unwrap();
        assert!(others.options.is_empty());
        let automatic = wanted(&json!({"model_name": "m", "ctx_size": -1, "llamacpp_args": null})).unwrap();
        assert!(automatic.options.is_empty());
    }

    #[test]
    fn seed_000_an_unknown_model_is_not_found() {
        let error = Code::UnknownModel.error("x").with_detail("model", "Llama");
        assert_eq!(not_found(error).message, "Model not found: Llama");
        assert_eq!(not_found(Code::ModelLoading.error("y")).message, "y");
    }
}
