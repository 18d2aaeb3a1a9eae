//! A worker of the simulated fleet: the truth about its instances, with the rules of the wire.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_policy::{
    Bytes, Command, CommandId, DeviceId, DeviceSample, DoneState, Event, FailureClass, HoldId, HostId,
    InstanceId, InstanceSpec, InstanceStatus, ModelId, ModelType, Moment, Outcome, Progress, Refusal, Report,
    ReportedState, Reservation, Touch, UnloadMode, WorkerFacts, WorkerFailure, WorkerId,
};

use super::Sim;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Life {
    Loading,
    Ready,
    Quiesced,
    Draining,
    Unloading,
    Gone,
    Failed(WorkerFailure),
}

#[derive(Debug, Clone)]
pub(crate) struct SimInstance {
    pub(crate) spec: Arc<InstanceSpec>,
    pub(crate) life: Life,
    /// Why it is unloading, if not because it was asked to.
    pub(crate) ending: Option<WorkerFailure>,
    /// When a drain is given up.
    pub(crate) drain_until: Option<Moment>,
    pub(crate) revision: u64,
    pub(crate) running: u32,
    pub(crate) holds: BTreeSet<HoldId>,
    pub(crate) touch_seq: u64,
    pub(crate) touched_at: Moment,
}

impl SimInstance {
    pub(crate) fn exists(&self) -> bool {
        !matches!(self.life, Life::Gone | Life::Failed(_))
    }

    fn touch(&mut self, now: Moment) {
        self.touch_seq += 1;
        self.touched_at = now;
    }
}

#[derive(Debug)]
pub(crate) struct SimWorker {
    pub(crate) facts: WorkerFacts,
    pub(crate) boots: u32,
    pub(crate) connected: bool,
    /// It has joined the current controller.
    pub(crate) known: bool,
    pub(crate) resync: bool,
    /// Its session takes no commands any more, which policy has not heard yet.
    pub(crate) mute: bool,
    pub(crate) instances: BTreeMap<InstanceId, SimInstance>,
    pub(crate) down: VecDeque<(CommandId, InstanceId, Command)>,
    pub(crate) up: VecDeque<(Moment, Event)>,
    pub(crate) lifecycle: u64,
}

impl SimWorker {
    pub(crate) fn new(facts: WorkerFacts) -> Self {
        Self {
            facts,
            boots: 0,
            connected: false,
            known: false,
            resync: false,
            mute: false,
            instances: BTreeMap::new(),
            down: VecDeque::new(),
            up: VecDeque::new(),
            lifecycle: 0,
        }
    }

    pub(crate) fn revert_quiesce(&mut self) {
        for instance in self
            .instances
            .values_mut()
            .filter(|instance| instance.life == Life::Quiesced)
        {
            instance.life = Life::Ready;
            instance.revision += 1;
        }
    }

    pub(crate) fn quiet(&self) -> bool {
        self.down.is_empty()
            && self.up.is_empty()
            && self
                .instances
                .values()
                .all(|i| i.life == Life::Ready && i.running == 0)
    }
}

pub(crate) fn failure(class: FailureClass, code: &str) -> WorkerFailure {
    WorkerFailure {
        class,
        code: code.into(),
        message: code.into(),
        details: Arc::default(),
    }
}

impl Sim {
    fn status(&self, id: &WorkerId, instance: &InstanceId) -> InstanceStatus {
        let found = &self.workers[id].instances[instance];
        let state = match &found.life {
            Life::Loading => ReportedState::Loading {
                progress: Progress::default(),
            },
            Life::Ready => ReportedState::Ready,
            Life::Quiesced => ReportedState::Quiesced,
            Life::Draining => ReportedState::Draining,
            Life::Unloading => ReportedState::Unloading,
            Life::Gone => ReportedState::Gone,
            Life::Failed(failure) => ReportedState::Failed(failure.clone()),
        };
        InstanceStatus {
            id: instance.clone(),
            spec: (*found.spec).clone(),
            state,
            revision: found.revision,
            running: found.running,
            queued: 0,
            holds: found.holds.clone(),
            touch_seq: found.touch_seq,
            touch_age: self.now.since(found.touched_at),
            observed: if found.life == Life::Ready {
                found.spec.reservations.clone()
            } else {
                Vec::new()
            },
        }
    }

