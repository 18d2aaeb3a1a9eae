//! A load of a model that may be loaded already (controller/README.md, Settings).
//!
//! ```text
//!  not loaded ──► load
//!  loaded ─┬─ the same settings ──► nothing to do
//!          └─ others ──► could it be loaded so? ── no ──► refused, nothing has changed
//!                              │ yes
//!                              ▼
//!                     drained and unloaded ──► load ── failed ──► loaded again as it was; the answer says why, and that
//! ```
//!
//! Whether it could is the controller's to say: by the model's runtime, its arguments, the workers' devices, and what else is loaded. An engine may
//! still fail for a reason that nobody knew before.

use muster_core::runtime::Family;
use muster_proto::{
    Code, ErrorExt as _,
    overrides::Overrides,
    v1::{ErrorInfo, InstanceSpec, LoadModelRequest, Model, ModelSettings, ModelStatus},
};

use super::load::unload_of;
use crate::web::App;

/// Loads a model as `request` says; `overrides` are its settings, parsed.
///
/// # Errors
/// Why it is not loaded so. If it was loaded with other settings it is loaded with those still, or again, unless the error's detail `restored`
/// is `false`.
pub(super) async fn load(
    app: &App,
    model: &Model,
    request: LoadModelRequest,
    overrides: &Overrides,
) -> Result<(), ErrorInfo> {
    let former = match standing(model, overrides, &request.device_id)? {
        Standing::AsWanted => return Ok(()),
        Standing::Absent => return begin(app, request).await,
        Standing::Otherwise(former) => former,
    };
    let control = || app.dispatcher.fleet.control();
    control().could_replace(&request).await?;
    let unloaded = control().unload(unload_of(&model.id)).await?;
    left(app, ModelStatus::Unloading, unloaded).await?;
    match begin(app, request).await {
        Ok(()) => Ok(()),
        Err(error) => Err(restore(app, &model.id, former, error).await),
    }
}

/// Loads a model as it was; the error that made this necessary, with what came of it.
async fn restore(app: &App, id: &str, former: LoadModelRequest, error: ErrorInfo) -> ErrorInfo {
    let now = app.dispatcher.fleet.control().model(id).await;
    // Somebody who ended the load, or loads it himself, gets what he wants.
    let ours = |now: Model| matches!(now.status(), ModelStatus::Unloaded | ModelStatus::Failed);
    if error.kind() == Code::LoadCancelled || !now.is_ok_and(ours) {
        return error;
    }
    let restored = begin(app, former).await;
    let message = match &restored {
        Ok(()) => format!("{}; {id} is loaded again as it was before", error.message),
        Err(again) => format!(
            "{}; {id} could not be loaded again as it was before: {}",
            error.message, again.message
        ),
    };
    ErrorInfo { message, ..error }.with_detail("restored", restored.is_ok().to_string())
}

async fn begin(app: &App, request: LoadModelRequest) -> Result<(), ErrorInfo> {
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
pub(super) async fn left(app: &App, state: ModelStatus, mut model: Model) -> Result<Model, ErrorInfo> {
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
#[derive(Clone, Debug, PartialEq)]
enum Standing {
    /// There is something to load.
    Absent,
    /// It is loaded as the load would make it.
    AsWanted,
    /// It is loaded with other settings; what would load it so again.
    Otherwise(LoadModelRequest),
}

fn standing(model: &Model, wanted: &Overrides, device: &str) -> Result<Standing, ErrorInfo> {
    if model.status() != ModelStatus::Loaded {
        return Ok(Standing::Absent);
    }
    let specs: Vec<&InstanceSpec> = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref()?.spec.as_ref())
        .collect();
    let Some(spec) = specs.first() else {
        return Ok(Standing::Absent);
    };
    let json = spec
        .settings
        .as_ref()
        .map_or("", |settings| settings.load_override_json.as_str());
    let current = Overrides::from_json(Family::of(&model.runtime), json)?;
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
        return Ok(Standing::Otherwise(as_it_is(model, &specs, json)));
    }
    Ok(Standing::AsWanted)
}

/// A load that makes of the model what it is.
fn as_it_is(model: &Model, specs: &[&InstanceSpec], override_json: &str) -> LoadModelRequest {
    let device = match specs {
        // Its main device; where the other parts go follows from that.
        [only] => only.reservations.first().map(|part| part.device_id.clone()),
        _ => None,
    };
    LoadModelRequest {
        model: model.id.clone(),
        device_id: device.unwrap_or_default(),
        replicas: u32::try_from(specs.len()).unwrap_or_default(),
        override_json: override_json.to_owned(),
        download: false,
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Instance, InstanceStatus, Reservation};
    use serde_json::{Value, json};

    use super::*;

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
            id: "m".into(),
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
            let overrides = Overrides::from_json(Family::of(&model.runtime), &body.to_string()).unwrap();
            match standing(&model, &overrides, device).unwrap() {
                Standing::Otherwise(former) => {
                    assert_eq!((former.override_json.as_str(), former.replicas), (current, 1));
                    assert_eq!((former.model.as_str(), former.device_id.as_str()), ("m", "cpu"));
                    "anew"
                }
                Standing::AsWanted => "as wanted",
                Standing::Absent => "absent",
            }
        };
        assert_eq!(stands("", json!({}), ""), "as wanted");
        assert_eq!(stands("", json!({"ctx_size": 4096}), ""), "as wanted");
        assert_eq!(stands("", json!({"ctx_size": 8192}), ""), "anew");
        assert_eq!(
            stands(r#"{"gguf_n_ctx":8192}"#, json!({"ctx_size": 8192}), ""),
            "as wanted"
        );
        assert_eq!(stands(r#"{"gguf_n_ctx":8192}"#, json!({}), ""), "anew");
        assert_eq!(stands("", json!({}), "cpu"), "as wanted");
        assert_eq!(stands("", json!({}), "gpu"), "anew");
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
}
