//! The catalogue as something that changes: models of users, saved options, aliases.
//!
//! Invariants: only ids that begin with `user.` are ever registered or taken out; what was answered is on disk.

use muster_core::{
    Code, Error, ModelId,
    name::{USER, spellings},
};
use std::collections::BTreeSet;

use muster_policy::{Event, ModelState};
use muster_proto::{
    hub::is_repo,
    v1::{self, HubCheckpoint, ModelDefinition},
};
use tokio::sync::watch;

use super::{
    Driver,
    inbox::{Ask, Models, Order, PullState, Query, Removed, Reply},
    looks::Later,
};
use crate::{
    catalogue::Entry,
    config::ModelEntry,
    convert::{self, stage::unknown_model},
    state::{Registration, Saving},
};

impl Driver {
    /// Changes the catalogue, or files.
    pub(super) fn models(&mut self, models: Models) {
        match models {
            Models::Pull(request, listener) => self.pull_model(request, listener),
            Models::ListDownloads(reply) => answer(reply, Ok(self.downloads())),
            Models::ControlDownload(request, reply) => answer(reply, self.control_download(&request)),
            Models::Checkable(names, reply) => answer(reply, self.checkable(&names)),
            Models::Check(worker, checkpoint, reply) => self.check_files(&worker, &checkpoint, reply),
            Models::Register(definition, reply) => self.register(&definition, reply),
            Models::RemoveFiles(id, reply) => self.remove_model_files(&id, reply),
            Models::Remove(id, reply) => answer(reply, self.remove(&id)),
            Models::SetOptions(request, reply) => answer(reply, self.set_options(&request)),
            Models::Reload(config, reply) => answer(reply, Ok(self.reload(*config))),
            Models::ReloadOwn { turn, own, reply } => {
                // What was changed since it was read is newer.
                let taken = self.writer.saved() == Some(turn) && self.reload_own(*own);
                answer(reply, Ok(taken));
            }
            Models::ListVariants(repo, reply) => {
                if is_repo(&repo) {
                    self.list_repo(&repo, reply);
                } else {
                    let error =
                        Code::InvalidRequest.error(format!("`{repo}` is no repository: want ORG/NAME"));
                    answer(reply, Err(error.with_param("checkpoint")));
                }
            }
            Models::SetAlias(alias, reply) => answer(reply, self.set_alias(&alias)),
            Models::DeleteAlias(alias, reply) => answer(reply, self.delete_alias(&alias)),
            Models::ListAliases(reply) => {
                let ids = self
                    .catalogue
                    .entries()
                    .iter()
                    .map(|entry| entry.model().id.as_str());
                let of = |model: &str| {
                    let aliases = self.aliases_of(model).into_iter();
                    let alias = |alias| v1::Alias {
                        alias,
                        model: model.to_owned(),
                    };
                    aliases.map(alias).collect::<Vec<_>>()
                };
                let mut all: Vec<_> = ids.flat_map(of).collect();
                all.sort_by(|one, other| one.alias.cmp(&other.alias));
                answer(reply, Ok(all));
            }
        }
    }

