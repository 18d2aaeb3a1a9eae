//! What workers reported last, unchanged, for everything that policy does not read: addresses, capabilities, queues, versions.
//!
//! Invariant: an instance is here as long as policy knows it; its status is the newest by revision.
//!
//! Architecture invariant: nothing is decided here.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::{BootId, Bytes, DeviceKind, HostId, InstanceId, SpecHash, WorkerId};
use muster_policy::{RouteState, WorkerFacts};
use muster_proto::{MODEL_FILES, MODEL_REVISIONS, v1};
use tokio::time::Instant;

use super::pulse::Pulse;
use crate::{
    convert::{self, model::kind_of, span_from, stage},
    estimate::{Observed, Way},
};

/// All workers and instances.
#[derive(Debug, Default)]
pub(super) struct Mirror {
    workers: BTreeMap<WorkerId, Worker>,
    instances: BTreeMap<InstanceId, Instance>,
    /// Connected workers by host and pid namespace, that is by the processes they can see.
    seeing: BTreeMap<(String, String), BTreeSet<WorkerId>>,
}

/// What a worker reported.
#[derive(Debug)]
pub(super) struct Worker {
    /// Id of its process.
    boot: BootId,
    /// Id of its machine.
    pub(super) host: HostId,
    /// Its introduction without the report.
    pub(super) hello: v1::Hello,
    /// Its signs of life.
    pub(super) pulse: Pulse,
    /// Whether its session is open.
    connected: bool,
    samples: BTreeMap<String, (v1::DeviceSample, Instant)>,
    /// Ids of its instances.
    hosted: BTreeSet<InstanceId>,
}

/// What a worker reported about an instance.
#[derive(Debug)]
pub(super) struct Instance {
    /// The newest status.
    status: v1::InstanceStatus,
    /// When it was reported; ages in it count from then.
    heard: Instant,
    worker: WorkerId,
    /// Id of the worker's process.
    boot: BootId,
}

impl Instance {
    /// Takes a newer touch. Returns the model if it was newer.
    fn touched(&mut self, touch: &v1::Touch) -> Option<String> {
        let known = self.status.touch.as_ref().map_or(0, |known| known.touch_seq);
        if touch.touch_seq <= known {
            return None;
        }
        self.status.touch = Some(touch.clone());
        self.heard = Instant::now();
        self.status.spec.as_ref().map(|spec| spec.model_id.clone())
    }

    /// Time until it is unloaded for being idle; none if that never happens, or not in its present state.
    fn ttl_left(&self) -> Option<prost_types::Duration> {
        let status = &self.status;
        let spec = status.spec.as_ref()?;
        let ttl = span_from(spec.idle_ttl.as_ref());
        let in_use = status.running > 0 || status.queued > 0 || !status.hold_ids.is_empty();
        if ttl.is_zero() || spec.pinned || in_use || status.state() != v1::InstanceState::Ready {
            return None;
        }
        let touched = status.touch.as_ref().and_then(|touch| touch.age.as_ref());
        let idle = span_from(touched).saturating_add(self.heard.elapsed());
        Some(convert::span(ttl.saturating_sub(idle)))
    }

    /// The newest status, with its touch's age brought up to date.
    fn status_now(&self) -> v1::InstanceStatus {
        let mut status = self.status.clone();
        if let Some(touch) = &mut status.touch {
            let age = span_from(touch.age.as_ref()).saturating_add(self.heard.elapsed());
            touch.age = Some(convert::span(age));
        }
        status
    }
}

/// The part of a status that routes and summaries show.
fn shown(status: &v1::InstanceStatus) -> impl PartialEq {
    (
        status.state,
        status.capabilities.clone(),
        status.backend_url.clone(),
        (status.target_inflight, status.queue_limit),
    )
}

