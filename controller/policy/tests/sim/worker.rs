//! What workers do: carry commands out as the protocol says, report, fall over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_core::{Code, HoldId, InstanceId, WorkerId};
use muster_policy::{
    Command, CommandId, DoneState, Event, FailureClass, InstanceSpec, InstanceStatus, Outcome as Answer,
    Progress, Refusal, Report, ReportedState, UnloadMode, WorkerFacts, WorkerFailure,
};

use crate::scenario::Micros;
use crate::world::{COALESCE, EXIT, Happening, LINK, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Loading,
    Ready,
    Quiesced,
    Ending,
    Gone,
    Failed,
}

/// An instance, from its Load command on.
#[derive(Debug)]
pub(crate) struct SimInstance {
    pub(crate) id: InstanceId,
    pub(crate) model: usize,
    pub(crate) worker: usize,
    pub(crate) life: Life,
    pub(crate) running: u32,
    served: u64,
    spec: Arc<InstanceSpec>,
    holds: BTreeSet<HoldId>,
    touch_seq: u64,
    touched_at: Micros,
    revision: u64,
}

#[derive(Debug)]
pub(crate) struct SimWorker {
    pub(crate) host: usize,
    pub(crate) up: bool,
    facts: WorkerFacts,
    boot: u32,
    instances: BTreeSet<usize>,
    /// Not reported yet.
    changed: BTreeSet<usize>,
    flushing: Option<Micros>,
}

impl SimWorker {
    pub(crate) fn new(host: usize, facts: WorkerFacts) -> Self {
        Self {
            host,
            up: true,
            facts,
            boot: 0,
            instances: BTreeSet::new(),
            changed: BTreeSet::new(),
            flushing: None,
        }
    }

    pub(crate) fn alive(&self, boot: u32) -> bool {
        self.up && self.boot == boot
    }

    pub(crate) fn restart(&mut self) -> WorkerFacts {
        self.up = true;
        self.boot += 1;
        self.facts.boot = format!("boot-{}", self.boot).as_str().into();
        self.facts.clone()
    }
}

