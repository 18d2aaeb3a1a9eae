//! Which models there are and which are loaded, in Ollama's terms.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::{Capabilities, ModelSummary, ModelType};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    dispatch::unknown_model,
    fleet::table::{Table, is_loaded},
    openapi::schema,
    routes::{
        App,
        reply::{self, Refusal},
        run::Asked,
    },
    translate::{
        model,
        object::{self, Object},
    },
};

/// The catalogue's id of what an Ollama client names: it adds `:latest` where no tag was given.
pub(super) fn resolve(app: &App, name: &str) -> String {
    let table = app.dispatcher.fleet.table();
    match name.strip_suffix(":latest") {
        Some(bare) if table.model(name).is_none() => bare.to_owned(),
        Some(_) | None => name.to_owned(),
    }
}

/// `GET /api/tags`: what is here.
#[utoipa::path(
    get,
    path = "/api/tags",
    tag = "Ollama",
    summary = "Models that are here",
    responses(
        (status = 200, description = "`models`.", body = serde_json::Value),
    )
)]
pub(super) async fn tags(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let here = table
        .models()
        .filter(|summary| summary.downloaded || is_loaded(summary));
    let models: Vec<_> = here.map(|summary| entry(&table, summary)).collect();
    reply::value(StatusCode::OK, &json!({"models": models}))
}

/// `GET /api/ps`: what is loaded. Nothing here unloads by a clock unless configured, so nothing expires soon.
#[utoipa::path(
    get,
    path = "/api/ps",
    tag = "Ollama",
    summary = "Models that are loaded",
    responses(
        (status = 200, description = "`models`.", body = serde_json::Value),
    )
)]
pub(super) async fn ps(State(app): State<Arc<App>>) -> Response {
    let table = app.dispatcher.fleet.table();
    let loaded = table.models().filter(|summary| is_loaded(summary));
    let row = |summary: &Arc<ModelSummary>| {
        let mut row = entry(&table, summary);
        let on_gpu = summary.device_kinds.iter().any(|kind| kind != "cpu");
        row["size_vram"] = if on_gpu {
            summary.size_bytes.into()
        } else {
            0.into()
        };
        row["expires_at"] = "9999-12-31T23:59:59Z".into();
        row["context_length"] = can(&table, summary)
            .map_or(summary.ctx_size, |can| can.context_length)
            .into();
        row
    };
    let models: Vec<_> = loaded.map(row).collect();
    reply::value(StatusCode::OK, &json!({"models": models}))
}

/// `POST /api/show`: one model.
#[utoipa::path(
    post,
    path = "/api/show",
    tag = "Ollama",
    summary = "One model",
    request_body = schema::OllamaShowRequest,
    responses(
        (status = 200, description = "What is known of it.", body = serde_json::Value),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::OllamaError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::OllamaError),
    )
)]
pub(super) async fn show(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let name = match body.peek("model") {
        Some(_) => model(&mut body)?,
        // The older name of the field.
        None => body
            .take("name")
            .map_or_else(|| model(&mut body), |field| field.string())?,
    };
    let id = resolve(&app, &name);
    let table = app.dispatcher.fleet.table();
    let summary = table.model(&id).ok_or_else(|| unknown_model(&id))?;
    let mut shown = entry(&table, summary);
    let can = can(&table, summary).cloned().unwrap_or_default();
    Ok(reply::value(
        StatusCode::OK,
        &json!({
            "modelfile": "",
            "parameters": "",
            "template": "",
            "license": "",
            "modified_at": shown["modified_at"].take(),
            "details": shown["details"].take(),
            "capabilities": capabilities(summary, &can),
            "model_info": {
                "general.basename": summary.id,
                "general.parameter_count": can.parameters,
                "general.context_length": can.train_context_length,
                "general.embedding_length": can.embedding_length,
                "general.vocabulary_size": can.vocabulary,
            },
        }),
    ))
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

fn entry(table: &Table, summary: &ModelSummary) -> Value {
    let parameters = can(table, summary).map_or(0, |can| can.parameters);
    json!({
        "name": summary.id,
        "model": summary.id,
        "modified_at": summary.created.unwrap_or_default().to_string(),
        "size": summary.size_bytes,
        // Nothing hashes whole files here: this names the entry, and changes with it.
        "digest": digest(summary),
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": summary.runtime,
            "families": [summary.runtime],
            "parameter_size": if parameters > 0 { size(parameters) } else { String::new() },
            "quantization_level": "",
        },
    })
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

/// Parameters as people write them, for example `4.3B`.
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
    fn sizes_are_for_people() {
        assert_eq!(size(4_300_000_000), "4.3B");
        assert_eq!(size(270_000_000), "270.00M");
        assert_eq!(size(1_500), "1.50K");
    }
}
