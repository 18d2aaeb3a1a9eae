//! The bodies of Lemonade's requests.

use muster_core::Error;
use muster_proto::process::LogLevel;
use utoipa::openapi::{RefOr, Schema};

use crate::translate::{
    object::{Field, Object, invalid},
    read::{Fields, Int, Kept, Read, Schemas, Shape, Strings, body},
};

body! {
    /// A model to load, and the settings to load it with. Settings that are not given come from the options saved for the model, then from
    /// its definition, then from the command line. Keys for Lemonade's other recipes are ignored; any other key is refused.
    #[example {"model_name": "llama-3.2-3b-instruct-GGUF", "ctx_size": 8192, "llamacpp_backend": "rocm", "llamacpp_args": "--flash-attn on --no-mmap"}]
    pub(super) struct LoadBody as LemonadeLoad {
        /// Id in the catalogue.
        model_name | model: ModelName,
        /// Context size in tokens; -1 = not given.
        ctx_size: Option<Int<-1>>,
        /// Backend of llama.cpp: `vulkan`, `rocm`, `metal`, `cuda` or `cpu`; empty = any. Only for llama.cpp's models.
        llamacpp_backend: Option<AnyBackend>,
        /// Arguments for llama.cpp, except those that Muster sets itself (`-m`, `--port`, `--ctx-size`, `-ngl`, …). Only for llama.cpp's
        /// models.
        llamacpp_args: Option<String>,
        /// true = policy does not evict the model until it is unloaded; false = it may.
        pinned: Option<bool>,
        /// Save these settings for later loads as well, as `models/{id}/options` does.
        save_options: Option<bool>,
    }

    /// A model to download. With `checkpoint` and `recipe` it is registered first, and its name must begin with `user.`.
    #[example {"model_name": "user.Phi-4-Mini-GGUF", "checkpoint": "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M", "recipe": "llamacpp"}]
    pub(super) struct PullBody<'a> as LemonadePull {
        ..definition: Option<Definition<'a>>,
        /// Id in the catalogue.
        model_name | model: ModelName,
        /// Answer with server-sent events: `progress`, then `complete` or `error`.
        stream: Option<bool>,
    }

    /// A model of a user.
    #[example {"model_name": "user.Phi-4-Mini-GGUF", "checkpoint": "unsloth/Phi-4-mini-instruct-GGUF:Q4_K_M", "recipe": "llamacpp"}]
    pub(super) struct RegisterBody<'a> as LemonadeRegister {
        ..definition: Definition<'a>,
        /// Id in the catalogue.
        model_name | model: ModelName,
    }

    /// The definition of a user's model.
    pub(super) struct Definition<'a> as LemonadeDefinition {
        /// `ORG/NAME:VARIANT` or `ORG/NAME` on the hub. Only the configuration may name local files.
        checkpoint: Option<String>,
        /// The checkpoints by purpose: an object with `main` and `mmproj`.
        checkpoints: Option<Field<'a>>,
        /// Software and kind of device, for example `llamacpp`.
        recipe: Option<String>,
        /// Add the label `reasoning`.
        reasoning: Option<bool>,
        /// Add the label `vision`.
        vision: Option<bool>,
        /// Add the label `embeddings`.
        embedding: Option<bool>,
        /// Add the label `reranking`.
        reranking: Option<bool>,
        /// File with the multimodal projector in the same repository.
        mmproj: Option<String>,
        /// More labels.
        labels: Option<Strings>,
        /// Branch, tag or commit of the repository; without it `main`.
        revision: Option<String>,
    }

    /// A model to delete.
    #[example {"model_name": "Qwen2.5-0.5B-Instruct-CPU"}]
    pub(super) struct DeleteBody as LemonadeDelete {
        /// Id in the catalogue.
        model_name | model: ModelName,
    }

    /// Models to ask the hub about; all that were downloaded if none is named.
    #[example {"models": ["Qwen2.5-0.5B-Instruct-CPU"]}]
    pub(super) struct UpdatesBody as LemonadeCheckUpdates {
        /// Ids in the catalogue.
        models: Option<Strings>,
    }

    /// Something to do with a download.
    #[example {"id": "Qwen2.5-0.5B-Instruct-CPU", "action": "pause"}]
    pub(super) struct DownloadBody as LemonadeDownloadAction {
        /// Id of the model in the catalogue.
        id | model_name: ModelName,
        /// `pause`, `resume` or `cancel`.
        action: String,
    }

    /// Options to save for a model's loads; null removes one.
    #[example {"ctx_size": 8192, "llamacpp_backend": "vulkan"}]
    pub(super) struct OptionsBody as LemonadeOptions {
        /// Context size in tokens; -1 removes it.
        ctx_size: Kept<Int<-1>>,
        /// Backend of llama.cpp, as in `load`; empty removes it.
        llamacpp_backend: Kept<String>,
        /// Arguments for llama.cpp, as in `load`; empty removes them.
        llamacpp_args: Kept<String>,
        /// Only check the options, save nothing.
        dry_run: Option<bool>,
    }

    /// An alias for a model.
    #[example {"alias": "gpt-4o", "model_name": "Qwen3-0.6B-GGUF"}]
    pub(super) struct AliasBody as LemonadeAlias {
        /// The alias.
        alias: String,
        /// Id in the catalogue.
        model_name | model: Option<ModelName>,
        /// Id in the catalogue. If both are given, this one counts.
        target: Option<String>,
    }

    /// A model to unload; all models if none is named.
    #[example {"model_name": "Llama-3.2-1B-Instruct-Hybrid"}]
    pub(super) struct UnloadBody as LemonadeUnload {
        /// Id in the catalogue.
        model_name | model: Option<String>,
    }

    /// A log level.
    #[example {"level": "debug"}]
    pub(super) struct LevelBody as LemonadeLogLevel {
        /// `critical`, `error`, `warning`, `info`, `debug` or `trace`.
        level: LogLevel,
    }

    /// Settings to change.
    #[example {"log_level": "debug"}]
    pub(super) struct SetBody as LemonadeSet {
        /// Log level of this gateway: `critical`, `error`, `warning`, `info`, `debug` or `trace`.
        log_level: Option<LogLevel>,
        /// Models of each type that may be loaded at once on a host; -1 = unlimited; null = as configured. This and what follows is the fleet's,
        /// and stays over restarts.
        max_loaded_models: Kept<Int<-1>>,
        /// Context size in tokens of models that say none; null = as configured.
        ctx_size: Kept<Int<-1>>,
        /// Arguments of llama.cpp's models that say none, as in `load`; null = as configured.
        llamacpp_args: Kept<String>,
        /// The same, as Lemonade nests it.
        llamacpp: Option<Section>,
        /// One more folder whose GGUF files are models, below one of the configured `allowed_models_dirs`; null = none.
        extra_models_dir: Kept<String>,
        /// Always true: false is refused.
        auto_evict: Option<bool>,
    }

    /// Lemonade's section of llama.cpp: of its settings, the one that can be set here.
    pub(super) struct LlamaCppSection as LemonadeLlamaCppSet {
        /// As `llamacpp_args`.
        args: Kept<String>,
    }

    /// A model to pin or unpin.
    #[example {"model_name": "Qwen3-0.6B-GGUF", "pinned": true}]
    pub(super) struct PinBody as LemonadePin {
        /// Id in the catalogue.
        model_name | model: String,
        /// true = policy never evicts the model; false = it may.
        pinned: bool,
    }
}

