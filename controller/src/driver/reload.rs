//! The configuration and users' files, read again while the controller runs.
//!
//! ```text
//! files ──► read and checked beside the driver ── wrong ──► nothing changes; said in the log and as an event
//!                         │ right
//!                         ▼
//!        new: enters      changed: enters anew, and if it is loaded it is `stale`      gone: takes nothing new, goes when idle
//!                                                        │ idle
//!                                                        ▼
//!                                                 loaded anew (`replace`)
//! ```
//!
//! Invariants: what somebody registered, pinned or saved stays; a loaded model is never interrupted; what counts at the start only is named.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::{ModelId, name::USER};
use muster_policy::{Event, ModelState};
use muster_proto::v1;

use super::Driver;
use crate::{
    catalogue::Shelf,
    config::{Config, ModelEntry},
    state::Own,
};

/// What a change of the catalogue concerns.
#[derive(Debug, Default)]
struct Changes {
    added: Vec<ModelEntry>,
    changed: Vec<ModelEntry>,
    removed: BTreeSet<String>,
}

impl Changes {
    fn between<'a>(
        old: impl Iterator<Item = &'a ModelEntry>,
        new: impl Iterator<Item = &'a ModelEntry>,
    ) -> Self {
        let mut old: BTreeMap<&ModelId, &ModelEntry> = old.map(|model| (&model.id, model)).collect();
        let mut changes = Self::default();
        for model in new {
            match old.remove(&model.id) {
                None => changes.added.push(model.clone()),
                Some(before) if before != model => changes.changed.push(model.clone()),
                Some(_) => {}
            }
        }
        changes.removed = old.into_keys().map(ModelId::to_string).collect();
        changes
    }
}

impl Driver {
    /// Takes over another configuration.
    pub(super) fn reload(&mut self, new: Config) -> v1::ReloadResponse {
        let mut restart = Vec::new();
        if new.timing != self.config.timing {
            restart.push("sessions".to_owned());
        }
        if new.devices != self.config.devices {
            restart.push("devices".to_owned());
        }
        let config = Config {
            timing: self.config.timing,
            devices: self.config.devices.clone(),
            ..new
        };
        let old = std::mem::replace(&mut self.config, config);
        let policy = old.policy != self.config.policy;
        if policy {
            let config = Box::new(self.config.policy.clone());
            self.feed(Event::ConfigChanged { config });
        }
        self.shelf = Shelf::new(&self.config, &self.config.models);
        let changes = Changes::between(old.models.iter(), self.config.models.iter());
        let preload: Vec<ModelId> = changes
            .added
            .iter()
            .chain(&changes.changed)
            .filter(|model| model.enabled)
            .map(|model| model.id.clone())
            .collect();
        let response = v1::ReloadResponse {
            added: ids(&changes.added),
            changed: ids(&changes.changed),
            removed: changes.removed.iter().cloned().collect(),
            restart,
            policy,
        };
        self.catalogue.set_any_name(self.config.any_name);
        self.take_over(changes);
        for model in preload {
            self.feed(Event::PreloadRequested { model });
        }
        self.look_again();
        self.tell(&reason(&response));
        response
    }

    /// Takes over what users registered and saved, as somebody else wrote it; false if it was written by ourselves.
    pub(super) fn reload_own(&mut self, own: Own) -> bool {
        if own == self.own {
            return false;
        }
        let old = std::mem::replace(&mut self.own, own);
        let before: Vec<ModelEntry> = self.registered(&old);
        let after: Vec<ModelEntry> = self.registered(&self.own.clone());
        let mut changes = Changes::between(before.iter(), after.iter());
        // Saved options are a part of what a model is loaded with.
        let known = |id: &String| self.own.options.get(id) != old.options.get(id);
        let saved: BTreeSet<String> = old
            .options
            .keys()
            .chain(self.own.options.keys())
            .cloned()
            .collect();
        let named: BTreeSet<String> = ids(&changes.added)
            .into_iter()
            .chain(ids(&changes.changed))
            .collect();
        let again = saved
            .into_iter()
            .filter(known)
            .filter(|id| !named.contains(id) && !changes.removed.contains(id));
        let again: Vec<ModelEntry> = again.filter_map(|id| self.defined_as(&id)).collect();
        changes.changed.extend(again);
        let aliases = old.aliases.iter().chain(&self.own.aliases);
        self.changed_models
            .extend(aliases.map(|(_, model)| model.clone()));
        let told = v1::ReloadResponse {
            added: ids(&changes.added),
            changed: ids(&changes.changed),
            removed: changes.removed.iter().cloned().collect(),
            ..v1::ReloadResponse::default()
        };
        self.take_over(changes);
        self.tell(&format!("users' models: {}", reason(&told)));
        true
    }

