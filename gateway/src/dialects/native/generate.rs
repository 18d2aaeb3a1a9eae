//! Handlers of llama.cpp's own completions (seed 004).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use muster_proto::v1::{ErrorInfo, start::Work};

use super::{
    completion::{self, Call},
    schema,
    which::{Asking, Which},
};
use crate::{
    routes::{
        App,
        reply::{self, Refusal},
        run::{self, Asked},
    },
    translate::{
        Common,
        object::{self, Object},
    },
};

#[utoipa::path(
    post,
    path = "/completion",
    tag = "llama.cpp",
    summary = "Continue a text, in llama.cpp's own form",
    request_body = schema::NativeCompletionRequest,
    responses(
        (status = 200, description = "The whole answer; with `stream`, server-sent events.", content(
            (schema::NativeCompletion = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::NativeError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::NativeError),
    )
)]
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    Asking(which): Asking<Which>,
    asked: Asked,
) -> Result<Response, Refusal> {
    generate(&app, which, &asked, completion::completion).await
}

#[utoipa::path(
    post,
    path = "/infill",
    tag = "llama.cpp",
    summary = "Fill a gap in a text",
    request_body = schema::NativeInfillRequest,
    responses(
        (status = 200, description = "The whole answer; with `stream`, server-sent events.", content(
            (schema::NativeCompletion = "application/json"),
            (String = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::NativeError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::NativeError),
    )
)]
pub(super) async fn infill(
    State(app): State<Arc<App>>,
    Asking(which): Asking<Which>,
    asked: Asked,
) -> Result<Response, Refusal> {
    generate(&app, which, &asked, completion::infill).await
}

async fn generate(
    app: &App,
    which: Which,
    asked: &Asked,
    read: impl FnOnce(Object<'_>, String) -> Result<Call, ErrorInfo>,
) -> Result<Response, Refusal> {
    let mut body = Object::body(object::text(&asked.body)?)?;
    let model = which.model(&app.dispatcher.fleet.table(), Some(&mut body))?;
    let common = Common {
        model: model.clone(),
        ..Common::default()
    };
    let Call {
        view,
        work,
        mut shape,
    } = read(body, model.clone())?;
    let work = work.into_iter().map(Work::Generate).collect();
    let answers = asked.all(app, common, work, 1).await?;
    // It is loaded now, so the table knows what it was loaded with.
    if let Some(summary) = app.dispatcher.fleet.table().model(&model) {
        shape.context(summary.ctx_size);
    }
    if view.stream {
        return run::stream(answers, completion::stream(shape, view)).await;
    }
    let answer = run::gather(answers).await?;
    let object = completion::body(&shape, view, &answer);
    Ok(reply::ok(completion::bytes(&object)))
}
