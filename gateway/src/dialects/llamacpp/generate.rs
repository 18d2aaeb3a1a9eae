//! Handlers of llama.cpp's own completions (seed 004).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use futures::future::try_join_all;
use muster_proto::v1::{ErrorInfo, start::Work};

use super::{
    completion::{self, Call},
    model_query::{ModelQuery, Query},
    schema,
};
use crate::{
    openapi::schema::StreamEvent,
    translate::{
        Common,
        object::{self, Object},
    },
    web::{
        App,
        reply::{self, Refusal},
        run::{self, Asked},
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
            (schema::NativeCompletions = "application/json"),
            (StreamEvent = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::NativeError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::NativeError),
    )
)]
pub(super) async fn complete(
    State(app): State<Arc<App>>,
    Query(which): Query<ModelQuery>,
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
            (schema::NativeCompletions = "application/json"),
            (StreamEvent = "text/event-stream"),
        )),
        (status = "4XX", description = "The request is wrong, refused, or cannot be served now.", body = schema::NativeError),
        (status = "5XX", description = "The model cannot be loaded or failed.", body = schema::NativeError),
    )
)]
pub(super) async fn infill(
    State(app): State<Arc<App>>,
    Query(which): Query<ModelQuery>,
    asked: Asked,
) -> Result<Response, Refusal> {
    generate(&app, which, &asked, completion::infill).await
}

async fn generate(
    app: &App,
    which: ModelQuery,
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
    // Once it is admitted the model is loaded, and the table knows with how much.
    let context = || {
        let table = app.dispatcher.fleet.table();
        table.model(&model).map_or(0, |summary| summary.ctx_size)
    };
    if view.stream {
        let answers = asked.all(app, common, work, 1).await?;
        shape.context(context());
        return run::stream(answers, completion::stream(shape, view)).await;
    }
    let answers = asked.each(app, common, work).await?;
    shape.context(context());
    let answers = try_join_all(answers.into_iter().map(run::gather)).await?;
    let object = completion::body(&shape, view, &answers);
    Ok(reply::ok(completion::bytes(&object)))
}
