//! Rows against the examples of seed 001.

use muster_core::Code;
use muster_proto::v1::{Instance, InstanceSpec};
use serde_json::json;

use super::*;

/// The model of the seed's examples (seed 001), with some instances; each takes `mib`.
fn example(instances: usize, mib: u64, override_json: &str) -> Model {
    let path = "/home/gunnar/models/google_gemma-4-E2B-it-Q8_0/google_gemma-4-E2B-it-Q8_0.gguf";
    let settings = ModelSettings {
        checkpoint: path.into(),
        ctx_size: 4096,
        target_inflight: 1,
        ..ModelSettings::default()
    };
    let taken = vec![Reservation {
        device_id: "GPU-1".into(),
        bytes: mib << 20,
    }];
    let instance = Instance {
        status: Some(InstanceStatus {
            state: InstanceState::Ready.into(),
            target_inflight: 1,
            spec: Some(InstanceSpec {
                settings: Some(ModelSettings {
                    load_override_json: override_json.into(),
                    ..settings.clone()
                }),
                reservations: taken,
                source: EstimateSource::Artifact.into(),
                ..InstanceSpec::default()
            }),
            ..InstanceStatus::default()
        }),
        ..Instance::default()
    };
    Model {
        id: "google_gemma-4-E2B-it-Q8_0-gguf".into(),
        r#type: ModelType::Llm.into(),
        status: ModelStatus::Loaded.into(),
        runtime: "llama_cpp".into(),
        enabled: true,
        replicas: 3,
        replica_max: 4,
        prompt_format: "gemma4_template".into(),
        instances: vec![instance; instances],
        settings: Some(settings),
        estimate_bytes: 3085 << 20,
        estimate_source: EstimateSource::Observed.into(),
        ..Model::default()
    }
}

fn shown(model: &Model) -> Value {
    serde_json::to_value(Row::new(model, Vec::new())).unwrap()
}

/// All that `expected` has is in `row`, values of objects alike.
#[track_caller]
fn shows(row: &Value, expected: &Value) {
    for (key, value) in expected.as_object().unwrap() {
        match value.as_object().filter(|value| !value.is_empty()) {
            Some(_) => shows(&row[key], value),
            None => assert_eq!(&row[key], value, "{key}"),
        }
    }
}

/// `definition` of the seed's examples.
fn example_definition(enabled: bool) -> Value {
    json!({
        "model_path": "/home/gunnar/models/google_gemma-4-E2B-it-Q8_0/google_gemma-4-E2B-it-Q8_0.gguf",
        "backend": "llama_cpp",
        "prompt_format": "gemma4_template",
        "enabled": enabled,
        "replicas": 3,
        "replica_max": 4,
        "target_inflight": 1,
        "gguf_n_gpu_layers": -1,
        "gguf_n_ctx": 4096,
        "gguf_flash_attn": "auto",
        "gguf_type_k": null,
        "gguf_type_v": null,
    })
}

#[test]
fn seed_001_example_of_a_listed_model() {
    let row = shown(&Model {
        thinking: Some(false),
        ..example(3, 57_200 / 3, "")
    });
    let expected = json!({
        "name": "google_gemma-4-E2B-it-Q8_0-gguf",
        "resolved_backend": "llama_cpp",
        "configured_enabled": true,
        "runtime_state": "loaded",
        "is_loaded": true,
        "replicas": 3,
        "replica_max": 4,
        "loaded_replicas": 3,
        "inflight_requests": 0,
        "queue_depth": 0,
        "runtime_inflight": 0,
        "configured_target_inflight": 1,
        "effective_target_inflight": 1,
        "last_error": null,
        "vram_estimate_mib": 57_198,
        "vram_estimate_replica_count": 3,
        "vram_estimate_source": "model_artifact_size",
        "load_override": {},
        "capabilities": {"modalities": ["text"], "multi_turn": true, "thinking_modes": ["default"]},
        "definition": example_definition(true),
    });
    shows(&row, &expected);
    assert_eq!(row["load_override"], json!({}));
    let constraints: Value = serde_json::from_str(tables::constraints(Family::LlamaCpp).get()).unwrap();
    assert_eq!(row["load_constraints"], constraints);
    assert!(row["load_recommendations"]["gguf_cache_type_pairs"]["notes"].is_array());
}

#[test]
fn seed_001_example_of_a_load_with_overrides() {
    let load =
        json!({"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"});
    let mut model = Model {
        enabled: false,
        ..example(3, 1, &load.to_string())
    };
    for instance in &mut model.instances {
        instance.status.as_mut().unwrap().observed = vec![Reservation {
            device_id: "GPU-1".into(),
            bytes: (12_340 << 20) / 3,
        }];
    }
    let expected = json!({
        "configured_enabled": false,
        "runtime_state": "loaded",
        "is_loaded": true,
        "replicas": 3,
        "loaded_replicas": 3,
        "vram_estimate_mib": 12_340,
        "vram_estimate_replica_count": 3,
        "vram_estimate_source": "observed_load_delta",
        "load_override": load,
        "definition": example_definition(false),
    });
    shows(&shown(&model), &expected);
}

