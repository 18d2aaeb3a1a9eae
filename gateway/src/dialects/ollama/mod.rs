//! Ollama's API, at the paths its clients know (Ollama API reference).
//!
//! Streams are the default here, and they are lines of JSON. A request without a prompt loads its model, or unloads it if its `keep_alive` is 0.
//! Any other `keep_alive` and load-time options (`num_ctx`, `num_gpu`, …) are accepted and have no effect: how models are loaded and how long they
//! stay is the configuration's business.

mod catalogue;
pub(crate) mod render;
mod schema;
pub(crate) mod translate;

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::Response,
    routing::{get, post},
};
use bytes::Bytes;
use http::StatusCode;
use muster_proto::{
    Code,
    v1::{ErrorInfo, UnloadModelRequest, start::Work},
};
use serde_json::json;

use self::{
    render::Kind,
    schema::{
        OllamaChatAnswer, OllamaEmbedAnswer, OllamaEmbeddingsAnswer, OllamaGenerateAnswer, OllamaVersion,
    },
    translate::Wanted,
};
use utoipa::OpenApi;

use crate::{
    render::error::Form,
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        run::{self, Asked},
        surface,
    },
};

/// The version of Ollama's API that is spoken here: clients ask for it before they use tools, thinking or schemas.
const API_VERSION: &str = "0.12.6";

/// What the document says of them.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    probe,
    chat,
    generate,
    embed,
    embeddings,
    version,
    catalogue::tags,
    catalogue::ps,
    catalogue::show
))]
pub(super) struct Doc;

/// The routes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let user = Router::new()
        .route("/api/chat", post(chat))
        .route("/api/generate", post(generate))
        .route("/api/embed", post(embed))
        .route("/api/embeddings", post(embeddings))
        .route("/api/tags", get(catalogue::tags))
        .route("/api/ps", get(catalogue::ps))
        .route("/api/show", post(catalogue::show));
    let open = Router::new()
        .route("/", get(probe))
        .route("/api/version", get(version));
    surface(app, Access::User, Form::Ollama, user).merge(surface(app, Access::Open, Form::Ollama, open))
}

/// What Ollama's clients look for before anything else.
#[utoipa::path(
    get,
    path = "/",
    tag = "Ollama",
    summary = "Somebody is here who speaks Ollama's API",
    responses(
        (status = 200, description = "A line of text.", body = String, content_type = "text/plain"),
    )
)]
async fn probe() -> &'static str {
    concat!("Ollama is running (Muster ", env!("CARGO_PKG_VERSION"), ")")
}

#[utoipa::path(
    get,
    path = "/api/version",
    tag = "Ollama",
    summary = "The version of Ollama's API that is spoken",
    responses(
        (status = 200, description = "It.", body = OllamaVersion),
    )
)]
async fn version() -> Response {
    reply::value(StatusCode::OK, &json!({"version": API_VERSION}))
}

#[utoipa::path(
    post,
    path = "/api/chat",
    tag = "Ollama",
    summary = "Continue a conversation",
    request_body = schema::OllamaChatRequest,
    responses(
        (status = 200, description = "The whole answer; lines of JSON unless `stream` is false.", content(
            (OllamaChatAnswer = "application/json"),
            (OllamaChatAnswer = "application/x-ndjson"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::OllamaError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::OllamaError),
    )
)]
async fn chat(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    answer(&app, &asked, translate::chat(&asked.body)?, Kind::Chat).await
}

#[utoipa::path(
    post,
    path = "/api/generate",
    tag = "Ollama",
    summary = "Continue a text",
    request_body = schema::OllamaGenerateRequest,
    responses(
        (status = 200, description = "The whole answer; lines of JSON unless `stream` is false.", content(
            (OllamaGenerateAnswer = "application/json"),
            (OllamaGenerateAnswer = "application/x-ndjson"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::OllamaError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::OllamaError),
    )
)]
async fn generate(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    answer(&app, &asked, translate::generate(&asked.body)?, Kind::Generate).await
}

async fn answer(app: &App, asked: &Asked, wanted: Wanted, kind: Kind) -> Result<Response, Refusal> {
    let (mut common, name) = (wanted.common, wanted.name);
    common.model = catalogue::resolve(app, &common.model);
    let work = match wanted.work {
        Some(work) => work,
        None if wanted.unload => {
            unload(app, asked, common.model).await?;
            return Ok(reply::ok(render::silent(&name, kind, "unload")));
        }
        None => {
            app.dispatcher.ensure(&common.model, asked.autoload).await?;
            return Ok(reply::ok(render::silent(&name, kind, "load")));
        }
    };
    let lap = render::Lap::start();
    let answers = asked.one(app, common, Work::Generate(work), 1).await?;
    // What a worker admits it has an instance for: until then it was loaded, if it was not.
    let load = if answers.waited() { lap.nanos() } else { 0 };
    if wanted.stream {
        return run::lines(answers, render::stream(name, kind, load)).await;
    }
    Ok(reply::ok(render::body(
        &name,
        kind,
        load,
        run::gather(answers).await?,
    )))
}

/// Unloads a model once what runs on it has finished. What is loaded is the administrators' to change where there are any.
async fn unload(app: &App, asked: &Asked, model: String) -> Result<(), ErrorInfo> {
    if !asked.administers {
        return Err(Code::Forbidden.error("unloading a model needs the admin key"));
    }
    let request = UnloadModelRequest {
        model,
        force: false,
        cancel_load: true,
    };
    app.dispatcher.fleet.control().unload(request).await.map(drop)
}

#[utoipa::path(
    post,
    path = "/api/embed",
    tag = "Ollama",
    summary = "Turn texts into vectors",
    request_body = schema::OllamaEmbedRequest,
    responses(
        (status = 200, description = "Vectors in input order.", body = OllamaEmbedAnswer),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::OllamaError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::OllamaError),
    )
)]
async fn embed(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    vectors(&app, &asked, translate::embed(&asked.body)?, render::embed).await
}

#[utoipa::path(
    post,
    path = "/api/embeddings",
    tag = "Ollama",
    summary = "Turn one text into a vector",
    request_body = schema::OllamaEmbeddingsRequest,
    responses(
        (status = 200, description = "The vector.", body = OllamaEmbeddingsAnswer),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::OllamaError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::OllamaError),
    )
)]
async fn embeddings(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    vectors(
        &app,
        &asked,
        translate::embeddings(&asked.body)?,
        render::embeddings,
    )
    .await
}

async fn vectors(
    app: &App,
    asked: &Asked,
    wanted: translate::Vectors,
    body: fn(&str, render::Laps, &crate::render::answer::Answer) -> Result<Bytes, ErrorInfo>,
) -> Result<Response, Refusal> {
    let mut common = wanted.common;
    let name = std::mem::take(&mut common.model);
    common.model = catalogue::resolve(app, &name);
    let whole = render::Lap::start();
    let answers = asked.one(app, common, Work::Embed(wanted.work), 1).await?;
    let load = if answers.waited() { whole.nanos() } else { 0 };
    let answer = run::gather(answers).await?;
    Ok(reply::ok(body(&name, render::Laps { whole, load }, &answer)?))
}
