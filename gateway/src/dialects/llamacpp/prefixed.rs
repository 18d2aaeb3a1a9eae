//! llama.cpp's routes that Lemonade has under the prefixes too (its public `docs/api/llamacpp.md`): `slots`, `slots/{id}`, `tokenize`. Without a
//! model's name they mean the llama.cpp model that was used last.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use muster_core::runtime::Family;
use muster_proto::v1::ModelSummary;

use super::{
    passthrough::{self, SlotsQuery},
    queries,
    requests::{SlotBody, TokenizeBody},
    schema::engine::{LlamaCppSlot, SlotDone},
};
use crate::{
    fleet::table::{Table, is_loaded},
    web::{
        App,
        access::{Access, Caller},
        engine::ModelQuery,
        extract::Query,
        reply::Refusal,
        route::Route,
        run::ClientRequest,
    },
};

/// The id of the loaded llama.cpp model that was used last.
fn recent(table: &Table) -> Option<String> {
    let used = |summary: &&Arc<ModelSummary>| {
        let at = summary.last_used.unwrap_or_default();
        (at.seconds, at.nanos)
    };
    let loaded = table.models().filter(|summary| is_loaded(summary));
    let llama = loaded.filter(|summary| Family::of(&summary.runtime).is_llama_cpp());
    llama.max_by_key(used).map(|summary| summary.id.clone())
}

fn or_recent(named: Option<String>, app: &App) -> Option<String> {
    let named = named.filter(|name| !name.is_empty());
    named.or_else(|| recent(&app.dispatcher.fleet.table()))
}

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/v1/slots", Access::User, slots)
            .summary("As `/slots`, of the llama.cpp model used last unless one is named")
            .query::<String>("model", "Id in the catalogue.")
            .query::<String>("instance", "One of several replicas.")
            .query::<String>("fail_on_no_slot", "503 where none is free.")
            .answers_list::<LlamaCppSlot>("Each of them, in order.")
            .refuses("The model is not loaded.")
            .fails("501 where it is switched off; 503 where none is free."),
        Route::post("/v1/slots/{id}", Access::Admin, slot)
            .summary("As `/slots/{id}`, of the llama.cpp model used last unless one is named")
            .part::<u32>("id", "Number of the sequence, from 0.")
            .needs_query::<String>("action", "`save`, `restore` or `erase`.")
            .query::<String>("model", "Id in the catalogue.")
            .query::<String>("instance", "One of several replicas.")
            .takes::<SlotBody>()
            .answers::<SlotDone>("What was done.")
            .refuses("The request is wrong, or the model is not loaded.")
            .fails("501 where it is switched off or the runtime cannot."),
        Route::post("/v1/tokenize", Access::User, tokenize)
            .summary("As `/tokenize`, on the llama.cpp model used last unless one is named")
            .takes::<TokenizeBody>()
            .answers::<queries::Tokens>("`tokens`.")
            .refuses("The request is wrong, or the model is not loaded."),
    ]
}

async fn slots(
    State(app): State<Arc<App>>,
    caller: Extension<Caller>,
    Query(mut query): Query<SlotsQuery>,
) -> Result<Response, Refusal> {
    query.engine.model = or_recent(query.engine.model, &app);
    passthrough::slots(State(app), caller, Query(query)).await
}

async fn slot(
    State(app): State<Arc<App>>,
    caller: Extension<Caller>,
    id: Result<Path<u32>, PathRejection>,
    Query(mut query): Query<SlotsQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    query.engine.model = or_recent(query.engine.model, &app);
    passthrough::slot(State(app), caller, id, Query(query), request).await
}

async fn tokenize(
    State(app): State<Arc<App>>,
    Query(query): Query<ModelQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let model = or_recent(query.model, &app);
    queries::tokenize(State(app), Query(ModelQuery { model }), request).await
}
