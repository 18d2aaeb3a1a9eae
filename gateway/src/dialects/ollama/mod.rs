//! Ollama's API, at the paths its clients know (Ollama API reference).
//!
//! Answers are streamed by default, as lines of JSON. A request without a prompt loads its model, or unloads it if `keep_alive` is 0. Any
//! other `keep_alive` is accepted and ignored: the configuration decides how long models stay. Options of a load are honoured where they can be
//! ([`wants`]).

mod blobs;
mod catalogue;
mod context;
mod create;
mod error;
mod manage;
mod modelfile;
pub(crate) mod render;
mod requests;
mod schema;
mod show;
pub(crate) mod translate;
mod truncate;
pub(crate) mod wants;

use std::sync::Arc;

use axum::{
    extract::State,
    response::{Html, IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{
    HeaderMap, StatusCode,
    header::{ACCEPT, CONTENT_SECURITY_POLICY, VARY},
};
use muster_core::{Code, Error};
use muster_proto::v1::{UnloadModelRequest, start::Work};
use serde::Serialize;
use utoipa::ToSchema;

use self::{
    render::{Kind, OllamaEmbedAnswer, OllamaEmbeddingsAnswer},
    schema::{OllamaChatAnswer, OllamaGenerateAnswer},
    translate::GenerationCall,
};
use crate::web::{
    App,
    access::Access,
    reply::{self, Refusal},
    route::{Dialect, JSON_LINES, Named, Route},
    run::{self, ClientRequest},
};

/// The version of Ollama's API that Muster speaks. Clients ask for it before they use tools, thinking or schemas.
const API_VERSION: &str = "0.32.14";

/// The routes of Ollama's API.
pub(super) static DIALECT: Dialect = Dialect {
    name: "Ollama",
    errors: &error::FORM,
    error: Named::of::<error::OllamaError<'_>>(),
    routes: || {
        let parts = [
            routes(),
            catalogue::routes(),
            show::routes(),
            manage::routes(),
            create::routes(),
            blobs::routes(),
        ];
        parts.concat()
    },
};

fn routes() -> Vec<Route> {
    vec![
        Route::get("/", Access::Open, probe)
            .summary("Somebody is here who speaks Ollama's API; a page for a browser")
            .answers_text("text/plain", "A line of text.")
            .answers_text("text/html", "The models that are here."),
        Route::get("/api/version", Access::Open, version)
            .summary("The version of Ollama's API that is spoken")
            .answers::<OllamaVersion>("The version."),
        Route::post("/api/chat", Access::User, chat)
            .summary("Continue a conversation")
            .takes::<requests::ChatBody<'_>>()
            .answers::<OllamaChatAnswer>("The whole answer; lines of JSON unless `stream` is false.")
            .answers_as::<OllamaChatAnswer>(JSON_LINES)
            .inference_errors(),
        Route::post("/api/generate", Access::User, generate)
            .summary("Continue a text")
            .takes::<requests::GenerateBody<'_>>()
            .answers::<OllamaGenerateAnswer>("The whole answer; lines of JSON unless `stream` is false.")
            .answers_as::<OllamaGenerateAnswer>(JSON_LINES)
            .inference_errors(),
        Route::post("/api/embed", Access::User, embed)
            .summary("Turn texts into vectors")
            .takes::<requests::EmbedBody<'_>>()
            .answers::<OllamaEmbedAnswer>("Vectors in input order.")
            .inference_errors(),
        Route::post("/api/embeddings", Access::User, embeddings)
            .summary("Turn one text into a vector")
            .takes::<requests::EmbeddingsBody<'_>>()
            .answers::<OllamaEmbeddingsAnswer>("The vector.")
            .inference_errors(),
    ]
}

/// What a browser gets at the root.
const PAGE: &str = include_str!("page.html");
/// Its script and style stand in it, and it speaks with this gateway only. Nothing of others is ever put into it as markup.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Clients of Ollama ask for this first, to see whether the server is up. Browsers say that they want a page.
async fn probe(headers: HeaderMap) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|accepts| accepts.to_str().ok());
    if accepts.is_some_and(|accepts| accepts.contains("text/html")) {
        let shown = [(CONTENT_SECURITY_POLICY, POLICY), (VARY, "accept")];
        return (shown, Html(PAGE)).into_response();
    }
    let running = concat!("Ollama is running (Muster ", env!("CARGO_PKG_VERSION"), ")");
    ([(VARY, "accept")], running).into_response()
}

