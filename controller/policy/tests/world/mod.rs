//! A simulated fleet: workers that carry commands out, late or never. They keep the truth; the checks here are about it, not about what policy
//! believes. The rules of policy are tested with it one by one (`tests/policy`), and whole histories through the controller's driver
//! (`controller/src/rig`): there is one definition of a simulated worker.

mod truth;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

use muster_core::{
    Bytes, DeviceId, DeviceKind, HostId, InstanceId, ModelId, ModelType, Runtime, SpecHash, WorkerId,
};
use muster_policy::{
    Command, Config, DeviceChoice, DeviceFacts, Effect, EstimateSource, Event, Exclusivity, IdleTtl, Limit,
    Limits, ModelSpec, Moment, Need, NeedPart, Settings, UnloadMode, WorkerFacts,
};

pub(crate) use worker::{Life, SimWorker, failure};

/// What there is, and what is asked of it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) config: Config,
    pub(crate) now: Moment,
    pub(crate) catalogue: BTreeMap<ModelId, ModelSpec>,
    pub(crate) workers: BTreeMap<WorkerId, SimWorker>,
    /// Memory that other programs use, per host and device.
    pub(crate) foreign: BTreeMap<(HostId, DeviceId), Bytes>,
    log: Vec<Line>,
    /// Loads that reached a worker.
    pub(crate) loads: Vec<(WorkerId, InstanceId, ModelId)>,
    /// Every worker with instances has joined this controller before it settled, so that the truth can be held against it.
    pub(crate) strict: bool,
    /// Workers report without memory samples.
    pub(crate) withhold_samples: bool,
    /// Engines begin with nothing and grow while they load; else they have at once what was set aside.
    pub(crate) engines_grow: bool,
    /// Models whose engine failed to load, and where; until they are loaded again.
    pub(crate) retrying: BTreeMap<ModelId, WorkerId>,
    /// Models that an operator unloaded, or that left the catalogue: only theirs is work that is drained or ended (I1).
    pub(crate) sent_away: BTreeSet<ModelId>,
    /// Those of them that may be tried elsewhere: something changed about their worker or their files.
    pub(crate) unbound: BTreeSet<ModelId>,
}

/// A line of what is printed of a history that breaks a promise; written only then.
#[derive(Debug)]
enum Line {
    Said(String),
    Heard(Moment, Event),
    Decided(Effect),
}

pub(crate) fn config() -> Config {
    Config {
        margin: Bytes::ZERO,
        ..Config::default()
    }
}

pub(crate) fn limits(n: u32) -> Limits {
    Limits::all(Limit::AtMost(NonZeroU32::new(n).unwrap()))
}

pub(crate) fn unlimited() -> Limits {
    Limits::all(Limit::Unlimited)
}

pub(crate) fn model(id: &str, kind: ModelType, bytes: u64) -> ModelSpec {
    let needs = [DeviceKind::Gpu, DeviceKind::Sim]
        .map(|device| need(&[(device, bytes)]))
        .to_vec();
    ModelSpec {
        id: id.into(),
        kind,
        runtime: Runtime::Stub,
        device: DeviceChoice::Any,
        needs,
        spec_hash: SpecHash::from(format!("hash-{id}").as_str()),
        pinned: false,
        idle_ttl: IdleTtl::Default,
        replicas: NonZeroU32::MIN,
        workers: BTreeSet::new(),
    }
}

pub(crate) fn need(parts: &[(DeviceKind, u64)]) -> Need {
    let parts = parts
        .iter()
        .map(|&(kind, bytes)| NeedPart {
            kind,
            bytes: Bytes::new(bytes),
            share: None,
        })
        .collect();
    Need {
        parts,
        source: EstimateSource::Configured,
        settings: Settings(Arc::from([1_u8, 2, 3])),
    }
}

pub(crate) fn device(id: &str, kind: DeviceKind, capacity: u64) -> DeviceFacts {
    let exclusivity = if kind == DeviceKind::Npu {
        Exclusivity::OneModel
    } else {
        Exclusivity::Shared
    };
    DeviceFacts {
        id: id.into(),
        kind,
        capacity: Bytes::new(capacity),
        exclusivity,
    }
}

pub(crate) fn facts(id: &str, host: &str, devices: Vec<DeviceFacts>) -> WorkerFacts {
    let usable: BTreeSet<DeviceId> = devices.iter().map(|device| device.id.clone()).collect();
    WorkerFacts {
        id: id.into(),
        boot: format!("{id}-boot-0").as_str().into(),
        host: host.into(),
        devices,
        runtimes: BTreeMap::from([(Runtime::Stub, usable)]),
        draining: false,
    }
}