    /// Names a call's model by its id where the caller used another of its names. What takes entries or files away is not among these calls: an
    /// alias that is deleted leaves its model alone.
    pub(super) fn by_id(&self, ask: &mut Ask) {
        let name = match ask {
            Ask::Ensure { wish, .. } => {
                let name = wish.model.as_str();
                let other = self.meant(name).or_else(|| self.of_any_name(name));
                let other = other.and_then(|id| ModelId::new(id).ok());
                wish.model = other.unwrap_or_else(|| wish.model.clone());
                return;
            }
            Ask::Call { order, .. } => match order {
                Order::Load(load) => &mut load.model,
                Order::Unload(unload) => &mut unload.model,
                Order::Forget(_) => return,
            },
            Ask::Pin(pin) => &mut pin.model,
            Ask::Query(query) => match query {
                Query::Model(id, _) => id,
                Query::Explain(request, ..) => &mut request.model,
                Query::Replacement(request, _) => &mut request.model,
                Query::Models(..)
                | Query::Devices(_)
                | Query::Workers(_)
                | Query::Stats(_)
                | Query::Saved(_)
                | Query::Stale(_)
                | Query::Routes(_) => return,
            },
            Ask::Models(change) => match change {
                Models::SetOptions(request, _) => &mut request.model,
                Models::ControlDownload(request, _) => &mut request.model,
                Models::Pull(request, _) if request.definition.is_none() => &mut request.model,
                Models::Pull(..)
                | Models::ListDownloads(_)
                | Models::Checkable(..)
                | Models::Check(..)
                | Models::Register(..)
                | Models::RemoveFiles(..)
                | Models::Remove(..)
                | Models::Reload(..)
                | Models::ReloadOwn { .. }
                | Models::ListVariants(..)
                | Models::SetAlias(..)
                | Models::DeleteAlias(..)
                | Models::ListAliases(_) => return,
            },
        };
        if let Some(id) = self.meant(name) {
            *name = id.to_owned();
        }
    }

    /// The id of a model that was called by another of its names.
    pub(super) fn meant(&self, name: &str) -> Option<&str> {
        if self.catalogue.get(name).is_some() {
            return None;
        }
        spellings(name).find_map(|name| {
            let entry = self.catalogue.get(&name).map(|entry| entry.model().id.as_str());
            entry
                .or_else(|| self.own.aliases.get(name.as_ref()).map(String::as_str))
                .or_else(|| self.catalogue.aliased(&name))
        })
    }

    /// The id of the model that takes requests for a name that no model has.
    fn of_any_name(&self, name: &str) -> Option<&str> {
        let any = self
            .catalogue
            .of_any_name()
            .map(|entry| entry.model().id.as_str());
        any.filter(|_| self.catalogue.get(name).is_none())
    }

    /// Names of a model besides its id.
    pub(super) fn aliases_of(&self, id: &str) -> Vec<String> {
        let of = self.own.aliases.iter().filter(|(_, model)| *model == id);
        let given = of.map(|(alias, _)| alias.clone());
        let configured = self
            .catalogue
            .get(id)
            .map(|entry| entry.model().aliases.as_slice());
        // One that a user gave to another model since is that one's.
        let configured = configured.unwrap_or_default().iter();
        let configured = configured.filter(|alias| !self.own.aliases.contains_key(*alias));
        given.chain(configured.cloned()).collect()
    }

    /// A new model is registered before its files come, and is there even if they never do; one that changes keeps its old files until the new
    /// ones are there: whoever asked registers it then (gateway/README.md, Lemonade).
    fn pull_model(&mut self, request: v1::PullModelRequest, listener: watch::Sender<PullState>) {
        let model = match request.definition {
            None => match self.catalogue.get(&request.model) {
                Some(entry) => Ok(entry.model().clone()),
                None => Err(unknown_model(&request.model)),
            },
            Some(definition) => self.defined(&definition).map(|(name, registration, model)| {
                if self.catalogue.get(model.id.as_str()).is_none() {
                    // The answer comes with the end of the pull: it is written long before.
                    drop(self.put(name, registration, model.clone()));
                }
                model
            }),
        };
        match model {
            Ok(model) if model.runtime.facts().pulls => {
                let error = format!(
                    "models of `{0}` are downloaded by `{0}` itself, which no worker hosts",
                    model.runtime
                );
                listener.send_replace(PullState::Done(Err(Code::UnsupportedByRuntime.error(error))));
            }
            Ok(model) => self.pull_files(&model, listener),
            // Nobody listening is fine: nothing was begun.
            Err(error) => drop(listener.send_replace(PullState::Done(Err(error)))),
        }
    }

    fn register(&mut self, definition: &ModelDefinition, reply: Reply<(v1::Model, Saving)>) {
        match self.defined(definition) {
            Ok((name, registration, model)) => {
                let id = model.id.to_string();
                let saving = self.put(name, registration, model);
                self.look_first(Later::Registered { id, saving, reply });
            }
            Err(error) => answer(reply, Err(error)),
        }
    }