impl Mirror {
    /// Takes over everything that a joining worker reports.
    pub(super) fn joined(
        &mut self,
        facts: &WorkerFacts,
        mut hello: v1::Hello,
        pulse: Pulse,
        observed: &mut Observed,
    ) -> Noted {
        let report = hello.full.take().unwrap_or_default();
        let worker = facts.id.clone();
        self.disconnected(worker.as_str());
        let sight = sight(&hello);
        let known = Worker {
            boot: facts.boot.clone(),
            host: facts.host.clone(),
            hello,
            pulse,
            connected: true,
            samples: BTreeMap::new(),
            hosted: BTreeSet::new(),
        };
        let old = self.workers.insert(worker.clone(), known);
        let kept: BTreeSet<&str> = report
            .instances
            .iter()
            .map(|status| status.instance_id.as_str())
            .collect();
        for id in old.into_iter().flat_map(|old| old.hosted) {
            if kept.contains(id.as_str()) {
                self.host(&worker, id);
            } else {
                self.instances.remove(&id);
            }
        }
        if let Some(sight) = sight {
            self.seeing.entry(sight).or_default().insert(worker.clone());
        }
        self.reported(&worker, &report, observed)
    }

    /// Takes over a worker's changes.
    pub(super) fn reported(
        &mut self,
        worker: &WorkerId,
        report: &v1::WorkerReport,
        observed: &mut Observed,
    ) -> Noted {
        let mut noted = Noted::default();
        let Some(known) = self.workers.get_mut(worker) else {
            return noted;
        };
        for sample in &report.devices {
            let taken = Instant::now()
                .checked_sub(span_from(sample.age.as_ref()))
                .unwrap_or_else(Instant::now);
            known
                .samples
                .insert(sample.device_id.clone(), (sample.clone(), taken));
        }
        if let Some(draining) = report.draining {
            known.hello.draining = draining;
        }
        let boot = known.boot.clone();
        for status in &report.instances {
            // The conversion for policy reports the error.
            let Ok(id) = InstanceId::new(status.instance_id.as_str()) else {
                continue;
            };
            noted.learned.extend(learn(&known.hello, status, observed));
            let old = self.instances.get(&id);
            if old.is_some_and(|old| old.boot == boot && old.status.revision > status.revision) {
                continue;
            }
            let model = status.spec.as_ref().map(|spec| spec.model_id.clone());
            if old.is_none_or(|old| shown(&old.status) != shown(status)) {
                noted.changed.extend(model);
            } else {
                noted.used.extend(model);
            }
            let instance = Instance {
                status: status.clone(),
                heard: Instant::now(),
                worker: worker.clone(),
                boot: boot.clone(),
            };
            known.hosted.insert(id.clone());
            self.instances.insert(id, instance);
        }
        for touch in &report.touches {
            if let Some(instance) = self.instances.get_mut(touch.instance_id.as_str()) {
                noted.used.extend(instance.touched(touch));
            }
        }
        noted
    }