    fn samples(&self, id: &WorkerId) -> Vec<DeviceSample> {
        if self.withhold_samples {
            return Vec::new();
        }
        let worker = &self.workers[id];
        let sample = |device: &muster_policy::DeviceFacts| {
            let key = (worker.facts.host.clone(), device.id.clone());
            let used = self.used_on(&worker.facts.host, &device.id)
                + self.foreign.get(&key).copied().unwrap_or_default();
            DeviceSample {
                device: device.id.clone(),
                capacity: device.capacity,
                free: device.capacity.saturating_sub(used),
                age: Duration::ZERO,
                lifecycle_seq: worker.lifecycle,
            }
        };
        worker.facts.devices.iter().map(sample).collect()
    }

    /// Bytes that engines really use on a device, of all workers that live on the host.
    pub(crate) fn used_on(&self, host: &HostId, device: &DeviceId) -> Bytes {
        let workers = self.workers.values().filter(|worker| worker.facts.host == *host);
        let instances = workers
            .flat_map(|worker| worker.instances.values())
            .filter(|instance| instance.exists());
        let reserved = instances.flat_map(|instance| &instance.spec.reservations);
        reserved
            .filter(|r| r.device == *device)
            .map(|r: &Reservation| r.bytes)
            .sum()
    }

    pub(crate) fn full_report(&self, id: &WorkerId) -> Report {
        let instances = self.workers[id]
            .instances
            .keys()
            .map(|instance| self.status(id, instance))
            .collect();
        Report {
            instances,
            touches: Vec::new(),
            samples: self.samples(id),
        }
    }

    fn report(&mut self, id: &WorkerId, instance: &InstanceId) {
        let status = self.status(id, instance);
        let samples = self.samples(id);
        let now = self.now;
        let worker = self.workers.get_mut(id).unwrap();
        if worker.connected {
            let report = Report {
                instances: vec![status],
                touches: Vec::new(),
                samples,
            };
            worker.up.push_back((
                now,
                Event::WorkerReported {
                    worker: id.clone(),
                    report,
                },
            ));
        }
        if self.instant {
            self.deliver_all();
        }
    }

    /// A newer worker reports a state that this controller does not know.
    pub(crate) fn report_unknown_state(&mut self, id: &WorkerId, instance: &InstanceId) {
        let mut status = self.status(id, instance);
        status.state = ReportedState::Unknown;
        self.event(Event::reported(id.clone(), status));
    }

    fn change(&mut self, id: &WorkerId, instance: &InstanceId, change: impl FnOnce(&mut SimInstance)) {
        let found = self
            .workers
            .get_mut(id)
            .unwrap()
            .instances
            .get_mut(instance)
            .unwrap();
        change(found);
        found.revision += 1;
        self.report(id, instance);
    }

    /// All touches since the last flush, coalesced.
    pub(crate) fn flush_touches(&mut self, id: &WorkerId) {
        let now = self.now;
        let samples = self.samples(id);
        let worker = self.workers.get_mut(id).unwrap();
        let touch = |(instance, found): (&InstanceId, &SimInstance)| Touch {
            instance: instance.clone(),
            touch_seq: found.touch_seq,
            age: now.since(found.touched_at),
        };
        let touches = worker
            .instances
            .iter()
            .filter(|(_, i)| i.exists())
            .map(touch)
            .collect();
        if worker.connected {
            let report = Report {
                touches,
                samples,
                ..Report::default()
            };
            worker.up.push_back((
                now,
                Event::WorkerReported {
                    worker: id.clone(),
                    report,
                },
            ));
        }
        if self.instant {
            self.deliver_all();
        }
    }

    /// A report of touches arrives that older ones had overtaken.
    pub(crate) fn repeat_old_touches(&mut self, id: &WorkerId) {
        let now = self.now;
        let worker = self.workers.get_mut(id).unwrap();
        let touch = |(instance, found): (&InstanceId, &SimInstance)| Touch {
            instance: instance.clone(),
            touch_seq: found.touch_seq.saturating_sub(2),
            age: now.since(found.touched_at) + Duration::from_secs(1),
        };
        let touches = worker.instances.iter().map(touch).collect();
        if worker.connected {
            let report = Report {
                touches,
                ..Report::default()
            };
            let event = Event::WorkerReported {
                worker: id.clone(),
                report,
            };
            worker.up.push_back((now, event));
        }
    }

