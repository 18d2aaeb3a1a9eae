//! Models as users register them: with files of the hub, or made from another model.
//!
//! Invariant: a registration never names a file of this machine; one that is made from a configured model names that model.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use muster_core::{Code, Error, ModelId, name::USER};
use muster_proto::v1::ModelDefinition;

use super::Driver;
use crate::{
    catalogue::{Catalogue, Entry},
    config::{self, Config, ConfigError, ModelEntry},
    convert::stage::unknown_model,
    state::{Own, Registration},
};

/// Where they are kept.
const FILE: &str = "user_models.json";

/// Puts what users registered and saved into a fresh catalogue. What cannot be understood any more is left out, and kept on disk.
pub(super) fn restore(catalogue: &mut Catalogue, own: &Own, config: &Config, state_dir: &Path) {
    for (name, registration) in &own.models {
        let id = format!("{USER}{name}");
        let base = catalogue.get(&registration.base);
        // Its base may lie in a folder, or come off the shelf: it comes with it.
        if base.is_none() && !registration.base.is_empty() {
            continue;
        }
        match parse(&id, registration, base, config, state_dir) {
            Ok(model) => catalogue.insert(model),
            Err(error) => tracing::warn!(model = id, %error, "a registered model cannot be used"),
        }
    }
    for (id, options) in &own.options {
        let json = serde_json::Value::Object(options.clone()).to_string();
        if let Err(error) = catalogue.set_options(id, &json) {
            tracing::warn!(model = id, %error, "saved options cannot be used");
        }
    }
}

/// A model out of its registration; `base`: the model that it is made from, if it is.
fn parse(
    id: &str,
    registration: &Registration,
    base: Option<&Entry>,
    config: &Config,
    state_dir: &Path,
) -> Result<ModelEntry, Error> {
    let mut model = match base {
        Some(base) => derived(id, base)?,
        None => of_its_own(id, registration, config, state_dir)?,
    };
    let table = toml::Table::try_from(&registration.defaults);
    let table = table.map_err(|error| Code::InvalidRequest.error(format!("{id}: {error}")))?;
    let own = config::request_defaults(table, &state_dir.join(FILE)).map_err(|error| refused(id, &error))?;
    model.defaults = match (own, model.defaults.take()) {
        (Some(own), Some(base)) => Some(own.over(&base)),
        (own, base) => own.or(base),
    };
    if !registration.chat_template.is_empty() {
        if !model.runtime.facts().templates {
            let error = format!("{id}: `{}` takes no chat template", model.runtime);
            return Err(Code::InvalidRequest.error(error).with_param("chat_template"));
        }
        // Never through the configuration's key, which may name a file of this machine.
        model
            .settings
            .chat_template
            .clone_from(&registration.chat_template);
        model.prompt_format.clear();
    }
    model.registered = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(registration.registered));
    Ok(model)
}

/// A model with the files and settings of another one.
fn derived(id: &str, base: &Entry) -> Result<ModelEntry, Error> {
    let from = base.model();
    Ok(ModelEntry {
        id: ModelId::new(id).map_err(|error| Code::InvalidRequest.error(format!("{id}: {error}")))?,
        settings: base.definition().clone(),
        base: Some(from.id.clone()),
        pinned: false,
        enabled: false,
        ..from.clone()
    })
}

fn refused(id: &str, error: &ConfigError) -> Error {
    let wrong: Vec<String> = error.0.iter().map(|problem| problem.message.clone()).collect();
    let key = error
        .0
        .first()
        .map(|problem| problem.key.rsplit('.').next().unwrap_or_default());
    Code::InvalidRequest
        .error(format!("{id}: {}", wrong.join("; ")))
        .with_param(key.unwrap_or_default())
}

/// A model with files of its own, by the rules of the configuration, but of the hub's files only: requests register models, and where on this
/// machine files are is the configuration's to say (proto/README.md, Trust).
fn of_its_own(
    id: &str,
    registration: &Registration,
    config: &Config,
    state_dir: &Path,
) -> Result<ModelEntry, Error> {
    let mut table = toml::Table::new();
    let mut put = |key: &str, value: &str| {
        if !value.is_empty() {
            table.insert(key.to_owned(), value.into());
        }
    };
    put("checkpoint", &registration.checkpoint);
    put("recipe", &registration.recipe);
    put("mmproj", &registration.mmproj);
    put("revision", &registration.revision);
    table.insert("labels".to_owned(), registration.labels.clone().into());
    let read = config::definition(id, table, &state_dir.join(FILE), &config.defaults);
    let model = read.map_err(|error| refused(id, &error))?;
    of_the_hub(&model, registration)?;
    Ok(model)
}

/// Whether a registered model is made of files of the hub, or of FastFlowLM's own.
fn of_the_hub(model: &ModelEntry, registration: &Registration) -> Result<(), Error> {
    let wrong = |key: &str, given: &str, want: &str| {
        let error = format!("`{given}` is {want}: only the configuration names files of this machine");
        Err(Code::InvalidRequest.error(error).with_param(key))
    };
    let checkpoint = &registration.checkpoint;
    let known = match &model.hub {
        Some(_) => true,
        None => model.runtime.facts().pulls && model.file.is_none() && is_tag(checkpoint),
    };
    if !known {
        return wrong(
            "checkpoint",
            checkpoint,
            "no checkpoint of the hub (ORG/NAME:VARIANT)",
        );
    }
    let projector = model.hub.as_ref().map_or("", |hub| hub.mmproj.as_str());
    if model.settings.mmproj != projector {
        return wrong(
            "mmproj",
            &registration.mmproj,
            "no file of the checkpoint's repository",
        );
    }
    Ok(())
}

