//! A worker: the truth about its instances, with the rules of the wire.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use muster_core::{Bytes, Code, DeviceId, HoldId, InstanceId, WorkerId};
use muster_policy::{
    Command, CommandId, DeviceSample, DoneState, Event, FailureClass, InstanceSpec, InstanceStatus, Moment,
    Outcome, Progress, Refusal, Report, ReportedState, Reservation, Touch, UnloadMode, WorkerFacts,
    WorkerFailure,
};

use super::World;

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
    /// What its engine really uses, per device.
    pub(crate) used: BTreeMap<DeviceId, Bytes>,
}

impl SimInstance {
    pub(crate) fn exists(&self) -> bool {
        !matches!(self.life, Life::Gone | Life::Failed(_))
    }

    /// Bytes set aside for it on a device.
    pub(crate) fn reserved_on(&self, device: &DeviceId) -> Bytes {
        let parts = self.spec.reservations.iter();
        parts
            .filter(|part| part.device == *device)
            .map(|part| part.bytes)
            .sum()
    }

    /// Bytes of a device that its engine really uses.
    pub(crate) fn used_on(&self, device: &DeviceId) -> Bytes {
        self.used.get(device).copied().unwrap_or_default()
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

fn reserved(spec: &InstanceSpec) -> BTreeMap<DeviceId, Bytes> {
    let parts = spec.reservations.iter();
    parts.map(|part| (part.device.clone(), part.bytes)).collect()
}

pub(crate) fn failure(class: FailureClass, code: Code) -> WorkerFailure {
    WorkerFailure {
        class,
        code,
        message: code.as_str().into(),
        details: Arc::default(),
    }
}

impl World {
    pub(crate) fn status(&self, id: &WorkerId, instance: &InstanceId) -> InstanceStatus {
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
            observed: if self.engines_grow || found.life == Life::Ready {
                let used = found.used.iter();
                used.map(|(device, bytes)| Reservation {
                    device: device.clone(),
                    bytes: *bytes,
                })
                .collect()
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
    }

    pub(crate) fn change(
        &mut self,
        id: &WorkerId,
        instance: &InstanceId,
        change: impl FnOnce(&mut SimInstance),
    ) {
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

    /// The next thing that a worker says; ages grow on the way, as they would with a clock of its own.
    pub(crate) fn heard_from(&mut self, id: &WorkerId) -> Option<Event> {
        let (sent, mut event) = self.workers.get_mut(id)?.up.pop_front()?;
        let delay = self.now.since(sent);
        if let Event::WorkerReported { report, .. } = &mut event {
            report
                .instances
                .iter_mut()
                .for_each(|status| status.touch_age += delay);
            report.touches.iter_mut().for_each(|touch| touch.age += delay);
            report.samples.iter_mut().for_each(|sample| sample.age += delay);
        }
        Some(event)
    }

    /// A worker carries its next command out and answers; false if there is none.
    pub(crate) fn carry_out_next(&mut self, id: &WorkerId) -> bool {
        let next = |worker: &mut SimWorker| worker.down.pop_front();
        let Some((command, instance, what)) = self.workers.get_mut(id).and_then(next) else {
            return false;
        };
        let outcome = self.execute(id, &instance, what);
        let now = self.now;
        let worker = self.workers.get_mut(id).unwrap();
        worker
            .up
            .push_back((now, Event::Outcome { id: command, outcome }));
        true
    }

    pub(crate) fn execute(&mut self, id: &WorkerId, instance: &InstanceId, command: Command) -> Outcome {
        if let Command::Load { spec, holds } = command {
            return self.begin_load(id, instance, spec, holds);
        }
        if let Command::Unload { mode } = &command {
            self.check_work(id, instance, *mode);
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
                self.check_unload(id, instance);
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
            let used = self.used_at_first(&spec);
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
                used,
            };
            worker.instances.insert(instance.clone(), new);
            worker.lifecycle += 1;
            self.check_truth(id, instance);
            self.check_alone(id, instance);
            self.report(id, instance);
        }
        Outcome::Done {
            state: DoneState::Present,
            touch_seq: 1,
        }
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
            if i.used.is_empty() {
                i.used = reserved(&i.spec);
            }
        });
    }

    fn used_at_first(&self, spec: &InstanceSpec) -> BTreeMap<DeviceId, Bytes> {
        if self.engines_grow {
            BTreeMap::new()
        } else {
            reserved(spec)
        }
    }

    pub(crate) fn fail_load(&mut self, id: &WorkerId, instance: &InstanceId, class: FailureClass) {
        self.note_retry(id, instance, Some(class));
        self.workers.get_mut(id).unwrap().lifecycle += 1;
        self.change(id, instance, |i| {
            i.life = Life::Failed(failure(class, Code::ModelLoadFailed))
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
            i.life = Life::Failed(failure(FailureClass::Crash, Code::RuntimeCrashed));
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

    /// An engine comes to use so many hundredths of what was set aside for it, up to half as much again; whether that is less than before.
    pub(crate) fn engine_uses(&mut self, id: &WorkerId, instance: &InstanceId, hundredths: u8) -> bool {
        let hundredths = u64::from(hundredths % 151);
        let mut less = false;
        self.change(id, instance, |i| {
            for part in &i.spec.reservations {
                let uses = Bytes::new(part.bytes.get() * hundredths / 100);
                let before = i.used.insert(part.device.clone(), uses);
                less |= before.is_some_and(|before| before > uses);
            }
        });
        less
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
