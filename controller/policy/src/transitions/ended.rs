//! The end of an instance, and what it means for its load, its model and its waiters.

use crate::api::{DecisionKind, Effect, FailureClass, LoadError, Moment, Origin, Stage, WorkerFailure};
use crate::fleet::Fleet;
use crate::state::{Failure, Goal, Load, Place};
use muster_core::{HoldId, HostId, InstanceId, ModelId, WorkerId};

/// How an instance ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// It was unloaded or cancelled on request.
    Asked,
    /// Its worker reported a failure.
    Failed(WorkerFailure),
    /// It ended with its worker, or the worker never got the load.
    LostWith(LoadError),
}

impl Fleet {
    /// Removes an instance whose engine has ended.
    pub(crate) fn instance_ended(&mut self, id: &InstanceId, end: End) {
        let Some(instance) = self.remove_instance(id) else {
            return;
        };
        let model = instance.spec.model.clone();
        self.decided(
            DecisionKind::Unloaded,
            Some(&model),
            Some(id),
            Some(&instance.worker),
        );
        let loaded = instance.was_loaded();
        let operators = instance.condemned.is_some();
        match instance.into_load() {
            // An operator unloads it: the load is not tried again.
            _ if operators => {}
            Some((load, worker, host)) => match end {
                // Not asked for by this controller: somebody on the worker's host stopped it, or the worker is shutting down.
                End::Asked => self.load_lost(load, &LoadError::Cancelled(model.clone())),
                End::Failed(failure) => self.load_failed(load, failure, id, worker, host),
                End::LostWith(error) => self.load_lost(load, &error),
            },
            // Its end was asked for, or its load went back to the queue when the worker was lost.
            None if !loaded => {}
            None => match end {
                End::Asked => {}
                End::Failed(failure) => self.crashed(&model, id, &LoadError::Worker(failure)),
                End::LostWith(error) => self.crashed(&model, id, &error),
            },
        }
        self.free_waiters_of(&model, id);
    }

    /// Handles a loaded engine that ended by itself. Streams that held it get the error and do not cause another load: a crash must not
    /// repeat by itself.
    fn crashed(&mut self, model: &ModelId, instance: &InstanceId, error: &LoadError) {
        self.decided(
            DecisionKind::Failed(error.clone()),
            Some(model),
            Some(instance),
            None,
        );
        self.note_failure(model, error.clone(), None);
        for hold in self.waiters_on(model, instance) {
            self.fail_waiter(&hold, error.clone());
        }
    }

    /// Handles a load that failed at its worker (I7).
    fn load_failed(
        &mut self,
        mut load: Load,
        failure: WorkerFailure,
        instance: &InstanceId,
        worker: WorkerId,
        host: HostId,
    ) {
        let error = LoadError::Worker(failure.clone());
        self.decided(
            DecisionKind::Failed(error.clone()),
            Some(&load.model),
            Some(instance),
            Some(&worker),
        );
        match failure.class {
            FailureClass::EngineLoad if load.attempt == 1 && self.may_evict(&load) => {
                let model = load.model.clone();
                load.attempt = 2;
                // Somebody waits for this preload: treat it like a load for a request.
                if load.origin == Origin::Preload {
                    load.origin = Origin::Auto;
                }
                self.decided(
                    DecisionKind::RetryAfterEvictingAll,
                    Some(&model),
                    Some(instance),
                    Some(&worker),
                );
                load.goal = Goal::RetryAt {
                    worker,
                    host,
                    failure,
                };
                self.back_into_queue(load);
            }
            FailureClass::Cancelled => {
                self.fail_model(&load.model, &LoadError::Cancelled(load.model.clone()), None)
            }
            FailureClass::EngineLoad | FailureClass::BeforeEngine | FailureClass::Crash => {
                self.load_failed_for_good(&load.model, &error);
            }
        }
    }

    /// Whether the load may evict. A preload may only if somebody waits for it.
    fn may_evict(&self, load: &Load) -> bool {
        load.origin != Origin::Preload || self.awaited_by_anyone(&load.model)
    }

