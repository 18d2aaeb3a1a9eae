//! Users' part of the catalogue: models they registered, options they saved, aliases they gave.
//!
//! ```text
//! DIR/user_models.json     models: {"Phi-4-Mini-GGUF": {"checkpoint": "ORG/NAME:VARIANT", "recipe": "llamacpp", …}}   ids without `user.` (seed 000)
//! DIR/model_options.json   options: {"ID": {"ctx_size": 8192}}                                   in the words of a load's override
//! DIR/aliases.json         aliases: {"ALIAS": "ID"}
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Everything that users registered and saved.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Own {
    /// Registered models by id without `user.`.
    pub(crate) models: BTreeMap<String, Registration>,
    /// Saved options by model id.
    pub(crate) options: BTreeMap<String, Map<String, Value>>,
    /// Model ids by alias.
    pub(crate) aliases: BTreeMap<String, String>,
}

/// A model as a user registered it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registration {
    /// `ORG/NAME:VARIANT`, `ORG/NAME`, or a tag of FastFlowLM's; empty if it is made from another model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) checkpoint: String,
    /// Lemonade's recipe; empty if it is made from another model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) recipe: String,
    /// File with the multimodal projector in the same repository.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) mmproj: String,
    /// Branch, tag or commit of the repository; empty = `main`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) revision: String,
    #[serde(default)]
    pub(crate) labels: Vec<String>,
    /// Catalogue id of the model that it is made from; empty if it has files of its own. No registered model: of such a one it has the checkpoint.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) base: String,
    /// What its requests get where they say nothing themselves, with the keys of the configuration.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) defaults: Map<String, Value>,
    /// Chat template in Jinja; empty = none of its own.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) chat_template: String,
    /// Unix time in seconds of the first registration; 0 if somebody else wrote the file.
    #[serde(default)]
    pub(crate) registered: u64,
}
