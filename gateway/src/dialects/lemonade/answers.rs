//! Lemonade's answers. They are serialised from these types, which are also the schemas of the OpenAPI document.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// `status` of every successful answer.
pub(super) const SUCCESS: &str = "success";

/// A request was carried out.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeDone, example = json!({"status": "success", "message": "Loaded model: Qwen2.5-0.5B-Instruct-CPU"}))]
pub(super) struct Done<'a> {
    /// The word `success`.
    pub(super) status: &'static str,
    /// What was done, as a sentence.
    pub(super) message: &'a str,
}

/// All downloads.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeDownloads)]
pub(super) struct Downloads {
    /// Downloads that are open, and those that ended lately, the newest first.
    pub(super) downloads: Vec<DownloadShown>,
}

/// A download of a model's files.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeDownload)]
pub(super) struct DownloadShown {
    /// Id of the model in the catalogue.
    pub(super) id: String,
    /// The same as `id`.
    pub(super) model_name: String,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` on the hub.
    pub(super) checkpoint: String,
    /// `waiting`, `downloading`, `paused`, `completed`, `error` or `cancelled`.
    pub(super) status: &'static str,
    /// Current file, its path in the repository.
    pub(super) file: String,
    /// Number of the current file, from 1.
    pub(super) file_index: u32,
    /// Number of files.
    pub(super) total_files: u32,
    /// Downloaded bytes of all files.
    pub(super) bytes_downloaded: u64,
    /// Bytes of all files; 0 if unknown.
    pub(super) bytes_total: u64,
    /// Share of the bytes that are there, in percent.
    pub(super) percent: u64,
    /// Current speed in bytes per second; 0 if unknown.
    pub(super) bytes_per_second: u64,
    /// Seconds left at this speed; null if unknown.
    pub(super) eta_seconds: Option<i64>,
    /// Reason of an error or a cancellation; else null.
    pub(super) error: Option<String>,
}

/// All aliases.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeAliases)]
pub(super) struct Aliases {
    /// Ids of models by alias.
    pub(super) aliases: BTreeMap<String, String>,
}

/// An alias was set.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeAliasSet)]
pub(super) struct AliasSet {
    /// The word `success`.
    pub(super) status: &'static str,
    /// The alias.
    pub(super) alias: String,
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// The same as `model_name`, as Lemonade calls it.
    pub(super) target: String,
}

/// An alias was deleted.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeAliasGone)]
pub(super) struct AliasGone {
    /// The word `success`.
    pub(super) status: &'static str,
    /// The alias.
    pub(super) alias: String,
}

/// A user's model was registered.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRegistered)]
pub(super) struct Registered {
    /// The word `success`.
    pub(super) status: &'static str,
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// The same as `model_name`: a model has a single id here.
    pub(super) canonical_model_name: String,
    /// The model as it was registered.
    pub(super) model: RegisteredModel,
}

/// A model of the catalogue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeRegisteredModel)]
pub(super) struct RegisteredModel {
    /// Id in the catalogue.
    pub(super) id: String,
    /// Software and kind of device, for example `llamacpp`.
    pub(super) recipe: String,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` on the hub, or an absolute path.
    pub(super) checkpoint: String,
    /// Whether the model's files are on a host of the fleet.
    pub(super) downloaded: bool,
}

/// The log level was changed. It stays until this gateway ends.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLogLevelSet)]
pub(super) struct LevelSet {
    /// The word `success`.
    pub(super) status: &'static str,
    /// `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    pub(super) level: &'static str,
    /// The change in a sentence.
    pub(super) message: String,
}

/// The current settings of this gateway, without secrets.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeConfig)]
pub(super) struct Config {
    /// `critical`, `error`, `warning`, `info`, `debug` or `trace`.
    pub(super) log_level: &'static str,
    /// Whether a request loads its model if it is not loaded.
    pub(super) autoload: bool,
    /// Whether requests may not override `autoload`.
    pub(super) lock_autoload: bool,
    /// Longest body of a request, in bytes; a longer one is refused with 413.
    pub(super) max_body_bytes: usize,
    /// Always true: models that are not pinned make room for others.
    pub(super) auto_evict: bool,
    /// Lemonade's section of llama.cpp.
    pub(super) llamacpp: LlamaCppShown,
    #[serde(flatten)]
    pub(super) fleet: FleetSettings,
}

/// What Lemonade shows below `llamacpp`, as far as it can be set here.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLlamaCppConfig)]
pub(super) struct LlamaCppShown {
    /// As `llamacpp_args`.
    pub(super) args: String,
}

/// The settings of the fleet that can be set, as they are in force.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LemonadeFleetSettings)]
pub(super) struct FleetSettings {
    /// Models of each type that may be loaded at once on a host; -1 = unlimited.
    max_loaded_models: i64,
    /// Context size in tokens of models that say none; -1 = automatic.
    ctx_size: i64,
    /// Arguments of llama.cpp's models that say none.
    pub(super) llamacpp_args: String,
    /// Folders whose GGUF files are models, separated by colons.
    extra_models_dir: String,
}

