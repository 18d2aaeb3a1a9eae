//! Anthropic's Messages, under the same prefixes as OpenAI's routes (Anthropic API reference, version 2023-06-01).

mod error;
pub(crate) mod render;
mod requests;
mod schema;
pub(crate) mod translate;

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use muster_proto::v1::start::Work;
use serde::Serialize;
use utoipa::ToSchema;

use self::{
    requests::{Conversation, MessageBody},
    schema::MessageAnswer,
};
use crate::web::{
    App,
    access::Access,
    reply::{self, Refusal},
    route::{Dialect, Named, Route},
    run::{self, ClientRequest},
};

/// The routes of Anthropic's API.
pub(super) static DIALECT: Dialect = Dialect {
    name: "Anthropic",
    errors: &error::FORM,
    error: Named::of::<error::MessageError<'_>>(),
    routes,
};

fn routes() -> Vec<Route> {
    vec![
        Route::post("/v1/messages", Access::User, messages)
            .summary("Answer with a message")
            .takes::<MessageBody<'_>>()
            .answers::<MessageAnswer>("The whole answer; with `stream`, server-sent events.")
            .streams()
            .inference_errors(),
        Route::post("/v1/messages/count_tokens", Access::User, count_tokens)
            .summary("Count the tokens of a prompt, on a model that is loaded")
            .takes::<Conversation<'_>>()
            .answers::<CountAnswer>("They are counted.")
            .inference_errors(),
    ]
}

async fn messages(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::messages(&request.body)?;
    let common = app.common(call.asked)?;
    let head = request.head("msg_", &common);
    let work = Work::Generate(call.work);
    let answers = request.dispatch(&app, common, work, 1).await?;
    if call.stream {
        return run::stream(answers, render::stream(head)).await;
    }
    Ok(reply::ok(render::body(&head, run::gather(answers).await?)))
}

/// The number of tokens in a prompt.
#[derive(Debug, Serialize, ToSchema)]
struct CountAnswer {
    /// Number of tokens in the prompt made of the messages.
    input_tokens: usize,
}

/// Counts the tokens of the prompt that the messages would make. It does not load the model (gateway/README.md, Autoload).
async fn count_tokens(State(app): State<Arc<App>>, request: ClientRequest) -> Result<Response, Refusal> {
    let call = translate::to_count(&request.body)?;
    let mut loaded = app.dispatcher.loaded(&app.common(call.asked)?.model)?;
    let input_tokens = loaded.prompt_tokens(call.chat).await?;
    Ok(reply::value(StatusCode::OK, &CountAnswer { input_tokens }))
}
