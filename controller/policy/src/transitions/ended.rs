//! An instance is gone, for whatever reason: what becomes of its load, its model and its waiters.

use crate::api::{DecisionKind, Effect, FailureClass, LoadError, Moment, Origin, Stage, WorkerFailure};
use crate::fleet::Fleet;
use crate::state::{Failure, Goal, Load, Place};
use muster_core::{HoldId, HostId, InstanceId, ModelId, WorkerId};

/// How an instance ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// As asked: unloaded or cancelled.
    Asked,
    /// Its worker says why.
    Failed(WorkerFailure),
    /// It went with its worker, or the worker never heard of it.
    LostWith(LoadError),
}

impl Fleet {
    /// Forgets an instance whose engine is gone.
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
            // Its load is not to be tried again.
            _ if operators => {}
            Some((load, worker, host)) => match end {
                // Not by this controller: somebody at the worker's host, or the worker itself as it shuts down.
                End::Asked => self.load_lost(load, &LoadError::Cancelled(model.clone())),
                End::Failed(failure) => self.load_failed(load, failure, id, worker, host),
                End::LostWith(error) => self.load_lost(load, &error),
            },
            // Its end was wanted, or its load went back into the queue when the worker was lost.
            None if !loaded => {}
            None => match end {
                End::Asked => {}
                End::Failed(failure) => self.crashed(&model, id, &LoadError::Worker(failure)),
                End::LostWith(error) => self.crashed(&model, id, &error),
            },
        }
        self.free_waiters_of(&model, id);
    }

    /// A loaded engine ended by itself. Streams that held it are told so: a loop of crashes must not go on by itself.
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

    /// A load failed at its worker (I7).
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
                // Whoever waits for a preload by now has made it theirs.
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

    /// A preload evicts nobody, unless somebody waits for it by now.
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

    /// A load was lost with its worker: it goes back to its place in the queue, a few times.
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

    /// A model's load is over without success: everyone who waits for it is told. `retry_at`: no automatic load until then.
    pub(crate) fn fail_model(&mut self, id: &ModelId, error: &LoadError, retry_at: Option<Moment>) {
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        if let Some(load) = model.queued.take() {
            self.queue.remove(&load);
        }
        // A cancelled load goes back to `unloaded`, a failed one is `failed`.
        if !matches!(error, LoadError::Cancelled(_)) {
            self.note_failure(id, error.clone(), retry_at);
        }
        self.tell_failed(id, error);
        self.room_changed();
    }

    /// Keeps why a model is `failed`, unless another replica serves.
    fn note_failure(&mut self, id: &ModelId, error: LoadError, retry_at: Option<Moment>) {
        if self.serving(id) {
            return;
        }
        if let Some(model) = self.models.get_mut(id) {
            model.failure = Some(Failure { error, retry_at });
        }
    }

    /// A load was refused: nothing was tried, and the model is as it was.
    pub(crate) fn refuse_load(&mut self, id: &ModelId, error: &LoadError) {
        if let Some(load) = self.models.get_mut(id).and_then(|model| model.queued.take()) {
            self.queue.remove(&load);
        }
        self.decided(DecisionKind::Refused(error.clone()), Some(id), None, None);
        self.tell_failed(id, error);
    }

    /// Tells all who wait for a load, but nobody who gets what they wait for from an instance that takes requests.
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

    /// Streams that held an instance, or were about to, wait again.
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
