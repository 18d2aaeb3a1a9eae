//! Catalogue entries, for policy and for people.

use std::collections::BTreeSet;

use muster_core::{DeviceKind, Error, ModelId};
use muster_gguf::Facts;
use muster_policy::{DeviceChoice, ModelSpec, ModelState};
use muster_proto::v1;

use super::{estimate_source, stage};
use crate::{
    catalogue::Entry,
    estimate::{self, Details, Observed, estimate},
};

/// A catalogue entry in policy's form.
pub(crate) fn spec(entry: &Entry, observed: &Observed) -> ModelSpec {
    spec_on(entry, entry.model().device.clone(), observed)
}

/// A catalogue entry for a device that an operator chose.
pub(crate) fn spec_on(entry: &Entry, device: DeviceChoice, observed: &Observed) -> ModelSpec {
    let model = entry.model();
    ModelSpec {
        id: model.id.clone(),
        kind: model.kind,
        runtime: entry.runtime(),
        needs: estimate::needs(entry, &device, observed),
        device,
        spec_hash: entry.spec_hash().clone(),
        pinned: model.pinned,
        idle_ttl: model.idle_ttl,
        replicas: model.replicas,
        workers: entry.workers().clone(),
    }
}

/// Kinds of device that a model may run on, the preferred one first.
pub(crate) fn kinds(entry: &Entry, device: &DeviceChoice) -> &'static [DeviceKind] {
    use DeviceKind::{Cpu, Gpu, Npu, Sim};
    if let DeviceChoice::Kind(kind) = device {
        return match kind {
            Cpu => &[Cpu],
            Gpu => &[Gpu],
            Npu => &[Npu],
            Sim => &[Sim],
        };
    }
    let runtime = entry.runtime().facts();
    // No layer is offloaded: a GPU would be reserved for nothing.
    if runtime.offloads && entry.settings().gpu_layers == Some(0) {
        return &[Cpu, Sim];
    }
    runtime.devices
}

/// A model's status as a message's value, and its error if it failed.
pub(crate) fn state(state: &ModelState) -> (v1::ModelStatus, Option<Error>) {
    match state {
        ModelState::Unloaded => (v1::ModelStatus::Unloaded, None),
        ModelState::Loading => (v1::ModelStatus::Loading, None),
        ModelState::Loaded => (v1::ModelStatus::Loaded, None),
        ModelState::Unloading => (v1::ModelStatus::Unloading, None),
        ModelState::Failed(why) => (v1::ModelStatus::Failed, Some(stage::error(why))),
    }
}

/// The kind of device that a model would go to: the first that some worker has (`present`), or else the preferred one.
pub(crate) fn preferred(entry: &Entry, present: &BTreeSet<DeviceKind>) -> Option<DeviceKind> {
    let wanted = kinds(entry, &entry.model().device);
    let first = wanted.iter().find(|kind| present.contains(kind));
    first.or(wanted.first()).copied()
}

/// A model as the catalogue describes it, with its memory on the kind of device it would go to. The driver adds state and instances.
pub(crate) fn model(entry: &Entry, observed: &Observed, present: &BTreeSet<DeviceKind>) -> v1::Model {
    let model = entry.model();
    let files = entry.files();
    let estimate = preferred(entry, present).map(|kind| estimate(entry, kind, observed));
    let (estimate_bytes, source) = estimate
        .map_or((0, v1::EstimateSource::Unavailable), |(bytes, source)| {
            (bytes.get(), estimate_source(source))
        });
    v1::Model {
        id: model.id.to_string(),
        r#type: v1::ModelType::from(model.kind).into(),
        recipe: model.recipe.clone(),
        runtime: entry.runtime().to_string(),
        checkpoint: model.checkpoint.clone(),
        labels: model.labels.clone(),
        settings: Some(entry.settings().clone()),
        pinned: model.pinned,
        estimate_bytes,
        estimate_source: source.into(),
        created: Some(files.created.into()),
        size_bytes: files.size,
        downloaded: files.present,
        enabled: model.enabled,
        device: model.wanted_device.clone(),
        replicas: model.replicas.get(),
        replica_max: model.replica_max.get(),
        prompt_format: model.prompt_format.clone(),
        autoload: model.autoload,
        options_json: entry.options().to_owned(),
        definition: (!entry.options().is_empty()).then(|| entry.definition().clone()),
        user: model.registered.is_some(),
        hub: model.hub.clone(),
        file: entry.details().and_then(Details::facts).map(file),
        defaults: model.defaults.clone(),
        base: model.base.as_ref().map(ModelId::to_string).unwrap_or_default(),
        ..v1::Model::default()
    }
}

