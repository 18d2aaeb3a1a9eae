//! What a request [wants](super::wants) of its model's load: a context, and other settings.
//!
//! ```text
//! as wanted already, or would be ─► go on
//! set otherwise by the configuration or by saved options ─► refused: it stays as it was set
//! not loaded ─► loaded so        loaded otherwise, idle ─► loaded anew        loaded otherwise, busy ─► refused
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
    v1::{InstanceStatus, LoadModelRequest, Model, ModelSettings, ModelStatus},
};
use serde_json::{Map, Value};
use tokio::sync::Mutex as Turn;

use super::wants::{Setting, Wants};
use crate::web::App;

/// What was wanted last of a model, and of which of its instances it holds: these are not looked at again.
type Served = Option<(Vec<String>, Wants)>;

/// The models that are loaded as requests want them: one request of a gateway at a time sees to it. As many as the catalogue has, at most.
static TURNS: Mutex<Option<HashMap<String, Arc<Turn<Served>>>>> = Mutex::new(None);

/// How often a model is looked at whose loads others order.
const LOOKS: usize = 4;
/// The settings of a load, as a user's override says them.
const CTX_SIZE: &str = "ctx_size";
const ARGS: &str = "llamacpp_args";

/// Sees to it that a model is loaded as a request wants it. Returns whether that took a load.
///
/// # Errors
/// `invalid_request`: something was set otherwise. `instance_busy`: it runs otherwise, and requests are under way. Or why it cannot be loaded so.
pub(super) async fn provide(
    app: &App,
    model: &str,
    wants: &Wants,
    autoload: Option<bool>,
) -> Result<bool, Error> {
    if has(app, model, wants) {
        return Ok(false);
    }
    let turn = turn(model);
    let mut served = turn.lock().await;
    let running = instances(app, model);
    if served
        .as_ref()
        .is_some_and(|(of, what)| *of == running && what == wants)
    {
        return Ok(false);
    }
    let mut waited = false;
    for _ in 0..LOOKS {
        let shown = app.dispatcher.fleet.control().model(model).await?;
        match plan(&shown, wants)? {
            Plan::GoOn => {
                *served = Some((instances(app, model), wants.clone())).filter(|(of, _)| !of.is_empty());
                return Ok(waited);
            }
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

/// The instances that take requests now.
fn instances(app: &App, model: &str) -> Vec<String> {
    let table = app.dispatcher.fleet.table();
    let targets = table.targets(model).iter();
    targets.map(|target| target.instance_id().to_string()).collect()
}

fn turn(model: &str) -> Arc<Turn<Served>> {
    let mut turns = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let turns = turns.get_or_insert_default();
    Arc::clone(turns.entry(model.to_owned()).or_default())
}

/// Whether the table says that a model has, or would be loaded with, all that is wanted, or is none of llama.cpp's: others have their own ways.
fn has(app: &App, model: &str, wants: &Wants) -> bool {
    let table = app.dispatcher.fleet.table();
    let enough = |context: u32| wants.context.is_none_or(|tokens| context >= tokens);
    table
        .model(model)
        .is_none_or(|summary| summary.ctx_size == 0 || (wants.exactly.is_empty() && enough(summary.ctx_size)))
}

/// What there is to do.
#[derive(Debug, PartialEq)]
enum Plan {
    GoOn,
    Wait,
    Load(LoadModelRequest),
}

fn plan(model: &Model, wants: &Wants) -> Result<Plan, Error> {
    let settings = model.settings.clone().unwrap_or_default();
    let loaded = match model.status() {
        ModelStatus::Loaded => true,
        ModelStatus::Unloaded | ModelStatus::Failed | ModelStatus::Unspecified => false,
        ModelStatus::Loading | ModelStatus::Unloading => return Ok(Plan::Wait),
    };
    let context = more_context(model, wants, &settings, loaded)?;
    let present = in_force(model).unwrap_or(&settings);
    let lacks = |setting: &Setting| !setting.holds(if loaded { present } else { &settings });
    let exactly: Vec<Setting> = wants.exactly.iter().copied().filter(lacks).collect();
    for setting in &exactly {
        if setting.said(&settings) {
            let why = "is set otherwise, and a request does not change that";
            return Err(refused(model, Code::InvalidRequest, setting.option(), why));
        }
    }
    let first = exactly.first().map(|setting| setting.option());
    let Some(option) = context.map(|_| NUM_CTX).or(first) else {
        return Ok(Plan::GoOn);
    };
    let busy = |status: &InstanceStatus| status.running > 0 || status.queued > 0;
    if loaded && statuses(model).any(busy) {
        let why = "differs where it runs, and it can only be loaded anew while it is idle";
        return Err(refused(model, Code::InstanceBusy, option, why));
    }
    Ok(Plan::Load(LoadModelRequest {
        model: model.id.clone(),
        override_json: with(model, &settings, context, &exactly),
        replicas: u32::try_from(model.instances.len()).unwrap_or_default(),
        download: true,
        ..LoadModelRequest::default()
    }))
}

/// The option that says the context.
const NUM_CTX: &str = "num_ctx";

fn refused(model: &Model, code: Code, option: &str, why: &str) -> Error {
    let error = code.error(format!("`{option}` of {} {why}", model.id));
    error.with_param(format!("options.{option}"))
}

/// The context that a load lacks, if it lacks any.
///
/// # Errors
/// It is set to less.
fn more_context(
    model: &Model,
    wants: &Wants,
    settings: &ModelSettings,
    loaded: bool,
) -> Result<Option<u32>, Error> {
    let Some(tokens) = wants.context else {
        return Ok(None);
    };
    let trained = model.file.as_ref().map_or(0, |file| file.train_context_length);
    let wanted = match trained {
        0 => tokens,
        trained => tokens.min(trained),
    };
    let set = llamacpp::context(settings);
    let present = match (loaded, set) {
        (true, _) => context_of(model),
        (false, 0) => llamacpp::default::CONTEXT,
        (false, set) => set,
    };
    if present >= wanted {
        return Ok(None);
    }
    if set > 0 {
        let why = format!("is set to {set}, and a request does not change that");
        return Err(refused(model, Code::InvalidRequest, NUM_CTX, &why));
    }
    Ok(Some(wanted))
}

/// The settings that a model is loaded with.
fn in_force(model: &Model) -> Option<&ModelSettings> {
    let spec = statuses(model).find_map(|status| status.spec.as_ref());
    spec.and_then(|spec| spec.settings.as_ref())
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

/// The settings of the load that the model has now, with those that it lacks.
fn with(model: &Model, settings: &ModelSettings, context: Option<u32>, exactly: &[Setting]) -> String {
    let present = in_force(model);
    let said = present.map_or("", |settings| settings.load_override_json.as_str());
    let mut fields: Map<String, Value> = serde_json::from_str(said).unwrap_or_default();
    if let Some(tokens) = context {
        // The same setting by its other names.
        fields.retain(|key, _| !llamacpp::is_context(key));
        fields.insert(CTX_SIZE.to_owned(), tokens.into());
    }
    if !exactly.is_empty() {
        // They take the place of all that a request may say.
        let (mut words, _) = llamacpp::split(&present.unwrap_or(settings).args);
        for setting in exactly {
            words = setting.put(&words);
        }
        fields.insert(ARGS.to_owned(), shell_words::join(words).into());
    }
    Value::Object(fields).to_string()
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

    fn context(tokens: u32) -> Wants {
        Wants {
            context: Some(tokens),
            ..Wants::default()
        }
    }

    fn load(model: &Model, wants: &Wants) -> Value {
        match plan(model, wants) {
            Ok(Plan::Load(request)) => serde_json::from_str(&request.override_json).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_idle_model_grows_and_keeps_the_other_settings_of_its_load() {
        let kept = json!({"ctx_size": 2048, "gguf_type_k": "q8_0"});
        assert_eq!(load(&model(Some(512), 0), &context(2048)), kept);
        assert_eq!(load(&model(None, 0), &context(8192)), json!({"ctx_size": 8192}));
    }

    #[test]
    fn never_more_than_it_was_trained_with_and_never_less_than_it_has() {
        assert_eq!(load(&model(Some(512), 0), &context(100_000))["ctx_size"], 8192);
        for (model, tokens) in [
            (model(Some(8192), 0), 100_000),
            (model(Some(512), 0), 100),
            (model(None, 0), 4096),
            (model(None, 6000), 6000),
        ] {
            assert_eq!(plan(&model, &context(tokens)).unwrap(), Plan::GoOn, "{tokens}");
        }
    }

    #[test]
    fn what_was_set_otherwise_or_is_busy_is_refused() {
        for model in [model(Some(512), 512), model(None, 512)] {
            let error = plan(&model, &context(2048)).unwrap_err();
            assert_eq!(error.code, Code::InvalidRequest, "{error}");
        }
        let mut busy = model(Some(512), 0);
        busy.instances[0].status.as_mut().unwrap().running = 1;
        assert_eq!(plan(&busy, &context(2048)).unwrap_err().code, Code::InstanceBusy);
        let mut loading = model(None, 0);
        loading.status = ModelStatus::Loading.into();
        assert_eq!(plan(&loading, &context(8192)).unwrap(), Plan::Wait);
    }
    #[test]
    fn other_settings_are_exact_and_stand_beside_what_the_load_has() {
        let wants = |exactly: &[Setting]| Wants {
            exactly: exactly.to_vec(),
            ..Wants::default()
        };
        let mut loaded = model(Some(512), 0);
        let spec = loaded.instances[0]
            .status
            .as_mut()
            .unwrap()
            .spec
            .as_mut()
            .unwrap();
        let words = ["-t", "3", "--mlock", "--slots"].map(str::to_owned);
        spec.settings.as_mut().unwrap().args = words.to_vec();
        let read = Setting::Loaded {
            map: Some(false),
            lock: None,
        };
        let both = wants(&[Setting::Threads(2), read]);
        let kept =
            json!({"gguf_n_ctx": 512, "gguf_type_k": "q8_0", "llamacpp_args": "-t 2 --load-mode mlock"});
        assert_eq!(load(&loaded, &both), kept);
        let there = wants(&[Setting::Threads(3)]);
        assert_eq!(plan(&loaded, &there).unwrap(), Plan::GoOn);

        let mut set = model(None, 0);
        set.settings.as_mut().unwrap().threads = 3;
        let error = plan(&set, &both).unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref()),
            (Code::InvalidRequest, Some("options.num_thread"))
        );
        assert_eq!(
            load(&set, &wants(&[Setting::Batch(64)])),
            json!({"llamacpp_args": "-b 64"})
        );
    }
}
