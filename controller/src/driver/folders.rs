//! Models of watched folders, as they come and go (`catalogue.extra_models_dir`).
//!
//! Folders are looked at with all other files, and every ten seconds besides: a network mount would tell no watcher.
//!
//! Invariants: what is configured, registered or built in keeps its name; a model that is loaded stays until it is unloaded.

use std::collections::{BTreeMap, BTreeSet};

use muster_policy::ModelState;

use super::Driver;
use crate::{
    catalogue::Found,
    config::{self, ModelEntry},
};

/// What came of the folders so far.
#[derive(Debug, Default)]
pub(super) struct Folders {
    /// Models in the catalogue that are theirs.
    own: BTreeMap<String, Found>,
    /// Names that were refused, and logged.
    refused: BTreeSet<String>,
}

impl Folders {
    /// Whether a model is theirs.
    pub(super) fn has(&self, id: &str) -> bool {
        self.own.contains_key(id)
    }
}

impl Driver {
    /// Looks at folders again, if there are any.
    pub(super) fn folders_due(&mut self) {
        if !self.config.extra_models_dir.is_empty() {
            self.look_again();
        }
    }

    /// Takes over what lies in the folders now.
    pub(super) fn folders_seen(&mut self, found: BTreeMap<String, Found>) {
        let gone: Vec<String> = self
            .folders
            .own
            .iter()
            .filter(|(id, known)| found.get(*id) != Some(known))
            .map(|(id, _)| id.clone())
            .collect();
        for id in gone {
            self.folder_model_gone(&id);
        }
        for (id, found) in found {
            if !self.folders.own.contains_key(&id) {
                self.folder_model_found(id, found);
            }
        }
    }

    fn folder_model_gone(&mut self, id: &str) {
        let standing = self.fleet.model(id);
        if standing.is_none_or(|view| matches!(view.state, ModelState::Unloaded | ModelState::Failed(_))) {
            tracing::info!(model = id, "a model left its folder");
            self.folders.own.remove(id);
            self.catalogue.remove(id);
            self.changed_models.insert(id.to_owned());
            self.catalogue_changed();
        }
    }

    fn folder_model_found(&mut self, id: String, found: Found) {
        let taken = self.catalogue.get(&id).is_some() || self.shelf.get(&id).is_some();
        let read = if taken {
            Err("another model has this name".to_owned())
        } else {
            self.folder_model(&id, &found)
        };
        match read {
            Ok(model) => {
                tracing::info!(model = id, file = %found.file.display(), "a model came into a folder");
                self.folders.refused.remove(&id);
                self.folders.own.insert(id, found);
                self.enter(model);
            }
            Err(error) => {
                if self.folders.refused.insert(id.clone()) {
                    tracing::warn!(model = id, file = %found.file.display(), error, "a file of a folder is no model of its own");
                }
            }
        }
    }

    fn folder_model(&self, id: &str, found: &Found) -> Result<ModelEntry, String> {
        let mut table = toml::Table::new();
        let mut put = |key: &str, value: String| table.insert(key.to_owned(), value.into());
        put("recipe", "llamacpp".to_owned());
        put("checkpoint", found.file.display().to_string());
        if let Some(projector) = &found.projector {
            put("mmproj", projector.display().to_string());
        }
        let read = config::definition(id, table, &found.file, &self.config.defaults);
        read.map_err(|error| error.to_string())
    }
}
