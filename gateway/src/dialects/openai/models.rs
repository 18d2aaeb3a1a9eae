//! `GET models` and `GET models/{id}`: the catalogue in OpenAI's form with Lemonade's fields (seed 000) and llama.cpp's `meta` (seed 004).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::{Model as WireModel, ModelSummary};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::listing::{Short, Standing};
use crate::{
    dispatch::unknown_model,
    fleet::table::{Table, is_loaded},
    render::error::{OpenAiError, http_status},
    web::{
        App,
        access::Access,
        extract::{Path, Query},
        lists::Listed,
        reply,
        route::Route,
    },
};

/// A model of the catalogue.
#[derive(Debug, Serialize, ToSchema)]
pub(in crate::dialects) struct Model {
    /// Id in the catalogue.
    pub(in crate::dialects) id: String,
    /// The word `model`.
    object: &'static str,
    /// Unix time in seconds; stable over restarts.
    created: i64,
    /// The word `lemonade`; on llama.cpp's own route `llamacpp`.
    pub(in crate::dialects) owned_by: &'static str,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` on the hub, or an absolute path.
    checkpoint: String,
    /// Software and kind of device, for example `llamacpp`.
    recipe: String,
    /// Size of the model's files in gigabytes (10^9 bytes); absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<f64>,
    /// Whether the model's files are present.
    downloaded: bool,
    /// Whether Muster suggests the model to new users.
    suggested: bool,
    /// Labels, for example `vision`, `embeddings`, `reranking`.
    labels: Vec<String>,
    /// Tokens that a request may have, as the model is loaded or would be; absent if unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    context_length: Option<u32>,
    /// Tokens of context that the model was trained with; absent until its file's header was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_context_window: Option<u32>,
    /// Further names of the model.
    aliases: Vec<String>,
    /// Whether it is never evicted.
    pinned: bool,
    /// Options saved for its loads; those that are not saved are absent.
    recipe_options: Map<String, Value>,
    /// llama.cpp's name for labels.
    tags: Vec<String>,
    /// llama.cpp's description; only while the model is loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    meta: Option<Meta>,
    /// How the model stands, as llama.cpp's router shows it.
    #[serde(flatten)]
    pub(in crate::dialects) standing: Standing,
}

/// llama.cpp's description of a loaded model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelMeta)]
struct Meta {
    /// Kind of tokenizer as llama.cpp numbers them; absent if the engine does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    vocab_type: Option<u32>,
    /// Number of tokens in the vocabulary.
    n_vocab: u32,
    /// Largest number of tokens of one request.
    n_ctx: u32,
    /// Context length in tokens that the model was trained with.
    n_ctx_train: u32,
    /// Length of the vector that stands for a token; absent if the engine does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    n_embd: Option<u32>,
    /// Number of the model's parameters.
    n_params: u64,
    /// Size of the model's files in bytes.
    size: u64,
    /// How the weights are stored, for example `Q4_K - Medium`; absent if the engine does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    ftype: Option<String>,
}

/// The models of the catalogue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ModelList)]
pub(super) struct List {
    /// The word `list`.
    object: &'static str,
    /// Models in the order of their ids.
    data: Vec<Model>,
    /// Of a single model, llama.cpp's own short form of it; absent where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<Short>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Show {
    /// Also list models whose files are not present.
    #[serde(default)]
    show_all: Option<String>,
}

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/models", Access::User, list)
            .summary("Models that are here")
            .query::<bool>("show_all", "Also models whose files are not here.")
            .answers::<List>("The models.")
            .refuses("The query is wrong."),
        Route::get("/v1/models/{*id}", Access::User, one)
            .summary("One model")
            .part::<String>("id", "Id in the catalogue.")
            .answers::<Model>("The model.")
            .inference_errors(),
    ]
}

async fn list(State(app): State<Arc<App>>, Query(show): Query<Show>) -> Response {
    let all = show
        .show_all
        .is_some_and(|value| matches!(value.as_str(), "" | "1" | "true" | "True"));
    let listed = if all { Listed::OpenAiAll } else { Listed::OpenAi };
    let table = app.dispatcher.fleet.table();
    if let Some(made) = app.lists.made_of(&table, listed) {
        return made;
    }
    let shown = |summary: &&Arc<ModelSummary>| all || summary.downloaded || is_loaded(summary);
    let mut data: Vec<Model> = table
        .models()
        .filter(shown)
        .map(|summary| model(&table, summary))
        .collect();
    let mut complete = true;
    if all {
        // A controller that is away suggests nothing.
        let suggested = app.dispatcher.fleet.control().suggestions().await;
        complete = suggested.is_ok();
        let suggested = suggested.unwrap_or_default().into_iter();
        data.extend(suggested.map(|other| suggestion(&table, other)));
        data.sort_by(|a, b| a.id.cmp(&b.id));
    }
    let models = match data.as_slice() {
        [only] => vec![Short::of(&only.id, &only.standing)],
        [] | [..] => Vec::new(),
    };
    let list = List {
        object: "list",
        data,
        models,
    };
    if complete {
        app.lists.answer(&table, listed, &list)
    } else {
        reply::value(StatusCode::OK, &list)
    }
}

