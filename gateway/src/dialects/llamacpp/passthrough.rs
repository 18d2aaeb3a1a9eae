//! What an engine shows of itself beside its answers: slots, LoRA adapters, metrics (seed 004). A `llama-server` answers for itself; for other
//! runtimes the gateway shows what the engine describes, and refuses the rest as llama.cpp does where it is switched off: 501.
//!
//! These routes load nothing (gateway/README.md, Autoload). With several replicas one must be named: `?instance=`.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use muster_proto::{
    Code, native,
    v1::{EngineDescription, ErrorInfo, ModelSummary, NativeCall},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    health,
    model_query::{ModelQuery, Query},
    props, schema,
    shapes::{Adapter, AdapterScale, NativeSlot, SlotDone, SlotFile},
};
use crate::{
    dispatch::{loaded::Loaded, unknown_model},
    metrics,
    translate::object::{self, Object},
    web::{
        App,
        access::Caller,
        engine,
        reply::{self, Refusal},
        run::Asked,
    },
};

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct About {
    pub(super) model: Option<String>,
    instance: Option<String>,
    action: Option<String>,
    fail_on_no_slot: Option<String>,
}

impl About {
    /// The instance that is meant.
    pub(super) fn engine(self, app: &App) -> Result<Engine, ErrorInfo> {
        let table = app.dispatcher.fleet.table();
        let model = ModelQuery { model: self.model }.model(&table, None)?;
        let summary = table.model(&model).ok_or_else(|| unknown_model(&model))?;
        Ok(Engine {
            summary: Arc::clone(summary),
            loaded: app.dispatcher.loaded_instance(&model, self.instance.as_deref())?,
        })
    }
}

/// One loaded instance.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) summary: Arc<ModelSummary>,
    loaded: Loaded,
}

impl Engine {
    /// Whether it answers llama.cpp's routes itself.
    pub(super) fn speaks_http(&self) -> bool {
        self.summary.runtime == "llama_server"
    }

    /// The engine's own view.
    pub(super) async fn describe(&mut self) -> Result<EngineDescription, ErrorInfo> {
        self.loaded.describe(self.summary.id.clone()).await
    }

    /// Its own view, if its model was loaded with this flag of llama.cpp's; else the route is off (seed 004; gateway/README.md, llama.cpp native).
    pub(super) async fn switched_on(&mut self, flag: &str) -> Result<EngineDescription, ErrorInfo> {
        let description = self.describe().await?;
        let settings = description.settings.as_ref();
        if settings.is_some_and(|settings| settings.args.iter().any(|word| word == flag)) {
            return Ok(description);
        }
        let endpoint = flag.trim_start_matches('-');
        let message = format!("This server does not support {endpoint} endpoint. Start it with `{flag}`");
        Err(Code::UnsupportedByRuntime.error(message))
    }

    /// Its own answer; `path` with query.
    pub(super) async fn pass(mut self, method: Method, path: &str, body: Bytes) -> Result<Response, Refusal> {
        if !native::passes(&self.summary.runtime, method.as_str(), path) {
            return Err(unsupported(path).into());
        }
        let call = NativeCall {
            instance: self.loaded.instance.clone(),
            model: self.summary.id.clone(),
            method: method.to_string(),
            path: path.to_owned(),
            content_type: if body.is_empty() {
                String::new()
            } else {
                "application/json".to_owned()
            },
            body,
            work: false,
        };
        engine::response(self.loaded.native(call).await?).await
    }
}

/// llama.cpp's words for what a server does not have (seed 004, API errors).
fn unsupported(path: &str) -> ErrorInfo {
    let what = path
        .trim_start_matches('/')
        .split(['/', '?'])
        .next()
        .unwrap_or_default();
    Code::UnsupportedByRuntime.error(format!("This server does not support {what} endpoint."))
}