    fn host(&mut self, worker: &WorkerId, instance: InstanceId) {
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.hosted.insert(instance);
        }
    }

    /// Removes an instance that has ended.
    pub(super) fn remove(&mut self, instance: &str) {
        let removed = self.instances.remove(instance);
        let worker = removed.and_then(|removed| self.workers.get_mut(&removed.worker));
        if let Some(worker) = worker {
            worker.hosted.remove(instance);
        }
    }

    /// Removes a worker.
    pub(super) fn forget(&mut self, worker: &str) {
        self.disconnected(worker);
        let hosted = self.workers.remove(worker).map(|worker| worker.hosted);
        for instance in hosted.into_iter().flatten() {
            self.instances.remove(&instance);
        }
    }

    pub(super) fn worker(&self, id: &str) -> Option<&Worker> {
        self.workers.get(id)
    }

    /// Connected workers that take orders about a checkpoint's files.
    pub(super) fn taking(&self, checkpoint: &v1::HubCheckpoint) -> impl Iterator<Item = WorkerId> {
        let taking = self.workers.iter().filter(|(_, worker)| worker.takes(checkpoint));
        taking.map(|(id, _)| id.clone())
    }

    /// The reference of an instance.
    pub(super) fn place(&self, id: &InstanceId, worker: &WorkerId) -> v1::InstanceRef {
        let boot = self
            .workers
            .get(worker.as_str())
            .map(|worker| worker.boot.to_string());
        v1::InstanceRef {
            instance_id: id.to_string(),
            worker_id: worker.to_string(),
            worker_boot_id: boot.unwrap_or_default(),
        }
    }

    /// The route to an instance; none if its worker never reported the instance.
    pub(super) fn route(&self, id: &InstanceId, worker: &WorkerId, state: RouteState) -> Option<v1::Route> {
        let instance = self.instances.get(id.as_str())?;
        let hello = &self.workers.get(worker.as_str())?.hello;
        let status = &instance.status;
        Some(v1::Route {
            instance: Some(v1::InstanceRef {
                instance_id: id.to_string(),
                worker_id: instance.worker.to_string(),
                worker_boot_id: instance.boot.to_string(),
            }),
            model_id: status
                .spec
                .as_ref()
                .map(|spec| spec.model_id.clone())
                .unwrap_or_default(),
            addresses: hello.addresses.clone(),
            state: stage::route_state(state).into(),
            target_inflight: status.target_inflight,
            queue_limit: status.queue_limit,
            capabilities: status.capabilities.clone(),
        })
    }

    /// An instance as operators see it.
    pub(super) fn view(&self, id: &str, suspect: bool) -> Option<v1::Instance> {
        let instance = self.instances.get(id)?;
        let host = self
            .workers
            .get(&instance.worker)
            .map(|worker| worker.hello.host_id.clone());
        Some(v1::Instance {
            status: Some(instance.status_now()),
            r#ref: Some(v1::InstanceRef {
                instance_id: id.to_owned(),
                worker_id: instance.worker.to_string(),
                worker_boot_id: instance.boot.to_string(),
            }),
            suspect,
            host_id: host.unwrap_or_default(),
            ttl_left: instance.ttl_left(),
        })
    }

    /// The newest statuses of a worker's instances.
    pub(super) fn on_worker(&self, worker: &str) -> impl Iterator<Item = &v1::InstanceStatus> {
        let hosted = self
            .workers
            .get(worker)
            .into_iter()
            .flat_map(|worker| &worker.hosted);
        hosted.filter_map(|id| Some(&self.instances.get(id)?.status))
    }

    /// Ids of a worker's instances.
    pub(super) fn hosted(&self, worker: &WorkerId) -> impl Iterator<Item = &InstanceId> {
        self.workers
            .get(worker)
            .into_iter()
            .flat_map(|worker| &worker.hosted)
    }

    /// The processes of an instance's engine, as its worker reported them last.
    pub(super) fn engine(&self, id: &str) -> Vec<v1::ProcessId> {
        let instance = self.instances.get(id);
        instance.map_or_else(Vec::new, |instance| instance.status.engine.clone())
    }

    /// A connected worker that can see the same processes as this one did.
    pub(super) fn peer(&self, of: &str) -> Option<WorkerId> {
        let seeing = self.seeing.get(&sight(&self.workers.get(of)?.hello)?)?;
        let peer = seeing.iter().find(|id| id.as_str() != of)?;
        Some(peer.clone())
    }

    /// Records that a worker's session has ended.
    pub(super) fn disconnected(&mut self, worker: &str) {
        let Some(known) = self.workers.get_mut(worker) else {
            return;
        };
        known.connected = false;
        if let Some(sight) = sight(&known.hello)
            && let Some(seeing) = self.seeing.get_mut(&sight)
        {
            seeing.remove(worker);
            if seeing.is_empty() {
                self.seeing.remove(&sight);
            }
        }
    }

    /// Whether an instance works on requests, or has some that wait.
    pub(super) fn busy(&self, id: &str) -> bool {
        let found = self.instances.get(id);
        found.is_some_and(|found| found.status.running > 0 || found.status.queued > 0)
    }

    /// What a worker was told to load.
    pub(super) fn spec(&self, id: &str) -> Option<&v1::InstanceSpec> {
        self.instances.get(id)?.status.spec.as_ref()
    }

    /// Kinds of device on which an instance has memory.
    pub(super) fn kinds(&self, id: &str) -> BTreeSet<DeviceKind> {
        let Some(instance) = self.instances.get(id) else {
            return BTreeSet::new();
        };
        let Some(worker) = self.workers.get(&instance.worker) else {
            return BTreeSet::new();
        };
        let spec = instance.status.spec.as_ref();
        let reservations = spec.map(|spec| spec.reservations.as_slice()).unwrap_or_default();
        reservations
            .iter()
            .filter_map(|reservation| kind(&worker.hello, &reservation.device_id))
            .collect()
    }
}

