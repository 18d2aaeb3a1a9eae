//! The gateway's own routes: whether it takes requests, its counters, and the OpenAPI document.
//!
//! With `?model=`, health and counters are those of a model, which llama.cpp's clients expect at these paths (seed 004; gateway/README.md,
//! llama.cpp's routes). For the same reason errors have llama.cpp's form.

use std::sync::{Arc, LazyLock};

use axum::{Extension, body::Body, extract::State, response::Response};
use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri, header::CONTENT_TYPE};
use muster_core::Code;
use muster_proto::v1::{ModelStatus, ModelSummary};
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    lemonade,
    llamacpp::{
        self,
        error::{self, LlamaCppError, unavailable},
    },
};
use crate::{
    fleet::{Contact, table::is_loaded},
    gauges, metrics,
    openapi::{self, page},
    web::{
        App,
        access::{Access, Caller},
        engine::{EngineQuery, ModelQuery},
        extract::Query,
        reply::{self, Refusal},
        route::{Dialect, Named, Route},
        run,
    },
};

/// The gateway's own routes.
pub(super) static DIALECT: Dialect = Dialect {
    name: "Muster",
    errors: &error::FORM,
    error: Named::of::<LlamaCppError>(),
    routes,
};

/// When the process started, in Unix seconds: the routes are made then.
static STARTED: LazyLock<u64> = LazyLock::new(run::unix_now);
/// The header in which llama.cpp's `/metrics` says so.
const STARTED_HEADER: HeaderName = HeaderName::from_static("process-start-time-unix");

fn routes() -> Vec<Route> {
    LazyLock::force(&STARTED);
    vec![
        Route::get("/health", Access::Open, health)
            .summary("Whether the gateway, or with `model` that model, takes requests")
            .query::<String>("model", "Id in the catalogue.")
            .answers::<Health>("It takes requests.")
            .error("400", "The query is wrong.")
            .error(
                "503",
                "The gateway is shutting down, or the model is not loaded: `Loading model`.",
            ),
        Route::get("/live", Access::Open, live)
            .summary("The process answers")
            .answers::<Health>("It answers."),
        Route::get("/metrics", Access::User, counters)
            .summary("Counters in Prometheus' form: the gateway's own; with `model` those of a llama.cpp engine, if its `llamacpp_args` say `--metrics`")
            .query::<String>("model", "Id in the catalogue.")
            .query::<String>("instance", "One of several replicas.")
            .answers_text("text/plain", "Prometheus' text form.")
            .refuses("The model is not loaded.")
            .fails("501 where it is switched off or the runtime has none."),
        Route::get("/openapi.json", Access::Open, document)
            .summary("This document")
            .answers_anything("OpenAPI 3.1."),
        Route::get("/docs", Access::Open, page)
            .also("/docs/")
            .summary("A page that shows this document and sends requests: Swagger UI")
            .answers_text("text/html", "It needs nothing from outside."),
        Route::get("/docs/{file}", Access::Open, page)
            .summary("What that page is made of")
            .part::<String>("file", "As the page names it.")
            .answers_text("text/javascript", "A script, style sheet or image.")
            .error("404", "The page has no such file."),
    ]
}

/// The gateway takes requests.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = GatewayHealth)]
struct Health {
    /// The word `ok`.
    status: &'static str,
    /// Whether the gateway hears from the controller. Loaded models are served without it. Absent on `/live`.
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<Contact>,
    /// What the controller cannot do at the moment, in sentences; for example state that it could not write. Absent on `/live`.
    #[serde(skip_serializing_if = "Option::is_none")]
    troubles: Option<Vec<String>>,
}

/// The gateway's own readiness, with what it hears from the controller: not before it knows what there is, and not while the only model, which any
/// name means, is loading. With `?model=` that model's, with llama.cpp's 503 while it is not loaded.
async fn health(State(app): State<Arc<App>>, Query(query): Query<ModelQuery>) -> Response {
    if app.stopping.is_cancelled() {
        return unavailable("shutting down");
    }
    let fleet = &app.dispatcher.fleet;
    let table = fleet.table();
    let loads = |summary: &Arc<ModelSummary>| summary.any_name && summary.status() == ModelStatus::Loading;
    if !table.known() || table.models().any(loads) {
        return unavailable("Loading model");
    }
    let absent = |model: String| !table.model(&model).is_some_and(|summary| is_loaded(summary));
    if query.model.is_some_and(absent) {
        return unavailable("Loading model");
    }
    let health = Health {
        status: "ok",
        controller: Some(fleet.contact()),
        troubles: Some(fleet.troubles().to_vec()),
    };
    reply::value(StatusCode::OK, &health)
}

async fn live() -> Response {
    let health = Health {
        status: "ok",
        controller: None,
        troubles: None,
    };
    reply::value(StatusCode::OK, &health)
}

/// The gateway's counters; with `?model=` those of the model's engine.
async fn counters(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<EngineQuery>,
) -> Result<Response, Refusal> {
    if query.model.is_none() {
        let fleet = &app.dispatcher.fleet;
        let health = (fleet.contact(), fleet.troubles().len());
        let limits = fleet.limits_soon().await;
        let table = fleet.table();
        let mut families = gauges::read(&table, health);
        families.extend(lemonade::metrics::read(&lemonade::metrics::Sources {
            table: &table,
            models: &app.stats.of_models(),
            all: app.stats.figures(None).totals,
            latest: caller.oversees,
            limits: limits.as_deref(),
        }));
        return Ok(exposition(metrics::text(&families)));
    }
    let mut engine = query.engine(&app)?;
    let description = engine.switched_on("metrics endpoint", "--metrics").await?;
    let cache = llamacpp::counters::of_cache(&description);
    if !engine.speaks_http() {
        let Some(own) = llamacpp::counters::of_engine(&description) else {
            let message = "This server does not support metrics endpoint.";
            return Err(Code::UnsupportedByRuntime.error(message).into());
        };
        return Ok(exposition(own + &cache));
    }
    let response = engine.forward(Method::GET, "/metrics", Bytes::new()).await?;
    if !response.status().is_success() {
        return Ok(response);
    }
    // Append the counters of seed 004 that current versions of llama.cpp no longer have.
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(STARTED_HEADER, (*STARTED).into());
    let more = Bytes::from(cache);
    let more = futures::stream::once(async move { Ok::<_, axum::Error>(more) });
    Ok(Response::from_parts(
        parts,
        Body::from_stream(body.into_data_stream().chain(more)),
    ))
}

/// Counters as an answer.
fn exposition(text: impl Into<Body>) -> Response {
    let mut response = Response::new(text.into());
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response.headers_mut().insert(STARTED_HEADER, (*STARTED).into());
    response
}

/// The OpenAPI document, made at first use.
static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| match openapi::document(super::routes()).to_json() {
    Ok(text) => text.into(),
    Err(error) => {
        tracing::error!(%error, "could not write the OpenAPI document");
        Bytes::new()
    }
});

async fn document() -> Response {
    reply::ok(DOCUMENT.clone())
}

/// The page, once its path ends as a directory's does, and its files.
async fn page(uri: Uri) -> Result<Response, Refusal> {
    match uri.path().strip_prefix("/docs/") {
        None => Ok(page::place()),
        Some(name) => {
            let missing = || Code::RouteNotFound.error(format!("the page has no file {name}"));
            page::file(name).ok_or_else(|| missing().into())
        }
    }
}
