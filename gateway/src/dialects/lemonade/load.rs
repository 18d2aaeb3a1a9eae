//! `POST load` and `POST unload` (seed 000).
//!
//! A load of a model that is loaded changes nothing if its settings would be the same, else it is drained and loaded anew (DECISIONS.md,
//! Settings). What a load sets dies at its unload.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::{
    Code, ErrorExt as _,
    overrides::Overrides,
    v1::{ErrorInfo, LoadModelRequest, Model, ModelSettings, ModelStatus, UnloadModelRequest},
};
use serde_json::{Map, Value, json};

use super::{
    options,
    shapes::{Done, LoadBody, UnloadBody},
};
use crate::{
    openapi::schema,
    routes::{
        App,
        reply::{self, Refusal},
        run::Asked,
    },
    translate::object::{self, Object},
};

/// Backends of llama.cpp with the kind of device each needs (seed 000, `llamacpp_backend`).
const BACKENDS: [(&str, &str); 5] = [
    ("vulkan", "gpu"),
    ("rocm", "gpu"),
    ("metal", "gpu"),
    ("cuda", "gpu"),
    ("cpu", "cpu"),
];

/// What a load asks for.
#[derive(Clone, Debug, Default, PartialEq)]
struct Wanted {
    model: String,
    /// In the words of `LoadModelRequest.override_json`.
    options: Map<String, Value>,
    /// A kind of device; empty = as defined.
    device: &'static str,
    pinned: Option<bool>,
    /// What is to be saved for later loads as well (`save_options`), if that was asked for.
    save: Option<Map<String, Value>>,
}

impl Wanted {
    fn parse(body: &[u8]) -> Result<Self, ErrorInfo> {
        let text = object::text(body)?;
        let mut body = Object::body(text)?;
        let mut options = Map::new();
        if let Some(size) = body.take("ctx_size") {
            // -1 is the automatic size, as if nothing was said.
            let size = size.integer(-1, i32::MAX.into())?;
            match size {
                0 => return Err(object::invalid("ctx_size", "must be positive, or -1")),
                -1 => {}
                size => drop(options.insert("ctx_size".to_owned(), size.into())),
            }
        }
        if let Some(args) = body.take("llamacpp_args") {
            options.insert("llamacpp_args".to_owned(), args.string()?.into());
        }
        let mut backend = None;
        let device = match body.take("llamacpp_backend") {
            None => "",
            Some(given) => {
                let name = given.string()?;
                let known = BACKENDS.iter().find(|(known, _)| *known == name);
                let names: Vec<_> = BACKENDS.iter().map(|(name, _)| *name).collect();
                let wrong = || given.wrong(format_args!("must be one of {}, not `{name}`", names.join(", ")));
                let device = known.ok_or_else(wrong)?.1;
                backend = Some(name);
                device
            }
        };
        let save = body.take("save_options").map(|save| save.bool()).transpose()?;
        let mut saved = options.clone();
        saved.extend(backend.map(|name| ("llamacpp_backend".to_owned(), name.into())));
        Ok(Self {
            save: (save == Some(true)).then_some(saved),
            model: model_name(&mut body)?.ok_or_else(|| object::invalid("model_name", "is required"))?,
            options,
            device,
            pinned: body.take("pinned").map(|pinned| pinned.bool()).transpose()?,
        })
    }

    /// The options as settings for one load of a model.
    fn overrides(&self, model: &Model) -> Result<Overrides, ErrorInfo> {
        let llama_cpp = matches!(model.runtime.as_str(), "llama_cpp" | "llama_server");
        if !self.device.is_empty() && !llama_cpp {
            let error = Code::InvalidLoadRequest.error("`llamacpp_backend` is for llama.cpp's runtimes only");
            return Err(error.with_param("llamacpp_backend"));
        }
        Overrides::from_json(&model.runtime, &Value::from(self.options.clone()).to_string())
    }
}

/// `model_name`, or today's `model`.
pub(super) fn model_name(body: &mut Object<'_>) -> Result<Option<String>, ErrorInfo> {
    match body.take_any(&["model_name", "model"]) {
        None => Ok(None),
        Some(name) => Ok(Some(name.string()?).filter(|name| !name.is_empty())),
    }
}

