//! Well-known models that may be pulled by name, as long as they are not in the catalogue.
//!
//! ```text
//!   built-in list ──(not configured)──► shelf ── pulled or loaded by an operator, or its files are in a cache ──► catalogue
//!                                         ▲                                                                        │
//!                                         └───────────── deleted, or the pull failed ──────────────────────────────┘
//! ```
//!
//! Invariant: a model on the shelf is no model to requests: nobody but an operator begins a download of it.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use muster_core::{Bytes, ModelId};
use muster_proto::v1::HubCheckpoint;

use crate::config::{self, Config, Defaults, ModelEntry};

/// The list.
const LIST: &str = include_str!("builtin.toml");
/// Where its models say that they are defined.
static FILE: LazyLock<&Path> = LazyLock::new(|| Path::new("the built-in list"));

/// A model of the list.
#[derive(Debug, Clone)]
pub(crate) struct Suggestion {
    pub(crate) model: ModelEntry,
    /// Size of its files, roughly.
    pub(crate) size: Bytes,
}

/// The models of the list that the configuration leaves.
#[derive(Debug, Default)]
pub(crate) struct Shelf {
    models: BTreeMap<ModelId, Suggestion>,
}

impl Shelf {
    /// Reads the list, unless the configuration wants none, or wants its only model to take any name: another one would end that. What the configuration defines under the same name takes the place of a model here.
    pub(crate) fn new(config: &Config, configured: &[ModelEntry]) -> Self {
        if !config.builtin || config.any_name {
            return Self::default();
        }
        let mut models = BTreeMap::new();
        for (id, read) in list(&config.defaults) {
            match read {
                Ok(suggestion) if configured.iter().any(|model| model.id == suggestion.model.id) => {
                    tracing::info!(model = id, "the configuration replaces a built-in model");
                }
                Ok(suggestion) => {
                    models.insert(suggestion.model.id.clone(), suggestion);
                }
                // Possible only with defaults that this model cannot have.
                Err(error) => tracing::warn!(model = id, error, "a built-in model cannot be used"),
            }
        }
        Self { models }
    }

    /// The model of this name.
    pub(crate) fn get(&self, id: &str) -> Option<&Suggestion> {
        self.models
            .iter()
            .find(|(known, _)| known.as_str() == id)
            .map(|(_, found)| found)
    }

    /// All models.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Suggestion> {
        self.models.values()
    }

    /// Names of the models with these files.
    pub(crate) fn of_checkpoint(&self, checkpoint: &HubCheckpoint) -> Vec<String> {
        let of = |found: &&Suggestion| found.model.hub.as_ref() == Some(checkpoint);
        self.all()
            .filter(of)
            .map(|found| found.model.id.to_string())
            .collect()
    }
}

fn list(defaults: &Defaults) -> Vec<(String, Result<Suggestion, String>)> {
    let tables: toml::Table = toml::from_str(LIST).unwrap_or_default();
    let read = |(id, value): (String, toml::Value)| {
        let suggestion = suggestion(&id, value, defaults);
        (id, suggestion)
    };
    tables.into_iter().map(read).collect()
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rough size"
)]
fn suggestion(id: &str, value: toml::Value, defaults: &Defaults) -> Result<Suggestion, String> {
    let toml::Value::Table(mut table) = value else {
        return Err("is no table".to_owned());
    };
    let size = table.remove("size").and_then(|size| size.as_float());
    let model = config::definition(id, table, &FILE, defaults).map_err(|error| error.to_string())?;
    Ok(Suggestion {
        model,
        size: Bytes::new((size.unwrap_or_default() * 1e9) as u64),
    })
}

#[cfg(test)]
mod tests {
    use muster_core::ModelType;

    use super::*;

    #[test]
    fn every_built_in_model_can_be_pulled_and_says_its_size() {
        let models = list(&Defaults::default());
        assert!(models.len() >= 40, "{}", models.len());
        for (id, read) in &models {
            let found = read.as_ref().unwrap_or_else(|error| panic!("{id}: {error}"));
            assert!(found.model.hub.is_some() && found.size.get() > 10_000_000, "{id}");
            assert!(!id.starts_with(muster_core::name::USER), "{id}");
        }
        let kinds = |kind| {
            let of = |(_, read): &&(String, Result<Suggestion, String>)| {
                read.as_ref().is_ok_and(|found| found.model.kind == kind)
            };
            models.iter().filter(of).count()
        };
        for kind in [ModelType::Llm, ModelType::Embedding, ModelType::Reranking] {
            assert!(kinds(kind) >= 2, "{kind:?}");
        }
    }

    #[test]
    fn the_configuration_comes_first_and_may_want_no_list() {
        let config = Config::load(&[], None, &Defaults::default()).unwrap();
        let id = "Qwen3-0.6B-GGUF";
        let shelf = Shelf::new(&config, &[]);
        let own = shelf.get(id).unwrap().model.clone();
        assert_eq!(shelf.of_checkpoint(own.hub.as_ref().unwrap()), [id]);
        assert!(Shelf::new(&config, &[own]).get(id).is_none());
        for (builtin, any_name) in [(false, false), (true, true)] {
            let none = Config {
                builtin,
                any_name,
                ..config.clone()
            };
            assert_eq!(Shelf::new(&none, &[]).all().count(), 0);
        }
    }
}
