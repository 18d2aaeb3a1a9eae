//! The models of the catalogue and the loaded ones, in Ollama's form.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::{Capabilities, EngineDescription, ModelSummary, ModelType};
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use super::requests::ShowBody;
use crate::{
    dispatch::unknown_model,
    fleet::table::{Table, is_loaded},
    translate::{ModelName, read::Fields as _},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// The catalogue's id of what an Ollama client names: it adds `:latest` where no tag was given.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/tags", Access::User, tags)
            .summary("Models that are here")
            .answers::<OllamaTags>("The models."),
        Route::get("/api/ps", Access::User, ps)
            .summary("Models that are loaded")
            .answers::<OllamaLoaded>("The models."),
        Route::post("/api/show", Access::User, show)
            .summary("One model")
            .takes::<ShowBody>()
            .answers::<OllamaShown>("What is known of it.")
            .inference_errors(),
    ]
}

/// `GET /api/tags`: lists the models whose files are present.
async fn tags(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let here = table
        .models()
        .filter(|summary| summary.downloaded || is_loaded(summary));
    let models = here
        .map(|summary| OllamaModel::of(&table, summary, None))
        .collect();
    reply::value(StatusCode::OK, &OllamaTags { models })
}

/// `GET /api/ps`: lists the loaded models. Models are not unloaded after a time unless that is configured, so `expires_at` is far away.
async fn ps(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let loaded = table.models().filter(|summary| is_loaded(summary));
    let models = loaded.map(|summary| {
        let on_gpu = summary.device_kinds.iter().any(|kind| kind != "cpu");
        OllamaLoadedModel {
            model: OllamaModel::of(&table, summary, None),
            size_vram: if on_gpu { summary.size_bytes } else { 0 },
            expires_at: "9999-12-31T23:59:59Z",
            context_length: can(&table, summary).map_or(summary.ctx_size, |can| can.context_length),
        }
    });
    let models = models.collect();
    reply::value(StatusCode::OK, &OllamaLoaded { models })
}

/// `POST /api/show`: describes one model.
async fn show(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let ModelName(name) = ShowBody::body(&request.body)?.model;
    let id = app.dispatcher.fleet.table().meant(Some(&name))?;
    let (summary, can) = {
        let table = app.dispatcher.fleet.table();
        let summary = table.model(&id).ok_or_else(|| unknown_model(&id))?;
        let can = can(&table, summary).cloned().unwrap_or_default();
        (Arc::clone(summary), can)
    };
    let engine = described(&app, &summary.id).await;
    let metadata = |key: &str| engine.metadata.get(key).map(String::as_str);
    let table = app.dispatcher.fleet.table();
    let model = OllamaModel::of(&table, &summary, metadata("general.architecture"));
    let shown = OllamaShown {
        modelfile: "",
        parameters: "",
        template: &engine.chat_template,
        license: metadata("general.license").unwrap_or_default(),
        modified_at: model.modified_at,
        details: model.details,
        capabilities: capabilities(&summary, &can),
        model_info: model_info(&summary, &can, &engine),
    };
    Ok(reply::value(StatusCode::OK, &shown))
}

/// The engine's description of a model; empty if the model is not loaded or the engine does not answer.
async fn described(app: &App, id: &str) -> EngineDescription {
    let Ok(mut loaded) = app.dispatcher.loaded(id) else {
        return EngineDescription::default();
    };
    loaded.describe(id.to_owned()).await.unwrap_or_default()
}

/// The model file's metadata under GGUF names, and Ollama's additions. Unknown values are left out.
fn model_info(summary: &ModelSummary, can: &Capabilities, engine: &EngineDescription) -> Map<String, Value> {
    // The template has its own field, and keys that Muster adds are not from the file.
    let of_file = engine
        .metadata
        .iter()
        .filter(|(key, _)| *key != "tokenizer.chat_template" && !key.starts_with("llama_cpp."));
    let mut info: Map<String, Value> = of_file.map(|(key, text)| (key.clone(), typed(text))).collect();
    info.entry("general.basename").or_insert(json!(summary.id));
    let figures = [
        ("general.parameter_count", can.parameters),
        ("general.context_length", can.train_context_length.into()),
        ("general.embedding_length", can.embedding_length.into()),
        ("general.vocabulary_size", can.vocabulary.into()),
    ];
    for (key, figure) in figures.into_iter().filter(|(_, figure)| *figure > 0) {
        info.insert(key.to_owned(), figure.into());
    }
    info
}

/// A metadata value as JSON. Its type was lost on the way, so it is guessed from the text.
fn typed(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
        Ok(Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_)) | Err(_) => text.into(),
    }
}

fn can<'a>(table: &'a Table, summary: &ModelSummary) -> Option<&'a Capabilities> {
    let targets = table.targets(&summary.id).iter();
    targets
        .filter_map(|target| target.route.capabilities.as_ref())
        .next()
}

fn capabilities(summary: &ModelSummary, can: &Capabilities) -> Vec<&'static str> {
    if summary.r#type == i32::from(ModelType::Embedding) {
        return vec!["embedding"];
    }
    let thinking = can.thinking || summary.thinking == Some(true);
    [
        ("completion", true),
        ("tools", can.tools),
        ("vision", can.vision),
        ("thinking", thinking),
    ]
    .into_iter()
    .filter_map(|(name, can)| can.then_some(name))
    .collect()
}

