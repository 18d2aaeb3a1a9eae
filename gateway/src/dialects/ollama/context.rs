//! `num_ctx`: the context that a request needs.
//!
//! ```text
//! as large already, or would be ─► go on
//! set by the configuration or by saved options, and smaller ─► refused: it stays as it was set
//! not loaded ─► loaded with it        loaded smaller, idle ─► loaded anew        loaded smaller, busy ─► refused
//! ```
//!
//! Nothing is ever loaded with a smaller context than it has: a larger one serves too. More than a model was trained with is never asked for.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use muster_core::{Code, Error};
use muster_proto::{
    llamacpp,
    v1::{InstanceStatus, LoadModelRequest, Model, ModelStatus},
};
use serde_json::{Map, Value};
use tokio::sync::Mutex as Turn;

use crate::web::App;

/// The models that are being loaded with another context: one request of a gateway at a time sees to it. As many as the catalogue has, at most.
static TURNS: Mutex<Option<HashMap<String, Arc<Turn<()>>>>> = Mutex::new(None);

/// How often a model is looked at whose loads others order.
const LOOKS: usize = 4;
/// The setting of a load, as a user's override says it.
const CTX_SIZE: &str = "ctx_size";

/// Sees to it that a model has a context of so many tokens. Returns whether that took a load.
///
/// # Errors
/// `invalid_request`: the context was set otherwise. `instance_busy`: it runs with a smaller one, and requests are under way. Or why it cannot be
/// loaded so.
pub(super) async fn provide(
    app: &App,
    model: &str,
    tokens: u32,
    autoload: Option<bool>,
) -> Result<bool, Error> {
    if has(app, model, tokens) {
        return Ok(false);
    }
    let turn = turn(model);
    let _turn = turn.lock().await;
    let mut waited = false;
    for _ in 0..LOOKS {
        let shown = app.dispatcher.fleet.control().model(model).await?;
        match plan(&shown, tokens)? {
            Plan::GoOn => return Ok(waited),
            // Nothing of ours: it is waited for, and then seen.
            Plan::Wait => app.dispatcher.ensure(model, autoload).await?,
            Plan::Load(request) => {
                app.dispatcher.may_load(model, autoload)?;
                app.dispatcher.fleet.control().replace(request).await?;
                app.dispatcher.fleet.shows_loaded(model).await;
                return Ok(true);
            }
        }
        waited = true;
    }
    Err(Code::InstanceBusy.error(format!(
        "{model} is loaded and unloaded by others again and again"
    )))
}

fn turn(model: &str) -> Arc<Turn<()>> {
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let turns = turns.get_or_insert_default();
    Arc::clone(turns.entry(model.to_owned()).or_default())
}

/// Whether the table says that a model has, or would be loaded with, so large a context, or is none of llama.cpp's: others have their own ways.
fn has(app: &App, model: &str, tokens: u32) -> bool {
    let table = app.dispatcher.fleet.table();
    table
        .model(model)
        .is_none_or(|summary| summary.ctx_size == 0 || summary.ctx_size >= tokens)
}

/// What there is to do.
#[derive(Debug, PartialEq)]
enum Plan {
    GoOn,
    Wait,
    Load(LoadModelRequest),
}

fn plan(model: &Model, tokens: u32) -> Result<Plan, Error> {
    let settings = model.settings.clone().unwrap_or_default();
    let trained = model.file.as_ref().map_or(0, |file| file.train_context_length);
    let wanted = match trained {
        0 => tokens,
        trained => tokens.min(trained),
    };
    let present = context_of(model);
    let set = llamacpp::context(&settings);
    let loaded = match model.status() {
        ModelStatus::Loaded => true,
        ModelStatus::Unloaded | ModelStatus::Failed | ModelStatus::Unspecified => false,
        ModelStatus::Loading | ModelStatus::Unloading => return Ok(Plan::Wait),
    };
    let enough = if loaded {
        present >= wanted
    } else {
        let usual = llamacpp::default::CONTEXT;
        wanted <= if set == 0 { usual } else { set }
    };
    if enough {
        return Ok(Plan::GoOn);
    }
    let refuse = |code: Code, why: String| {
        let error = format!("{tokens} tokens of context are asked for: {} {why}", model.id);
        Err(code.error(error).with_param("options.num_ctx"))
    };
    if set > 0 {
        let why = format!("is set to {set}, and a request does not change that");
        return refuse(Code::InvalidRequest, why);
    }
    let busy = |status: &InstanceStatus| status.running > 0 || status.queued > 0;
    if loaded && statuses(model).any(busy) {
        let why = format!("runs with {present}, and can only be loaded anew while it is idle");
        return refuse(Code::InstanceBusy, why);
    }
    Ok(Plan::Load(LoadModelRequest {
        model: model.id.clone(),
        override_json: with_context(model, wanted),
        replicas: u32::try_from(model.instances.len()).unwrap_or_default(),
        download: true,
        ..LoadModelRequest::default()
    }))
}