    pub(crate) fn deliver_down(&mut self, id: &WorkerId) -> bool {
        let Some((command, instance, what)) = self
            .workers
            .get_mut(id)
            .and_then(|worker| worker.down.pop_front())
        else {
            return false;
        };
        let outcome = self.execute(id, &instance, what);
        let now = self.now;
        let worker = self.workers.get_mut(id).unwrap();
        worker.up.push_back((now, Self::outcome(command, outcome)));
        true
    }

    /// The task that carries the next command to a worker dies, before or after the command is there.
    pub(crate) fn lose_outcome(&mut self, id: &WorkerId, reached: bool) {
        let worker = self.workers.get_mut(id).unwrap();
        let lost = |(_, _, what): &(CommandId, InstanceId, Command)| !matches!(what, Command::AckTombstone);
        if !worker.down.front().is_some_and(lost) {
            return;
        }
        if let Some((command, instance, what)) = worker.down.pop_front() {
            if reached {
                self.execute(id, &instance, what);
            }
            self.event(Self::outcome(command, Outcome::Unknown));
        }
    }

    fn execute(&mut self, id: &WorkerId, instance: &InstanceId, command: Command) -> Outcome {
        if let Command::Load { spec, holds } = command {
            return self.begin_load(id, instance, spec, holds);
        }
        let Some(found) = self.workers.get_mut(id).unwrap().instances.get_mut(instance) else {
            return Outcome::Done {
                state: DoneState::Gone,
                touch_seq: 0,
            };
        };
        let touch_seq = found.touch_seq;
        let refused = |reason| Outcome::Refused { reason, touch_seq };
        let done = Outcome::Done {
            state: DoneState::Present,
            touch_seq,
        };
        let life = found.life.clone();
        match (command, life) {
            (Command::AckTombstone, _) => {
                self.workers.get_mut(id).unwrap().instances.remove(instance);
                return Outcome::Done {
                    state: DoneState::Gone,
                    touch_seq,
                };
            }
            (Command::CancelLoad, Life::Loading) => self.change(id, instance, |i| i.life = Life::Gone),
            (Command::CancelLoad, _) => return refused(Refusal::NotLoading),
            (Command::Quiesce, Life::Ready) => self.change(id, instance, |i| i.life = Life::Quiesced),
            (Command::Resume, Life::Quiesced) => self.change(id, instance, |i| i.life = Life::Ready),
            (Command::Quiesce | Command::Resume, _) => {}
            (Command::PlaceHold { hold }, Life::Ready | Life::Loading) => {
                self.change(id, instance, |i| {
                    i.holds.insert(hold);
                });
            }
            (Command::PlaceHold { .. }, _) => return refused(Refusal::Busy),
            (Command::ReleaseHold { hold }, _) => self.change(id, instance, |i| {
                i.holds.remove(&hold);
            }),
            (
                Command::Unload {
                    mode: UnloadMode::IfIdle { if_touch_seq },
                },
                Life::Ready | Life::Quiesced,
            ) => {
                if found.running > 0 {
                    return refused(Refusal::Busy);
                } else if !found.holds.is_empty() {
                    return refused(Refusal::Held);
                } else if found.touch_seq > if_touch_seq {
                    return refused(Refusal::Touched);
                }
                self.change(id, instance, |i| i.life = Life::Unloading);
            }
            (
                Command::Unload {
                    mode: UnloadMode::Drain { within },
                },
                Life::Ready | Life::Quiesced,
            ) => {
                let idle = found.running == 0;
                let now = self.now;
                self.change(id, instance, |i| {
                    i.life = if idle { Life::Unloading } else { Life::Draining };
                    i.drain_until = within.map(|span| now + span);
                });
            }
            (
                Command::Unload {
                    mode: UnloadMode::Force,
                },
                Life::Ready | Life::Quiesced | Life::Draining,
            ) => {
                self.change(id, instance, |i| {
                    i.running = 0;
                    i.life = Life::Unloading;
                });
            }
            (Command::Unload { .. }, _) => {}
            (Command::SetAttributes { pinned, idle_ttl }, _) => self.change(id, instance, |i| {
                let spec = Arc::make_mut(&mut i.spec);
                (spec.pinned, spec.idle_ttl) = (pinned, idle_ttl);
            }),
            (Command::Load { .. }, _) => unreachable!(),
        }
        done
    }