impl World<'_> {
    pub(crate) fn command(
        &mut self,
        id: CommandId,
        worker: &WorkerId,
        instance: InstanceId,
        command: Command,
    ) {
        let worker = self
            .workers
            .iter()
            .position(|known| known.facts.id == *worker)
            .expect("commands go to known workers");
        if !self.workers[worker].up {
            return;
        }
        let answer = match command {
            Command::Load { spec, holds } => self.load(worker, instance, spec, holds),
            Command::AckTombstone | Command::SetAttributes { .. } => return,
            Command::CancelLoad
            | Command::Quiesce
            | Command::Resume
            | Command::Unload { .. }
            | Command::PlaceHold { .. }
            | Command::ReleaseHold { .. } => self.change(&instance, command),
        };
        let boot = self.workers[worker].boot;
        self.later(
            2 * LINK,
            Happening::Answer {
                worker,
                boot,
                id,
                answer,
            },
        );
    }

    fn load(&mut self, worker: usize, id: InstanceId, spec: Arc<InstanceSpec>, holds: Vec<HoldId>) -> Answer {
        let model = self.model(spec.model.as_str());
        let index = self.instances.len();
        self.out.loads += 1;
        let takes = self.scenario.models[model].load;
        self.out.loading += takes;
        // A failed engine is tried once more (I7), and then it works.
        let fails = self.scenario.failing_load > 0
            && spec.attempt == 1
            && self.out.loads.is_multiple_of(self.scenario.failing_load);
        self.instances.push(SimInstance {
            id: id.clone(),
            model,
            worker,
            life: Life::Loading,
            running: 0,
            served: 0,
            spec,
            holds: holds.into_iter().collect(),
            touch_seq: 1,
            touched_at: self.now,
            revision: 0,
        });
        self.by_id.insert(id, index);
        self.workers[worker].instances.insert(index);
        self.later(
            LINK + takes,
            Happening::LoadEnd {
                instance: index,
                well: !fails,
            },
        );
        self.report(index, LINK);
        done(1)
    }

    fn change(&mut self, id: &InstanceId, command: Command) -> Answer {
        let Some(index) = self.by_id.get(id).copied() else {
            return Answer::Done {
                state: DoneState::Gone,
                touch_seq: 0,
            };
        };
        let found = &mut self.instances[index];
        let seq = found.touch_seq;
        let refused = |reason: Refusal| Answer::Refused {
            reason,
            touch_seq: seq,
        };
        match command {
            Command::Unload {
                mode: UnloadMode::IfIdle { if_touch_seq },
            } => {
                if found.running > 0 {
                    return refused(Refusal::Busy);
                } else if !found.holds.is_empty() {
                    return refused(Refusal::Held);
                } else if found.touch_seq > if_touch_seq {
                    return refused(Refusal::Touched);
                }
                self.end(index);
            }
            Command::CancelLoad => {
                if found.life != Life::Loading {
                    return refused(Refusal::NotLoading);
                }
                self.end(index);
            }
            Command::Quiesce => found.life = Life::Quiesced,
            Command::Resume => found.life = Life::Ready,
            Command::PlaceHold { hold } => {
                if found.life != Life::Ready {
                    return refused(Refusal::Invalid);
                }
                found.holds.insert(hold);
            }
            Command::ReleaseHold { hold } => {
                found.holds.remove(&hold);
            }
            Command::Unload {
                mode: UnloadMode::Drain { .. } | UnloadMode::Force,
            }
            | Command::Load { .. }
            | Command::SetAttributes { .. }
            | Command::AckTombstone => panic!("no operator is here"),
        }
        self.report(index, LINK);
        done(seq)
    }

    fn end(&mut self, index: usize) {
        self.instances[index].life = Life::Ending;
        self.later(EXIT, Happening::Exit { instance: index });
    }

    fn touch(&mut self, index: usize) {
        let now = self.now;
        let found = &mut self.instances[index];
        found.touch_seq += 1;
        found.touched_at = now;
    }

    /// A request begins at an instance that takes it.
    pub(crate) fn begin(&mut self, index: usize, request: usize) {
        let found = &mut self.instances[index];
        assert_eq!(found.life, Life::Ready, "who was held for a request takes it");
        found.running += 1;
        found.served += 1;
        let urgent = found.running == 1;
        self.touch(index);
        let takes = self.scenario.requests[request].takes;
        self.later(takes, Happening::Finish { instance: index });
        self.report(index, if urgent { LINK } else { COALESCE });
    }

    pub(crate) fn request_ended(&mut self, index: usize) {
        let found = &mut self.instances[index];
        match found.life {
            Life::Gone | Life::Failed => return,
            Life::Loading | Life::Ready | Life::Quiesced | Life::Ending => found.running -= 1,
        }
        let urgent = found.running == 0;
        self.touch(index);
        self.report(index, if urgent { LINK } else { COALESCE });
    }

    pub(crate) fn load_ended(&mut self, index: usize, well: bool) {
        if self.instances[index].life != Life::Loading {
            return;
        }
        if well {
            self.instances[index].life = Life::Ready;
            self.touch(index);
        } else {
            self.leave(index, Life::Failed);
        }
        self.report(index, LINK);
    }

    pub(crate) fn exited(&mut self, index: usize) {
        if self.instances[index].life == Life::Ending {
            self.leave(index, Life::Gone);
            self.report(index, LINK);
        }
    }

    fn leave(&mut self, index: usize, life: Life) {
        let found = &mut self.instances[index];
        found.life = life;
        self.out.wasted += u64::from(found.served == 0);
        let worker = found.worker;
        self.workers[worker].instances.remove(&index);
    }

    fn report(&mut self, index: usize, within: Micros) {
        let worker = self.instances[index].worker;
        self.instances[index].revision += 1;
        let due = self.now + within;
        let found = &mut self.workers[worker];
        found.changed.insert(index);
        if found.flushing.is_none_or(|at| due < at) {
            found.flushing = Some(due);
            self.at(due, Happening::Flush { worker });
        }
    }

    pub(crate) fn flush(&mut self, worker: usize) {
        if self.workers[worker].flushing != Some(self.now) {
            return;
        }
        self.workers[worker].flushing = None;
        let changed = std::mem::take(&mut self.workers[worker].changed);
        if !self.workers[worker].up {
            return;
        }
        let instances = changed.into_iter().map(|index| self.status(index)).collect();
        self.feed(Event::WorkerReported {
            worker: self.workers[worker].facts.id.clone(),
            report: Report {
                instances,
                ..Report::default()
            },
        });
    }

    fn status(&self, index: usize) -> InstanceStatus {
        let found = &self.instances[index];
        let state = match found.life {
            Life::Loading => ReportedState::Loading {
                progress: Progress::default(),
            },
            Life::Ready => ReportedState::Ready,
            Life::Quiesced => ReportedState::Quiesced,
            Life::Ending => ReportedState::Unloading,
            Life::Gone => ReportedState::Gone,
            Life::Failed => ReportedState::Failed(WorkerFailure {
                class: FailureClass::EngineLoad,
                code: Code::ModelLoadFailed,
                message: "the engine ended".into(),
                details: Arc::default(),
            }),
        };
        InstanceStatus {
            id: found.id.clone(),
            spec: InstanceSpec::clone(&found.spec),
            state,
            revision: found.revision,
            running: found.running,
            queued: 0,
            holds: found.holds.clone(),
            touch_seq: found.touch_seq,
            touch_age: Duration::from_micros(self.now - found.touched_at),
            observed: Vec::new(),
        }
    }

    /// The machine falls over: its engines are gone, and nobody says so before it is back.
    pub(crate) fn crash(&mut self, worker: usize) {
        let lost: Vec<usize> = self.workers[worker].instances.iter().copied().collect();
        for index in lost {
            self.leave(index, Life::Gone);
        }
        let found = &mut self.workers[worker];
        found.up = false;
        found.changed.clear();
        let id = found.facts.id.clone();
        self.feed(Event::WorkerLost { worker: id });
    }
}

fn done(touch_seq: u64) -> Answer {
    Answer::Done {
        state: DoneState::Present,
        touch_seq,
    }
}