#[utoipa::path(
    post,
    path = "/v1/load",
    tag = "Lemonade",
    summary = "Load a model and wait until it is loaded",
    request_body = LoadBody,
    responses(
        (status = 200, description = "It is loaded as asked.", body = Done),
        (status = "4XX", description = "The request is wrong or refused.", body = schema::Error),
        (status = "5XX", description = "It could not be done.", body = schema::Error),
    )
)]
pub(super) async fn load(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let wanted = Wanted::parse(&asked.body)?;
    let control = || app.dispatcher.fleet.control();
    let model = control().model(&wanted.model).await.map_err(not_found)?;
    let overrides = wanted.overrides(&model)?;
    if let Some(save) = wanted.save.clone() {
        let saved = Value::Object(options::merged(&model, save)).to_string();
        app.dispatcher
            .fleet
            .models()
            .set_options(&wanted.model, saved)
            .await?;
    }
    if let Some(pinned) = wanted.pinned {
        control().pin(&wanted.model, pinned).await?;
    }
    match standing(&model, &overrides, wanted.device)? {
        Standing::AsWanted => {}
        Standing::Otherwise => {
            control().unload(unload_of(&wanted.model)).await?;
            begin(&app, &wanted, &overrides).await?;
        }
        Standing::Absent => begin(&app, &wanted, &overrides).await?,
    }
    Ok(success(&format!("Loaded model: {}", wanted.model)))
}

async fn begin(app: &App, wanted: &Wanted, overrides: &Overrides) -> Result<(), ErrorInfo> {
    let request = LoadModelRequest {
        model: wanted.model.clone(),
        device_id: wanted.device.to_owned(),
        override_json: overrides.to_json(),
        // "Installs the model if necessary" (seed 000).
        download: true,
        ..LoadModelRequest::default()
    };
    let done = app.dispatcher.fleet.control().load(request).await?;
    let model = left(app, ModelStatus::Loading, done.model).await?;
    match (model.status(), model.last_error) {
        (ModelStatus::Loaded, _) => {
            app.dispatcher.fleet.shows_loaded(&model.id).await;
            Ok(())
        }
        (_, Some(error)) => Err(error),
        (_, None) => Err(Code::LoadCancelled.error("somebody ended the load")),
    }
}

/// Waits until a model leaves a state that somebody else brought it to: the controller answers at once to who joins a load or an unload.
async fn left(app: &App, state: ModelStatus, mut model: Model) -> Result<Model, ErrorInfo> {
    let fleet = &app.dispatcher.fleet;
    let mut changes = fleet.changes();
    while model.status() == state {
        changes.mark_unchanged();
        model = fleet.control().model(&model.id).await?;
        if model.status() == state {
            // The controller tells of its states here, so their end is a change. An error means that the fleet is gone.
            drop(changes.changed().await);
        }
    }
    Ok(model)
}

/// How a model stands before a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// There is something to load.
    Absent,
    /// It is loaded as the load would make it.
    AsWanted,
    /// It is loaded with other settings.
    Otherwise,
}

fn standing(model: &Model, wanted: &Overrides, device: &str) -> Result<Standing, ErrorInfo> {
    if model.status() != ModelStatus::Loaded {
        return Ok(Standing::Absent);
    }
    let specs = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref()?.spec.as_ref());
    let Some(spec) = specs.into_iter().next() else {
        return Ok(Standing::Absent);
    };
    let json = spec
        .settings
        .as_ref()
        .map_or("", |settings| settings.load_override_json.as_str());
    let current = Overrides::from_json(&model.runtime, json)?;
    // Compared by what they make of the definition, so that saying what is defined anyway changes nothing.
    let effect = |overrides: &Overrides| -> Result<ModelSettings, ErrorInfo> {
        let mut settings = model.settings.clone().unwrap_or_default();
        overrides.apply(&mut settings)?;
        settings.load_override_json.clear();
        Ok(settings)
    };
    // A worker whose memory is limited has a part of the host's: `cpu:NUMBER`.
    let is_cpu = |id: &str| id == "cpu" || id.starts_with("cpu:");
    let on_cpu = spec.reservations.iter().all(|part| is_cpu(&part.device_id));
    let elsewhere = match device {
        "" => false,
        device => on_cpu != (device == "cpu"),
    };
    if elsewhere || effect(&current)? != effect(wanted)? {
        return Ok(Standing::Otherwise);
    }
    Ok(Standing::AsWanted)
}

/// Unloads one model, or all if none is named: pinned ones too, and loads that wait or run are ended (DECISIONS.md, Lemonade).
#[utoipa::path(
    post,
    path = "/v1/unload",
    tag = "Lemonade",
    summary = "Unload one model, or all, and wait until it is unloaded",
    request_body(content = Option<UnloadBody>, description = "May be absent."),
    responses(
        (status = 200, description = "It is unloaded.", body = Done),
        (status = "4XX", description = "The request is wrong or refused.", body = schema::Error),
        (status = "5XX", description = "It could not be done.", body = schema::Error),
    )
)]
pub(super) async fn unload(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let control = || app.dispatcher.fleet.control();
    match unload_name(&asked.body)? {
        Some(name) => {
            let model = control().model(&name).await.map_err(not_found)?;
            if matches!(model.status(), ModelStatus::Unloaded | ModelStatus::Failed) {
                let error = Code::UnknownModel.error(format!("Model not loaded: {name}"));
                return Err(error.with_param("model_name").into());
            }
            let model = control().unload(unload_of(&name)).await?;
            left(&app, ModelStatus::Unloading, model).await?;
        }
        None => {
            let models = control().models().await?;
            let there =
                |model: &&Model| !matches!(model.status(), ModelStatus::Unloaded | ModelStatus::Failed);
            let unloads = models.iter().filter(there).map(async |model| {
                let model = control().unload(unload_of(&model.id)).await?;
                left(&app, ModelStatus::Unloading, model).await
            });
            futures::future::try_join_all(unloads).await?;
        }
    }
    Ok(success("Model unloaded successfully"))
}

