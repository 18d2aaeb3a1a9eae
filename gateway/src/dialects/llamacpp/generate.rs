//! Handlers of llama.cpp's own completions (seed 004).

use std::sync::Arc;

use axum::{extract::State, response::Response};
use futures::future::try_join_all;
use muster_core::Error;
use muster_proto::v1::start::Work;

use super::{
    render,
    requests::{CompletionBody, InfillBody},
    schema,
    translate::{self, CompletionCall},
};
use crate::{
    translate::object::{self, Object},
    web::{
        App,
        access::Access,
        engine::ModelQuery,
        extract::Query,
        reply::{self, Refusal},
        route::Route,
        run::{self, ClientRequest},
    },
};

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::post("/completion", Access::User, complete)
            .also("/completions")
            .summary("Continue a text, in llama.cpp's own form")
            .takes::<CompletionBody<'_>>()
            .answers::<schema::LlamaCppCompletions>("The whole answer; with `stream`, server-sent events.")
            .streams()
            .inference_errors(),
        Route::post("/infill", Access::User, infill)
            .summary("Fill a gap in a text")
            .takes::<InfillBody>()
            .answers::<schema::LlamaCppCompletions>("The whole answer; with `stream`, server-sent events.")
            .streams()
            .inference_errors(),
    ]
}

async fn complete(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    generate(&app, query, &request, translate::completion).await
}

async fn infill(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    generate(&app, query, &request, translate::infill).await
}

async fn generate(
    app: &App,
    query: ModelQuery,
    request: &ClientRequest,
    read: impl FnOnce(Object<'_>, ModelQuery) -> Result<CompletionCall, Error>,
) -> Result<Response, Refusal> {
    let body = Object::body(object::text(&request.body)?)?;
    let CompletionCall {
        asked,
        view,
        work,
        mut form,
    } = read(body, query)?;
    let common = app.common(asked)?;
    let model = common.model.clone();
    let work = work.into_iter().map(Work::Generate).collect();
    if view.stream {
        let answers = request.dispatch_together(app, common, work, view.choices).await?;
        form.native.answered_by(app.answerer(&model));
        return run::stream(answers, render::stream(form, view)).await;
    }
    let answers = request.dispatch_each(app, common, work, view.choices).await?;
    form.native.answered_by(app.answerer(&model));
    let answers = try_join_all(answers.into_iter().map(run::gather)).await?;
    let object = render::body(&form, view, &answers);
    Ok(reply::ok(render::bytes(&object)))
}