/// What each sequence does; among several keys, what the caller's own do.
#[utoipa::path(
    get,
    path = "/slots",
    tag = "llama.cpp",
    summary = "What each sequence of a loaded model does; off unless its `llamacpp_args` say `--slots`",
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue; the only one that is loaded need not be named."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
        ("fail_on_no_slot" = Option<String>, Query, description = "503 where none is free."),
    ),
    responses(
        (status = 200, description = "Each of them, in order.", body = Vec<NativeSlot>),
        (status = "4XX", description = "The model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "501 where it is switched off; 503 where none is free.", body = schema::NativeError),
    )
)]
pub(super) async fn slots(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<About>,
) -> Result<Response, Refusal> {
    let must_be_free = query.fail_on_no_slot.is_some();
    let mut engine = query.engine(&app)?;
    let description = engine.switched_on("--slots").await?;
    // A server's own answer shows everybody's.
    if engine.speaks_http() && caller.oversees {
        let query = if must_be_free { "?fail_on_no_slot=1" } else { "" };
        return engine
            .pass(Method::GET, &format!("/slots{query}"), Bytes::new())
            .await;
    }
    if must_be_free && description.sequences.iter().all(props::is_busy) {
        return Ok(health::unavailable("no slot available"));
    }
    Ok(reply::value(StatusCode::OK, &props::slots(&description, &caller)))
}

/// Saves, restores or erases what a sequence has cached.
#[utoipa::path(
    post,
    path = "/slots/{id}",
    tag = "llama.cpp",
    summary = "Save, restore or erase a sequence's cache; only a llama-server with `--slot-save-path` can save and restore",
    request_body = SlotFile,
    params(
        ("id" = u32, Path, description = "Number of the sequence, from 0."),
        ("action" = String, Query, description = "`save`, `restore` or `erase`."),
        ("model" = Option<String>, Query, description = "Id in the catalogue; the only one that is loaded need not be named."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "What was done.", body = SlotDone),
        (status = "4XX", description = "The request is wrong, or the model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "501 where it is switched off or the runtime cannot.", body = schema::NativeError),
    )
)]
pub(super) async fn slot(
    State(app): State<Arc<App>>,
    id: Result<Path<u32>, PathRejection>,
    Query(query): Query<About>,
    asked: Asked,
) -> Result<Response, Refusal> {
    let Path(id) = id.map_err(|_| object::invalid("id", "must be the number of a slot"))?;
    let action = match query.action.as_deref() {
        Some(action @ ("save" | "restore" | "erase")) => action.to_owned(),
        Some(_) | None => return Err(object::invalid("action", "must be save, restore or erase").into()),
    };
    if action != "erase" {
        let mut body = Object::body(object::text(&asked.body)?)?;
        let name = body.need("filename")?;
        if !is_bare(&name.string()?) {
            return Err(name.wrong("must be the name of a file, without a folder").into());
        }
    }
    let mut engine = query.engine(&app)?;
    engine.switched_on("--slots").await?;
    engine
        .pass(Method::POST, &format!("/slots/{id}?action={action}"), asked.body)
        .await
}

/// A file's name that leads nowhere else (gateway/README.md, llama.cpp native).
fn is_bare(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control)
}

/// LoRA adapters.
#[utoipa::path(
    get,
    path = "/lora-adapters",
    tag = "llama.cpp",
    summary = "LoRA adapters of a loaded model and their scales",
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue; the only one that is loaded need not be named."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "Each of them, in order.", body = Vec<Adapter>),
        (status = "4XX", description = "The model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "The engine did not answer.", body = schema::NativeError),
    )
)]
pub(super) async fn adapters(
    State(app): State<Arc<App>>,
    Query(query): Query<About>,
) -> Result<Response, Refusal> {
    let mut engine = query.engine(&app)?;
    if engine.speaks_http() {
        return engine.pass(Method::GET, "/lora-adapters", Bytes::new()).await;
    }
    let settings = engine.describe().await?.settings.unwrap_or_default();
    let adapter = |(id, adapter): (usize, &muster_proto::v1::LoraAdapter)| json!({"id": id, "path": adapter.path, "scale": adapter.scale});
    let list: Vec<Value> = settings.lora.iter().enumerate().map(adapter).collect();
    Ok(reply::value(StatusCode::OK, &list))
}

/// Sets the scales of LoRA adapters.
#[utoipa::path(
    post,
    path = "/lora-adapters",
    tag = "llama.cpp",
    summary = "Set the scales of LoRA adapters for all requests that name none; a llama-server only",
    request_body = Vec<AdapterScale>,
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue; the only one that is loaded need not be named."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "They are set, until the model is loaded anew.", body = schema::RouterDone),
        (status = "4XX", description = "The request is wrong, or the model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "501 where the runtime cannot.", body = schema::NativeError),
    )
)]
pub(super) async fn set_adapters(
    State(app): State<Arc<App>>,
    Query(query): Query<About>,
    asked: Asked,
) -> Result<Response, Refusal> {
    query
        .engine(&app)?
        .pass(Method::POST, "/lora-adapters", asked.body)
        .await
}