fn unload_of(model: &str) -> UnloadModelRequest {
    UnloadModelRequest {
        model: model.to_owned(),
        force: false,
        cancel_load: true,
    }
}

fn unload_name(body: &[u8]) -> Result<Option<String>, ErrorInfo> {
    if body.trim_ascii().is_empty() {
        return Ok(None);
    }
    model_name(&mut Object::body(object::text(body)?)?)
}

/// The seed's text (seed 000, `POST /unload`).
pub(super) fn not_found(error: ErrorInfo) -> ErrorInfo {
    if error.kind() != Code::UnknownModel {
        return error;
    }
    let name = error.details.get("model").cloned().unwrap_or_default();
    ErrorInfo {
        message: format!("Model not found: {name}"),
        ..error
    }
}

/// The seed's answer to all that went well.
pub(super) fn success(message: &str) -> Response {
    reply::value(StatusCode::OK, &json!({"status": "success", "message": message}))
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Instance, InstanceSpec, InstanceStatus, Reservation};

    use super::*;

    fn wanted(body: &Value) -> Result<Wanted, ErrorInfo> {
        Wanted::parse(body.to_string().as_bytes())
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
        ] {
            let error = wanted(&body).unwrap_err();
            assert_eq!(
                (error.kind(), error.param.as_str()),
                (Code::InvalidRequest, param),
                "{body}"
            );
        }
        let automatic = wanted(&json!({"model_name": "m", "ctx_size": -1, "llamacpp_args": null})).unwrap();
        assert!(automatic.options.is_empty());
    }

    /// A model that is loaded with an override.
    fn loaded(override_json: &str) -> Model {
        let settings = ModelSettings {
            ctx_size: 4096,
            ..ModelSettings::default()
        };
        let spec = InstanceSpec {
            settings: Some(ModelSettings {
                load_override_json: override_json.into(),
                ..settings.clone()
            }),
            reservations: vec![Reservation {
                device_id: "cpu".into(),
                bytes: 1,
            }],
            ..InstanceSpec::default()
        };
        Model {
            status: ModelStatus::Loaded.into(),
            runtime: "llama_cpp".into(),
            settings: Some(settings),
            instances: vec![Instance {
                status: Some(InstanceStatus {
                    spec: Some(spec),
                    ..InstanceStatus::default()
                }),
                ..Instance::default()
            }],
            ..Model::default()
        }
    }

    #[test]
    fn a_loaded_model_is_loaded_anew_only_for_other_settings() {
        let stands = |current: &str, body: Value, device| {
            let model = loaded(current);
            let overrides = Overrides::from_json(&model.runtime, &body.to_string()).unwrap();
            standing(&model, &overrides, device).unwrap()
        };
        assert_eq!(stands("", json!({}), ""), Standing::AsWanted);
        assert_eq!(stands("", json!({"ctx_size": 4096}), ""), Standing::AsWanted);
        assert_eq!(stands("", json!({"ctx_size": 8192}), ""), Standing::Otherwise);
        assert_eq!(
            stands(r#"{"gguf_n_ctx":8192}"#, json!({"ctx_size": 8192}), ""),
            Standing::AsWanted
        );
        assert_eq!(
            stands(r#"{"gguf_n_ctx":8192}"#, json!({}), ""),
            Standing::Otherwise
        );
        assert_eq!(stands("", json!({}), "cpu"), Standing::AsWanted);
        assert_eq!(stands("", json!({}), "gpu"), Standing::Otherwise);
        let limited = {
            let mut model = loaded("");
            let status = model.instances[0].status.as_mut().unwrap();
            status.spec.as_mut().unwrap().reservations[0].device_id = "cpu:4711".into();
            model
        };
        let none = Overrides::default();
        assert_eq!(standing(&limited, &none, "cpu").unwrap(), Standing::AsWanted);
        let unloaded = Model::default();
        assert_eq!(
            standing(&unloaded, &Overrides::default(), "").unwrap(),
            Standing::Absent
        );
    }

    #[test]
    fn seed_000_an_unknown_model_is_not_found() {
        let error = Code::UnknownModel.error("x").with_detail("model", "Llama");
        assert_eq!(not_found(error).message, "Model not found: Llama");
        assert_eq!(not_found(Code::ModelLoading.error("y")).message, "y");
    }
}