/// A section, and what it has beside its settings.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) known: LlamaCppSection,
    /// Whole paths.
    pub(super) unknown: Vec<String>,
}

impl<'a> Read<'a> for Section {
    fn read(field: &Field<'a>) -> Result<Self, Error> {
        let mut object = field.object()?;
        let known = LlamaCppSection::take_from(&mut object)?;
        let unknown = object.keys().map(|key| object.path_of(key)).collect();
        Ok(Self { known, unknown })
    }

    fn schema() -> RefOr<Schema> {
        <LlamaCppSection as Read>::schema()
    }

    fn referred(out: &mut Schemas) {
        LlamaCppSection::referred(out);
    }
}

/// The name of a model; an empty one is refused.
#[derive(Debug)]
pub(super) struct ModelName(pub(super) String);

impl Read<'_> for ModelName {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let name = field.string()?;
        if name.is_empty() {
            return Err(invalid("model_name", "is required"));
        }
        Ok(Self(name))
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

/// A backend of llama.cpp (seed 000, `llamacpp_backend`).
#[derive(Debug)]
pub(super) struct Backend {
    pub(super) name: String,
    /// The kind of device that the backend needs.
    pub(super) device: &'static str,
}

const BACKENDS: [(&str, &str); 5] = [
    ("vulkan", "gpu"),
    ("rocm", "gpu"),
    ("metal", "gpu"),
    ("cuda", "gpu"),
    ("cpu", "cpu"),
];

impl Backend {
    pub(super) fn named(name: &str) -> Option<Self> {
        let known = BACKENDS.iter().find(|(known, _)| *known == name);
        known.map(|(_, device)| Self {
            name: name.to_owned(),
            device,
        })
    }
}

impl Read<'_> for Backend {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let name = field.string()?;
        Self::named(&name).ok_or_else(|| {
            let names = BACKENDS.map(|(name, _)| name).join(", ");
            field.wrong(format_args!("must be one of {names}, not `{name}`"))
        })
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

/// A backend, or none: an empty text.
#[derive(Debug)]
pub(super) struct AnyBackend(pub(super) Option<Backend>);

impl Read<'_> for AnyBackend {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        if field.string()?.is_empty() {
            return Ok(Self(None));
        }
        Backend::read(field).map(|backend| Self(Some(backend)))
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

impl Read<'_> for LogLevel {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        field.string()?.parse().map_err(|why| field.wrong(why))
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}

/// A pull defines its model if it names a checkpoint, a recipe or a revision.
impl<'x: 'a, 'a> Fields<'x> for Option<Definition<'a>> {
    fn take_from(object: &mut Object<'x>) -> Result<Self, Error> {
        let defines = ["checkpoint", "checkpoints", "recipe", "revision"];
        let defines = defines.iter().any(|key| object.peek(key).is_some());
        defines.then(|| Fields::take_from(object)).transpose()
    }

    fn describe(shape: &mut Shape) {
        <Definition<'static> as Fields<'static>>::describe(shape);
    }
}
