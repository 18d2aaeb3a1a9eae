//! Lemonade's health (seed 000, `GET /api/v1/health`).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::{ModelSummary, ModelType};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    fleet::{Contact, table::is_loaded},
    web::{App, access::Access, reply, route::Route},
};

/// The loaded models, and whether the controller is reachable.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeHealth)]
struct Health<'a> {
    /// The word `ok`.
    status: &'static str,
    /// Version of Muster.
    version: &'static str,
    /// Whether the gateway hears from the controller. Loaded models are served without it.
    controller: Contact,
    /// What the controller cannot do at the moment, in sentences; for example state that it could not write.
    troubles: Vec<String>,
    /// Checkpoint of the model used last; null if none is loaded.
    checkpoint_loaded: Option<&'a str>,
    /// Id of the model used last; null if none is loaded.
    model_loaded: Option<&'a str>,
    /// All loaded models.
    all_models_loaded: Vec<Loaded<'a>>,
}

/// A loaded model.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LemonadeLoaded)]
struct Loaded<'a> {
    /// Id in the catalogue.
    model_name: &'a str,
    /// `ORG/NAME:VARIANT` or `ORG/NAME` on the hub, or an absolute path.
    checkpoint: &'a str,
    /// Unix time in seconds of its last use; null before its first request.
    last_use: Option<f64>,
    /// `llm`, `embedding`, `reranking`, `audio` or `image`.
    r#type: &'static str,
    /// Kinds of its devices, separated by spaces: `cpu`, `gpu`, `npu`.
    device: String,
    /// Address of its engine, for people: `unix:PATH` or an HTTP address.
    backend_url: Option<&'a str>,
}

#[allow(
    clippy::cast_precision_loss,
    reason = "seconds with fractions, as the seed has them"
)]
fn last_use(summary: &ModelSummary) -> Option<f64> {
    let used = summary.last_used.as_ref()?;
    Some(used.seconds as f64 + f64::from(used.nanos) / 1e9)
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/health", Access::User, health)
            .summary("What is loaded, always 200")
            .answers::<Health>("As the fleet stands now."),
    ]
}

/// Answers with status 200 in all cases (gateway/README.md, Lemonade).
async fn health(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let loaded: Vec<_> = table.models().filter(|summary| is_loaded(summary)).collect();
    let age = |one: &&&Arc<ModelSummary>, two: &&&Arc<ModelSummary>| {
        last_use(one)
            .unwrap_or_default()
            .total_cmp(&last_use(two).unwrap_or_default())
    };
    let latest = loaded.iter().max_by(age);
    let health = Health {
        status: "ok",
        version: muster_proto::VERSION,
        controller: app.dispatcher.fleet.contact(),
        troubles: app.dispatcher.fleet.troubles().to_vec(),
        checkpoint_loaded: latest.map(|summary| summary.checkpoint.as_str()),
        model_loaded: latest.map(|summary| summary.id.as_str()),
        all_models_loaded: loaded.iter().map(|summary| row(summary)).collect(),
    };
    reply::value(StatusCode::OK, &health)
}

fn row(summary: &ModelSummary) -> Loaded<'_> {
    Loaded {
        model_name: &summary.id,
        checkpoint: &summary.checkpoint,
        last_use: last_use(summary),
        r#type: match ModelType::try_from(summary.r#type).unwrap_or_default() {
            ModelType::Llm | ModelType::Unspecified => "llm",
            ModelType::Embedding => "embedding",
            ModelType::Reranking => "reranking",
            ModelType::Audio => "audio",
            ModelType::Image => "image",
        },
        device: summary.device_kinds.join(" "),
        backend_url: summary.backend_urls.first().map(String::as_str),
    }
}
