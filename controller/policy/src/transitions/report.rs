//! What a worker reports about its instances and devices. The worker knows best: policy follows, whatever it expected.
//!
//! The outstanding command shows whether a state was reported before that command took effect or undoes it. While a command is outstanding,
//! only states that it cannot explain count.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::ended::End;
use super::group::has_served;
use crate::api::{InstanceStatus, Report, ReportedState, Touch};
use crate::fleet::Fleet;
use crate::state::{Asked, Instance, InstanceState, Model, Place, Was};
use muster_core::{DeviceId, InstanceId, WorkerId};

impl Fleet {
    /// Handles a worker's report: instances first, samples last, so that a sample counts as newer than the changes reported with it.
    pub(crate) fn worker_reported(&mut self, worker: &WorkerId, report: Report) {
        let Some(known) = self.workers.get(worker) else {
            return;
        };
        if !known.connected() {
            return;
        }
        let host = known.facts.host.clone();
        let mut changed: BTreeSet<DeviceId> = BTreeSet::new();
        for status in report.instances {
            let devices: Vec<DeviceId> = status
                .spec
                .reservations
                .iter()
                .map(|r| r.device.clone())
                .collect();
            if self.status_reported(worker, status) {
                changed.extend(devices);
            }
        }
        for touch in &report.touches {
            self.touched(worker, touch);
        }
        let now = self.now;
        for sample in &report.samples {
            if let Some(device) = self.devices.get_mut(&Self::key(&host, &sample.device)) {
                let news = device.sampled(worker, sample, now, changed.contains(&sample.device));
                self.replan |= news && !self.queue.is_empty();
                if news {
                    self.look_for_gone_ghosts(&Self::key(&host, &sample.device), now.ago(sample.age));
                }
            }
        }
    }

    fn touched(&mut self, worker: &WorkerId, touch: &Touch) {
        let (now, quiet) = (self.now, self.config.quiet);
        if let Some(instance) = self.instances.get_mut(&touch.instance)
            && instance.worker == *worker
        {
            let before = instance.at_work();
            instance
                .usage
                .touched(now, (touch.touch_seq, touch.age), before, quiet);
        }
    }

    /// Handles the status of one instance. Returns whether an engine became ready or ended.
    fn status_reported(&mut self, worker: &WorkerId, status: InstanceStatus) -> bool {
        let end = match &status.state {
            ReportedState::Gone => Some(End::Asked),
            ReportedState::Failed(failure) => Some(End::Failed(failure.clone())),
            ReportedState::Loading { .. }
            | ReportedState::Ready
            | ReportedState::Quiesced
            | ReportedState::Draining
            | ReportedState::Unloading
            | ReportedState::Unknown => None,
        };
        if let Some(known) = self.workers.get_mut(worker) {
            match end {
                Some(_) => drop(known.ended.remove(&status.id)),
                None if known.ended.contains(&status.id) => return false,
                None => {}
            }
        }
        match self.instances.get(&status.id) {
            Some(known) if known.worker != *worker || status.revision < known.revision => return false,
            Some(_) => {}
            None if end.is_some() => {
                // Its end was already known, for example from an outcome. The samples in this report still include it.
                self.acknowledge_end(worker, &status.id);
                return true;
            }
            None => self.adopt(worker, &status),
        }
        let Some(end) = end else {
            return self.follow(status);
        };
        self.instance_ended(&status.id, end);
        self.acknowledge_end(worker, &status.id);
        true
    }

    /// Takes over an instance that this controller did not start or has forgotten (PROTOCOL 7).
    fn adopt(&mut self, worker: &WorkerId, status: &InstanceStatus) {
        let Some(host) = self.workers.get(worker).map(|known| known.facts.host.clone()) else {
            return;
        };
        self.models
            .entry(status.spec.model.clone())
            .or_insert_with(|| Model::new(None));
        let mut instance = Instance::new(
            status.id.clone(),
            (worker.clone(), host),
            Arc::new(status.spec.clone()),
            InstanceState::Lost(Was::Opaque),
            self.now.ago(status.touch_age),
        );
        instance.published = status.spec.group.is_none() || has_served(status.running, status.touch_seq);
        self.insert_instance(instance);
    }

    /// Follows a status that is not an end. Returns whether the instance became ready.
    fn follow(&mut self, status: InstanceStatus) -> bool {
        let (now, quiet) = (self.now, self.config.quiet);
        let Some(instance) = self.instances.get_mut(&status.id) else {
            return false;
        };
        let before = instance.at_work();
        let only_further = only_further(instance, &status);
        let shown = (status.spec.pinned, status.spec.idle_ttl);
        let telling = instance
            .pending
            .as_ref()
            .is_some_and(|pending| pending.asked == Asked::SetAttributes);
        if !telling && (instance.spec.pinned, instance.spec.idle_ttl) != shown {
            let spec = Arc::make_mut(&mut instance.spec);
            (spec.pinned, spec.idle_ttl) = shown;
        }
        instance.revision = status.revision;
        instance.running = status.running;
        instance.queued = status.queued;
        instance.holds = status.holds;
        instance.observed = status
            .observed
            .into_iter()
            .map(|seen| (seen.device, seen.bytes))
            .collect();
        instance
            .usage
            .touched(now, (status.touch_seq, status.touch_age), before, quiet);
        instance.doubtful_since = None;
        let model = instance.spec.model.clone();
        let became_ready = matches!(status.state, ReportedState::Ready) && self.follow_ready(&status.id);
        match status.state {
            ReportedState::Loading { progress } => self.follow_loading(&status.id, progress),
            ReportedState::Quiesced => self.follow_quiesced(&status.id),
            ReportedState::Draining | ReportedState::Unloading => self.follow_leaving(&status.id),
            ReportedState::Unknown => self.set_state(&status.id, InstanceState::Opaque),
            ReportedState::Ready | ReportedState::Gone | ReportedState::Failed(_) => {}
        }
        if let Some(instance) = self.instances.get_mut(&status.id) {
            instance.press();
        }
        self.confirm_holds(&status.id);
        self.attention.insert(status.id);
        self.touch_model(&model);
        self.replan |= !only_further && !self.queue.is_empty();
        became_ready
    }

