//! What happens at workers: the world's moves, heard of at once unless a test says otherwise.

use muster_core::{InstanceId, WorkerId};
use muster_policy::{Event, FailureClass, Outcome, ReportedState, WorkerFailure};

use super::Sim;
use crate::world::Life;

impl Sim {
    /// What workers have to say is heard, unless tests decide when.
    fn told(&mut self) {
        if self.instant {
            self.deliver_all();
        }
    }

    /// A worker says again how an instance stands.
    pub(super) fn repeat(&mut self, id: &WorkerId, instance: &InstanceId) {
        if self.workers[id].instances.contains_key(instance) {
            self.world.change(id, instance, |_| {});
            self.told();
        }
    }

    /// Something happens to an instance that no command asked for.
    pub(crate) fn set_life(&mut self, id: &WorkerId, instance: &InstanceId, life: Life) {
        self.world.change(id, instance, |found| found.life = life);
        self.told();
    }

    /// Its engine has taken no memory yet, and cannot be observed.
    pub(crate) fn hide_memory_of(&mut self, instance: &InstanceId) {
        let id = self.worker_of(instance).unwrap();
        self.world.change(&id, instance, |found| found.used.clear());
        self.told();
    }

    /// A newer worker reports a state that this controller does not know.
    pub(crate) fn report_unknown_state(&mut self, id: &WorkerId, instance: &InstanceId) {
        let mut status = self.world.status(id, instance);
        status.state = ReportedState::Unknown;
        self.event(Event::reported(id.clone(), status));
    }

    /// The task that carries the next command to a worker dies, before or after the command is there.
    pub(crate) fn lose_outcome(&mut self, id: &WorkerId, reached: bool) {
        if let Some((command, instance, what)) = self.workers.get_mut(id).unwrap().down.pop_front() {
            if reached {
                self.world.execute(id, &instance, what);
            }
            self.event(Self::outcome(command, Outcome::Unknown));
        }
    }

    /// All touches since the last flush, coalesced.
    pub(crate) fn flush_touches(&mut self, id: &WorkerId) {
        self.world.flush_touches(id);
        self.told();
    }

    pub(crate) fn finish_load(&mut self, id: &WorkerId, instance: &InstanceId) {
        self.world.finish_load(id, instance);
        self.told();
    }

    pub(crate) fn fail_load(&mut self, id: &WorkerId, instance: &InstanceId, class: FailureClass) {
        self.world.fail_load(id, instance, class);
        self.told();
    }

    pub(crate) fn crash(&mut self, id: &WorkerId, instance: &InstanceId) {
        self.world.crash(id, instance);
        self.told();
    }

    /// The worker begins to end an instance by itself: its engine failed, or somebody at the host wants it gone.
    pub(crate) fn begin_end(&mut self, id: &WorkerId, instance: &InstanceId, why: Option<WorkerFailure>) {
        self.world.begin_end(id, instance, why);
        self.told();
    }

    /// The processes of an unloading instance have ended.
    pub(crate) fn exit(&mut self, id: &WorkerId, instance: &InstanceId) {
        self.world.exit(id, instance);
        self.told();
    }

    pub(crate) fn give_up_drains(&mut self) {
        self.world.give_up_drains();
        self.told();
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
        let admitted = self.world.start_request(id, instance);
        self.told();
        admitted
    }

    pub(crate) fn end_request(&mut self, instance: &InstanceId) {
        self.world.end_request(instance);
        self.told();
    }

    pub(crate) fn end_all_requests(&mut self) {
        self.world.end_all_requests();
        self.told();
    }
}