/// The version of Ollama's API.
#[derive(Debug, Serialize, ToSchema)]
struct OllamaVersion {
    /// The version of Ollama's API, not of Muster.
    version: &'static str,
}

async fn version() -> Response {
    reply::value(StatusCode::OK, &OllamaVersion { version: API_VERSION })
}

async fn chat(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    answer(&app, &request, translate::chat(&request.body)?, Kind::Chat).await
}

async fn generate(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    answer(
        &app,
        &request,
        translate::generate(&request.body)?,
        Kind::Generate,
    )
    .await
}

async fn answer(
    app: &App,
    request: &ClientRequest,
    call: GenerationCall,
    kind: Kind,
) -> Result<Response, Refusal> {
    let (common, name) = (app.common(call.asked)?, call.name);
    let work = match call.work {
        Some(work) => work,
        None if call.unload => {
            unload(app, request, common.model).await?;
            return Ok(reply::ok(render::silent(&name, kind, "unload")));
        }
        None => {
            context::provide(app, &common.model, &call.wants, request.autoload).await?;
            app.dispatcher.ensure(&common.model, request.autoload).await?;
            return Ok(reply::ok(render::silent(&name, kind, "load")));
        }
    };
    let logprobs = work.logprobs;
    let lap = render::Lap::start();
    let anew = context::provide(app, &common.model, &call.wants, request.autoload).await?;
    let answers = request.dispatch(app, common, Work::Generate(work), 1).await?;
    // A worker admits a request only once the instance is loaded, so the time until then was the load, if it had to wait.
    let load = if anew || answers.waited() { lap.nanos() } else { 0 };
    if call.stream {
        return run::lines(answers, render::stream(name, kind, load, logprobs)).await;
    }
    Ok(reply::ok(render::body(
        &name,
        kind,
        load,
        logprobs,
        run::gather(answers).await?,
    )))
}

/// Unloads a model once its running requests have finished. If there are administrators, only they may do this.
async fn unload(app: &App, request: &ClientRequest, model: String) -> Result<(), Error> {
    if !request.administers {
        return Err(Code::Forbidden.error("unloading a model needs the admin key"));
    }
    let request = UnloadModelRequest {
        model,
        force: false,
        cancel_load: true,
    };
    app.dispatcher.fleet.control().unload(request).await.map(drop)
}

async fn embed(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    vectors(&app, &request, translate::embed(&request.body)?, render::embed).await
}

async fn embeddings(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    vectors(
        &app,
        &request,
        translate::embeddings(&request.body)?,
        render::embeddings,
    )
    .await
}

async fn vectors(
    app: &App,
    request: &ClientRequest,
    call: translate::EmbeddingCall,
    body: fn(&str, render::Laps, &crate::render::answer::Answer) -> Result<Bytes, Error>,
) -> Result<Response, Refusal> {
    let name = call.asked.model.clone().unwrap_or_default();
    let common = app.common(call.asked)?;
    let whole = render::Lap::start();
    let anew = context::provide(app, &common.model, &call.wants, request.autoload).await?;
    let whole_work = call.truncate.then(|| call.work.clone());
    let mut load = 0;
    let mut ask = async |common, work| {
        let answers = request.dispatch(app, common, Work::Embed(work), 1).await?;
        if anew || answers.waited() {
            load = whole.nanos();
        }
        run::gather(answers).await
    };
    let answer = match (ask(common.clone(), call.work).await, whole_work) {
        (Err(Refusal(error)), Some(work)) => {
            let shorter = truncate::shorter(app, &common.model, work, error).await?;
            ask(common, shorter).await?
        }
        (answer, _) => answer?,
    };
    Ok(reply::ok(body(&name, render::Laps { whole, load }, &answer)?))
}