    /// Tells those who wait for a hold that it is in place, if the worker reports it (PROTOCOL 9).
    pub(crate) fn confirm_holds(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get(id) else {
            return;
        };
        if !instance.is_ready() || !instance.published {
            return;
        }
        for hold in &instance.holds {
            if let Some(waiter) = self.waiters.get_mut(hold)
                && waiter.place == Place::Placing(id.clone())
            {
                waiter.place = Place::Held(id.clone());
            }
        }
    }
}

/// Whether only the load's progress is new, so that no other load needs to look for room again.
fn only_further(instance: &Instance, status: &InstanceStatus) -> bool {
    let observed = status.observed.iter().map(|seen| (&seen.device, seen.bytes));
    matches!(instance.state, InstanceState::Loading { .. })
        && matches!(status.state, ReportedState::Loading { .. })
        && instance.doubtful_since.is_none()
        && (instance.running, instance.queued) == (status.running, status.queued)
        && instance.holds == status.holds
        && observed.eq(instance.observed.iter().map(|(device, bytes)| (device, *bytes)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use std::num::NonZeroU32;

    use super::*;
    use crate::api::{
        Command, DeviceChoice, DeviceFacts, Effect, EstimateSource, Event, Exclusivity, IdleTtl, ModelSpec,
        Moment, Need, NeedPart, Progress, WorkerFacts,
    };
    use crate::config::Config;
    use muster_core::{Bytes, DeviceKind, ModelType, Runtime};

    fn spec(id: &str) -> ModelSpec {
        ModelSpec {
            id: id.into(),
            kind: ModelType::Llm,
            runtime: Runtime::Stub,
            device: DeviceChoice::Any,
            needs: vec![Need {
                parts: vec![NeedPart {
                    kind: DeviceKind::Gpu,
                    bytes: Bytes::new(1),
                    share: None,
                }],
                source: EstimateSource::Configured,
                settings: crate::api::Settings(Vec::new().into()),
            }],
            spec_hash: id.into(),
            pinned: false,
            idle_ttl: IdleTtl::Never,
            replicas: NonZeroU32::MIN,
            workers: BTreeSet::new(),
        }
    }

    fn facts() -> WorkerFacts {
        WorkerFacts {
            id: "w".into(),
            boot: "b".into(),
            host: "h".into(),
            devices: vec![DeviceFacts {
                id: "g".into(),
                kind: DeviceKind::Gpu,
                capacity: Bytes::new(1 << 40),
                exclusivity: Exclusivity::Shared,
            }],
            runtimes: BTreeMap::from([(Runtime::Stub, BTreeSet::from(["g".into()]))]),
            draining: false,
        }
    }

    /// Regression: each tick of a load's progress caused the whole queue to be planned again.
    #[test]
    fn how_far_a_load_is_has_the_queue_not_decided_anew_and_what_it_uses_has() {
        let mut fleet = Fleet::new(Config::default(), Vec::new(), Moment::START);
        let mut ids = || InstanceId::from("i");
        let wish = |model: &str| Event::EnsureOpened {
            hold: model.into(),
            model: model.into(),
            avoid_instances: Vec::new(),
            avoid_workers: Vec::new(),
        };
        let joined = Event::WorkerJoined {
            facts: facts(),
            report: Report::default(),
        };
        let models = vec![spec("a"), spec("b")];
        let mut effects = Vec::new();
        for event in [Event::CatalogueChanged { models }, joined, wish("a"), wish("b")] {
            effects.extend(fleet.step(Moment::START, event, &mut ids));
        }
        let load = effects.into_iter().find_map(|effect| {
            if let Effect::Command { command, .. } = effect
                && let Command::Load { spec, holds } = command
            {
                return Some((spec, holds));
            }
            None
        });
        let (spec, holds) = load.unwrap();
        assert_eq!(fleet.queue.len(), 1, "there is room for one of them at a time");
        let status = |permille, bytes| InstanceStatus {
            id: "i".into(),
            spec: (*spec).clone(),
            state: ReportedState::Loading {
                progress: Progress {
                    permille,
                    ..Progress::default()
                },
            },
            revision: 1,
            running: 0,
            queued: 0,
            holds: holds.iter().cloned().collect(),
            touch_seq: 1,
            touch_age: std::time::Duration::ZERO,
            observed: vec![crate::api::Reservation {
                device: "g".into(),
                bytes: Bytes::new(bytes),
            }],
        };
        let step = |fleet: &mut Fleet, status| {
            fleet.replan = false;
            let report = Report {
                instances: vec![status],
                ..Report::default()
            };
            fleet.worker_reported(&"w".into(), report);
            fleet.replan
        };
        assert!(step(&mut fleet, status(1, 5)), "the first word on it");
        assert!(!step(&mut fleet, status(2, 5)));
        assert!(!step(&mut fleet, status(3, 5)));
        assert!(step(&mut fleet, status(4, 6)), "it uses more");
    }
}
