//! What Lemonade's routes answer. Answers are written from these types, so the document cannot say anything else.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// Status of every answer to a request that succeeded.
pub(super) const SUCCESS: &str = "success";

/// The request was carried out.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeDone, example = json!({"status": "success", "message": "Loaded model: Qwen2.5-0.5B-Instruct-CPU"}))]
pub(super) struct Done<'a> {
    /// `success`.
    pub(super) status: &'static str,
    /// What was done, in a sentence.
    pub(super) message: &'a str,
}

/// All aliases.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeAliases)]
pub(super) struct Aliases {
    /// Ids in the catalogue, by alias.
    pub(super) aliases: BTreeMap<String, String>,
}

/// An alias was set.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeAliasSet)]
pub(super) struct AliasSet {
    /// `success`.
    pub(super) status: &'static str,
    /// The name.
    pub(super) alias: String,
    /// Id in the catalogue.
    pub(super) model_name: String,
}

/// An alias was deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeAliasGone)]
pub(super) struct AliasGone {
    /// `success`.
    pub(super) status: &'static str,
    /// The name.
    pub(super) alias: String,
}

/// A user's model is in the catalogue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRegistered)]
pub(super) struct Registered {
    /// `success`.
    pub(super) status: &'static str,
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// As `model_name`: every model has one id here.
    pub(super) canonical_model_name: String,
    /// The model as it was registered.
    pub(super) model: RegisteredModel,
}

/// A model as it stands in the catalogue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRegisteredModel)]
pub(super) struct RegisteredModel {
    /// Id in the catalogue.
    pub(super) id: String,
    /// Software and kind of device, for example `llamacpp`.
    pub(super) recipe: String,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` of the hub, or an absolute path.
    pub(super) checkpoint: String,
    /// The model's files are on a host of the fleet.
    pub(super) downloaded: bool,
}

/// The log level is changed, until this gateway ends.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLogLevelSet)]
pub(super) struct LevelSet {
    /// `success`.
    pub(super) status: &'static str,
    /// `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    pub(super) level: &'static str,
    /// The change in a sentence.
    pub(super) message: String,
}

/// Settings of this gateway as they are now, without secrets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeConfig)]
pub(super) struct Config {
    /// `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    pub(super) log_level: &'static str,
    /// A request loads its model if it is not loaded.
    pub(super) autoload: bool,
    /// No request can say otherwise than `autoload`.
    pub(super) lock_autoload: bool,
    /// Longest body of a request, in bytes; a longer one is refused with 413.
    pub(super) max_body_bytes: usize,
}

/// Settings were changed, until this gateway ends.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeSettingsSet)]
pub(super) struct SettingsSet {
    /// `success`.
    pub(super) status: &'static str,
    /// The settings that were changed.
    pub(super) updated: Updated,
}

/// Settings that were changed; what was not given is not here.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeSettings)]
pub(super) struct Updated {
    /// Log level: `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) log_level: Option<&'static str>,
}

/// A model is pinned, or no longer.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadePinned)]
pub(super) struct Pinned {
    /// `success`.
    pub(super) status: &'static str,
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// The policy never evicts the model.
    pub(super) pinned: bool,
}

/// Options saved for a model's loads, and what they make of it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeModelOptions)]
pub(super) struct ModelOptions {
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// Software and kind of device, for example `llamacpp`.
    pub(super) recipe: String,
    /// The saved options; with `dry_run`, as they were before.
    #[schema(value_type = SavedOptions)]
    pub(super) saved: Map<String, Value>,
    /// Body of a load that has the same effect as a load without settings.
    pub(super) effective: LoadOptions,
    /// Body of a load that has the effect of a load without settings, if no options were saved.
    pub(super) defaults: LoadOptions,
    /// Context in tokens after such a load; null if the size is automatic and the model is not loaded.
    pub(super) resolved_ctx_size: Option<u32>,
}

/// Options that are saved; what is not saved is not here.
#[derive(ToSchema)]
#[schema(as = LemonadeSavedOptions)]
#[allow(
    dead_code,
    reason = "read by the derive only: they are shown as the controller keeps them"
)]
pub(super) struct SavedOptions {
    /// Context size in tokens.
    ctx_size: Option<u32>,
    /// llama.cpp's own arguments.
    llamacpp_args: Option<String>,
    /// `vulkan`, `rocm`, `metal`, `cuda` or `cpu`.
    llamacpp_backend: Option<String>,
}

/// A load's body.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLoadOptions)]
pub(super) struct LoadOptions {
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// Context size in tokens; -1 = automatic.
    pub(super) ctx_size: i64,
    /// llama.cpp's own arguments, quoted as for a shell; empty = none.
    pub(super) llamacpp_args: String,
    /// `vulkan`, `rocm`, `metal`, `cuda` or `cpu`; empty = as defined.
    pub(super) llamacpp_backend: String,
}

/// Variants of a hub's repository that can be pulled.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeVariants)]
pub(super) struct Variants {
    /// The repository, as the client named it.
    pub(super) checkpoint: String,
    /// The recipe to register it with: `llamacpp`.
    pub(super) recipe: &'static str,
    /// A name to register it under, after `user.`.
    pub(super) suggested_name: String,
    /// Labels to register it with: `vision`, `embeddings`, `reranking`.
    pub(super) suggested_labels: Vec<&'static str>,
    /// Files with a multimodal projector, by path in the repository.
    pub(super) mmproj_files: Vec<String>,
    /// The variants, common ones first; five at most.
    pub(super) variants: Vec<Variant>,
}

/// One quantization of a repository's model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeVariant)]
pub(super) struct Variant {
    /// What stands after the colon of a checkpoint, for example `Q4_K_M`.
    pub(super) name: String,
    /// The file that an engine is given; of several the first.
    pub(super) primary_file: Option<String>,
    /// Whether the model is split into several files.
    pub(super) sharded: bool,
    /// All files, by path in the repository.
    pub(super) files: Vec<String>,
    /// All files together, in bytes; 0 if the hub does not say.
    pub(super) size_bytes: u64,
}
