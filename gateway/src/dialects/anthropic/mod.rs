//! Anthropic's Messages, under the same prefixes as OpenAI's routes (Anthropic API reference, version 2023-06-01).

pub(crate) mod render;
mod schema;
pub(crate) mod translate;

use std::sync::Arc;

use axum::{Router, extract::State, response::Response, routing::post};
use http::StatusCode;
use muster_proto::v1::{ApplyTemplateCall, Prompt, PromptPiece, TokenizeCall, prompt_piece, start::Work};
use serde_json::json;
use utoipa::OpenApi;

use self::schema::{CountAnswer, MessageAnswer, MessageError, MessageRequest};

use crate::{
    openapi::schema::StreamEvent,
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
#[openapi(paths(messages, count_tokens))]
pub(super) struct Doc;

/// The routes under each of the prefixes.
pub(super) fn routes(app: &Arc<App>) -> Router<Arc<App>> {
    let user = Router::new()
        .route("/messages", post(messages))
        .route("/messages/count_tokens", post(count_tokens));
    surface(app, Access::User, Form::Anthropic, user)
}

#[utoipa::path(
    post,
    path = "/v1/messages",
    tag = "Anthropic",
    summary = "Answer with a message",
    request_body = MessageRequest,
    responses(
        (status = 200, description = "The whole answer; with `stream`, server-sent events.", content(
            (MessageAnswer = "application/json"),
            (StreamEvent = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = MessageError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = MessageError),
    )
)]
async fn messages(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::messages(&asked.body)?;
    let head = asked.head("msg_", &call.common);
    let work = Work::Generate(call.work);
    let answers = asked.one(&app, call.common, work, 1).await?;
    if call.stream {
        return run::stream(answers, render::stream(head)).await;
    }
    Ok(reply::ok(render::body(&head, run::gather(answers).await?)))
}

/// The prompt that the messages would make, in tokens. Loads nothing (gateway/README.md, Autoload).
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    tag = "Anthropic",
    summary = "Count the tokens of a prompt, on a model that is loaded",
    request_body = MessageRequest,
    responses(
        (status = 200, description = "They are counted.", body = CountAnswer),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = MessageError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = MessageError),
    )
)]
async fn count_tokens(State(app): State<Arc<App>>, asked: Asked) -> Result<Response, Refusal> {
    let call = translate::to_count(&asked.body)?;
    let mut loaded = app.dispatcher.loaded(&call.common.model)?;
    let template = ApplyTemplateCall {
        instance: loaded.instance.clone(),
        chat: Some(call.chat),
        ..ApplyTemplateCall::default()
    };
    let prompt = loaded.apply_template(template).await?.prompt;
    let text = PromptPiece {
        kind: Some(prompt_piece::Kind::Text(prompt)),
    };
    let tokenize = TokenizeCall {
        instance: loaded.instance.clone(),
        content: Some(Prompt {
            pieces: vec![text],
            add_special: None,
        }),
        add_special: true,
        parse_special: true,
        ..TokenizeCall::default()
    };
    let tokens = loaded.tokenize(tokenize).await?.tokens.len();
    Ok(reply::value(StatusCode::OK, &json!({"input_tokens": tokens})))
}
