//! Routes about a loaded engine: which engine is meant, how it describes itself, and its own HTTP answers.
//!
//! These routes load nothing (gateway/README.md, Autoload). If a model has several replicas, one must be named: `?instance=`.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, Method, StatusCode, header::CONTENT_TYPE};
use muster_core::{Code, Error, runtime::Family};
use muster_proto::{
    engine_http, llamacpp,
    v1::{
        EngineDescription, EngineHttpCall, EngineHttpChunk, ModelSummary, SlotActionCall, SlotActionResult,
    },
};
use serde::Deserialize;

use super::{App, reply::Refusal, route::Route};
use crate::dispatch::{loaded::Loaded, unknown_model};

/// A query that may name a model.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct ModelQuery {
    pub(crate) model: Option<String>,
}

impl ModelQuery {
    /// The name that is given: the body's, else the query's.
    pub(crate) fn or(self, body: Option<String>) -> Option<String> {
        let given = [body, self.model].into_iter().flatten();
        given.into_iter().find(|name| !name.is_empty())
    }
}

/// A query that may name a model and one of its instances.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct EngineQuery {
    pub(crate) model: Option<String>,
    instance: Option<String>,
}

impl EngineQuery {
    /// The loaded instance that the query names.
    ///
    /// # Errors
    /// None is named and not exactly one is loaded, or the named one is not loaded.
    pub(crate) fn engine(self, app: &App) -> Result<Engine, Error> {
        let table = app.dispatcher.fleet.table();
        let model = table.meant(self.model.as_deref())?;
        let summary = table.model(&model).ok_or_else(|| unknown_model(&model))?;
        Ok(Engine {
            summary: Arc::clone(summary),
            loaded: app.dispatcher.loaded_instance(&model, self.instance.as_deref())?,
        })
    }
}

impl Route {
    /// Adds the parameters of an [`EngineQuery`] to the document.
    pub(crate) fn names_engine(self) -> Self {
        self.query::<String>(
            "model",
            "Id in the catalogue; the only one that is loaded need not be named.",
        )
        .query::<String>("instance", "One of several replicas.")
    }
}

/// A loaded instance.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) summary: Arc<ModelSummary>,
    loaded: Loaded,
}

impl Engine {
    /// Whether the engine itself answers llama.cpp's routes.
    pub(crate) fn speaks_http(&self) -> bool {
        Family::of(&self.summary.runtime) == Family::LlamaServer
    }

    /// The engine's description of itself.
    pub(crate) async fn describe(&mut self) -> Result<EngineDescription, Error> {
        self.loaded.describe(self.summary.id.clone()).await
    }

    /// Does something with a sequence's cache; the call's instance and model are filled in.
    pub(crate) async fn slot_action(&mut self, call: SlotActionCall) -> Result<SlotActionResult, Error> {
        let call = SlotActionCall {
            instance: self.loaded.instance.clone(),
            model: self.summary.id.clone(),
            ..call
        };
        self.loaded.slot_action(call).await
    }

    /// The engine's description, if its model was loaded with this flag of llama.cpp's. Otherwise `what` is off (seed 004;
    /// gateway/README.md, llama.cpp's routes).
    pub(crate) async fn switched_on(&mut self, what: &str, flag: &str) -> Result<EngineDescription, Error> {
        let description = self.describe().await?;
        let settings = description.settings.as_ref();
        if settings.is_some_and(|settings| llamacpp::last_of(&settings.args, &[flag]).is_some()) {
            return Ok(description);
        }
        let message = format!("This server does not support {what}. Start it with `{flag}`");
        Err(Code::UnsupportedByRuntime.error(message))
    }

    /// Forwards an HTTP request to the engine; `path` includes the query.
    pub(crate) async fn forward(
        mut self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response, Refusal> {
        if !engine_http::allows(Family::of(&self.summary.runtime), method.as_str(), path) {
            return Err(unsupported(path).into());
        }
        let call = EngineHttpCall {
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
        response(self.loaded.engine_http(call).await?).await
    }
}

/// llama.cpp's error for a route that the server does not have (seed 004, API errors).
fn unsupported(path: &str) -> Error {
    let what = path
        .trim_start_matches('/')
        .split(['/', '?'])
        .next()
        .unwrap_or_default();
    Code::UnsupportedByRuntime.error(format!("This server does not support {what} endpoint."))
}

/// The engine's HTTP answer as a response whose body is streamed.
///
/// # Errors
/// The engine did not answer.
pub(crate) async fn response<S>(mut chunks: S) -> Result<Response, Refusal>
where
    S: Stream<Item = Result<EngineHttpChunk, Error>> + Unpin + Send + 'static,
{
    let first = match chunks.next().await {
        Some(first) => first?,
        None => return Err(Code::RuntimeError.error("the engine did not answer").into()),
    };
    let status = u16::try_from(first.status).ok();
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let kind = HeaderValue::from_str(&first.content_type).ok();
    let head = futures::stream::once(async move { Ok(first.body) });
    let rest = chunks.map(|chunk| {
        let body = chunk.map(|chunk| chunk.body);
        body.map_err(|error| std::io::Error::other(error.message))
    });
    let mut response = Response::new(Body::from_stream(head.chain(rest)));
    *response.status_mut() = status.unwrap_or(StatusCode::BAD_GATEWAY);
    if let Some(kind) = kind {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
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
}