    fn put(&mut self, name: String, registration: Registration, model: ModelEntry) -> Saving {
        self.own.models.insert(name, registration);
        self.enter(model);
        self.writer.own(&self.own)
    }

    /// Takes a model into the catalogue, or changes it there, with what was saved for it.
    pub(super) fn enter(&mut self, model: ModelEntry) {
        self.enter_all(vec![model]);
    }

    /// Takes models in together: policy hears of them once.
    pub(super) fn enter_all(&mut self, models: Vec<ModelEntry>) {
        if models.is_empty() {
            return;
        }
        let mut changed = Vec::new();
        for model in models {
            changed.extend(self.put_in(model));
        }
        self.models_changed(changed);
        self.look_again();
    }

    /// Puts a model into the catalogue, and those that are made from it; the ids of all that change by that.
    fn put_in(&mut self, model: ModelEntry) -> Vec<String> {
        let id = model.id.to_string();
        let checkpoint = model.hub.clone();
        self.catalogue.insert(model);
        if let Some(pinned) = self.pins.get(&id) {
            self.catalogue.pin(&id, pinned.pins());
        }
        if let Some(options) = self.own.options.get(&id) {
            let json = serde_json::Value::Object(options.clone()).to_string();
            // Those saved for what had this name before may not fit it.
            if let Err(error) = self.catalogue.set_options(&id, &json) {
                tracing::warn!(model = id, %error, "saved options do not fit any more");
            }
        }
        let mut changed = vec![id.clone()];
        if let Some(checkpoint) = checkpoint {
            self.files_known(&checkpoint);
            self.look_everywhere(&checkpoint);
            changed.extend(self.catalogue.of_checkpoint(&checkpoint));
        }
        for model in self.derived_from(&id) {
            changed.extend(self.put_in(model));
        }
        changed
    }

    /// Takes a user's model out; any other stays listed.
    fn remove(&mut self, id: &str) -> Result<(Option<v1::Model>, Saving), Error> {
        let Some(entry) = self.catalogue.get(id) else {
            // A pull that was cancelled for this put it back.
            let listed = self.shelf.get(id).map(|_| (None, self.writer.own(&self.own)));
            return listed.ok_or_else(|| unknown_model(id));
        };
        if entry.model().registered.is_none() && self.shelf.get(id).is_none() {
            return Ok((self.model(id), self.writer.own(&self.own)));
        }
        if let Some(name) = id.strip_prefix(USER) {
            self.own.models.remove(name);
        }
        self.own.options.remove(id);
        self.own.aliases.retain(|_, model| model != id);
        self.catalogue.remove(id);
        self.changed_models.insert(id.to_owned());
        self.catalogue_changed();
        Ok((None, self.writer.own(&self.own)))
    }

    /// Removes a model's files, if it is the hub's: others are not ours to remove.
    fn remove_model_files(&mut self, id: &str, reply: Reply<Removed>) {
        let Some(entry) = self.catalogue.get(id) else {
            return answer(reply, Err(unknown_model(id)));
        };
        let Some(checkpoint) = entry.model().hub.clone() else {
            let kept = if entry.model().registered.is_some() {
                Ok(Removed { freed: 0 })
            } else {
                let error = format!(
                    "{id} is no download: its files are not Muster's to remove, and the configuration defines it"
                );
                Err(Code::InvalidRequest.error(error).with_param("model_name"))
            };
            return answer(reply, kept);
        };
        let standing = self.fleet.model(id);
        let busy =
            standing.is_some_and(|view| !matches!(view.state, ModelState::Unloaded | ModelState::Failed(_)));
        if busy {
            let error = format!("{id} was loaded again while it was deleted");
            return answer(reply, Err(Code::InstanceBusy.error(error)));
        }
        let shares = |other: &&Entry| other.model().id.as_str() != id && !other.workers().is_empty();
        let keep: Vec<HubCheckpoint> = self
            .catalogue
            .entries()
            .iter()
            .filter(shares)
            .filter_map(|other| other.model().hub.clone())
            .filter(|other| other.repo == checkpoint.repo)
            .collect();
        if keep.contains(&checkpoint) {
            // Another model is these very files.
            return answer(reply, Ok(Removed { freed: 0 }));
        }
        self.remove_files(&checkpoint, &keep, reply);
    }