/// What a file's header says, without what is long.
fn file(facts: &Facts) -> v1::FileFacts {
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    v1::FileFacts {
        architecture: facts.architecture.clone(),
        parameters: facts.parameters,
        quantization: facts.quantization.to_owned(),
        train_context_length: number(facts.context),
        embedding_length: number(facts.width),
        vocabulary: number(facts.vocabulary),
        tools: facts.tools,
        ..v1::FileFacts::default()
    }
}

/// Adds what is long: for one model that somebody asks for.
pub(crate) fn whole(model: &mut v1::Model, entry: &Entry) {
    let facts = entry.details().and_then(Details::facts);
    if let (Some(file), Some(facts)) = (model.file.as_mut(), facts) {
        file.metadata = facts.metadata.clone().into_iter().collect();
        file.chat_template.clone_from(&facts.template);
    }
}

/// Whether a loaded engine can switch thinking per request; none while no instance is loaded.
pub(crate) fn engine_thinking(model: &v1::Model) -> Option<bool> {
    let statuses = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref());
    let mut capabilities = statuses.filter_map(|status| status.capabilities.as_ref());
    capabilities.next().map(|capabilities| capabilities.thinking)
}

/// The part of a model's description that gateways need.
pub(crate) fn summary(
    model: v1::Model,
    device_kinds: Vec<String>,
    entry: &Entry,
    (aliases, any_name): (Vec<String>, bool),
) -> v1::ModelSummary {
    let settings = model.settings.clone().unwrap_or_default();
    let statuses = || {
        model
            .instances
            .iter()
            .filter_map(|instance| instance.status.as_ref())
    };
    let engine = engine_thinking(&model);
    v1::ModelSummary {
        thinking: entry.thinking(engine),
        ctx_size: statuses()
            .filter_map(|status| status.capabilities.as_ref())
            .map(|capabilities| capabilities.context_length)
            .find(|length| *length > 0)
            .unwrap_or_else(|| entry.context()),
        queue_limit: if settings.queue_limit == 0 {
            DEFAULT_QUEUE_LIMIT
        } else {
            settings.queue_limit
        },
        backend_urls: statuses()
            .map(|status| status.backend_url.clone())
            .filter(|url| !url.is_empty())
            .collect(),
        id: model.id,
        r#type: model.r#type,
        status: model.status,
        recipe: model.recipe,
        runtime: model.runtime,
        checkpoint: model.checkpoint,
        labels: model.labels,
        created: model.created,
        size_bytes: model.size_bytes,
        downloaded: model.downloaded,
        last_error: model.last_error,
        device_kinds,
        prompt_format: model.prompt_format,
        last_used: model.last_used,
        autoload: model.autoload,
        pinned: model.pinned,
        options_json: model.options_json,
        aliases,
        any_name,
        file: model.file,
        defaults: model.defaults,
        ..v1::ModelSummary::default()
    }
}

/// `ModelSettings.queue_limit` if it is not configured.
const DEFAULT_QUEUE_LIMIT: u32 = 128;

/// The device's kind; none if unknown.
pub(crate) fn kind_of(device: &v1::Device) -> Option<DeviceKind> {
    device.kind().try_into().ok()
}