/// Whether a text is a tag of FastFlowLM's (`llama3.2:1b`): no path and no flag.
fn is_tag(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '_' | '-'))
}

impl Driver {
    /// A definition, checked: its name without `user.`, its form on disk, and the model.
    pub(super) fn defined(
        &self,
        definition: &ModelDefinition,
    ) -> Result<(String, Registration, ModelEntry), Error> {
        let id = definition.model.as_str();
        let name = id.strip_prefix(USER).filter(|name| !name.is_empty());
        let Some(name) = name.map(str::to_owned) else {
            let error =
                format!("`{id}` cannot be registered: names of registered models begin with `{USER}`");
            return Err(Code::InvalidRequest.error(error).with_param("model_name"));
        };
        if self
            .catalogue
            .get(id)
            .is_some_and(|entry| entry.model().registered.is_none())
        {
            let error = format!("`{id}` is defined by the configuration");
            return Err(Code::InvalidRequest.error(error).with_param("model_name"));
        }
        let missing = |field: &str| {
            let error = format!("`{field}` is required to register {id}");
            Err(Code::InvalidRequest.error(error).with_param(field))
        };
        let base = match definition.base.as_str() {
            "" => None,
            base => Some(self.base(id, base)?),
        };
        if base.is_none() && definition.checkpoint.is_empty() {
            return missing("checkpoint");
        }
        if base.is_none() && definition.recipe.is_empty() {
            return missing("recipe");
        }
        let defaults = match definition.defaults_json.as_str() {
            "" => serde_json::Map::new(),
            json => serde_json::from_str(json).map_err(|error| {
                let error = format!("`defaults_json` is no object: {error}");
                Code::InvalidRequest.error(error).with_param("defaults_json")
            })?,
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let known = self.own.models.get(&name).map(|known| known.registered);
        let own = Registration {
            checkpoint: definition.checkpoint.clone(),
            recipe: definition.recipe.clone(),
            mmproj: definition.mmproj.clone(),
            revision: definition.revision.clone(),
            labels: definition.labels.clone(),
            defaults,
            chat_template: definition.chat_template.clone(),
            registered: known.unwrap_or_else(|| now.map_or(0, |since| since.as_secs())),
            ..Registration::default()
        };
        let (registration, base) = match base {
            None => (own, None),
            Some(base) => match base.model().id.as_str().strip_prefix(USER) {
                // The former may be deleted: what is made from it has all that it says.
                Some(former) => (self.made_from(former, own), None),
                None => {
                    let base_id = base.model().id.to_string();
                    (Registration { base: base_id, ..own }, Some(base))
                }
            },
        };
        let base = match registration.base.as_str() {
            "" => base,
            base => self.catalogue.get(base),
        };
        let model = parse(id, &registration, base, &self.config, self.writer.path())?;
        Ok((name, registration, model))
    }

    /// The model that another one is to be made from, by any name of it.
    fn base(&self, id: &str, name: &str) -> Result<&Entry, Error> {
        let base = self.catalogue.get(name);
        let base = base.or_else(|| self.meant(name).and_then(|id| self.catalogue.get(id)));
        let base = base.ok_or_else(|| unknown_model(name))?;
        if base.model().id.as_str() == id {
            let error = format!("`{id}` cannot be made from itself");
            return Err(Code::InvalidRequest.error(error).with_param("from"));
        }
        Ok(base)
    }

    /// What a registration says over another one, from which it is made.
    fn made_from(&self, former: &str, own: Registration) -> Registration {
        let former = self.own.models.get(former).cloned().unwrap_or_default();
        let mut defaults = former.defaults;
        defaults.extend(own.defaults);
        let chat_template = match own.chat_template.as_str() {
            "" => former.chat_template,
            _ => own.chat_template,
        };
        Registration {
            defaults,
            chat_template,
            registered: own.registered,
            ..former
        }
    }

    /// The models that are made from this one.
    pub(super) fn derived_from(&self, base: &str) -> Vec<ModelEntry> {
        let of = |(_, registration): &(&String, &Registration)| registration.base == base;
        let made = self.own.models.iter().filter(of);
        made.filter_map(|(name, registration)| self.read_registration(&format!("{USER}{name}"), registration))
            .collect()
    }

    /// A model out of its registration; none if it cannot be used, or what it is made from is not there.
    pub(super) fn read_registration(&self, id: &str, registration: &Registration) -> Option<ModelEntry> {
        let base = match registration.base.as_str() {
            "" => None,
            base => Some(self.catalogue.get(base)?),
        };
        parse(id, registration, base, &self.config, self.writer.path())
            .inspect_err(|error| tracing::warn!(model = id, %error, "a registered model cannot be used"))
            .ok()
    }
}
