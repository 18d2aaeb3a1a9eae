//! One model, as Ollama's clients look at it: by its loaded engine, or else by the header of its file.

use std::{collections::HashMap, sync::Arc};

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::{
    parameters::{SAMPLING, Value as Parameter},
    v1::{Capabilities, EngineDescription, FileFacts, Model, ModelSummary, ModelType},
};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::{
    catalogue::{OllamaDetails, OllamaModel, can},
    requests::ShowBody,
};
use crate::{
    dispatch::unknown_model,
    translate::{ModelName, read::Fields as _},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// The route.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/api/show", Access::User, show)
            .summary("One model")
            .takes::<ShowBody>()
            .answers::<OllamaShown>("What is known of it.")
            .inference_errors(),
    ]
}

/// `POST /api/show`: describes one model, by its loaded engine or else by its file.
async fn show(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let ModelName(name) = ShowBody::body(&request.body)?.model;
    let id = app.dispatcher.fleet.table().meant(Some(&name))?;
    let asked = app.dispatcher.fleet.control().model(&id).await.ok();
    let engine = described(&app, &id).await;
    let table = app.dispatcher.fleet.table();
    let summary = table.model(&id).ok_or_else(|| unknown_model(&id))?;
    // What the gateway knows itself is enough while the controller is away.
    let model = asked.unwrap_or_else(|| Model {
        file: summary.file.clone(),
        defaults: summary.defaults.clone(),
        ..Model::default()
    });
    let engine_can = can(&table, summary).cloned().unwrap_or_default();
    let known = Known::of(&model, engine);
    let parameters = parameters(&model);
    let defaults = model.defaults.clone().unwrap_or_default();
    let OllamaModel {
        modified_at, details, ..
    } = OllamaModel::of(&table, summary);
    let from = if model.base.is_empty() { &id } else { &model.base };
    let shown = OllamaShown {
        modelfile: modelfile(from, &known.template, &defaults.system_prompt, &parameters),
        parameters: lines(&parameters),
        template: &known.template,
        system: &defaults.system_prompt,
        license: known.of_key("general.license"),
        modified_at,
        details,
        capabilities: capabilities(summary, &engine_can, &model),
        model_info: known.model_info(&id, &engine_can),
    };
    Ok(reply::value(StatusCode::OK, &shown))
}

