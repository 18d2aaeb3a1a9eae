//! What llama.cpp's server shows of models beside OpenAI's fields: how each stands, as its router does, and a short list of the only one.

use muster_proto::v1::{Capabilities, FetchProgress, ModelSource, ModelStatus, ModelSummary};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// How a model stands, as llama.cpp's router shows it.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::dialects) struct Standing {
    /// What the model takes and gives.
    architecture: Architecture,
    /// Whether it is loaded.
    pub(in crate::dialects) status: RouterStatus,
    /// Where it comes from: `preset` (the configuration), `models_dir` (a watched folder) or `cache` (a user registered it).
    source: &'static str,
    /// Whether deleting it takes it out of the list.
    can_remove: bool,
}

impl Standing {
    pub(super) fn of(summary: &ModelSummary, capabilities: Option<&Capabilities>) -> Self {
        let source = match summary.source() {
            ModelSource::User => "cache",
            ModelSource::Folder => "models_dir",
            ModelSource::Configuration | ModelSource::Unspecified => "preset",
        };
        Self {
            architecture: Architecture::of(summary, capabilities),
            status: RouterStatus::of(summary),
            source,
            can_remove: summary.source() == ModelSource::User,
        }
    }
}

/// What a model takes and gives.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = RouterArchitecture)]
struct Architecture {
    /// `text`, `image` and `audio`; before the first load as the model's labels say.
    input_modalities: Vec<&'static str>,
    /// `text`.
    output_modalities: [&'static str; 1],
}

impl Architecture {
    fn of(summary: &ModelSummary, capabilities: Option<&Capabilities>) -> Self {
        let labelled = |label: &str| summary.labels.iter().any(|own| own == label);
        let image = capabilities.map_or_else(|| labelled("vision"), |can| can.vision);
        let audio = capabilities.map_or_else(|| labelled("audio"), |can| can.audio);
        let also = [(image, "image"), (audio, "audio")];
        let also = also.into_iter().filter(|(takes, _)| *takes);
        Self {
            input_modalities: [(true, "text")]
                .into_iter()
                .chain(also)
                .map(|(_, kind)| kind)
                .collect(),
            output_modalities: ["text"],
        }
    }
}

/// How a model stands.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::dialects) struct RouterStatus {
    /// `unloaded`, `downloading`, `loading` or `loaded`.
    value: &'static str,
    /// Always empty: llama.cpp's command line for the model, which is the configuration's here.
    args: [String; 0],
    /// True if the last load failed; absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<bool>,
    /// Status of the process whose load failed, as far as clients can make use of it: 1. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<u8>,
    /// Of a download, by file: `done` and `total` in bytes. Absent otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Value>,
}

impl RouterStatus {
    /// llama.cpp has no word for a failed load but a flag.
    fn of(summary: &ModelSummary) -> Self {
        let word = word(summary);
        let failed = word == "failed";
        Self {
            value: if failed { "unloaded" } else { word },
            args: [],
            failed: failed.then_some(true),
            exit_code: failed.then_some(1),
            progress: None,
        }
    }

    /// The files of a model that is not loaded come.
    pub(in crate::dialects) fn downloading(progress: &FetchProgress) -> Self {
        Self {
            value: "downloading",
            args: [],
            failed: None,
            exit_code: None,
            progress: Some(files(progress)),
        }
    }
}

/// How much of a download is here, by file.
pub(in crate::dialects) fn files(progress: &FetchProgress) -> Value {
    let mut files = serde_json::Map::new();
    if !progress.file.is_empty() {
        let file = json!({"done": progress.bytes_downloaded, "total": progress.bytes_total});
        files.insert(progress.file.clone(), file);
    }
    files.into()
}

/// A model's state in llama.cpp's words, and `failed`.
pub(in crate::dialects) fn word(summary: &ModelSummary) -> &'static str {
    match ModelStatus::try_from(summary.status).unwrap_or_default() {
        ModelStatus::Unloaded | ModelStatus::Unspecified => "unloaded",
        ModelStatus::Loading => "loading",
        // Until the memory is free it is there.
        ModelStatus::Loaded | ModelStatus::Unloading => "loaded",
        ModelStatus::Failed => "failed",
    }
}

/// The only model as llama.cpp's server lists it beside OpenAI's `data`, in the form of Ollama's tags; it leaves most of it empty.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppModel)]
pub(in crate::dialects) struct Short {
    /// Id in the catalogue.
    name: String,
    /// Id in the catalogue.
    model: String,
    /// Empty.
    modified_at: &'static str,
    /// Empty.
    size: &'static str,
    /// Empty.
    digest: &'static str,
    /// The word `model`.
    r#type: &'static str,
    /// Empty.
    description: &'static str,
    /// One empty text.
    tags: [&'static str; 1],
    /// `completion`, and `multimodal` of a model that takes more than text.
    capabilities: Vec<&'static str>,
    /// Empty.
    parameters: &'static str,
    /// What kind of file it is.
    details: ShortDetails,
}

/// What kind of file a model is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppModelDetails)]
struct ShortDetails {
    /// Empty.
    parent_model: &'static str,
    /// The word `gguf`.
    format: &'static str,
    /// Empty.
    family: &'static str,
    /// One empty text.
    families: [&'static str; 1],
    /// Empty.
    parameter_size: &'static str,
    /// Empty.
    quantization_level: &'static str,
}

impl Short {
    pub(in crate::dialects) fn of(id: &str, standing: &Standing) -> Self {
        let more = standing.architecture.input_modalities.len() > 1;
        Self {
            name: id.to_owned(),
            model: id.to_owned(),
            modified_at: "",
            size: "",
            digest: "",
            r#type: "model",
            description: "",
            tags: [""],
            capabilities: if more {
                vec!["completion", "multimodal"]
            } else {
                vec!["completion"]
            },
            parameters: "",
            details: ShortDetails {
                parent_model: "",
                format: "gguf",
                family: "",
                families: [""],
                parameter_size: "",
                quantization_level: "",
            },
        }
    }
}
