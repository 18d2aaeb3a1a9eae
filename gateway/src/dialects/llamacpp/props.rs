//! Properties (seed 004, `/props`) and slots, as llama.cpp shows them, out of what an engine of another kind describes.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use muster_core::Code;
use muster_proto::v1::{
    Capabilities, EngineDescription, ModelStatus, ModelSummary, SequencePhase, SequenceState,
};
use serde_json::{Map, Value, json};

use super::{router, schema::engine::Props};
use crate::render::settings::{generation_settings, put_speculation};
use crate::translate::prompt_media::MARKER;
use crate::web::{
    App,
    access::{Access, Caller},
    engine::{Engine, EngineQuery},
    extract::Query,
    reply::{self, Refusal},
    route::Route,
    run::ClientRequest,
};

/// Largest description of a `llama-server` that is read, in bytes: most of it is the chat template.
const LONGEST: usize = 4 << 20;

/// Whether a sequence serves a request.
pub(super) fn is_busy(sequence: &SequenceState) -> bool {
    match sequence.phase() {
        SequencePhase::Idle => false,
        SequencePhase::Prefill
        | SequencePhase::Decode
        | SequencePhase::Blocked
        | SequencePhase::Unspecified => true,
    }
}

/// The sequences as llama.cpp's slots, with the settings of what runs on them; else those of a request that says nothing. Of what is not the
/// caller's to see only whether it is busy.
pub(super) fn slots(description: &EngineDescription, caller: &Caller) -> Vec<Value> {
    let seen = |sequence: &SequenceState| {
        if caller.oversees || (is_busy(sequence) && sequence.owner == caller.key) {
            return slot(description, sequence);
        }
        let hidden = SequenceState {
            id: sequence.id,
            phase: sequence.phase,
            ..SequenceState::default()
        };
        slot(description, &hidden)
    };
    description.sequences.iter().map(seen).collect()
}

fn slot(description: &EngineDescription, sequence: &SequenceState) -> Value {
    let busy = is_busy(sequence);
    let can = description.capabilities.as_ref();
    let speculation = can.map_or("", |can| can.speculation.as_str());
    let mut params = generation_settings(
        &sequence.request.clone().unwrap_or_default(),
        &description.sampling.clone().unwrap_or_default(),
    );
    put_speculation(&mut params, speculation);
    json!({
        "id": sequence.id,
        "id_task": if busy { json!(sequence.handle) } else { json!(-1) },
        "n_ctx": can.map_or(0, |can| can.context_length),
        "speculative": !speculation.is_empty(),
        "is_processing": busy,
        "n_prompt_tokens": sequence.prompt_tokens,
        "n_prompt_tokens_processed": sequence.prompt_tokens.saturating_sub(sequence.cached_tokens),
        "n_prompt_tokens_cache": sequence.cached_tokens,
        "params": params,
        // Nobody's prompt is shown to others.
        "prompt": "",
        "next_token": {
            "has_next_token": busy,
            "has_new_line": false,
            "n_remain": -1,
            "n_decoded": sequence.generated,
            "stopping_word": "",
        },
    })
}

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/props", Access::Open, get)
            .summary("Properties of a model that is loaded; of the router, where there are several and none is named")
            .names_engine()
            .answers::<Props>("As llama.cpp shows them.")
            .refuses("The model is not loaded.")
            .fails("The engine did not answer."),
        Route::post("/props", Access::Admin, set)
            .summary(
                "Change properties; llama.cpp knows none yet. Off unless its `llamacpp_args` say `--props`",
            )
            .names_engine()
            .takes_anything("Nothing of it is read.")
            .answers::<router::Done>("Nothing was changed.")
            .refuses("The model is not loaded.")
            .fails("501 where it is switched off."),
    ]
}

/// What a loaded model's engine is set to. Where no model is named and there are several, what the router is set to, beside those of the only loaded
/// model if there is one. The only model is also shown while it is not loaded: llama.cpp's server does not wake up for this.
async fn get(State(app): State<Arc<App>>, Query(query): Query<EngineQuery>) -> Result<Response, Refusal> {
    let unnamed = query.model.as_ref().is_none_or(String::is_empty);
    let (meant, several) = {
        let table = app.dispatcher.fleet.table();
        let meant = table.meant(None).ok();
        let meant = meant.and_then(|name| table.model(&name).cloned());
        (meant.filter(|_| unnamed), table.models().nth(1).is_some())
    };
    let router = if unnamed && several {
        router::props(&app).await
    } else {
        Map::new()
    };
    let mut shown = match &meant {
        None if unnamed && several => Map::new(),
        Some(summary) if summary.status() == ModelStatus::Unloaded => asleep(summary),
        Some(_) | None => of_engine(query.engine(&app)?).await?,
    };
    for (key, value) in router {
        shown.entry(key).or_insert(value);
    }
    Ok(reply::value(StatusCode::OK, &shown))
}