    fn begin_load(
        &mut self,
        id: &WorkerId,
        instance: &InstanceId,
        spec: Arc<InstanceSpec>,
        holds: Vec<HoldId>,
    ) -> Outcome {
        if !self.workers[id].instances.contains_key(instance) {
            self.loads
                .push((id.clone(), instance.clone(), spec.model.clone()));
            let now = self.now;
            let worker = self.workers.get_mut(id).unwrap();
            let holds = holds.into_iter().collect();
            let new = SimInstance {
                spec,
                life: Life::Loading,
                ending: None,
                drain_until: None,
                revision: 0,
                running: 0,
                holds,
                touch_seq: 1,
                touched_at: now,
            };
            worker.instances.insert(instance.clone(), new);
            worker.lifecycle += 1;
            self.check_truth(id, instance);
            self.report(id, instance);
        }
        Outcome::Done {
            state: DoneState::Present,
            touch_seq: 1,
        }
    }

    /// What really runs must fit: memory per device, one model per exclusive device, models per type and host.
    fn check_truth(&self, id: &WorkerId, instance: &InstanceId) {
        if !self.strict {
            return;
        }
        let host = &self.workers[id].facts.host;
        let spec = &self.workers[id].instances[instance].spec;
        for reservation in &spec.reservations {
            let device = self.workers[id]
                .facts
                .devices
                .iter()
                .find(|d| d.id == reservation.device)
                .unwrap();
            let used = self.used_on(host, &device.id);
            assert!(
                self.config.overcommit || used + self.config.margin <= device.capacity,
                "I4: {used} on {}\n{}",
                device.id,
                self.tail()
            );
            let class = self.config.exclusivity.get(&device.kind).copied();
            let class = class.unwrap_or(device.exclusivity);
            if let Some(limit) = class.limit(spec.kind) {
                let models = self.models_where(host, |i| {
                    class.counts_together(spec.kind, i.spec.kind)
                        && i.spec.reservations.iter().any(|r| r.device == device.id)
                });
                assert!(models.len() <= limit, "I3: {models:?}\n{}", self.tail());
            }
        }
        let models = self.models_of(host, spec.kind);
        assert!(
            self.config.limits.of(spec.kind).allows(models.len()),
            "I2: {models:?}\n{}",
            self.tail()
        );
        let everywhere = self.workers.values().flat_map(|worker| worker.instances.values());
        let everywhere = everywhere.filter(|i| i.exists() && i.spec.kind == spec.kind);
        let models: BTreeSet<&ModelId> = everywhere.map(|i| &i.spec.model).collect();
        assert!(
            self.config.fleet_limits.of(spec.kind).allows(models.len()),
            "I2, of the fleet: {models:?}\n{}",
            self.tail()
        );
    }

    pub(crate) fn models_of(&self, host: &HostId, kind: ModelType) -> BTreeSet<ModelId> {
        self.models_where(host, |instance| instance.spec.kind == kind)
    }

    fn models_where(&self, host: &HostId, test: impl Fn(&SimInstance) -> bool) -> BTreeSet<ModelId> {
        let workers = self.workers.values().filter(|worker| worker.facts.host == *host);
        let instances = workers.flat_map(|worker| worker.instances.values());
        instances
            .filter(|i| i.exists() && test(i))
            .map(|i| i.spec.model.clone())
            .collect()
    }

    pub(crate) fn loading(&self) -> Vec<(WorkerId, InstanceId)> {
        self.in_life(&Life::Loading)
    }

    pub(crate) fn in_life(&self, life: &Life) -> Vec<(WorkerId, InstanceId)> {
        let all = self
            .workers
            .iter()
            .flat_map(|(id, worker)| worker.instances.iter().map(move |(i, f)| (id, i, f)));
        all.filter(|(_, _, found)| found.life == *life)
            .map(|(id, i, _)| (id.clone(), i.clone()))
            .collect()
    }

    pub(crate) fn finish_load(&mut self, id: &WorkerId, instance: &InstanceId) {
        let now = self.now;
        self.workers.get_mut(id).unwrap().lifecycle += 1;
        self.change(id, instance, |i| {
            i.life = Life::Ready;
            i.touch(now);
        });
    }

    pub(crate) fn fail_load(&mut self, id: &WorkerId, instance: &InstanceId, class: FailureClass) {
        self.note_retry(id, instance, Some(class));
        self.workers.get_mut(id).unwrap().lifecycle += 1;
        self.change(id, instance, |i| {
            i.life = Life::Failed(failure(class, "model_load_failed"))
        });
    }

