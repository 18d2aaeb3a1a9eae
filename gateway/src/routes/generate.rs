//! `POST chat/completions` and `POST completions`.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{Extension, body::Body, extract::State, response::Response};
use futures::future::try_join_all;
use http::{HeaderMap, StatusCode};
use muster_proto::{
    trace,
    v1::{ErrorInfo, GenerateRequest},
};

use super::{
    App,
    layers::RequestId,
    reply::{self, Refusal},
};
use crate::{
    answers::Answers,
    body::EventBody,
    dispatch::Call,
    render::{
        Collect, Head, Render, chat_body::ChatBody, chat_stream::ChatStream, completion_body::CompletionBody,
        completion_stream::CompletionStream,
    },
    translate::{self, Common, View},
};

pub(super) async fn chat(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = reply::body(body, app.max_body).await?;
    let chat = translate::chat(&body)?;
    let head = head("chatcmpl", &id, &chat.common);
    let answers = answers(&app, chat.common, &id, &headers, vec![chat.work], chat.view).await?;
    if chat.view.stream {
        return stream(answers, ChatStream::new(&head, chat.view)).await;
    }
    collect(answers, ChatBody::new(head, chat.view)).await
}

pub(super) async fn completions(
    State(app): State<Arc<App>>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = reply::body(body, app.max_body).await?;
    let call = translate::completions(&body)?;
    let head = head("cmpl", &id, &call.common);
    let answers = answers(&app, call.common, &id, &headers, call.work, call.view).await?;
    if call.view.stream {
        return stream(
            answers,
            CompletionStream::new(&head, call.view, call.echo.as_deref()),
        )
        .await;
    }
    collect(
        answers,
        CompletionBody::new(head, call.view, call.echo.as_deref()),
    )
    .await
}

fn head(prefix: &str, id: &RequestId, common: &Common) -> Head {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Head {
        id: format!("{prefix}-{}", id.0),
        model: common.model.clone(),
        created: now.as_secs(),
    }
}

/// Dispatches all pieces of work at once; one refusal is everyone's.
async fn answers(
    app: &App,
    common: Common,
    id: &RequestId,
    headers: &HeaderMap,
    work: Vec<GenerateRequest>,
    view: View,
) -> Result<Answers, ErrorInfo> {
    let call = Call {
        common,
        request_id: id.0.clone(),
        trace: trace::from_headers(headers),
    };
    if let [work] = work.as_slice() {
        let admitted = app.dispatcher.dispatch(&call, work).await?;
        return Ok(Answers::new(vec![admitted], view.choices));
    }
    let calls = (0..work.len()).map(|index| Call {
        request_id: format!("{}-{index}", id.0),
        ..call.clone()
    });
    let calls: Vec<_> = calls.collect();
    let parts = try_join_all(
        calls
            .iter()
            .zip(&work)
            .map(|(call, work)| app.dispatcher.dispatch(call, work)),
    )
    .await?;
    Ok(Answers::new(parts, view.choices))
}

/// Headers wait for the first event, so that an error before it is a plain status.
async fn stream<R: Render + Unpin + Send + 'static>(
    mut answers: Answers,
    render: R,
) -> Result<Response, Refusal> {
    let events = answers.first().await?;
    Ok(reply::events(EventBody::new(answers, events, render)))
}

async fn collect<C: Collect>(mut answers: Answers, mut collect: C) -> Result<Response, Refusal> {
    loop {
        for event in answers.first().await? {
            if collect.event(event)? {
                return Ok(reply::json(StatusCode::OK, collect.finish()));
            }
        }
    }
}
