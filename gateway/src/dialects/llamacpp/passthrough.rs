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
use muster_core::Error;
use muster_proto::{
    llamacpp::SLOT_FILES,
    v1::{LoraAdapter, SlotActionCall, SlotActionResult, SlotErase, slot_action_call::Action},
};
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
            .summary("Save, restore or erase a sequence's cache; off unless the model's `llamacpp_args` say `--slot-save-path FOLDER`")
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
    Extension(caller): Extension<Caller>,
    id: Result<Path<u32>, PathRejection>,
    Query(query): Query<SlotsQuery>,
    request: ClientRequest,
) -> Result<Response, Refusal> {
    let Path(id) = id.map_err(|_| object::invalid("id", "must be the number of a slot"))?;
    let name = || -> Result<String, Error> {
        let file = SlotBody::body(&request.body)?.filename;
        Ok(file.ok_or_else(|| object::invalid("filename", "is required"))?.0)
    };
    let (word, action) = match query.action.as_deref() {
        Some("save") => ("save", Action::Save(name()?)),
        Some("restore") => ("restore", Action::Restore(name()?)),
        Some("erase") => ("erase", Action::Erase(SlotErase {})),
        Some(_) | None => return Err(object::invalid("action", "must be save, restore or erase").into()),
    };
    let mut engine = query.engine.engine(&app)?;
    engine.switched_on("slots action", SLOT_FILES).await?;
    if engine.speaks_http() {
        let path = format!("/slots/{id}?action={word}");
        return engine.forward(Method::POST, &path, request.body).await;
    }
    let call = SlotActionCall {
        id_slot: id,
        action: Some(action.clone()),
        fairness_key: caller.key,
        private_prefixes: app.dispatcher.private_prefixes,
        ..SlotActionCall::default()
    };
    let done = engine.slot_action(call).await?;
    Ok(reply::value(StatusCode::OK, &slot_done(id, action, &done)))
}

/// llama.cpp's answer.
fn slot_done(id: u32, action: Action, done: &SlotActionResult) -> Value {
    let SlotActionResult {
        tokens,
        bytes,
        elapsed_ms,
    } = done;
    match action {
        Action::Save(filename) => json!({
            "id_slot": id, "filename": filename, "n_saved": tokens, "n_written": bytes,
            "timings": {"save_ms": elapsed_ms},
        }),
        Action::Restore(filename) => json!({
            "id_slot": id, "filename": filename, "n_restored": tokens, "n_read": bytes,
            "timings": {"restore_ms": elapsed_ms},
        }),
        Action::Erase(SlotErase {}) => json!({"id_slot": id, "n_erased": tokens}),
    }
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
