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
        let gone: BTreeSet<String> = self
            .folders
            .own
            .iter()
            .filter(|(id, known)| found.get(*id) != Some(known))
            .map(|(id, _)| id.clone())
            .collect();
        self.folder_models_gone(gone);
        let new: Vec<ModelEntry> = found
            .into_iter()
            .filter_map(|(id, found)| self.folder_model_found(id, found))
            .collect();
        self.enter_all(new);
    }

    /// Those that are loaded stay until they are unloaded.
    fn folder_models_gone(&mut self, mut gone: BTreeSet<String>) {
        gone.retain(|id| {
            let standing = self.fleet.model(id);
            standing.is_none_or(|view| matches!(view.state, ModelState::Unloaded | ModelState::Failed(_)))
        });
        if gone.is_empty() {
            return;
        }
        for id in &gone {
            tracing::info!(model = id, "a model left its folder");
            self.folders.own.remove(id);
        }
        let left = self
            .catalogue
            .remove_all(|model| gone.contains(model.id.as_str()));
        self.changed_models.extend(left);
        self.catalogue_changed();
    }

    /// The model of a file that was not known before; none if it is no model.
    fn folder_model_found(&mut self, id: String, found: Found) -> Option<ModelEntry> {
        if self.folders.own.contains_key(&id) {
            return None;
        }
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
                Some(model)
            }
            Err(error) => {
                if self.folders.refused.insert(id.clone()) {
                    tracing::warn!(model = id, file = %found.file.display(), error, "a file of a folder is no model of its own");
                }
                None
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
