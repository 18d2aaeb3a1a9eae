//! A row of the Runtime Admin API: a model, its definition and its live state (seed 001). Listing, load and unload answer with this type.

use muster_core::{Runtime, runtime::Family};
use muster_proto::v1::{
    EstimateSource, InstanceState, InstanceStatus, Model, ModelSettings, ModelStatus, ModelType, Reservation,
};
use serde::Serialize;
use serde_json::{Map, Value, value::RawValue};
use utoipa::ToSchema;

use super::{
    definition::{definition, target_inflight},
    tables,
};
use crate::translate::gemma::is_single_turn;

/// A model with its definition and its live state.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminModel)]
pub(super) struct Row {
    /// Id in the catalogue.
    pub(super) name: String,
    /// Name of the runtime that hosts it.
    resolved_backend: String,
    /// Whether it is loaded at start, as configured.
    configured_enabled: bool,
    /// `unloaded` (may be loaded), `loading`, `loaded` (takes requests), `unloading` (takes no new requests, finishes running ones) or
    /// `failed` (see `last_error`; may be loaded again).
    pub(super) runtime_state: &'static str,
    /// Whether it takes requests.
    pub(super) is_loaded: bool,
    /// Number of replicas loaded or loading; if there are none, as configured.
    replicas: u32,
    /// Largest number of replicas that a load may ask for.
    replica_max: u32,
    /// Number of replicas that take requests.
    loaded_replicas: u32,
    /// Number of requests accepted and not finished.
    inflight_requests: u32,
    /// Number of accepted requests that wait.
    queue_depth: u32,
    /// Number of accepted requests that run.
    runtime_inflight: u32,
    /// Number of requests that may run at once per replica, as configured.
    configured_target_inflight: u32,
    /// Number of requests that can really run at once per replica.
    effective_target_inflight: u32,
    /// Why the last load failed; null once another load begins.
    last_error: Option<String>,
    /// Code of the last error. Not in seed 001.
    last_error_code: Option<String>,
    #[serde(flatten)]
    pub(super) vram: Vram,
    /// The settings that one load may set, with their bounds, for a user interface; the same for all models of a backend.
    #[schema(value_type = Object)]
    load_constraints: &'static RawValue,
    /// Presets for a user interface to offer first; the same for all models of a backend.
    #[schema(value_type = Object)]
    load_recommendations: &'static RawValue,
    /// Settings that the current load set over the definition. A null value is a setting too.
    #[schema(value_type = Object)]
    load_override: Map<String, Value>,
    /// What requests may contain.
    capabilities: Capabilities,
    /// The configured settings under the backend's names.
    #[schema(value_type = Object)]
    definition: Map<String, Value>,
    /// Models that this load unloaded to make room. Not in seed 001.
    evicted: Vec<String>,
    /// Whether its files are present. Not in seed 001.
    downloaded: bool,
    /// Whether policy never evicts it. Not in seed 001.
    pinned: bool,
}

/// Memory that a model takes or would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct Vram {
    /// Memory of all replicas together, in MiB; null if unknown.
    vram_estimate_mib: Option<u64>,
    /// Number of replicas that the estimate is for.
    vram_estimate_replica_count: u32,
    /// `observed_load_delta`, `model_artifact_size` or `unavailable`.
    vram_estimate_source: &'static str,
    /// How the figure was found: `observed`, `computed`, `artifact`, `configured` or `unavailable`. Not in seed 001.
    vram_estimate_method: &'static str,
}

/// What requests to a model may contain.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
struct Capabilities {
    /// Kinds of input: `text`, `image`.
    modalities: Vec<&'static str>,
    /// Whether conversations may have several turns.
    multi_turn: bool,
    /// Allowed values of a request's `thinking`.
    thinking_modes: Vec<&'static str>,
}

/// A model and its memory, as `gpu-memory` lists it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AdminModelMemory)]
pub(super) struct Memory {
    /// Id in the catalogue.
    name: String,
    /// As in the listing: `unloaded`, `loading`, `loaded`, `unloading` or `failed`.
    runtime_state: &'static str,
    /// Whether it takes requests.
    is_loaded: bool,
    /// Number of requests that may run at once per replica, as configured.
    configured_target_inflight: u32,
    /// Number of requests that can really run at once per replica.
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
    /// The row of a model in its current state; `evicted` are models unloaded to make room for it.
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
        let configured = target_inflight(&model.runtime, &settings);
        let effective = live
            .iter()
            .map(|one| one.target_inflight)
            .find(|target| *target > 0);
        let family = Family::of(&model.runtime);
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
            load_constraints: tables::constraints(family),
            load_recommendations: tables::recommendations(family),
            load_override: load_override(&live),
            capabilities: Capabilities::new(model, &settings, &live),
            definition: definition(model),
            evicted,
            downloaded: model.downloaded,
            pinned: model.pinned,
        }
    }
}

/// The largest number of replicas that a load may ask for.
pub(super) fn replica_max(model: &Model) -> u32 {
    model.replica_max.max(1)
}

/// The instances that are loaded or loading.
fn live(model: &Model) -> Vec<&InstanceStatus> {
    let statuses = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref());
    let over = |one: &&InstanceStatus| matches!(one.state(), InstanceState::Gone | InstanceState::Failed);
    statuses.filter(|one| !over(one)).collect()
}

/// The settings that the load of the live instances set over the definition; empty if none is live.
fn load_override(live: &[&InstanceStatus]) -> Map<String, Value> {
    let mut settings = live.iter().filter_map(|one| one.spec.as_ref()?.settings.as_ref());
    let json = settings
        .next()
        .map_or("", |settings| settings.load_override_json.as_str());
    serde_json::from_str(json).unwrap_or_default()
}

/// Seed 001's word for a state.
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
    /// The memory of the live instances, or what a load would take. The list of sources is closed (gateway/README.md, Runtime Admin API): a
    /// figure that was neither observed nor derived from files counts as `unavailable`.
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

/// Bytes of all instances on all devices: measured, else reserved. None unless one of the two is known for each instance.
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
    /// Abilities of a live instance, or else what is known without one (gateway/README.md, Runtime Admin API: rows of unloaded models have
    /// them too).
    fn new(model: &Model, settings: &ModelSettings, live: &[&InstanceStatus]) -> Self {
        let loaded = live.iter().find_map(|one| one.capabilities.as_ref());
        let vision = match loaded {
            Some(can) => can.vision,
            None => !settings.mmproj.is_empty() || model.labels.iter().any(|label| label == "vision"),
        };
        let runtime = model.runtime.parse::<Runtime>();
        let chats = runtime.is_ok_and(|runtime| runtime.facts().chats);
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
mod tests;
