//! Properties (seed 004, `/props`) and slots, as llama.cpp shows them, out of what an engine of another kind describes.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use muster_proto::v1::{EngineDescription, SequencePhase, SequenceState};
use serde_json::{Value, json};

use super::{router, schema::engine::Props, settings::generation_settings};
use crate::web::{
    App,
    access::{Access, Caller},
    engine::EngineQuery,
    extract::Query,
    reply::{self, Refusal},
    route::Route,
    run::ClientRequest,
};

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
    json!({
        "id": sequence.id,
        "id_task": if busy { json!(sequence.handle) } else { json!(-1) },
        "n_ctx": description.capabilities.unwrap_or_default().context_length,
        "speculative": speculative(description),
        "is_processing": busy,
        "n_prompt_tokens": sequence.prompt_tokens,
        "n_prompt_tokens_cache": sequence.cached_tokens,
        "params": generation_settings(
            &sequence.request.clone().unwrap_or_default(),
            &description.sampling.clone().unwrap_or_default(),
        ),
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

fn speculative(description: &EngineDescription) -> bool {
    description
        .settings
        .as_ref()
        .is_some_and(|settings| !settings.draft.is_empty())
}

/// The routes.
pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/props", Access::Open, get)
            .summary("Properties of a model that is loaded")
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

/// What a loaded model's engine is set to.
async fn get(State(app): State<Arc<App>>, Query(query): Query<EngineQuery>) -> Result<Response, Refusal> {
    let mut engine = query.engine(&app)?;
    if engine.speaks_http() {
        return engine.forward(Method::GET, "/props", Bytes::new()).await;
    }
    let description = engine.describe().await?;
    let can = description.capabilities.unwrap_or_default();
    let idle = SequenceState {
        phase: SequencePhase::Idle.into(),
        ..SequenceState::default()
    };
    let body = json!({
        "default_generation_settings": slot(&description, &idle),
        "total_slots": description.sequences.len(),
        "model_alias": engine.summary.id,
        "model_path": engine.summary.checkpoint,
        "modalities": {"vision": can.vision, "audio": can.audio},
        "chat_template": description.chat_template,
        "build_info": description.engine,
    });
    Ok(reply::value(StatusCode::OK, &body))
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