fn statuses(model: &Model) -> impl Iterator<Item = &InstanceStatus> {
    model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref())
}

/// The context that all instances of a model have; 0 if it is not known.
fn context_of(model: &Model) -> u32 {
    let known = |status: &InstanceStatus| status.capabilities.as_ref().map_or(0, |can| can.context_length);
    statuses(model).map(known).min().unwrap_or_default()
}

/// The settings of the load that the model has now, with another context.
fn with_context(model: &Model, tokens: u32) -> String {
    let spec = statuses(model).find_map(|status| status.spec.as_ref());
    let settings = spec.and_then(|spec| spec.settings.as_ref());
    let present = settings.map_or("", |settings| settings.load_override_json.as_str());
    let mut settings: Map<String, Value> = serde_json::from_str(present).unwrap_or_default();
    // The same setting by its other names.
    settings.retain(|key, _| !llamacpp::is_context(key));
    settings.insert(CTX_SIZE.to_owned(), tokens.into());
    Value::Object(settings).to_string()
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Capabilities, FileFacts, Instance, InstanceSpec, ModelSettings};
    use serde_json::json;

    use super::*;

    /// A model that is loaded with `loaded` tokens, if any; `set`: its configured context.
    fn model(loaded: Option<u32>, set: u32) -> Model {
        let instance = |context_length| Instance {
            status: Some(InstanceStatus {
                spec: Some(InstanceSpec {
                    settings: Some(ModelSettings {
                        load_override_json: r#"{"gguf_n_ctx": 512, "gguf_type_k": "q8_0"}"#.into(),
                        ..ModelSettings::default()
                    }),
                    ..InstanceSpec::default()
                }),
                capabilities: Some(Capabilities {
                    context_length,
                    ..Capabilities::default()
                }),
                ..InstanceStatus::default()
            }),
            ..Instance::default()
        };
        let status = match loaded {
            Some(_) => ModelStatus::Loaded,
            None => ModelStatus::Unloaded,
        };
        Model {
            id: "m".into(),
            status: status.into(),
            settings: Some(ModelSettings {
                ctx_size: set,
                ..ModelSettings::default()
            }),
            file: Some(FileFacts {
                train_context_length: 8192,
                ..FileFacts::default()
            }),
            instances: loaded.map(instance).into_iter().collect(),
            ..Model::default()
        }
    }

    fn load(model: &Model, tokens: u32) -> Value {
        match plan(model, tokens) {
            Ok(Plan::Load(request)) => serde_json::from_str(&request.override_json).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_idle_model_grows_and_keeps_the_other_settings_of_its_load() {
        let kept = json!({"ctx_size": 2048, "gguf_type_k": "q8_0"});
        assert_eq!(load(&model(Some(512), 0), 2048), kept);
        assert_eq!(load(&model(None, 0), 8192), json!({"ctx_size": 8192}));
    }

    #[test]
    fn never_more_than_it_was_trained_with_and_never_less_than_it_has() {
        assert_eq!(load(&model(Some(512), 0), 100_000)["ctx_size"], 8192);
        for (model, tokens) in [
            (model(Some(8192), 0), 100_000),
            (model(Some(512), 0), 100),
            (model(None, 0), 4096),
            (model(None, 6000), 6000),
        ] {
            assert_eq!(plan(&model, tokens).unwrap(), Plan::GoOn, "{tokens}");
        }
    }

    #[test]
    fn what_was_set_otherwise_or_is_busy_is_refused() {
        for model in [model(Some(512), 512), model(None, 512)] {
            let error = plan(&model, 2048).unwrap_err();
            assert_eq!(error.code, Code::InvalidRequest, "{error}");
        }
        let mut busy = model(Some(512), 0);
        busy.instances[0].status.as_mut().unwrap().running = 1;
        assert_eq!(plan(&busy, 2048).unwrap_err().code, Code::InstanceBusy);
        let mut loading = model(None, 0);
        loading.status = ModelStatus::Loading.into();
        assert_eq!(plan(&loading, 8192).unwrap(), Plan::Wait);
    }
}