async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    let table = app.dispatcher.fleet.table();
    let known = table.known_as(&id);
    match known.and_then(|name| table.model(&name)) {
        Some(summary) => reply::value(StatusCode::OK, &model(&table, summary)),
        None => {
            let suggested = app.dispatcher.fleet.control().suggestions().await;
            let mut suggested = suggested.unwrap_or_default().into_iter();
            if let Some(found) = suggested.find(|other| other.id == id) {
                return reply::value(StatusCode::OK, &suggestion(&table, found));
            }
            // Seed 000 gives this error a type of its own.
            let error = unknown_model(&id);
            reply::value(http_status(error.code), &OpenAiError::of(&error, "not_found"))
        }
    }
}

/// A built-in model that is not in the catalogue.
fn suggestion(table: &Table, found: WireModel) -> Model {
    let summary = ModelSummary {
        id: found.id,
        created: found.created,
        checkpoint: found.checkpoint,
        recipe: found.recipe,
        runtime: found.runtime,
        size_bytes: found.size_bytes,
        labels: found.labels,
        ..ModelSummary::default()
    };
    model(table, &summary)
}

pub(in crate::dialects) fn model(table: &Table, summary: &ModelSummary) -> Model {
    let capabilities = table
        .targets(&summary.id)
        .iter()
        .find_map(|target| target.route.capabilities.as_ref());
    let label = |label: &String| {
        if label == "embedding" {
            "embeddings".to_owned()
        } else {
            label.clone()
        }
    };
    let labels: Vec<String> = summary.labels.iter().map(label).collect();
    Model {
        id: summary.id.clone(),
        object: "model",
        created: summary.created.as_ref().map_or(0, |created| created.seconds),
        owned_by: "lemonade",
        checkpoint: summary.checkpoint.clone(),
        recipe: if summary.recipe.is_empty() {
            summary.runtime.clone()
        } else {
            summary.recipe.clone()
        },
        size: gigabytes(summary.size_bytes),
        downloaded: summary.downloaded,
        suggested: summary
            .labels
            .iter()
            .any(|label| label == "hot" || label == "suggested"),
        tags: labels.clone(),
        labels,
        aliases: summary.aliases.clone(),
        pinned: summary.pinned,
        recipe_options: serde_json::from_str(&summary.options_json).unwrap_or_default(),
        context_length: Some(summary.ctx_size).filter(|length| *length > 0),
        max_context_window: [
            capabilities.map(|can| can.train_context_length),
            summary.file.as_ref().map(|file| file.train_context_length),
        ]
        .into_iter()
        .flatten()
        .find(|length| *length > 0),
        meta: capabilities.map(|can| Meta {
            vocab_type: can.vocabulary_type,
            n_vocab: can.vocabulary,
            n_ctx: can.context_length,
            n_ctx_train: can.train_context_length,
            n_embd: [can.hidden_length, can.embedding_length]
                .into_iter()
                .find(|length| *length > 0),
            n_params: can.parameters,
            size: summary.size_bytes,
            ftype: Some(can.file_type.clone()).filter(|name| !name.is_empty()),
        }),
        standing: Standing::of(summary, capabilities),
    }
}

/// The size in gigabytes, with two decimals as seed 000 shows it. Small sizes keep enough digits to differ from zero.
#[allow(clippy::cast_precision_loss, reason = "a figure for people")]
fn gigabytes(bytes: u64) -> Option<f64> {
    let size = bytes as f64 / 1e9;
    let scale = if size >= 0.01 { 100.0 } else { 1e6 };
    (bytes > 0).then(|| (size * scale).round() / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_gigabytes() {
        assert_eq!(gigabytes(0), None);
        assert_eq!(gigabytes(382_000_000), Some(0.38));
        assert_eq!(gigabytes(300_000), Some(0.0003));
    }
}
