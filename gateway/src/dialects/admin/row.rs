//! A row of the admin API: one model, its definition and its live state (seed 001). Listing, load and unload answer with the same type.

use muster_proto::{
    overrides::Backend,
    v1::{
        EstimateSource, InstanceState, InstanceStatus, Model, ModelSettings, ModelStatus, ModelType,
        Reservation,
    },
};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use super::{
    definition::{definition, target_inflight},
    tables,
};
use crate::dispatch::translation::is_single_turn;

/// One model: its definition and its live state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminModel)]
pub(super) struct Row {
    /// Id in the catalogue.
    pub(super) name: String,
    /// The runtime that hosts it.
    resolved_backend: String,
    /// Loaded at start, as configured.
    configured_enabled: bool,
    /// `unloaded` (may be loaded), `loading`, `loaded` (takes requests), `unloading` (takes none, finishes what runs) or `failed` (the last load
    /// failed, see `last_error`; may be loaded again).
    pub(super) runtime_state: &'static str,
    /// It takes requests.
    pub(super) is_loaded: bool,
    /// Replicas there are or are coming; while there are none, as configured.
    replicas: u32,
    /// Most replicas that a load may ask for.
    replica_max: u32,
    /// Replicas that take requests.
    loaded_replicas: u32,
    /// Accepted and unfinished.
    inflight_requests: u32,
    /// Of those, the ones that wait.
    queue_depth: u32,
    /// Of those, the ones that run.
    runtime_inflight: u32,
    /// Requests that may run at once per replica, as configured.
    configured_target_inflight: u32,
    /// Requests that do run at once per replica at most.
    effective_target_inflight: u32,
    /// Why the last load failed; gone when the next one begins.
    last_error: Option<String>,
    /// The code of the last error; beyond the seed.
    last_error_code: Option<String>,
    #[serde(flatten)]
    pub(super) vram: Vram,
    /// What one load may set, for controls of a UI; by backend.
    #[schema(value_type = Object)]
    load_constraints: &'static RawValue,
    /// Presets to offer first; by backend.
    #[schema(value_type = Object)]
    load_recommendations: &'static RawValue,
    /// What this load set over the definition; a key with null is set as well.
    #[schema(value_type = Object)]
    load_override: Map<String, Value>,
    capabilities: Capabilities,
    /// What is configured, with the keys of the backend.
    #[schema(value_type = Object)]
    definition: Map<String, Value>,
    /// Models that this load unloaded to make room; beyond the seed.
    evicted: Vec<String>,
    /// Its files are here; beyond the seed.
    downloaded: bool,
    /// Never evicted by policy; beyond the seed.
    pinned: bool,
}

/// What a model takes, or would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Vram {
    /// For all replicas together, in MiB; null if nothing is known.
    vram_estimate_mib: Option<u64>,
    /// Replicas that the estimate is for.
    vram_estimate_replica_count: u32,
    /// `observed_load_delta`, `model_artifact_size` or `unavailable`.
    vram_estimate_source: &'static str,
    /// How the figure was really found; beyond the seed.
    vram_estimate_method: &'static str,
}

/// What a model accepts.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct Capabilities {
    /// Kinds of input: `text`, `image`.
    modalities: Vec<&'static str>,
    /// Conversations of several turns.
    multi_turn: bool,
    /// Values of a request's `thinking`.
    thinking_modes: Vec<&'static str>,
}

/// The columns that `gpu-memory` shows of a row.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminModelMemory)]
pub(super) struct Memory {
    name: String,
    runtime_state: &'static str,
    is_loaded: bool,
    configured_target_inflight: u32,
    effective_target_inflight: u32,
    #[serde(flatten)]
    vram: Vram,
}

impl From<Row> for Memory {
    fn from(row: Row) -> Self {
        Self {
            name: row.name,
            runtime_state: row.runtime_state,
            is_loaded: row.is_loaded,
            configured_target_inflight: row.configured_target_inflight,
            effective_target_inflight: row.effective_target_inflight,
            vram: row.vram,
        }
    }
}

impl Row {
    /// A model as it is now; `evicted` made room for it.
    pub(super) fn new(model: &Model, evicted: Vec<String>) -> Self {
        let status = model.status();
        let live = live(model);
        let settings = model.settings.clone().unwrap_or_default();
        let sum = |figure: fn(&InstanceStatus) -> u32| live.iter().copied().map(figure).sum();
        let (queue_depth, runtime_inflight): (u32, u32) = (sum(|one| one.queued), sum(|one| one.running));
        let replicas = match u32::try_from(live.len()) {
            Ok(0) | Err(_) => model.replicas.max(1),
            Ok(replicas) => replicas,
        };
        let configured = target_inflight(&settings);
        let effective = live
            .iter()
            .map(|one| one.target_inflight)
            .find(|target| *target > 0);
        let backend = Backend::of(&model.runtime);
        let ready = live.iter().filter(|one| one.state() == InstanceState::Ready);
        Self {
            name: model.id.clone(),
            resolved_backend: model.runtime.clone(),
            configured_enabled: model.enabled,
            runtime_state: state(status),
            is_loaded: status == ModelStatus::Loaded,
            replicas,
            replica_max: replica_max(model),
            loaded_replicas: u32::try_from(ready.count()).unwrap_or(u32::MAX),
            inflight_requests: queue_depth.saturating_add(runtime_inflight),
            queue_depth,
            runtime_inflight,
            configured_target_inflight: configured,
            effective_target_inflight: effective.unwrap_or(configured),
            last_error: model.last_error.as_ref().map(|error| error.message.clone()),
            last_error_code: model.last_error.as_ref().map(|error| error.code.clone()),
            vram: Vram::new(model, &live, replicas),
            load_constraints: tables::constraints(backend),
            load_recommendations: tables::recommendations(backend),
            load_override: load_override(&live),
            capabilities: Capabilities::new(model, &settings, &live),
            definition: definition(model),
            evicted,
            downloaded: model.downloaded,
            pinned: model.pinned,
        }
    }
}