/// Parameters that are set for a model, by Ollama's names, with their values as a Modelfile has them.
fn parameters(model: &Model) -> Vec<(&'static str, String)> {
    let defaults = model.defaults.clone().unwrap_or_default();
    let mut all = Vec::new();
    let context = model.settings.as_ref().map_or(0, |settings| settings.ctx_size);
    if context > 0 {
        all.push(("num_ctx", context.to_string()));
    }
    all.extend(defaults.max_tokens.map(|most| ("num_predict", most.to_string())));
    let sampling = defaults.sampling.unwrap_or_default();
    for row in SAMPLING.iter() {
        match (row.get)(&sampling) {
            Some(Parameter::Words(words)) => {
                all.extend(words.into_iter().map(|word| (row.name, quoted(&word))));
            }
            Some(value) => all.push((row.name, Value::from(value).to_string())),
            None => {}
        }
    }
    all.extend(defaults.stop.iter().map(|text| ("stop", quoted(text))));
    all
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// The parameters in two columns, as Ollama writes them.
fn lines(parameters: &[(&str, String)]) -> String {
    let line = |(name, value): &(&str, String)| format!("{name:<30} {value}");
    parameters.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What makes the same model again (`create`).
fn modelfile(from: &str, template: &str, system: &str, parameters: &[(&str, String)]) -> String {
    let mut file = format!("FROM {from}\n");
    for (word, text) in [("TEMPLATE", template), ("SYSTEM", system)] {
        if !text.is_empty() {
            file.push_str(&format!("{word} \"\"\"{text}\"\"\"\n"));
        }
    }
    for (name, value) in parameters {
        file.push_str(&format!("PARAMETER {name} {value}\n"));
    }
    file
}

/// The engine's description of a model; none if the model is not loaded or the engine does not answer.
async fn described(app: &App, id: &str) -> Option<EngineDescription> {
    let mut loaded = app.dispatcher.loaded(id).ok()?;
    loaded.describe(id.to_owned()).await.ok()
}

/// What the engine says of the model's file, or else its header.
struct Known {
    metadata: HashMap<String, String>,
    template: String,
    file: FileFacts,
}

impl Known {
    fn of(model: &Model, engine: Option<EngineDescription>) -> Self {
        let file = model.file.clone().unwrap_or_default();
        let engine = engine.unwrap_or_default();
        let replaced = model
            .settings
            .as_ref()
            .map(|settings| settings.chat_template.clone());
        // llama.cpp has one for every model, those that never chat too.
        let chats = !matches!(model.r#type(), ModelType::Embedding | ModelType::Reranking);
        let templates = [
            if chats {
                engine.chat_template
            } else {
                String::new()
            },
            replaced.unwrap_or_default(),
            file.chat_template.clone(),
        ];
        let template = templates.into_iter().find(|template| !template.is_empty());
        let metadata = [engine.metadata, file.metadata.clone()];
        let metadata = metadata.into_iter().find(|metadata| !metadata.is_empty());
        let (metadata, template) = (metadata.unwrap_or_default(), template.unwrap_or_default());
        Self {
            metadata,
            template,
            file,
        }
    }

    fn of_key(&self, key: &str) -> &str {
        self.metadata.get(key).map_or("", String::as_str)
    }

    /// The file's metadata under GGUF names, and Ollama's additions. Unknown values are left out.
    fn model_info(&self, id: &str, can: &Capabilities) -> Map<String, Value> {
        // The template has its own field, and keys that Muster adds are not from the file.
        let of_file = self
            .metadata
            .iter()
            .filter(|(key, _)| *key != "tokenizer.chat_template" && !key.starts_with("llama_cpp."));
        let mut info: Map<String, Value> = of_file.map(|(key, text)| (key.clone(), typed(text))).collect();
        info.entry("general.basename").or_insert(json!(id));
        let file = &self.file;
        let figures = [
            ("general.parameter_count", can.parameters, file.parameters),
            (
                "general.context_length",
                can.train_context_length.into(),
                file.train_context_length.into(),
            ),
            (
                "general.embedding_length",
                can.embedding_length.into(),
                file.embedding_length.into(),
            ),
            (
                "general.vocabulary_size",
                can.vocabulary.into(),
                file.vocabulary.into(),
            ),
        ];
        for (key, engine, file) in figures {
            if let Some(figure) = [engine, file].into_iter().find(|figure| *figure > 0) {
                info.insert(key.to_owned(), figure.into());
            }
        }
        info
    }
}

/// A metadata value as JSON. Its type was lost on the way, so it is guessed from the text.
fn typed(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
        Ok(Value::Null | Value::String(_) | Value::Array(_) | Value::Object(_)) | Err(_) => text.into(),
    }
}

/// What a model can do: an engine's word, or its file's.
fn capabilities(summary: &ModelSummary, can: &Capabilities, model: &Model) -> Vec<&'static str> {
    if summary.r#type == i32::from(ModelType::Embedding) {
        return vec!["embedding"];
    }
    let thinking = can.thinking || summary.thinking == Some(true);
    [
        ("completion", true),
        (
            "tools",
            can.tools || model.file.as_ref().is_some_and(|file| file.tools),
        ),
        (
            "vision",
            can.vision
                || model
                    .settings
                    .as_ref()
                    .is_some_and(|settings| !settings.mmproj.is_empty()),
        ),
        ("thinking", thinking),
    ]
    .into_iter()
    .filter_map(|(name, can)| can.then_some(name))
    .collect()
}

/// The description of a model.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaShown<'a> {
    /// What makes the same model again.
    modelfile: String,
    /// Parameters that are set for the model, one per line; an engine's own defaults are not among them.
    parameters: String,
    /// The chat template in Jinja.
    template: &'a str,
    /// The system prompt of chats that have none.
    system: &'a str,
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

#[cfg(test)]
mod tests {
    use muster_proto::v1::{ModelSettings, RequestDefaults, Sampling};

    use super::*;

    #[test]
    fn what_is_set_is_shown_as_a_modelfile_says_it() {
        let model = Model {
            settings: Some(ModelSettings {
                ctx_size: 512,
                ..ModelSettings::default()
            }),
            defaults: Some(RequestDefaults {
                sampling: Some(Sampling {
                    temperature: Some(0.25),
                    ..Sampling::default()
                }),
                stop: vec!["a \"b\"".into()],
                max_tokens: Some(9),
                ..RequestDefaults::default()
            }),
            ..Model::default()
        };
        let parameters = parameters(&model);
        assert_eq!(
            modelfile("m", "", "Be kind.", &parameters),
            "FROM m\nSYSTEM \"\"\"Be kind.\"\"\"\nPARAMETER num_ctx 512\nPARAMETER num_predict 9\nPARAMETER temperature 0.25\nPARAMETER stop \
             \"a \\\"b\\\"\"\n"
        );
        assert!(lines(&parameters).starts_with("num_ctx                        512\nnum_predict "));
    }

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
        let can = Capabilities {
            vocabulary: 320,
            ..Capabilities::default()
        };
        assert_eq!(
            Value::from(Known::of(&Model::default(), Some(engine)).model_info("m", &can)),
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
}
