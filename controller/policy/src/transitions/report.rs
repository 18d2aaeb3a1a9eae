//! What a worker says about its instances and devices. The worker is the truth: policy follows, whatever it thought.
//!
//! A state that was reported before a command took effect is told from one that undoes it by the outstanding command: while a command
//! is outstanding, only states that it cannot explain count.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::ended::End;
use super::group::has_served;
use crate::api::{
    DecisionKind, DeviceChoice, DeviceId, DeviceKind, IdleTtl, InstanceId, InstanceSpec, InstanceStatus,
    ModelSpec, Need, NeedPart, Progress, Report, ReportedState, Touch, WorkerId,
};
use crate::fleet::Fleet;
use crate::state::{Asked, Before, Exit, Instance, InstanceState, Load, Model, Place, Was};

impl Fleet {
    /// Changes at a worker: instances first, samples last, so that a sample counts as newer than what came with it.
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

    /// Takes one status; says whether an engine started to serve, or ended.
    fn status_reported(&mut self, worker: &WorkerId, status: InstanceStatus) -> bool {
        match self.instances.get(&status.id) {
            Some(known) if known.worker != *worker || status.revision < known.revision => return false,
            Some(_) => {}
            None => match status.state {
                ReportedState::Gone | ReportedState::Failed(_) => {
                    // Its end was heard before, by an outcome for example; the samples beside it show it all the same.
                    self.acknowledge_end(worker, &status.id);
                    return true;
                }
                ReportedState::Loading { .. }
                | ReportedState::Ready
                | ReportedState::Quiesced
                | ReportedState::Draining
                | ReportedState::Unloading
                | ReportedState::Unknown => self.adopt(worker, &status),
            },
        }
        let end = match &status.state {
            ReportedState::Gone => End::Asked,
            ReportedState::Failed(failure) => End::Failed(failure.clone()),
            ReportedState::Loading { .. }
            | ReportedState::Ready
            | ReportedState::Quiesced
            | ReportedState::Draining
            | ReportedState::Unloading
            | ReportedState::Unknown => return self.follow(status),
        };
        self.instance_ended(&status.id, end);
        self.acknowledge_end(worker, &status.id);
        true
    }

    /// An instance this controller did not start, or has forgotten (PROTOCOL 7).
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