    fn set_options(&mut self, request: &v1::SetModelOptionsRequest) -> Result<(v1::Model, Saving), Error> {
        if !self
            .catalogue
            .set_options(&request.model, &request.options_json)?
        {
            return Err(unknown_model(&request.model));
        }
        let options = match request.options_json.as_str() {
            "" => serde_json::Map::new(),
            json => serde_json::from_str(json).map_err(|error| {
                Code::InvalidLoadRequest.error(format!("the options are no object: {error}"))
            })?,
        };
        if options.is_empty() {
            self.own.options.remove(&request.model);
        } else {
            self.own.options.insert(request.model.clone(), options);
        }
        self.models_changed([request.model.clone()]);
        Ok((self.known(&request.model)?, self.writer.own(&self.own)))
    }

    fn set_alias(&mut self, alias: &v1::Alias) -> Result<Saving, Error> {
        let v1::Alias { alias, model } = alias;
        let wrong = |text: String| Err(Code::InvalidRequest.error(text).with_param("alias"));
        if alias.is_empty() || alias.chars().any(char::is_control) {
            return wrong("an alias needs a name".to_owned());
        }
        if self.catalogue.get(alias).is_some() {
            return wrong(format!("`{alias}` is a model's own name"));
        }
        if self.catalogue.get(model).is_none() {
            return Err(unknown_model(model));
        }
        let configured = self.catalogue.aliased(alias).map(str::to_owned);
        self.changed_models.extend(configured);
        if let Some(old) = self.own.aliases.insert(alias.clone(), model.clone()) {
            self.changed_models.insert(old);
        }
        self.changed_models.insert(model.clone());
        Ok(self.writer.own(&self.own))
    }

    fn delete_alias(&mut self, alias: &str) -> Result<Saving, Error> {
        let model = self
            .own
            .aliases
            .remove(alias)
            .ok_or_else(|| unknown_model(alias))?;
        self.changed_models.insert(model);
        let configured = self.catalogue.aliased(alias).map(str::to_owned);
        self.changed_models.extend(configured);
        Ok(self.writer.own(&self.own))
    }

    /// Tells policy entries that are new or changed; those that are gone are not among them.
    pub(super) fn models_changed(&mut self, ids: impl IntoIterator<Item = String>) {
        let ids: BTreeSet<String> = ids.into_iter().collect();
        let entries = ids.iter().filter_map(|id| self.catalogue.get(id));
        let models: Vec<_> = entries
            .map(|entry| convert::model::spec(entry, &self.observed))
            .collect();
        self.changed_models.extend(ids);
        if !models.is_empty() {
            self.feed(Event::ModelsChanged { models });
        }
    }

    /// Tells policy the whole catalogue: for thousands of models, a matter of milliseconds in which nothing else is decided.
    pub(super) fn catalogue_changed(&mut self) {
        let entries = self.catalogue.entries();
        let models = entries
            .iter()
            .map(|entry| convert::model::spec(entry, &self.observed))
            .collect();
        self.changed_models
            .extend(entries.iter().map(|entry| entry.model().id.to_string()));
        self.feed(Event::CatalogueChanged { models });
    }

    pub(super) fn known(&self, id: &str) -> Result<v1::Model, Error> {
        self.model(id).ok_or_else(|| unknown_model(id))
    }
}

/// An asker that has gone is no failure.
fn answer<T>(reply: Reply<T>, result: Result<T, Error>) {
    drop(reply.send(result));
}
