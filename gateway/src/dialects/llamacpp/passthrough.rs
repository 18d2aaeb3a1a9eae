//! What an engine shows of itself beside its answers: slots and LoRA adapters (seed 004). A `llama-server` answers for itself; for other
//! runtimes the gateway shows what the engine describes, and refuses the rest as llama.cpp does where it is switched off: 501.
//!
//! These routes load nothing (gateway/README.md, Autoload). With several replicas one must be named: `?instance=`.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use bytes::Bytes;
use http::{Method, StatusCode};
use muster_proto::v1::LoraAdapter;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    error::unavailable,
    props,
    requests::SlotBody,
    router,
    schema::engine::{Adapter, AdapterScale, LlamaCppSlot, SlotDone},
};
use crate::{
    translate::{object, read::Fields as _},
    web::{
        App,
        access::{Access, Caller},
        engine::EngineQuery,
        extract::Query,
        reply::{self, Refusal},
        route::Route,
        run::ClientRequest,
    },
};

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/slots", Access::User, slots)
            .summary("What each sequence of a loaded model does; off unless its `llamacpp_args` say `--slots`")
            .names_engine()
            .query::<String>("fail_on_no_slot", "503 where none is free.")
            .answers_list::<LlamaCppSlot>("Each of them, in order.")
            .refuses("The model is not loaded.")
            .fails("501 where it is switched off; 503 where none is free."),
        Route::post("/slots/{id}", Access::Admin, slot)
            .summary("Save, restore or erase a sequence's cache; only a llama-server with `--slot-save-path` can save and restore")
            .part::<u32>("id", "Number of the sequence, from 0.")
            .needs_query::<String>("action", "`save`, `restore` or `erase`.")
            .names_engine()
            .takes::<SlotBody>()
            .answers::<SlotDone>("What was done.")
            .refuses("The request is wrong, or the model is not loaded.")
            .fails("501 where it is switched off or the runtime cannot."),
        Route::get("/lora-adapters", Access::User, adapters)
            .summary("LoRA adapters of a loaded model and their scales")
            .names_engine()
            .answers_list::<Adapter>("Each of them, in order.")
            .refuses("The model is not loaded.")
            .fails("The engine did not answer."),
        Route::post("/lora-adapters", Access::Admin, set_adapters)
            .summary("Set the scales of LoRA adapters for all requests that name none; a llama-server only")
            .names_engine()
            .takes_list::<AdapterScale>()
            .answers::<router::Done>("They are set, until the model is loaded anew.")
            .refuses("The request is wrong, or the model is not loaded.")
            .fails("501 where the runtime cannot."),
    ]
}

/// A query about sequences.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct SlotsQuery {
    #[serde(flatten)]
    pub(super) engine: EngineQuery,
    action: Option<String>,
    fail_on_no_slot: Option<String>,
}

/// What each sequence does; among several keys, what the caller's own do.
pub(super) async fn slots(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Query(query): Query<SlotsQuery>,
) -> Result<Response, Refusal> {
    let must_be_free = query.fail_on_no_slot.is_some();
    let mut engine = query.engine.engine(&app)?;
    let description = engine.switched_on("slots endpoint", "--slots").await?;
    // A server's own answer shows everybody's.
    if engine.speaks_http() && caller.oversees {
        let query = if must_be_free { "?fail_on_no_slot=1" } else { "" };
        return engine
            .forward(Method::GET, &format!("/slots{query}"), Bytes::new())
            .await;
    }
    if must_be_free && description.sequences.iter().all(props::is_busy) {
        return Ok(unavailable("no slot available"));
    }
    Ok(reply::value(StatusCode::OK, &props::slots(&description, &caller)))
}

/// Saves, restores or erases what a sequence has cached.
pub(super) async fn slot(
    State(app): State<Arc<App>>,
    id: Result<Path<u32>, PathRejection>,
    Query(query): Query<SlotsQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let Path(id) = id.map_err(|_| object::invalid("id", "must be the number of a slot"))?;
    let action = match query.action.as_deref() {
        Some(action @ ("save" | "restore" | "erase")) => action.to_owned(),
        Some(_) | None => return Err(object::invalid("action", "must be save, restore or erase").into()),
    };
    if action != "erase" {
        let file = SlotBody::body(&request.body)?.filename;
        file.ok_or_else(|| object::invalid("filename", "is required"))?;
    }
    let mut engine = query.engine.engine(&app)?;
    engine.switched_on("slots action", "--slot-save-path").await?;
    engine
        .forward(
            Method::POST,
            &format!("/slots/{id}?action={action}"),
            request.body,
        )
        .await
}

/// LoRA adapters.
async fn adapters(
    State(app): State<Arc<App>>,
    Query(query): Query<EngineQuery>,
) -> Result<Response, Refusal> {
    let mut engine = query.engine(&app)?;
    if engine.speaks_http() {
        return engine.forward(Method::GET, "/lora-adapters", Bytes::new()).await;
    }
    let settings = engine.describe().await?.settings.unwrap_or_default();
    let adapter = |(id, adapter): (usize, &LoraAdapter)| json!({"id": id, "path": adapter.path, "scale": adapter.scale});
    let list: Vec<Value> = settings.lora.iter().enumerate().map(adapter).collect();
    Ok(reply::value(StatusCode::OK, &list))
}

/// Sets the scales of LoRA adapters.
async fn set_adapters(
    State(app): State<Arc<App>>,
    Query(query): Query<EngineQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    query
        .engine(&app)?
        .forward(Method::POST, "/lora-adapters", request.body)
        .await
}