/// The models whose files are present.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaTags<'a> {
    /// Models in the order of their ids.
    models: Vec<OllamaModel<'a>>,
}

/// A model whose files are present.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaModel<'a> {
    /// Id in the catalogue.
    name: &'a str,
    /// The same as `name`.
    model: &'a str,
    /// When it came into the catalogue, as RFC 3339.
    modified_at: String,
    /// Size of its files in bytes.
    size: u64,
    /// Identifies the catalogue entry and changes with it. Not a hash of the files.
    digest: String,
    /// Architecture and size.
    details: OllamaDetails<'a>,
}

/// Architecture and size of a model.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaDetails<'a> {
    /// Always empty.
    parent_model: &'static str,
    /// The word `gguf`.
    format: &'static str,
    /// The architecture; the runtime if it is unknown.
    family: &'a str,
    /// A list with `family`.
    families: [&'a str; 1],
    /// Number of parameters, for example `4.3B`; empty while the model is not loaded.
    parameter_size: String,
    /// Always empty.
    quantization_level: &'static str,
}

/// The loaded models.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaLoaded<'a> {
    /// Models in the order of their ids.
    models: Vec<OllamaLoadedModel<'a>>,
}

/// A loaded model.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaLoadedModel<'a> {
    #[serde(flatten)]
    model: OllamaModel<'a>,
    /// Memory on GPUs in bytes.
    size_vram: u64,
    /// Always in the year 9999: it is unknown when the model will be unloaded.
    expires_at: &'static str,
    /// Largest number of tokens of one request.
    context_length: u32,
}

/// The description of a model.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaShown<'a> {
    /// Always empty.
    modelfile: &'static str,
    /// Always empty.
    parameters: &'static str,
    /// The chat template in Jinja.
    template: &'a str,
    /// The license in the model's file; empty if it has none.
    license: &'a str,
    /// When it came into the catalogue, as RFC 3339.
    modified_at: String,
    /// Architecture and size.
    details: OllamaDetails<'a>,
    /// `completion`, `tools`, `vision`, `thinking`, `embedding`.
    capabilities: Vec<&'static str>,
    /// Metadata of the model's file, by GGUF names.
    model_info: Map<String, Value>,
}

impl<'a> OllamaModel<'a> {
    /// A model; `family` is its architecture, none if unknown.
    fn of(table: &Table, summary: &'a ModelSummary, family: Option<&'a str>) -> Self {
        let parameters = can(table, summary).map_or(0, |can| can.parameters);
        let family = family.unwrap_or(&summary.runtime);
        Self {
            name: &summary.id,
            model: &summary.id,
            modified_at: summary.created.unwrap_or_default().to_string(),
            size: summary.size_bytes,
            // Whole files are not hashed: this identifies the entry and changes with it.
            digest: digest(summary),
            details: OllamaDetails {
                parent_model: "",
                format: "gguf",
                family,
                families: [family],
                parameter_size: if parameters > 0 {
                    size(parameters)
                } else {
                    String::new()
                },
                quantization_level: "",
            },
        }
    }
}

fn digest(summary: &ModelSummary) -> String {
    let seconds = summary.created.map_or(0, |created| created.seconds);
    let text = format!(
        "{}\n{}\n{}\n{seconds}",
        summary.id, summary.checkpoint, summary.size_bytes
    );
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// A number of parameters for people, for example `4.3B`.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn size(parameters: u64) -> String {
    let count = parameters as f64;
    match count {
        _ if count >= 1e9 => format!("{:.1}B", count / 1e9),
        _ if count >= 1e6 => format!("{:.2}M", count / 1e6),
        _ => format!("{:.2}K", count / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_the_file_keep_their_names_and_get_their_types_back() {
        let facts = [
            ("general.architecture", "llama"),
            ("llama.context_length", "512"),
            ("llama.rope.freq_base", "10000.000000"),
            ("tokenizer.ggml.add_bos_token", "true"),
            ("tokenizer.chat_template", "{{ messages }}"),
            ("llama_cpp.description", "llama 1M F16"),
        ];
        let engine = EngineDescription {
            metadata: facts.map(|(key, text)| (key.to_owned(), text.to_owned())).into(),
            ..EngineDescription::default()
        };
        let summary = ModelSummary {
            id: "m".into(),
            ..ModelSummary::default()
        };
        let can = Capabilities {
            vocabulary: 320,
            ..Capabilities::default()
        };
        assert_eq!(
            Value::from(model_info(&summary, &can, &engine)),
            json!({
                "general.architecture": "llama",
                "general.basename": "m",
                "general.vocabulary_size": 320,
                "llama.context_length": 512,
                "llama.rope.freq_base": 10000.0,
                "tokenizer.ggml.add_bos_token": true,
            })
        );
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(size(4_300_000_000), "4.3B");
        assert_eq!(size(270_000_000), "270.00M");
        assert_eq!(size(1_500), "1.50K");
    }
}
