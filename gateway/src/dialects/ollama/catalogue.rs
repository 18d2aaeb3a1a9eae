//! The models of the catalogue and the loaded ones, in Ollama's form.

use std::{borrow::Cow, sync::Arc};

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_core::name::LATEST;
use muster_proto::v1::{Capabilities, ModelSummary};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use utoipa::ToSchema;

use crate::{
    fleet::table::{Table, is_loaded},
    web::{App, access::Access, lists::Listed, reply, route::Route},
};

/// The end of time for clients that count nanoseconds in 64 bits. The year 9999 is beyond what some of them can convert to their own time.
const NEVER: &str = "2262-04-11T23:47:16Z";

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/api/tags", Access::User, tags)
            .summary("Models that are here")
            .answers::<OllamaTags>("The models."),
        Route::get("/api/ps", Access::User, ps)
            .summary("Models that are loaded")
            .answers::<OllamaLoaded>("The models."),
    ]
}

/// `GET /api/tags`: lists the models whose files are present.
async fn tags(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    if let Some(made) = app.lists.made_of(&table, Listed::Ollama) {
        return made;
    }
    let here = table
        .models()
        .filter(|summary| summary.downloaded || is_loaded(summary));
    let models = here.map(|summary| OllamaModel::of(&table, summary)).collect();
    app.lists.answer(&table, Listed::Ollama, &OllamaTags { models })
}

/// `GET /api/ps`: lists the loaded models. Models are not unloaded after a time unless that is configured, so `expires_at` is far away.
async fn ps(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let loaded = table.models().filter(|summary| is_loaded(summary));
    let models = loaded.map(|summary| {
        let on_gpu = summary.device_kinds.iter().any(|kind| kind != "cpu");
        OllamaLoadedModel {
            model: OllamaModel::of(&table, summary),
            size_vram: if on_gpu { summary.size_bytes } else { 0 },
            expires_at: NEVER,
            context_length: can(&table, summary).map_or(summary.ctx_size, |can| can.context_length),
        }
    });
    let models = models.collect();
    reply::value(StatusCode::OK, &OllamaLoaded { models })
}

pub(super) fn can<'a>(table: &'a Table, summary: &ModelSummary) -> Option<&'a Capabilities> {
    let targets = table.targets(&summary.id).iter();
    targets
        .filter_map(|target| target.route.capabilities.as_ref())
        .next()
}

/// The models whose files are present.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaTags<'a> {
    /// Models in the order of their ids.
    models: Vec<OllamaModel<'a>>,
}

/// A model whose files are present.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OllamaModel<'a> {
    /// Id in the catalogue, with `:latest` where it has no tag.
    name: Cow<'a, str>,
    /// The same as `name`.
    model: Cow<'a, str>,
    /// When it came into the catalogue, as RFC 3339.
    pub(super) modified_at: String,
    /// Size of its files in bytes.
    size: u64,
    /// Identifies the catalogue entry and changes with it. Not a hash of the files.
    digest: String,
    /// Architecture and size.
    pub(super) details: OllamaDetails<'a>,
}

/// Architecture and size of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct OllamaDetails<'a> {
    /// Always empty.
    parent_model: &'static str,
    /// The word `gguf`.
    format: &'static str,
    /// The architecture; the runtime if it is unknown.
    family: &'a str,
    /// A list with `family`.
    families: [&'a str; 1],
    /// Number of parameters, for example `4.3B`; empty if it is unknown.
    parameter_size: String,
    /// What most of its tensors are, for example `Q4_K_M`; empty if it is unknown.
    quantization_level: &'a str,
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

impl<'a> OllamaModel<'a> {
    /// A model, by its loaded engine or else by its file.
    pub(super) fn of(table: &Table, summary: &'a ModelSummary) -> Self {
        let file = summary.file.as_ref();
        let parameters = can(table, summary)
            .map(|can| can.parameters)
            .filter(|count| *count > 0)
            .or(file.map(|file| file.parameters))
            .unwrap_or_default();
        let family = file
            .map(|file| file.architecture.as_str())
            .filter(|family| !family.is_empty())
            .unwrap_or(&summary.runtime);
        let name = tagged(&summary.id);
        Self {
            model: name.clone(),
            name,
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
                quantization_level: file.map_or("", |file| &file.quantization),
            },
        }
    }
}

/// The name of a model as Ollama's clients know names: with a tag. It is a spelling of the id (`muster_core::name`).
fn tagged(id: &str) -> Cow<'_, str> {
    let name = id.rsplit('/').next().unwrap_or(id);
    if name.contains(':') {
        Cow::Borrowed(id)
    } else {
        Cow::Owned(format!("{id}{LATEST}"))
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
    fn names_have_a_tag() {
        assert_eq!(tagged("m"), "m:latest");
        assert_eq!(tagged("user.hf.co/o/n"), "user.hf.co/o/n:latest");
        assert_eq!(tagged("user.hf.co/o/n:Q4_0"), "user.hf.co/o/n:Q4_0");
    }

    #[test]
    fn sizes_are_for_people() {
        assert_eq!(size(4_300_000_000), "4.3B");
        assert_eq!(size(270_000_000), "270.00M");
        assert_eq!(size(1_500), "1.50K");
    }
}