    pub(crate) fn load_failed_for_good(&mut self, id: &ModelId, error: &LoadError) {
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        model.strikes = model.strikes.saturating_add(1);
        let retry_at = self.now + self.config.backoff.after(model.strikes);
        self.fail_model(id, error, Some(retry_at));
    }

    /// Handles a load lost with its worker. It goes back to its place in the queue, `max_lost_loads` times at most.
    pub(crate) fn load_lost(&mut self, mut load: Load, error: &LoadError) {
        load.lost = load.lost.saturating_add(1);
        load.goal = Goal::Anywhere;
        if load.lost > self.config.max_lost_loads {
            self.load_failed_for_good(&load.model, error);
        } else {
            self.back_into_queue(load);
        }
    }

    pub(crate) fn back_into_queue(&mut self, load: Load) {
        let load = load.requeued();
        let Some(model) = self.models.get_mut(&load.model) else {
            return;
        };
        if model.queued.is_some() {
            return;
        }
        model.queued = Some(load.id);
        let id = load.model.clone();
        self.queue.insert(load.id, load);
        self.touch_model(&id);
        self.room_changed();
    }

    /// Ends a model's load without success and tells everyone who waits for it. `retry_at`: requests may not cause a load before that.
    pub(crate) fn fail_model(&mut self, id: &ModelId, error: &LoadError, retry_at: Option<Moment>) {
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        if let Some(load) = model.queued.take() {
            self.queue.remove(&load);
        }
        // A cancelled load leaves the model `unloaded`, a failed one `failed`.
        if !matches!(error, LoadError::Cancelled(_)) {
            self.note_failure(id, error.clone(), retry_at);
        }
        self.tell_failed(id, error);
        self.room_changed();
    }

    /// Stores why a model is `failed`, unless another replica serves.
    fn note_failure(&mut self, id: &ModelId, error: LoadError, retry_at: Option<Moment>) {
        if self.serving(id) {
            return;
        }
        if let Some(model) = self.models.get_mut(id) {
            model.failure = Some(Failure { error, retry_at });
        }
    }

    /// Refuses a load. Nothing was tried, and the model's state stays as it was.
    pub(crate) fn refuse_load(&mut self, id: &ModelId, error: &LoadError) {
        if let Some(load) = self.models.get_mut(id).and_then(|model| model.queued.take()) {
            self.queue.remove(&load);
        }
        self.decided(DecisionKind::Refused(error.clone()), Some(id), None, None);
        self.tell_failed(id, error);
    }

    /// Tells the error to all who wait for a load, except those who can be served by a ready instance.
    fn tell_failed(&mut self, id: &ModelId, error: &LoadError) {
        if self.takes_requests(id) {
            return self.touch_model(id);
        }
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        let calls = std::mem::take(&mut model.loads);
        let waiting: Vec<HoldId> = model.waiters.iter().cloned().collect();
        for call in calls {
            self.reply(call.request, Err(error.clone()));
        }
        for hold in waiting {
            let held = self
                .waiters
                .get(&hold)
                .is_some_and(|waiter| matches!(waiter.place, Place::Held(_)));
            if !held {
                self.fail_waiter(&hold, error.clone());
            }
        }
        self.touch_model(id);
    }

    /// Ends a stream with an error.
    pub(crate) fn fail_waiter(&mut self, hold: &HoldId, error: LoadError) {
        self.effects.push(Effect::Notify {
            hold: hold.clone(),
            stage: Stage::Failed(error),
        });
        self.remove_waiter(hold);
    }

    /// Puts streams that held this instance, or were about to, back to waiting.
    pub(crate) fn free_waiters_of(&mut self, model: &ModelId, instance: &InstanceId) {
        for hold in self.waiters_on(model, instance) {
            if let Some(waiter) = self.waiters.get_mut(&hold) {
                waiter.place = Place::Waiting;
            }
        }
    }

    fn waiters_on(&self, model: &ModelId, instance: &InstanceId) -> Vec<HoldId> {
        let Some(model) = self.models.get(model) else {
            return Vec::new();
        };
        let on = |hold: &&HoldId| {
            self.waiters
                .get(*hold)
                .is_some_and(|waiter| waiter.instance() == Some(instance))
        };
        model.waiters.iter().filter(on).cloned().collect()
    }
}