    /// A model as the configuration or a user defines it, without saved options.
    fn defined_as(&self, id: &str) -> Option<ModelEntry> {
        let entry = self.catalogue.get(id)?;
        Some(ModelEntry {
            settings: entry.definition().clone(),
            device: entry.defined_device().clone(),
            ..entry.model().clone()
        })
    }

    fn take_over(&mut self, changes: Changes) {
        let Changes {
            added,
            changed,
            removed,
        } = changes;
        let loaded = changed.iter().map(|model| model.id.to_string());
        self.stale.extend(loaded);
        if !removed.is_empty() {
            let made_from = |id: &str, base: Option<&ModelId>| {
                removed.contains(id) || base.is_some_and(|base| removed.contains(base.as_str()))
            };
            let gone = self
                .catalogue
                .remove_all(|model| made_from(model.id.as_str(), model.base.as_ref()));
            self.changed_models.extend(gone);
            self.catalogue_changed();
        }
        self.enter_all(added.into_iter().chain(changed).collect());
    }

    /// Loads of models whose definition changed while they were loaded, for those that are idle now. Each is told once.
    pub(super) fn stale_and_idle(&mut self) -> Vec<v1::LoadModelRequest> {
        let mut loads = Vec::new();
        for id in self.stale.clone() {
            let state = self.fleet.model(&id).map(|view| (view.state, view.instances));
            let entry = self.catalogue.get(&id);
            let (Some((ModelState::Loaded, instances)), Some(entry)) = (&state, entry) else {
                // One that is loading may still begin with the former definition.
                if !matches!(state, Some((ModelState::Loading, _))) {
                    self.stale.remove(&id);
                }
                continue;
            };
            let busy = instances
                .iter()
                .any(|instance| self.mirror.busy(instance.as_str()));
            if busy {
                continue;
            }
            let spec = instances
                .iter()
                .find_map(|instance| self.mirror.spec(instance.as_str()));
            let settings = spec.and_then(|spec| spec.settings.as_ref());
            loads.push(v1::LoadModelRequest {
                model: id.clone(),
                device_id: entry.model().wanted_device.clone(),
                replicas: entry.model().replicas.get(),
                override_json: settings
                    .map_or_else(String::new, |settings| settings.load_override_json.clone()),
                ..v1::LoadModelRequest::default()
            });
            self.stale.remove(&id);
        }
        loads
    }

    /// Tells operators what was taken over.
    fn tell(&self, reason: &str) {
        tracing::info!(reason, "reloaded");
        let event = v1::FleetEvent {
            at: Some(self.timestamp(self.now())),
            kind: "reloaded".to_owned(),
            reason: reason.to_owned(),
            ..v1::FleetEvent::default()
        };
        // Nobody need listen.
        drop(self.events.send(event));
    }

    fn registered(&self, own: &Own) -> Vec<ModelEntry> {
        let read = |name: &String| {
            let registration = own.models.get(name)?;
            self.read_registration(&format!("{USER}{name}"), registration)
        };
        own.models.keys().filter_map(read).collect()
    }
}

fn ids(models: &[ModelEntry]) -> Vec<String> {
    models.iter().map(|model| model.id.to_string()).collect()
}

/// What has changed, in one sentence.
fn reason(response: &v1::ReloadResponse) -> String {
    let v1::ReloadResponse {
        added,
        changed,
        removed,
        restart,
        policy,
    } = response;
    let part =
        |what: &str, names: &[String]| (!names.is_empty()).then(|| format!("{what} {}", names.join(", ")));
    let parts = [
        part("new:", added),
        part("changed:", changed),
        part("gone:", removed),
        policy.then(|| "policy has other settings".to_owned()),
        part("counts after a restart only:", restart),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() {
        return "nothing has changed".to_owned();
    }
    parts.join("; ")
}