    /// Follows a status that is not an end. Says whether the instance became ready.
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
        let became_ready = match status.state {
            ReportedState::Loading { progress } => {
                self.follow_loading(&status.id, progress);
                false
            }
            ReportedState::Ready => self.follow_ready(&status.id),
            ReportedState::Quiesced => {
                self.follow_quiesced(&status.id);
                false
            }
            ReportedState::Draining | ReportedState::Unloading => {
                self.follow_leaving(&status.id);
                false
            }
            ReportedState::Unknown => {
                instance.state = InstanceState::Opaque;
                false
            }
            ReportedState::Gone | ReportedState::Failed(_) => false,
        };
        if let Some(instance) = self.instances.get_mut(&status.id) {
            instance.press();
        }
        self.confirm_holds(&status.id);
        self.attention.insert(status.id);
        self.touch_model(&model);
        self.replan |= !only_further && !self.queue.is_empty();
        became_ready
    }

    fn follow_loading(&mut self, id: &InstanceId, reported: Progress) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        match &mut instance.state {
            InstanceState::Loading { progress, .. } => *progress = reported,
            // The cancellation goes on.
            InstanceState::Cancelling { .. } => {}
            // What was sent in an earlier session did not arrive.
            InstanceState::Leaving(_) if !instance.condemned.is_some_and(|condemned| condemned.due) => {}
            InstanceState::Lost(_)
            | InstanceState::Leaving(_)
            | InstanceState::Ready
            | InstanceState::Evicting { .. }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Opaque => {
                let spec = Arc::clone(&instance.spec);
                let load = self.load_of(&spec, id);
                if spec.group.is_some() {
                    self.groups_loading.insert(spec.model.clone());
                }
                if let Some(instance) = self.instances.get_mut(id) {
                    let load = Box::new(load);
                    instance.state = InstanceState::Loading {
                        load,
                        progress: reported,
                        unwanted_since: None,
                    };
                }
            }
        }
    }

    /// Says whether a load ended well by it.
    fn follow_ready(&mut self, id: &InstanceId) -> bool {
        let (now, quiet) = (self.now, self.config.quiet);
        let Some(instance) = self.instances.get_mut(id) else {
            return false;
        };
        let asked = instance.pending.as_ref().map(|pending| &pending.asked);
        match (&instance.state, asked) {
            (
                InstanceState::Loading { .. }
                | InstanceState::Leaving(Exit::Worker(Before::Loading(_)))
                | InstanceState::Opaque
                | InstanceState::Lost(Was::Loading | Was::Leaving | Was::Opaque),
                _,
            ) => {
                self.became_ready(id);
                return true;
            }
            // Reported before the command took effect; its outcome decides.
            (InstanceState::Cancelling { .. } | InstanceState::Ready, _)
            | (InstanceState::Evicting { .. }, Some(Asked::Evict))
            | (InstanceState::Quiesced { .. }, Some(Asked::Quiesce))
            | (InstanceState::Leaving(Exit::Asked), Some(Asked::OperatorUnload)) => {}
            // The worker gave up an unload that it had begun: not to be tried again at once.
            (InstanceState::Evicting { .. } | InstanceState::Leaving(_), _) => {
                let known = instance.usage.touch_seq;
                instance.usage.refused(now, known, quiet);
                instance.state = InstanceState::Ready;
            }
            // A quiesce was reverted, or a session is back.
            (InstanceState::Quiesced { .. } | InstanceState::Resuming | InstanceState::Lost(_), _) => {
                instance.state = InstanceState::Ready;
            }
        }
        false
    }

    /// A load ended well.
    pub(crate) fn became_ready(&mut self, id: &InstanceId) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let found_loaded = matches!(instance.state, InstanceState::Lost(_) | InstanceState::Opaque);
        instance.ready_since = Some(if found_loaded {
            instance.usage.last_used
        } else {
            now
        });
        let before = std::mem::replace(&mut instance.state, InstanceState::Ready);
        instance.press();
        let (spec, host) = (Arc::clone(&instance.spec), instance.host.clone());
        for reservation in &spec.reservations {
            if let Some(device) = self.devices.get_mut(&Self::key(&host, &reservation.device)) {
                device.changed(now);
            }
        }
        if let Some(model) = self.models.get_mut(&spec.model) {
            model.failure = None;
            model.strikes = 0;
        }
        self.decided_on(DecisionKind::Loaded, id);
        let load = if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = before
        {
            Some(*load)
        } else {
            None
        };
        self.part_ready(id, load);
        self.room_changed();
    }

    fn follow_quiesced(&mut self, id: &InstanceId) {
        let now = self.now;
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let asked = instance.pending.as_ref().map(|pending| &pending.asked);
        match (&mut instance.state, asked) {
            (InstanceState::Quiesced { confirmed, .. }, _) => *confirmed = true,
            (InstanceState::Resuming, Some(Asked::Resume))
            | (InstanceState::Evicting { .. } | InstanceState::Leaving(_), _) => {}
            (
                InstanceState::Resuming
                | InstanceState::Ready
                | InstanceState::Loading { .. }
                | InstanceState::Cancelling { .. }
                | InstanceState::Opaque
                | InstanceState::Lost(_),
                _,
            ) => {
                instance.state = InstanceState::Quiesced {
                    plan: None,
                    confirmed: true,
                    patient: false,
                    since: now,
                }
            }
        }
    }

    /// Every engine that ends, for whatever reason, is first reported unloading: why is told by its end, so what it was is kept.
    fn follow_leaving(&mut self, id: &InstanceId) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let before = std::mem::replace(&mut instance.state, InstanceState::Opaque);
        instance.state = InstanceState::Leaving(match before {
            InstanceState::Leaving(exit) => exit,
            _ if instance.condemned.is_some() => Exit::Asked,
            InstanceState::Cancelling { .. } => Exit::Asked,
            InstanceState::Loading { load, .. } => Exit::Worker(Before::Loading(load)),
            InstanceState::Ready
            | InstanceState::Evicting { .. }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Lost(_)
            | InstanceState::Opaque => Exit::Worker(Before::Serving),
        });
    }

    /// Holds that the worker has are in place: the word is given to those who wait for it (PROTOCOL 9).
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

    /// The load that an instance found loading must have come from.
    pub(super) fn load_of(&mut self, spec: &InstanceSpec, id: &InstanceId) -> Load {
        let model_spec = match self.spec_of(&spec.model) {
            Some(known) if known.spec_hash == spec.spec_hash => Arc::clone(known),
            Some(_) | None => Arc::new(self.spec_from_echo(spec, id)),
        };
        Load {
            attempt: spec.attempt,
            group: spec.group.clone(),
            ..Load::new(self.new_load_id(), model_spec, spec.origin)
        }
    }

    /// A model's spec made from what its instance was told, for a retry at the same place with the same settings.
    fn spec_from_echo(&self, spec: &InstanceSpec, id: &InstanceId) -> ModelSpec {
        let host = self.instances.get(id).map(|instance| &instance.host);
        let kind_of = |device: &DeviceId| {
            let known = host.and_then(|host| self.devices.get(&Self::key(host, device)));
            known.map_or(DeviceKind::Cpu, |device| device.kind)
        };
        let parts = spec
            .reservations
            .iter()
            .map(|r| NeedPart {
                kind: kind_of(&r.device),
                bytes: r.bytes,
                share: None,
            })
            .collect();
        let main = spec
            .reservations
            .first()
            .map(|reservation| reservation.device.clone());
        ModelSpec {
            id: spec.model.clone(),
            kind: spec.kind,
            runtime: spec.runtime.clone(),
            device: main.map_or(DeviceChoice::Any, DeviceChoice::Device),
            needs: vec![Need {
                parts,
                source: spec.source,
                settings: spec.settings.clone(),
            }],
            spec_hash: spec.spec_hash.clone(),
            pinned: spec.pinned,
            idle_ttl: spec.idle_ttl.map_or(IdleTtl::Never, IdleTtl::After),
            replicas: spec
                .group
                .as_ref()
                .and_then(|group| NonZeroU32::new(group.size))
                .unwrap_or(NonZeroU32::MIN),
            workers: BTreeSet::new(),
        }
    }
}

/// A load is further than it was, and nothing else is new: nobody who waits for room need look again.
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

    use super::*;
    use crate::api::{
        Bytes, Command, DeviceFacts, Effect, EstimateSource, Event, Exclusivity, ModelType, Moment,
        WorkerFacts,
    };
    use crate::config::Config;

    fn spec(id: &str) -> ModelSpec {
        ModelSpec {
            id: id.into(),
            kind: ModelType::Llm,
            runtime: "r".into(),
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
            runtimes: BTreeMap::from([("r".into(), BTreeSet::from(["g".into()]))]),
            draining: false,
        }
    }

    /// Each tick of a load's progress once had the whole queue decided anew.
    #[test]
    fn how_far_a_load_is_has_the_queue_not_decided_anew_and_what_it_uses_has() {
        let mut fleet = Fleet::new(Config::default(), Vec::new(), Moment::START);
        let mut ids = || InstanceId::new("i");
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