impl Worker {
    /// Whether the worker is connected and takes orders about a checkpoint's files. One that knows no revisions would take those of `main`.
    pub(super) fn takes(&self, checkpoint: &v1::HubCheckpoint) -> bool {
        self.speaks(MODEL_FILES) && (checkpoint.revision.is_empty() || self.speaks(MODEL_REVISIONS))
    }

    /// Whether it can also be asked whether the hub has newer ones.
    pub(super) fn checks(&self, checkpoint: &v1::HubCheckpoint) -> bool {
        self.takes(checkpoint) && self.speaks(MODEL_REVISIONS)
    }

    fn speaks(&self, feature: &str) -> bool {
        self.connected && self.hello.features.iter().any(|spoken| spoken == feature)
    }

    /// The newest sample of a device, with its present age.
    pub(super) fn sample(&self, device: &str) -> Option<v1::DeviceSample> {
        let (sample, taken) = self.samples.get(device)?;
        Some(v1::DeviceSample {
            age: Some(convert::span(taken.elapsed())),
            ..sample.clone()
        })
    }

    /// A device as its worker describes it.
    pub(super) fn device(&self, device: &str) -> Option<&v1::Device> {
        self.hello.devices.iter().find(|known| known.device_id == device)
    }
}

/// Host and pid namespace of a worker; none if unknown.
fn sight(hello: &v1::Hello) -> Option<(String, String)> {
    let known = !hello.pid_namespace.is_empty();
    known.then(|| (hello.host_id.clone(), hello.pid_namespace.clone()))
}

/// The result of a report.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// Hashes of settings whose estimates changed.
    pub(super) learned: BTreeSet<SpecHash>,
    /// Models whose instances changed.
    pub(super) changed: BTreeSet<String>,
    /// Models that were used and did not change otherwise.
    pub(super) used: BTreeSet<String>,
}

fn kind(hello: &v1::Hello, device: &str) -> Option<DeviceKind> {
    hello
        .devices
        .iter()
        .find(|known| known.device_id == device)
        .and_then(kind_of)
}

/// Learns the memory of a loaded engine. Returns the hash of its settings if estimates change. Loading engines still grow and ending ones
/// shrink, so they do not count.
fn learn(hello: &v1::Hello, status: &v1::InstanceStatus, observed: &mut Observed) -> Option<SpecHash> {
    let spec = status
        .spec
        .as_ref()
        .filter(|_| status.state() == v1::InstanceState::Ready)?;
    let layers = spec.settings.as_ref().and_then(|settings| settings.gpu_layers);
    let on = |wanted: DeviceKind| {
        let kinds = spec.reservations.iter().map(|part| kind(hello, &part.device_id));
        kinds.filter(|kind| *kind == Some(wanted)).count()
    };
    let mut learned = false;
    for part in &status.observed {
        if let Some(kind) = kind(hello, &part.device_id) {
            let way = Way {
                layers,
                devices: on(kind),
            };
            learned |= observed.learn(
                &status.instance_id,
                &spec.spec_hash,
                way,
                kind,
                Bytes::new(part.bytes),
            );
        }
    }
    learned.then(|| SpecHash::new(spec.spec_hash.as_str()).ok())?
}