/// Most replicas a load may ask for.
pub(super) fn replica_max(model: &Model) -> u32 {
    model.replica_max.max(1)
}

/// The instances that are there or coming.
fn live(model: &Model) -> Vec<&InstanceStatus> {
    let statuses = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref());
    let over = |one: &&InstanceStatus| matches!(one.state(), InstanceState::Gone | InstanceState::Failed);
    statuses.filter(|one| !over(one)).collect()
}

/// What the load of the live instances set; nothing once it is unloaded.
fn load_override(live: &[&InstanceStatus]) -> Map<String, Value> {
    let mut settings = live.iter().filter_map(|one| one.spec.as_ref()?.settings.as_ref());
    let json = settings
        .next()
        .map_or("", |settings| settings.load_override_json.as_str());
    serde_json::from_str(json).unwrap_or_default()
}

/// The seed's five states.
pub(super) const fn state(status: ModelStatus) -> &'static str {
    match status {
        ModelStatus::Unloaded | ModelStatus::Unspecified => "unloaded",
        ModelStatus::Loading => "loading",
        ModelStatus::Loaded => "loaded",
        ModelStatus::Unloading => "unloading",
        ModelStatus::Failed => "failed",
    }
}

impl Vram {
    /// What the live instances take, else what a load would. The list of sources is closed (DECISIONS.md, Runtime Admin API): what is neither
    /// observed nor derived from files is unavailable.
    fn new(model: &Model, live: &[&InstanceStatus], replicas: u32) -> Self {
        let (bytes, source) = taken(live).unwrap_or_else(|| {
            let all = model.estimate_bytes.saturating_mul(replicas.into());
            (all, model.estimate_source())
        });
        let (source, method) = match source {
            EstimateSource::Observed => ("observed_load_delta", "observed"),
            EstimateSource::Computed => ("model_artifact_size", "computed"),
            EstimateSource::Artifact => ("model_artifact_size", "artifact"),
            EstimateSource::Configured => ("unavailable", "configured"),
            EstimateSource::Unavailable | EstimateSource::Unspecified => ("unavailable", "unavailable"),
        };
        Self {
            vram_estimate_mib: (source != "unavailable").then(|| bytes.div_ceil(1 << 20)),
            vram_estimate_replica_count: replicas,
            vram_estimate_source: source,
            vram_estimate_method: method,
        }
    }
}

/// Bytes that instances take over all devices: as observed, else as reserved for them; none unless that is known of each.
fn taken(live: &[&InstanceStatus]) -> Option<(u64, EstimateSource)> {
    let sum = |parts: &[Reservation]| -> Option<u64> {
        (!parts.is_empty()).then(|| parts.iter().map(|part| part.bytes).sum())
    };
    let source = live.first()?.spec.as_ref()?.source();
    let observed: Option<u64> = live.iter().map(|one| sum(&one.observed)).sum();
    let reserved = || -> Option<u64> { live.iter().map(|one| sum(&one.spec.as_ref()?.reservations)).sum() };
    match observed {
        Some(bytes) => Some((bytes, EstimateSource::Observed)),
        None => reserved().map(|bytes| (bytes, source)),
    }
}

impl Capabilities {
    /// From a live instance, else from what is known without one (DECISIONS.md: rows of unloaded models have them too).
    fn new(model: &Model, settings: &ModelSettings, live: &[&InstanceStatus]) -> Self {
        let loaded = live.iter().find_map(|one| one.capabilities.as_ref());
        let vision = match loaded {
            Some(can) => can.vision,
            None => !settings.mmproj.is_empty() || model.labels.iter().any(|label| label == "vision"),
        };
        // Of the runtimes, the seed promises it for these; `stub` stands for any of them in tests.
        let chats = matches!(
            model.runtime.as_str(),
            "llama_cpp" | "llama_server" | "vllm" | "vllm_serve" | "stub"
        );
        Self {
            modalities: if vision {
                vec!["text", "image"]
            } else {
                vec!["text"]
            },
            multi_turn: chats && model.r#type() == ModelType::Llm && !is_single_turn(&model.prompt_format),
            thinking_modes: match model.thinking {
                Some(true) => vec!["default", "enabled", "disabled"],
                Some(false) | None => vec!["default"],
            },
        }
    }
}

#[cfg(test)]
mod tests {
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
        let constraints: Value = serde_json::from_str(tables::constraints(Backend::LlamaCpp).get()).unwrap();
        assert_eq!(row["load_constraints"], constraints);
        assert!(row["load_recommendations"]["gguf_cache_type_pairs"]["notes"].is_array());
    }

    #[test]
    fn seed_001_example_of_a_load_with_overrides() {
        let load = json!({"gguf_n_ctx": 32768, "gguf_flash_attn": "auto", "gguf_type_k": "q8_0", "gguf_type_v": "q4_0"});
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
        let keys =
            |model: &Model| -> Vec<String> { shown(model).as_object().unwrap().keys().cloned().collect() };
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
        model.last_error = Some(muster_proto::Code::ModelLoadFailed.error("no such tensor"));
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
}