#[test]
fn seed_001_example_of_an_unload() {
    let mut model = Model {
        enabled: false,
        ..example(0, 0, "")
    };
    model.set_status(ModelStatus::Unloaded);
    let expected = json!({
        "runtime_state": "unloaded",
        "is_loaded": false,
        "replicas": 3,
        "replica_max": 4,
        "loaded_replicas": 0,
        "inflight_requests": 0,
        "last_error": null,
        "vram_estimate_mib": 3 * 3085,
        "vram_estimate_replica_count": 3,
        "vram_estimate_source": "observed_load_delta",
        "load_override": {},
        "definition": example_definition(false),
    });
    shows(&shown(&model), &expected);
}

#[test]
fn seed_001_requests_are_counted_over_replicas() {
    let mut model = example(2, 1, "");
    for (instance, queued) in model.instances.iter_mut().zip([0, 2]) {
        let status = instance.status.as_mut().unwrap();
        (status.running, status.queued) = (1, queued);
    }
    let expected = json!({"inflight_requests": 4, "queue_depth": 2, "runtime_inflight": 2});
    shows(&shown(&model), &expected);
}

#[test]
fn seed_001_translategemma_is_single_turn() {
    let mut model = example(0, 0, "");
    for (format, turns) in [
        ("generic", true),
        ("mistral_template", true),
        ("qwen3_template", true),
        ("gemma4_template", true),
        ("translategemma_template", false),
    ] {
        model.prompt_format = format.into();
        assert_eq!(shown(&model)["capabilities"]["multi_turn"], turns, "{format}");
    }
}

#[test]
fn every_row_has_the_same_keys_whatever_its_state() {
    let keys = |model: &Model| -> Vec<String> { shown(model).as_object().unwrap().keys().cloned().collect() };
    let nothing = Model {
        runtime: "vllm".into(),
        ..Model::default()
    };
    assert_eq!(keys(&example(3, 1, "")), keys(&nothing));
}

#[test]
fn seed_001_presence_in_load_override_matters_even_with_null() {
    let mut model = example(3, 1, r#"{"gguf_type_k":null}"#);
    let row = shown(&model);
    assert_eq!(row["load_override"], json!({"gguf_type_k": null}));
    model.instances.clear();
    assert_eq!(shown(&model)["load_override"], json!({}), "it dies with the load");
}

#[test]
fn seed_001_failed_rows_retain_their_error() {
    let mut model = example(0, 0, "");
    model.set_status(ModelStatus::Failed);
    model.last_error = Some(Code::ModelLoadFailed.error("no such tensor").into());
    let row = shown(&model);
    assert_eq!(
        (&row["runtime_state"], &row["is_loaded"]),
        (&json!("failed"), &json!(false))
    );
    assert_eq!(row["last_error"], "no such tensor");
    assert_eq!(row["last_error_code"], "model_load_failed");
}

#[test]
fn the_sources_of_estimates_are_a_closed_list() {
    let vram = |source: EstimateSource| {
        let mut model = Model {
            estimate_bytes: 100 << 20,
            ..example(0, 0, "")
        };
        model.set_estimate_source(source);
        Vram::new(&model, &[], 2)
    };
    assert_eq!(
        vram(EstimateSource::Observed).vram_estimate_source,
        "observed_load_delta"
    );
    assert_eq!(
        vram(EstimateSource::Computed).vram_estimate_source,
        "model_artifact_size"
    );
    assert_eq!(vram(EstimateSource::Computed).vram_estimate_mib, Some(200));
    for source in [EstimateSource::Configured, EstimateSource::Unavailable] {
        let vram = vram(source);
        assert_eq!(
            (vram.vram_estimate_source, vram.vram_estimate_mib),
            ("unavailable", None)
        );
    }
}

#[test]
fn capabilities_are_known_without_a_load() {
    let mut model = Model {
        runtime: "llama_cpp".into(),
        r#type: ModelType::Llm.into(),
        labels: vec!["vision".into()],
        thinking: Some(true),
        ..Model::default()
    };
    let capabilities = shown(&model)["capabilities"].clone();
    assert_eq!(
        capabilities,
        json!({"modalities": ["text", "image"], "multi_turn": true, "thinking_modes": ["default", "enabled", "disabled"]})
    );
    model.set_type(ModelType::Embedding);
    assert_eq!(shown(&model)["capabilities"]["multi_turn"], false);
}