/// Counters: the gateway's own, or with `model` an engine's.
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "llama.cpp",
    summary = "Counters in Prometheus' form: the gateway's own; with `model` a llama-server's, if its `llamacpp_args` say `--metrics`",
    params(
        ("model" = Option<String>, Query, description = "Id in the catalogue."),
        ("instance" = Option<String>, Query, description = "One of several replicas."),
    ),
    responses(
        (status = 200, description = "Prometheus' text form.", body = String, content_type = "text/plain"),
        (status = "4XX", description = "The model is not loaded.", body = schema::NativeError),
        (status = "5XX", description = "501 where it is switched off or the runtime has none.", body = schema::NativeError),
    )
)]
pub(super) async fn counters(
    State(app): State<Arc<App>>,
    Query(query): Query<About>,
) -> Result<Response, Refusal> {
    if query.model.is_none() {
        let fleet = &app.dispatcher.fleet;
        let health = (fleet.contact(), fleet.troubles().len());
        let mut response = Response::new(metrics::text(&fleet.table(), health).into());
        let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        return Ok(response);
    }
    let mut engine = query.engine(&app)?;
    let description = engine.switched_on("--metrics").await?;
    let response = engine.pass(Method::GET, "/metrics", Bytes::new()).await?;
    if !response.status().is_success() {
        return Ok(response);
    }
    // What today's llama.cpp no longer counts follows its own.
    let (parts, body) = response.into_parts();
    let more = Bytes::from(cache_usage(&description));
    let more = futures::stream::once(async move { Ok::<_, axum::Error>(more) });
    Ok(Response::from_parts(
        parts,
        Body::from_stream(body.into_data_stream().chain(more)),
    ))
}

/// Seed 004's counters of the KV cache.
fn cache_usage(description: &EngineDescription) -> String {
    let used: u64 = description
        .sequences
        .iter()
        .map(|sequence| u64::from(sequence.cached_tokens))
        .sum();
    let cells = description
        .settings
        .as_ref()
        .map_or(0, |settings| settings.ctx_size);
    #[allow(clippy::cast_precision_loss, reason = "a ratio for people")]
    let ratio = if cells == 0 {
        0.0
    } else {
        used as f64 / f64::from(cells)
    };
    format!(
        "# HELP llamacpp:kv_cache_usage_ratio KV-cache usage. 1 means 100 percent usage.\n\
         # TYPE llamacpp:kv_cache_usage_ratio gauge\n\
         llamacpp:kv_cache_usage_ratio {ratio}\n\
         # HELP llamacpp:kv_cache_tokens KV-cache tokens.\n\
         # TYPE llamacpp:kv_cache_tokens gauge\n\
         llamacpp:kv_cache_tokens {used}\n"
    )
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{ModelSettings, SequenceState};

    use super::*;

    #[test]
    fn seed_004_what_is_not_there_is_refused_in_its_words() {
        assert_eq!(
            unsupported("metrics").message,
            "This server does not support metrics endpoint."
        );
        assert_eq!(
            unsupported("/slots/3?action=save").message,
            "This server does not support slots endpoint."
        );
    }

    #[test]
    fn only_a_bare_name_is_a_file_to_save_to() {
        assert!(is_bare("chat-1.bin"));
        for name in ["", "..", "../x", "/etc/x", "a/b", "a\\b", "c:x", ".hidden", "a\0"] {
            assert!(!is_bare(name), "{name:?}");
        }
    }

    #[test]
    fn seed_004_counters_of_the_cache_are_made_of_the_sequences() {
        let sequence = |cached_tokens| SequenceState {
            cached_tokens,
            ..SequenceState::default()
        };
        let text = cache_usage(&EngineDescription {
            sequences: vec![sequence(100), sequence(28)],
            settings: Some(ModelSettings {
                ctx_size: 512,
                ..ModelSettings::default()
            }),
            ..EngineDescription::default()
        });
        assert!(text.contains("llamacpp:kv_cache_tokens 128\n"), "{text}");
        assert!(text.contains("llamacpp:kv_cache_usage_ratio 0.25\n"), "{text}");
    }
}
