//! OpenAI's routes (seeds 000 and 004), the same under each prefix.

mod echo;
pub(super) mod listing;
mod media;
pub(super) mod models;
pub(crate) mod render;
pub(super) mod requests;
pub(super) mod schema;
pub(crate) mod translate;

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::{Chat, start::Work};

use self::{
    render::{chat as chat_form, completion as completion_form, embedding, rerank as rerank_form, response},
    schema::{answers, response::ResponseAnswer},
};
use crate::{
    render::{
        error::{self, OpenAiError},
        native::Native,
    },
    translate::{Asked, read::Fields as _},
    web::{
        App,
        access::Access,
        reply::{self, Refusal},
        route::{Dialect, Named, Route},
        run::{self, ClientRequest},
    },
};

/// The routes of OpenAI's API.
pub(super) static DIALECT: Dialect = Dialect {
    name: "OpenAI",
    errors: &error::OPENAI,
    error: Named::of::<OpenAiError<'_>>(),
    routes: || [routes(), media::routes(), models::routes()].concat(),
};

fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/chat/completions", Access::User, chat)
            .also("/chat/completions")
            .summary("Continue a conversation")
            .takes::<requests::ChatBody<'_>>()
            .answers::<answers::ChatAnswer>("The whole answer; with `stream`, server-sent events.")
            .streams()
            .inference_errors(),
        Route::post("/v1/chat/completions/input_tokens", Access::User, chat_tokens)
            .also("/chat/completions/input_tokens")
            .summary("Count the tokens of a conversation's prompt, on a model that is loaded")
            .takes::<requests::ChatPrompt<'_>>()
            .answers::<answers::InputTokens>("The count.")
            .inference_errors(),
        Route::post("/v1/responses/input_tokens", Access::User, response_tokens)
            .also("/responses/input_tokens")
            .summary("Count the tokens of a response's prompt, on a model that is loaded")
            .takes::<requests::ResponsePrompt<'_>>()
            .answers::<answers::InputTokens>("The count.")
            .inference_errors(),
        Route::post("/v1/completions", Access::User, completions)
            .summary("Continue a text")
            .takes::<requests::CompletionBody<'_>>()
            .answers::<answers::CompletionAnswer>("The whole answer; with `stream`, server-sent events.")
            .streams()
            .inference_errors(),
        Route::post("/v1/responses", Access::User, responses)
            .also("/responses")
            .summary("Answer, in items")
            .takes::<requests::ResponseBody<'_>>()
            .answers::<ResponseAnswer>("The whole answer; with `stream`, server-sent events.")
            .streams()
            .inference_errors(),
        Route::post("/v1/embeddings", Access::User, embeddings)
            .summary("Turn texts into vectors")
            .takes::<requests::EmbeddingBody<'_>>()
            .answers::<embedding::EmbeddingList>("Vectors in input order.")
            .inference_errors(),
        Route::post("/v1/reranking", Access::User, rerank)
            .also("/v1/rerank")
            .also("/v1/reranker")
            .summary("Score documents against a query")
            .takes::<requests::RerankBody<'_>>()
            .answers::<rerank_form::RerankList>("Scores.")
            .inference_errors(),
    ]
}

async fn chat(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::chat(&request.body)?;
    let common = app.common(call.asked)?;
    let head = request.head("chatcmpl-", &common);
    let view = call.view;
    let mut verbose = view.verbose.then(|| Native::of(&call.work, Vec::new()));
    let work = Work::Generate(call.work);
    let answers = request.dispatch(&app, common, work, view.choices).await?;
    if let Some(verbose) = &mut verbose {
        verbose.answered_by(app.answerer(&head.model));
    }
    if view.stream {
        return run::stream(answers, chat_form::stream(&head, view, verbose)).await;
    }
    let answer = run::gather(answers).await?;
    Ok(reply::ok(chat_form::body(&head, view, &answer, verbose.as_ref())))
}

async fn chat_tokens(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let prompt = requests::ChatPrompt::body(&request.body)?;
    input_tokens(&app, translate::chat_prompt(prompt)?).await
}

async fn response_tokens(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let prompt = requests::ResponsePrompt::body(&request.body)?;
    input_tokens(&app, translate::response_prompt(prompt)?).await
}

/// Counts the tokens of the prompt that a conversation makes. Loads nothing (gateway/README.md, Autoload).
async fn input_tokens(app: &App, (asked, chat): (Asked, Chat)) -> Result<Response, Refusal> {
    let mut loaded = app.dispatcher.loaded(&app.common(asked)?.model)?;
    let counted = answers::InputTokens {
        object: "response.input_tokens",
        input_tokens: loaded.prompt_tokens(chat).await?,
    };
    Ok(reply::value(StatusCode::OK, &counted))
}

async fn completions(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::completions(&request.body)?;
    let common = app.common(call.asked)?;
    let head = request.head("cmpl-", &common);
    let view = call.view;
    let shown = call.work.first().filter(|_| view.verbose);
    let mut verbose = shown.map(|work| Native::of(work, Vec::new()));
    let work = call.work.into_iter().map(Work::Generate).collect();
    let answers = request
        .dispatch_together(&app, common, work, view.choices)
        .await?;
    let echo = match call.echo {
        Some(prompts) => Some(echo::texts(&app, &head.model, prompts).await?),
        None => None,
    };
    if let Some(verbose) = &mut verbose {
        verbose.answered_by(app.answerer(&head.model));
    }
    if view.stream {
        return run::stream(answers, completion_form::stream(&head, view, echo, verbose)).await;
    }
    let answer = run::gather(answers).await?;
    Ok(reply::ok(completion_form::body(
        &head,
        view,
        echo.as_deref(),
        &answer,
        verbose.as_ref(),
    )))
}

async fn responses(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::responses(&request.body)?;
    let common = app.common(call.asked)?;
    let head = request.head("resp_", &common);
    let (view, work) = (call.view, Work::Generate(call.work));
    let answers = request.dispatch(&app, common, work, 1).await?;
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

async fn embeddings(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::embeddings(&request.body)?;
    let common = app.common(call.asked)?;
    let model = common.model.clone();
    let answers = request.dispatch(&app, common, Work::Embed(call.work), 1).await?;
    let answer = run::gather(answers).await?;
    Ok(reply::ok(embedding::body(&model, call.base64, &answer)?))
}

async fn rerank(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::rerank(&request.body)?;
    let (common, work) = (app.common(call.asked.clone())?, Work::Rerank(call.work.clone()));
    let model = common.model.clone();
    let answer = run::gather(request.dispatch(&app, common, work, 1).await?).await?;
    Ok(reply::ok(rerank_form::body(&model, &call, &answer)))
}
