//! OpenAI's routes (seeds 000 and 004), the same under each prefix.

mod echo;
mod media;
mod models;
pub(crate) mod render;
pub(crate) mod translate;

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::Response,
    routing::{get, post},
};
use muster_proto::v1::start::Work;

use self::render::{
    chat as chat_form, completion as completion_form, embedding, rerank as rerank_form, response,
};
use utoipa::OpenApi;

use crate::{
    openapi::{answers, response::ResponseAnswer, schema},
    render::error::Form,
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        run::{self, Asked},
        surface,
    },
};

/// What the document says of them.
#[derive(Debug, OpenApi)]
#[openapi(paths(
    chat,
    completions,
    responses,
    embeddings,
    rerank,
    media::audio,
    media::images,
    models::list,
    models::one
))]
pub(super) struct Doc;

/// The routes under each of the prefixes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let user = Router::new()
        .route("/chat/completions", post(chat))
        .route("/completions", post(completions))
        .route("/embeddings", post(embeddings))
        .route("/rerank", post(rerank))
        .route("/reranking", post(rerank))
        .route("/reranker", post(rerank))
        .route("/responses", post(responses))
        .route("/audio/{task}", post(media::audio))
        .route("/images/{task}", post(media::images))
        .route("/models", get(models::list))
        .route("/models/{*id}", get(models::one));
    surface(app, Access::User, Form::OpenAi, user)
}

#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    tag = "OpenAI",
    summary = "Continue a conversation",
    request_body = schema::ChatRequest,
    responses(
        (status = 200, description = "The whole answer; with `stream`, server-sent events.", content(
            (answers::ChatAnswer = "application/json"),
            (schema::StreamEvent = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::Error),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::Error),
    )
)]
async fn chat(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::chat(&asked.body)?;
    let head = asked.head("chatcmpl-", &call.common);
    let (view, work) = (call.view, Work::Generate(call.work));
    let answers = asked.one(&app, call.common, work, view.choices).await?;
    if view.stream {
        return run::stream(answers, chat_form::stream(&head, view)).await;
    }
    let answer = run::gather(answers).await?;
    Ok(reply::ok(chat_form::body(&head, view, &answer)))
}

#[utoipa::path(
    post,
    path = "/v1/completions",
    tag = "OpenAI",
    summary = "Continue a text",
    request_body = schema::CompletionRequest,
    responses(
        (status = 200, description = "The whole answer; with `stream`, server-sent events.", content(
            (answers::CompletionAnswer = "application/json"),
            (schema::StreamEvent = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::Error),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::Error),
    )
)]
async fn completions(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::completions(&asked.body)?;
    let head = asked.head("cmpl-", &call.common);
    let view = call.view;
    let work = call.work.into_iter().map(Work::Generate).collect();
    let answers = asked.all(&app, call.common, work, view.choices).await?;
    let echo = match call.echo {
        Some(prompts) => Some(echo::texts(&app, &head.model, prompts).await?),
        None => None,
    };
    if view.stream {
        return run::stream(answers, completion_form::stream(&head, view, echo)).await;
    }
    let answer = run::gather(answers).await?;
    Ok(reply::ok(completion_form::body(
        &head,
        view,
        echo.as_deref(),
        &answer,
    )))
}

#[utoipa::path(
    post,
    path = "/v1/responses",
    tag = "OpenAI",
    summary = "Answer, in items",
    request_body = schema::ResponseRequest,
    responses(
        (status = 200, description = "The whole answer; with `stream`, server-sent events.", content(
            (ResponseAnswer = "application/json"),
            (schema::StreamEvent = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::Error),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::Error),
    )
)]
async fn responses(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::responses(&asked.body)?;
    let head = asked.head("resp_", &call.common);
    let (view, work) = (call.view, Work::Generate(call.work));
    let answers = asked.one(&app, call.common, work, 1).await?;
    if view.stream {
        return run::stream(answers, response::stream(head, call.echo, view, run::unix_now)).await;
    }
    let answer = run::gather(answers).await?;
    Ok(reply::ok(response::body(
        head,
        call.echo,
        view,
        run::unix_now,
        answer,
    )))
}

#[utoipa::path(
    post,
    path = "/v1/embeddings",
    tag = "OpenAI",
    summary = "Turn texts into vectors",
    request_body = schema::EmbeddingRequest,
    responses(
        (status = 200, description = "Vectors in input order.", body = answers::EmbeddingList),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::Error),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::Error),
    )
)]
async fn embeddings(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::embeddings(&asked.body)?;
    let model = call.common.model.clone();
    let answers = asked.one(&app, call.common, Work::Embed(call.work), 1).await?;
    let answer = run::gather(answers).await?;
    Ok(reply::ok(embedding::body(&model, call.base64, &answer)?))
}

#[utoipa::path(
    post,
    path = "/v1/reranking",
    tag = "OpenAI",
    summary = "Score documents against a query",
    request_body = schema::RerankRequest,
    responses(
        (status = 200, description = "Scores.", body = answers::RerankList),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::Error),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::Error),
    )
)]
async fn rerank(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::rerank(&asked.body)?;
    let (common, work) = (call.common.clone(), Work::Rerank(call.work.clone()));
    let answer = run::gather(asked.one(&app, common, work, 1).await?).await?;
    Ok(reply::ok(rerank_form::body(&call, &answer)))
}