    /// A first attempt whose engine fails is tried once more; any other end is none of that.
    fn note_retry(&mut self, id: &WorkerId, instance: &InstanceId, class: Option<FailureClass>) {
        let found = &self.workers[id].instances[instance];
        if found.life != Life::Loading {
            return;
        }
        let spec = Arc::clone(&found.spec);
        if class == Some(FailureClass::EngineLoad) && spec.attempt == 1 {
            self.retrying.insert(spec.model.clone(), id.clone());
        } else {
            self.retrying.remove(&spec.model);
        }
    }

    pub(crate) fn crash(&mut self, id: &WorkerId, instance: &InstanceId) {
        self.workers.get_mut(id).unwrap().lifecycle += 1;
        self.change(id, instance, |i| {
            i.running = 0;
            i.life = Life::Failed(failure(FailureClass::Crash, "runtime_crashed"));
        });
    }

    /// The worker begins to end an instance by itself: its engine failed, or somebody at the host wants it gone.
    pub(crate) fn begin_end(&mut self, id: &WorkerId, instance: &InstanceId, why: Option<WorkerFailure>) {
        self.note_retry(id, instance, why.as_ref().map(|failure| failure.class));
        self.change(id, instance, |i| {
            i.running = 0;
            i.life = Life::Unloading;
            i.ending = why;
        });
    }

    /// The processes of an unloading instance have ended.
    pub(crate) fn exit(&mut self, id: &WorkerId, instance: &InstanceId) {
        self.workers.get_mut(id).unwrap().lifecycle += 1;
        self.change(id, instance, |i| {
            i.life = i.ending.take().map_or(Life::Gone, Life::Failed);
        });
    }

    /// Drains that took too long are given up.
    pub(crate) fn give_up_drains(&mut self) {
        for (id, instance) in self.in_life(&Life::Draining) {
            let until = self.workers[&id].instances[&instance].drain_until;
            if until.is_some_and(|until| until <= self.now) {
                self.change(&id, &instance, |i| i.life = Life::Ready);
            }
        }
    }

    /// Lets every load and every exit under way end well, until nothing is under way.
    pub(crate) fn finish_loads(&mut self) {
        for _ in 0..64 {
            self.finish_exits();
            let loading = self.loading();
            if loading.is_empty() && self.in_life(&Life::Unloading).is_empty() {
                return;
            }
            for (id, instance) in loading {
                if self.workers[&id]
                    .instances
                    .get(&instance)
                    .is_some_and(|i| i.life == Life::Loading)
                {
                    self.finish_load(&id, &instance);
                }
            }
        }
        panic!("loads never end\n{}", self.tail());
    }

    pub(crate) fn finish_exits(&mut self) {
        for (id, instance) in self.in_life(&Life::Unloading) {
            self.exit(&id, &instance);
        }
    }

    /// A request arrives at an instance; says whether it was admitted.
    pub(crate) fn start_request(&mut self, id: &WorkerId, instance: &InstanceId) -> bool {
        let now = self.now;
        let Some(worker) = self.workers.get(id) else {
            return false;
        };
        if worker
            .instances
            .get(instance)
            .is_none_or(|found| found.life != Life::Ready)
        {
            return false;
        }
        self.change(id, instance, |i| {
            i.running += 1;
            i.touch(now);
        });
        true
    }

    pub(crate) fn worker_of(&self, instance: &InstanceId) -> Option<WorkerId> {
        self.workers
            .iter()
            .find(|(_, w)| w.instances.contains_key(instance))
            .map(|(id, _)| id.clone())
    }

    pub(crate) fn end_request(&mut self, instance: &InstanceId) {
        let now = self.now;
        let Some(id) = self.worker_of(instance) else {
            return;
        };
        if self.workers[&id].instances[instance].running == 0 {
            return;
        }
        self.change(&id, instance, |i| {
            i.running -= 1;
            i.touch(now);
            if i.running == 0 && i.life == Life::Draining {
                i.life = Life::Unloading;
            }
        });
    }

    pub(crate) fn end_all_requests(&mut self) {
        let busy: Vec<InstanceId> = self
            .workers
            .values()
            .flat_map(|w| {
                w.instances
                    .iter()
                    .filter(|(_, i)| i.running > 0)
                    .map(|(id, _)| id.clone())
            })
            .collect();
        for instance in busy {
            while self
                .worker_of(&instance)
                .is_some_and(|w| self.workers[&w].instances[&instance].running > 0)
            {
                self.end_request(&instance);
            }
        }
    }
}