/// Settings were changed. The log level stays until this gateway ends, the others are kept.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeSettingsSet)]
pub(super) struct SettingsSet {
    /// The word `success`.
    pub(super) status: &'static str,
    /// The settings that were changed, as they were given.
    pub(super) updated: Map<String, Value>,
}

/// A model was pinned or unpinned.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadePinned)]
pub(super) struct Pinned {
    /// The word `success`.
    pub(super) status: &'static str,
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// Whether policy never evicts the model.
    pub(super) pinned: bool,
}

/// The options saved for a model's loads, and the settings that result.
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
    /// Body of a load with the same effect as a load without settings.
    pub(super) effective: LoadOptions,
    /// Body of a load with the effect that a load without settings would have if no options were saved.
    pub(super) defaults: LoadOptions,
    /// Context size in tokens after such a load; null if the size is automatic and the model is not loaded.
    pub(super) resolved_ctx_size: Option<u32>,
}

/// Saved options; those that are not saved are absent.
#[derive(ToSchema)]
#[schema(as = LemonadeSavedOptions)]
#[allow(
    dead_code,
    reason = "read by the derive only: they are shown as the controller keeps them"
)]
pub(super) struct SavedOptions {
    /// Context size in tokens.
    ctx_size: Option<u32>,
    /// Arguments for llama.cpp.
    llamacpp_args: Option<String>,
    /// `vulkan`, `rocm`, `metal`, `cuda` or `cpu`.
    llamacpp_backend: Option<String>,
}

/// The body of a load.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLoadOptions)]
pub(super) struct LoadOptions {
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// Context size in tokens; -1 = automatic.
    pub(super) ctx_size: i64,
    /// Arguments for llama.cpp, quoted as for a shell; empty = none.
    pub(super) llamacpp_args: String,
    /// `vulkan`, `rocm`, `metal`, `cuda` or `cpu`; empty = the definition's.
    pub(super) llamacpp_backend: String,
}

/// Which models the hub has newer files of.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeUpdates)]
pub(super) struct Updates {
    /// `success`, or `failed` if any model could not be checked.
    pub(super) status: &'static str,
    /// Number of models that the hub has newer files of.
    pub(super) updates_available: usize,
    /// They: `pull` fetches the files.
    pub(super) models: Vec<String>,
    /// Models that could not be checked, each with the reason.
    pub(super) failed_models: BTreeMap<String, String>,
    /// Every model, once for each host with its files.
    pub(super) checked: Vec<Update>,
}

/// How a model's files on a host stand to those of the hub.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeUpdate)]
pub(super) struct Update {
    /// Id in the catalogue.
    pub(super) model_name: String,
    /// As the model is defined.
    pub(super) checkpoint: String,
    /// Branch, tag or commit of the repository.
    pub(super) revision: String,
    /// `current`, `outdated`, `pinned`, `unreachable`, `forbidden`, `not_found`, `not_downloaded` or `local`.
    pub(super) status: String,
    /// Commit of the downloaded files; null if unknown.
    pub(super) cached_commit: Option<String>,
    /// Commit that the revision is on the hub; null if unknown.
    pub(super) hub_commit: Option<String>,
    /// Files that the hub has newer.
    pub(super) changed_files: Vec<String>,
    /// Host that has the files; null if none has.
    pub(super) host: Option<String>,
    /// Why it could not be checked; null otherwise.
    pub(super) error: Option<String>,
}

/// The variants of a repository on the hub that can be pulled.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeVariants)]
pub(super) struct Variants {
    /// The repository, as the client named it.
    pub(super) checkpoint: String,
    /// The recipe to register the model with: `llamacpp`.
    pub(super) recipe: &'static str,
    /// A name to register the model under, after `user.`.
    pub(super) suggested_name: String,
    /// Labels to register the model with: `vision`, `embeddings`, `reranking`.
    pub(super) suggested_labels: Vec<&'static str>,
    /// Files that hold multimodal projectors, as paths in the repository.
    pub(super) mmproj_files: Vec<String>,
    /// The variants, common ones first, at most five.
    pub(super) variants: Vec<Variant>,
}

/// A quantisation of a repository's model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeVariant)]
pub(super) struct Variant {
    /// The part of a checkpoint after the colon, for example `Q4_K_M`.
    pub(super) name: String,
    /// The file to give to an engine; the first one if there are several.
    pub(super) primary_file: Option<String>,
    /// Whether the model is split into several files.
    pub(super) sharded: bool,
    /// All files, as paths in the repository.
    pub(super) files: Vec<String>,
    /// Size of all files in bytes; 0 if the hub does not tell.
    pub(super) size_bytes: u64,
}