impl World {
    pub(crate) fn new(config: Config, now: Moment) -> Self {
        Self {
            config,
            now,
            catalogue: BTreeMap::new(),
            workers: BTreeMap::new(),
            foreign: BTreeMap::new(),
            log: Vec::new(),
            loads: Vec::new(),
            strict: true,
            withhold_samples: false,
            engines_grow: false,
            retrying: BTreeMap::new(),
            sent_away: BTreeSet::new(),
            unbound: BTreeSet::new(),
        }
    }

    /// Policy hears something: what that means for what may be expected of it.
    pub(crate) fn policy_hears(&mut self, event: &Event) {
        if matches!(
            event,
            Event::CatalogueChanged { .. }
                | Event::ModelsChanged { .. }
                | Event::WorkerLost { .. }
                | Event::WorkerLeft { .. }
                | Event::WorkerDraining { .. }
        ) {
            self.unbound.extend(self.retrying.keys().cloned());
        }
        if let Event::ConfigChanged { config } = event {
            self.config = config.as_ref().clone();
        }
        if let Event::UnloadRequested { model, .. } = event {
            self.sent_away.insert(model.clone());
        }
        if let Event::CatalogueChanged { models } = event {
            let workers = self.workers.values();
            let hosted = workers.flat_map(|worker| worker.instances.values());
            let gone = hosted.filter(|found| models.iter().all(|spec| spec.id != found.spec.model));
            self.sent_away.extend(gone.map(|found| found.spec.model.clone()));
        }
        if !matches!(
            event,
            Event::CatalogueChanged { .. } | Event::ModelsChanged { .. }
        ) {
            self.log.push(Line::Heard(self.now, event.clone()));
        }
    }

    /// Policy decides something.
    pub(crate) fn policy_decides(&mut self, effect: &Effect) {
        self.log.push(Line::Decided(effect.clone()));
    }

    /// Once policy decides, it answers only for workers it has heard from.
    pub(crate) fn policy_has_settled(&mut self) {
        let unknown = |worker: &SimWorker| !worker.known && !worker.instances.is_empty();
        if self.workers.values().any(unknown) {
            self.strict = false;
        }
    }

    /// Policy commands something: never the end of a pinned model (I6), and no second attempt beside others (I7).
    pub(crate) fn policy_commands(&mut self, worker: &WorkerId, instance: &InstanceId, command: &Command) {
        if let Command::Load { spec, .. } = command {
            let failed_at = self.retrying.remove(&spec.model);
            let bound = !self.unbound.remove(&spec.model) && self.strict;
            if bound && spec.attempt > 1 && failed_at.as_ref() == Some(worker) {
                self.check_emptied(worker, &spec.model);
            }
        }
        if let Command::Unload {
            mode: UnloadMode::IfIdle { .. },
        } = command
        {
            let found = self.workers[worker].instances.get(instance);
            let pinned = found
                .and_then(|found| self.catalogue.get(&found.spec.model))
                .is_some_and(|spec| spec.pinned);
            assert!(!pinned, "I6: policy evicts a pinned model\n{}", self.tail());
        }
    }

    /// Adds to what is printed of a history that breaks a promise.
    pub(crate) fn note(&mut self, line: String) {
        self.log.push(Line::Said(line));
    }

    /// The end of the history, in words.
    pub(crate) fn tail(&self) -> String {
        self.words(120)
    }

    /// The last so many lines of the history.
    pub(crate) fn words(&self, most: usize) -> String {
        let lines = &self.log[self.log.len().saturating_sub(most)..];
        lines.iter().map(Line::to_string).collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = match self {
            Self::Said(line) => line.clone(),
            Self::Heard(at, event) => format!("{:?} {event:?}", at.since_start()),
            Self::Decided(effect) => format!("    -> {effect:?}"),
        };
        let line = cut(&line, "spec: InstanceSpec {", "group: None }");
        let line = cut(&line, "devices: [DeviceFacts", "}]");
        let line = cut(&line, "samples: [", "]");
        f.write_str(&line.chars().take(600).collect::<String>())
    }
}

/// Cuts out what nobody wants to read in a failing history.
fn cut(line: &str, from: &str, to: &str) -> String {
    let start = line.find(from);
    let end = start.and_then(|start| Some(start + line[start..].find(to)?));
    match (start, end) {
        (Some(start), Some(end)) if start < end => format!("{}{}", &line[..start], &line[end + to.len()..]),
        _ => line.to_owned(),
    }
}
