//! What an engine shows of itself: properties, slots, LoRA adapters, metrics (seed 004). A `llama-server` answers for itself; for other
//! runtimes the gateway shows the properties it knows, and refuses the rest as llama.cpp does where it is switched off: 501.
//!
//! These routes load nothing (DECISIONS.md, Autoload). With several replicas one must be named: `?instance=`.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, Query, Request, State},
    response::Response,
};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use muster_proto::{
    Code,
    v1::{ErrorInfo, GenerateRequest, NativeCall},
};
use serde::Deserialize;
use serde_json::json;

use super::{settings::generation_settings, which::Which};
use crate::{
    openapi::schema,
    routes::{
        App,
        reply::{self, Refusal},
    },
};

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct About {
    model: Option<String>,
    instance: Option<String>,
    action: Option<String>,
    fail_on_no_slot: Option<String>,
}

/// A question for the engine of one instance.
async fn pass(app: &App, query: About, method: Method, path: &str, body: &[u8]) -> Result<Response, Refusal> {
    let model = Which { model: query.model }.model(&app.dispatcher.fleet.table(), None)?;
    let runtime = runtime(app, &model);
    let mut loaded = app
        .dispatcher
        .loaded_instance(&model, query.instance.as_deref())?;
    if runtime != "llama_server" {
        return Err(unsupported(path).into());
    }
    let mut query_text = Vec::new();
    if let Some(action) = &query.action {
        query_text.push(format!("action={}", word(action)?));
    }
    if query.fail_on_no_slot.is_some() {
        query_text.push("fail_on_no_slot=1".to_owned());
    }
    let query_text = if query_text.is_empty() {
        String::new()
    } else {
        format!("?{}", query_text.join("&"))
    };
    let call = NativeCall {
        instance: loaded.instance.clone(),
        model,
        method: method.to_string(),
        path: format!("{path}{query_text}"),
        content_type: if body.is_empty() {
            String::new()
        } else {
            "application/json".to_owned()
        },
        body: Bytes::copy_from_slice(body),
    };
    let mut chunks = loaded.native(call).await?;
    let first = match chunks.next().await {
        Some(first) => first?,
        None => return Err(Code::RuntimeError.error("the engine did not answer").into()),
    };
    let status = u16::try_from(first.status)
        .ok()
        .and_then(|status| StatusCode::from_u16(status).ok());
    let kind = HeaderValue::from_str(&first.content_type).ok();
    let head = futures::stream::once(async move { Ok(first.body) });
    let rest = chunks.map(|chunk| {
        chunk
            .map(|chunk| chunk.body)
            .map_err(|error| std::io::Error::other(error.message))
    });
    let mut response = Response::new(Body::from_stream(head.chain(rest)));
    *response.status_mut() = status.unwrap_or(StatusCode::BAD_GATEWAY);
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// An action is a word, or it could be more of the query.
fn word(action: &str) -> Result<&str, ErrorInfo> {
    match action {
        "save" | "restore" | "erase" => Ok(action),
        _ => Err(crate::translate::object::invalid(
            "action",
            "must be save, restore or erase",
        )),
    }
}

fn runtime(app: &App, model: &str) -> String {
    let table = app.dispatcher.fleet.table();
    table
        .model(model)
        .map(|summary| summary.runtime.clone())
        .unwrap_or_default()
}

/// llama.cpp's words for what is switched off (seed 004, API errors).
fn unsupported(path: &str) -> ErrorInfo {
    let what = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    Code::UnsupportedByRuntime.error(format!("This server does not support {what} endpoint."))
}

#[utoipa::path(
    get,
    path = "/props",
    tag = "llama.cpp",
    summary = "Properties of a model that is loaded",
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue; the only one that is loaded need not be named."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "As llama.cpp shows them.", body = serde_json::Value),
        (status = "4XX", description = "The model is not loaded.", body = schema::Error),
    )
)]
pub(super) async fn props(
    State(app): State<Arc<App>>,
    Query(query): Query<About>,
) -> Result<Response, Refusal> {
    let model = Which {
        model: query.model.clone(),
    }
    .model(&app.dispatcher.fleet.table(), None)?;
    if runtime(&app, &model) == "llama_server" {
        return pass(&app, query, Method::GET, "/props", &[]).await;
    }
    // Refused where the model is not loaded, and where one of several replicas must be named.
    app.dispatcher
        .loaded_instance(&model, query.instance.as_deref())?;
    let table = app.dispatcher.fleet.table();
    let targets = table.targets(&model);
    let can = targets
        .iter()
        .find_map(|target| target.route.capabilities)
        .unwrap_or_default();
    let path = table
        .model(&model)
        .map(|summary| summary.checkpoint.clone())
        .unwrap_or_default();
    let body = json!({
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": can.context_length,
            "speculative": false,
            "is_processing": false,
            "params": generation_settings(&GenerateRequest::default()),
            "prompt": "",
        },
        "total_slots": can.sequences,
        "model_alias": model,
        "model_path": path,
        "modalities": {"vision": can.vision, "audio": can.audio},
        "build_info": format!("muster-{}", muster_proto::VERSION),
    });
    Ok(reply::value(StatusCode::OK, &body))
}

/// Passes a route's own method and path on, as far as they are llama.cpp's.
#[utoipa::path(
    get,
    path = "/slots",
    tag = "llama.cpp",
    summary = "Slots (`/slots`, `/slots/{id}?action=`), LoRA adapters (`/lora-adapters`), metrics (`/metrics?model=`) of a llama-server",
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue; the only one that is loaded need not be named."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "As llama.cpp answers.", body = serde_json::Value),
        (status = "4XX", description = "The model is not loaded.", body = schema::Error),
        (status = 501, description = "The runtime cannot, or it is switched off.", body = schema::Error),
    )
)]
pub(super) async fn engine(
    State(app): State<Arc<App>>,
    Query(query): Query<About>,
    request: Request,
) -> Result<Response, Refusal> {
    let (parts, body) = request.into_parts();
    // Without a model they would be Muster's own (DECISIONS.md, llama.cpp native), never whichever model's.
    if parts.uri.path() == "/metrics" && query.model.is_none() {
        return Err(unsupported("/metrics").into());
    }
    let body = reply::body(body, app.max_body).await?;
    pass(&app, query, parts.method, parts.uri.path(), &body).await
}

/// `POST /slots/{id}?action=`: only a number is a slot.
pub(super) async fn slot(
    State(app): State<Arc<App>>,
    Path(id): Path<u32>,
    Query(query): Query<About>,
    request: Request,
) -> Result<Response, Refusal> {
    if query.action.is_none() {
        return Err(crate::translate::object::invalid("action", "must be save, restore or erase").into());
    }
    let body = reply::body(request.into_body(), app.max_body).await?;
    pass(&app, query, Method::POST, &format!("/slots/{id}"), &body).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_004_what_is_not_there_is_refused_in_its_words() {
        assert_eq!(
            unsupported("/metrics").message,
            "This server does not support metrics endpoint."
        );
        assert_eq!(
            unsupported("/slots/3").message,
            "This server does not support slots endpoint."
        );
    }

    #[test]
    fn an_action_is_one_of_three_words() {
        assert!(word("save").is_ok());
        assert_eq!(word("save&x=1").unwrap_err().param, "action");
    }
}