/// What an engine says of itself, and what our own engine's description comes to.
async fn of_engine(mut engine: Engine) -> Result<Map<String, Value>, Refusal> {
    if engine.speaks_http() {
        let answer = engine.forward(Method::GET, "/props", Bytes::new()).await?;
        let body = axum::body::to_bytes(answer.into_body(), LONGEST).await;
        let read = body.ok().and_then(|body| serde_json::from_slice(&body).ok());
        let wrong = || Code::RuntimeError.error("the engine did not answer with its properties");
        let mut shown: Map<String, Value> = read.ok_or_else(wrong)?;
        // Its own is the worker's to write: nobody's text may stand for an image.
        shown.insert("media_marker".to_owned(), MARKER.into());
        return Ok(shown);
    }
    let description = engine.describe().await?;
    let can = description.capabilities.clone().unwrap_or_default();
    let on = |flag: &str| {
        let settings = description.settings.as_ref();
        settings.is_some_and(|settings| settings.args.iter().any(|word| word == flag))
    };
    let of_engine = json!({
        "total_slots": description.sequences.len(),
        "model_ftype": can.file_type,
        "modalities": {"vision": can.vision, "video": false, "audio": can.audio},
        "endpoint_slots": on("--slots"),
        "endpoint_props": on("--props"),
        "endpoint_metrics": on("--metrics"),
        "chat_template": description.chat_template,
        "chat_template_caps": description.chat_template_caps,
        "bos_token": description.bos_token,
        "eos_token": description.eos_token,
        "build_info": description.engine,
        "is_sleeping": false,
    });
    let mut shown = of_model(&engine.summary, &description);
    shown.extend(of_engine.as_object().cloned().unwrap_or_default());
    Ok(shown)
}

/// A model that is not loaded and would be for the next request, as llama.cpp shows one that sleeps.
fn asleep(summary: &ModelSummary) -> Map<String, Value> {
    let description = EngineDescription {
        capabilities: Some(Capabilities {
            context_length: summary.ctx_size,
            ..Capabilities::default()
        }),
        ..EngineDescription::default()
    };
    let mut shown = of_model(summary, &description);
    shown.insert("is_sleeping".to_owned(), true.into());
    shown
}

/// What is known of a model whether it is loaded or not.
fn of_model(summary: &ModelSummary, description: &EngineDescription) -> Map<String, Value> {
    let idle = SequenceState {
        phase: SequencePhase::Idle.into(),
        ..SequenceState::default()
    };
    let shown = json!({
        "default_generation_settings": slot(description, &idle),
        "model_alias": summary.id,
        "model_path": summary.checkpoint,
        // Of a model that takes images.
        "media_marker": MARKER,
        "ui": false,
        "ui_settings": {},
        "cors_proxy_enabled": false,
    });
    shown.as_object().cloned().unwrap_or_default()
}

/// Changes nothing yet, as llama.cpp's own (seed 004: "Options: none yet").
async fn set(
    State(app): State<Arc<App>>,
    Query(query): Query<EngineQuery>,
    _body: ClientRequest,
) -> Result<Response, Refusal> {
    query
        .engine(&app)?
        .switched_on("props endpoint", "--props")
        .await?;
    Ok(reply::value(StatusCode::OK, &router::DONE))
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{GenerateRequest, Sampling};

    use super::*;

    #[test]
    fn a_slot_shows_the_models_own_defaults_and_what_its_request_says() {
        let busy = SequenceState {
            phase: SequencePhase::Decode.into(),
            request: Some(GenerateRequest {
                sampling: Some(Sampling {
                    top_k: Some(3),
                    seed: Some(-1),
                    ..Sampling::default()
                }),
                ..GenerateRequest::default()
            }),
            ..SequenceState::default()
        };
        let description = EngineDescription {
            sampling: Some(Sampling {
                temperature: Some(0.5),
                top_k: Some(20),
                ..Sampling::default()
            }),
            ..EngineDescription::default()
        };
        let busy = &slot(&description, &busy)["params"];
        assert_eq!((&busy["temperature"], &busy["top_k"]), (&json!(0.5), &json!(3)));
        assert_eq!((&busy["seed"], &busy["mirostat"]), (&json!(u32::MAX), &json!(0)));
        let idle = &slot(&description, &SequenceState::default())["params"];
        assert_eq!((&idle["temperature"], &idle["top_k"]), (&json!(0.5), &json!(20)));
    }

    /// Issue 10, 3.13: `/slots` showed everybody the grammar, stops and schema of others.
    #[test]
    fn a_slot_shows_a_user_only_what_is_his() {
        let busy = |id, owner: &str| SequenceState {
            id,
            phase: SequencePhase::Decode.into(),
            cached_tokens: 7,
            prompt_tokens: 9,
            generated: 3,
            handle: 11,
            owner: owner.into(),
            request: Some(GenerateRequest {
                stop: vec!["secret".into()],
                ..GenerateRequest::default()
            }),
        };
        let idle = SequenceState {
            id: 2,
            phase: SequencePhase::Idle.into(),
            cached_tokens: 99,
            ..SequenceState::default()
        };
        let description = EngineDescription {
            sequences: vec![busy(0, "a"), busy(1, "b"), idle],
            ..EngineDescription::default()
        };
        let shown = |key: &str, oversees| {
            let caller = Caller {
                key: key.into(),
                oversees,
                ..Caller::default()
            };
            slots(&description, &caller)
        };
        let of_a = shown("a", false);
        assert!(of_a[0].to_string().contains("secret"));
        assert!(!of_a[1].to_string().contains("secret"), "{}", of_a[1]);
        assert_eq!(of_a[1]["is_processing"], true);
        for (slot, field) in [
            (1, "n_prompt_tokens"),
            (1, "n_prompt_tokens_cache"),
            (2, "n_prompt_tokens_cache"),
        ] {
            assert_eq!(of_a[slot][field], 0, "{slot} {field}");
        }
        let all = shown("", true);
        assert!(all[1].to_string().contains("secret"));
        assert_eq!(all[2]["n_prompt_tokens_cache"], 99);
    }
}
