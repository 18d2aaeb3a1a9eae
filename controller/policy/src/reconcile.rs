//! Brings together what is wanted of a model and what exists: waiters get instances, calls get answers, wishes become loads.
//!
//! Runs for every model that an event touched, and is idempotent.

use std::sync::Arc;

use crate::api::{DecisionKind, Group, LoadError, ModelSpec, ModelState, Origin};
use crate::fleet::{Fleet, Phase};
use crate::state::{Before, Exit, Instance, InstanceState, Load, Place, Waiter, Was};
use crate::timers::Alarm;
use muster_core::{HoldId, InstanceId, ModelId, WorkerId};

/// What a model can offer to a waiter.
enum Home {
    /// This instance takes requests.
    Ready(InstanceId),
    /// Nothing yet, but that will change by itself: a load, an eviction in progress, or an unknown state.
    Soon,
    /// An operator is unloading the model.
    Unloading,
    /// The model has no instance, and none is coming.
    Cold,
}

impl Fleet {
    /// Reconciles every touched model. The set stays as it is, for announcing.
    pub(crate) fn reconcile_dirty(&mut self) {
        let dirty: Vec<ModelId> = self.dirty.iter().cloned().collect();
        for model in &dirty {
            self.ledger.model_changed(model);
            self.answer_calls(model);
            self.drop_needless_load(model);
            // Most models that wait in the queue have no instance.
            if self.instances_of(model).next().is_none() {
                self.serve_waiters(model);
                self.timers.set(&Alarm::Refill(model.clone()), None);
                self.timers.set(&Alarm::Idle(model.clone()), None);
                continue;
            }
            self.converge(model);
            self.serve_waiters(model);
            self.release_copies(model);
            self.mark_wanted(model);
            self.watch_idleness(model);
        }
    }

    /// Whether an instance of the model takes requests.
    pub(crate) fn serving(&self, model: &ModelId) -> bool {
        self.instances_of(model)
            .any(|found| found.published && found.is_ready())
    }

    /// A model's state as users see it; none if the model is unknown.
    pub(crate) fn model_state(&self, id: &ModelId) -> Option<ModelState> {
        let model = self.models.get(id)?;
        let (mut loaded, mut loading, mut leaving, mut lost_with) =
            (false, model.queued.is_some(), false, None);
        for instance in self.instances_of(id) {
            match &instance.state {
                InstanceState::Lost(Was::Serving | Was::Evicting) if instance.condemned.is_none() => {
                    lost_with = Some(instance.worker.clone());
                }
                InstanceState::Lost(_) => {}
                InstanceState::Loading { .. } | InstanceState::Cancelling { .. } => loading = true,
                InstanceState::Leaving(Exit::Worker(Before::Loading(_))) if instance.condemned.is_none() => {
                    loading = true;
                }
                InstanceState::Leaving(_) => leaving = true,
                _ if instance.condemned.is_some() => leaving = true,
                InstanceState::Ready if !instance.published => loading = true,
                InstanceState::Evicting { .. } if !instance.published => leaving = true,
                InstanceState::Ready
                | InstanceState::Evicting { .. }
                | InstanceState::Quiesced { .. }
                | InstanceState::Resuming
                | InstanceState::Opaque => loaded = true,
            }
        }
        Some(match (&model.failure, lost_with) {
            _ if loaded => ModelState::Loaded,
            _ if loading => ModelState::Loading,
            _ if leaving => ModelState::Unloading,
            (Some(failure), _) => ModelState::Failed(failure.error.clone()),
            (None, Some(worker)) => ModelState::Failed(LoadError::WorkerLost(worker)),
            (None, None) if model.spec.is_none() && model.instances.is_empty() => return None,
            (None, None) => ModelState::Unloaded,
        })
    }

    /// Answers operators' calls whose load or unload has ended.
    fn answer_calls(&mut self, id: &ModelId) {
        let serving = self.serving(id);
        let leaves = |found: &Instance| {
            let ends = matches!(
                found.state,
                InstanceState::Leaving(_) | InstanceState::Cancelling { .. }
            );
            ends || found.unloading()
        };
        let leaving = self.instances_of(id).any(leaves);
        // Nothing is loading and no instance can serve: the model left the catalogue before its group was complete.
        let over = self
            .instances_of(id)
            .all(|found| found.going() && !found.carries_load());
        let state = self.model_state(id).unwrap_or(ModelState::Unloaded);
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        let given_up = over && model.queued.is_none();
        let loads = if serving || given_up {
            std::mem::take(&mut model.loads)
        } else {
            Vec::new()
        };
        let unloads = if leaving {
            Vec::new()
        } else {
            std::mem::take(&mut model.unloads)
        };
        for call in loads {
            let result = if serving {
                Ok(ModelState::Loaded)
            } else {
                Err(LoadError::Cancelled(id.clone()))
            };
            self.reply(call.request, result);
        }
        // It serves again: its requests did not finish in time for the unload.
        let result = if serving {
            Err(LoadError::NotDrained(id.clone()))
        } else {
            Ok(state)
        };
        for request in unloads {
            self.reply(request, result.clone());
        }
    }

    /// Drops a queued load that is no longer needed because an instance serves, or that nobody waits for (I8).
    fn drop_needless_load(&mut self, id: &ModelId) {
        let Some(model) = self.models.get(id) else { return };
        let Some(load) = model.queued.and_then(|load| self.queue.get(&load)) else {
            return;
        };
        // A load that was asked for in an earlier session may still be wanted (PROTOCOL 2).
        if self.phase != Phase::Running {
            return;
        }
        let serve = self.instances_of(id).filter(|found| self.will_serve(found));
        // The remaining replicas do not make the load of a missing one needless (PROTOCOL 14).
        let size = load.group.as_ref().map_or(1, |group| group.size);
        let here = serve.count() >= usize::try_from(size).unwrap_or(usize::MAX);
        // A refill only completes a model that serves; it does not load the model again.
        let refills_nothing =
            load.origin == Origin::Preload && load.group.is_some() && model.instances.is_empty();
        let wanted = load.explicit() && !refills_nothing;
        let abandoned = !wanted && !self.awaited_by_anyone(id);
        if !here && !abandoned {
            return;
        }
        let load_id = load.id;
        self.queue.remove(&load_id);
        if let Some(model) = self.models.get_mut(id) {
            model.queued = None;
        }
        let kind = if here {
            DecisionKind::Needless
        } else {
            DecisionKind::Abandoned
        };
        self.decided(kind, Some(id), None, None);
        self.room_changed();
    }

    /// Whether the instance takes new requests.
    fn open(&self, instance: &Instance) -> bool {
        instance.published && instance.is_ready() && !self.draining(&instance.worker)
    }

    /// Whether some instance of the model takes new requests.
    pub(crate) fn takes_requests(&self, model: &ModelId) -> bool {
        self.instances_of(model).any(|found| self.open(found))
    }

    /// Whether the instance takes requests, or will once it is loaded.
    pub(crate) fn will_serve(&self, instance: &Instance) -> bool {
        matches!(instance.state, InstanceState::Loading { .. }) || self.open(instance)
    }

    /// Whether the worker is shutting down.
    pub(crate) fn draining(&self, worker: &WorkerId) -> bool {
        self.workers
            .get(worker)
            .is_some_and(|worker| worker.facts.draining)
    }

    /// Whether some stream waits for the model without an instance, or with one that still loads.
    fn has_unheld_waiters(&self, id: &ModelId) -> bool {
        let unheld = |hold: &HoldId| {
            self.waiters
                .get(hold)
                .is_some_and(|waiter| !matches!(waiter.place, Place::Held(_)))
        };
        self.models
            .get(id)
            .is_some_and(|model| model.waiters.iter().any(unheld))
    }

    /// Whether somebody waits for a load of the model: a stream, or an operator's call.
    pub(crate) fn awaited_by_anyone(&self, id: &ModelId) -> bool {
        let called_for = self.models.get(id).is_some_and(|model| !model.loads.is_empty());
        called_for || self.has_unheld_waiters(id)
    }

    fn serve_waiters(&mut self, id: &ModelId) {
        let Some(model) = self.models.get(id) else { return };
        let waiting: Vec<HoldId> = model.waiters.iter().cloned().collect();
        for hold in waiting {
            let Some(waiter) = self
                .waiters
                .get(&hold)
                .filter(|waiter| waiter.place == Place::Waiting)
            else {
                continue;
            };
            match self.home_for(id, waiter) {
                Home::Ready(instance) => self.assign(&hold, instance),
                Home::Soon => {}
                Home::Unloading => self.fail_waiter(&hold, LoadError::Unloading(id.clone())),
                Home::Cold => self.want(id, &hold),
            }
        }
    }

    /// Releases holds on a worker that shuts down if their streams are served elsewhere: they would keep the instance for nobody.
    fn release_copies(&mut self, id: &ModelId) {
        let Some(model) = self.models.get(id) else { return };
        for instance_id in &model.instances {
            let Some(instance) = self.instances.get(instance_id) else {
                continue;
            };
            if instance.holds.is_empty() || !self.draining(&instance.worker) {
                continue;
            }
            let elsewhere = |hold: &&HoldId| {
                let waiter = self.waiters.get(*hold);
                waiter.is_some_and(|waiter| waiter.instance() != Some(instance_id))
            };
            let copies: Vec<HoldId> = instance.holds.iter().filter(elsewhere).cloned().collect();
            if !copies.is_empty()
                && let Some(instance) = self.instances.get_mut(instance_id)
            {
                instance.to_release.extend(copies);
                self.attention.insert(instance_id.clone());
            }
        }
    }

    fn home_for(&self, id: &ModelId, waiter: &Waiter) -> Home {
        let Some(model) = self.models.get(id) else {
            return Home::Cold;
        };
        if model.spec.is_none() {
            return Home::Cold;
        }
        let mut ready: Option<(bool, u32, &InstanceId)> = None;
        let (mut soon, mut unloading) = (false, false);
        for instance in self.instances_of(id) {
            match &instance.state {
                InstanceState::Lost(_) => {}
                _ if instance.unloading() => unloading = true,
                InstanceState::Opaque => {}
                InstanceState::Ready if instance.published && self.draining(&instance.worker) => {}
                InstanceState::Ready if instance.published && instance.doubtful_since.is_none() => {
                    let avoided = waiter.avoid_instances.contains(&instance.id)
                        || waiter.avoid_workers.contains(&instance.worker);
                    let load = instance.running.saturating_add(instance.queued);
                    let key = (avoided, load, &instance.id);
                    ready = Some(ready.map_or(key, |best| best.min(key)));
                }
                InstanceState::Ready
                | InstanceState::Loading { .. }
                | InstanceState::Cancelling { .. }
                | InstanceState::Evicting { .. }
                | InstanceState::Quiesced { .. }
                | InstanceState::Resuming
                | InstanceState::Leaving(_) => soon = true,
            }
        }
        match ready {
            Some((_, _, instance)) => Home::Ready(instance.clone()),
            None if soon => Home::Soon,
            None if unloading => Home::Unloading,
            None => Home::Cold,
        }
    }

    /// Assigns an instance to a waiter. Its hold is placed as soon as no command is outstanding there.
    fn assign(&mut self, hold: &HoldId, id: InstanceId) {
        let Some(instance) = self.instances.get_mut(&id) else {
            return;
        };
        instance.to_release.remove(hold);
        let in_place = instance.holds.contains(hold);
        self.attention.insert(id.clone());
        if let Some(waiter) = self.waiters.get_mut(hold) {
            waiter.place = if in_place {
                Place::Held(id)
            } else {
                Place::Placing(id)
            };
        }
    }

    /// Queues a load for a waiter that found no instance, unless the model failed a short time ago (I7).
    fn want(&mut self, id: &ModelId, hold: &HoldId) {
        let Some(model) = self.models.get(id) else { return };
        if let Some(load) = model.queued {
            // A preload is refused where a load for a request evicts. Whoever joins a preload must get the same treatment.
            if let Some(preload) = self
                .queue
                .get_mut(&load)
                .filter(|load| load.origin == Origin::Preload)
            {
                preload.origin = Origin::Auto;
                self.forget_memo(load);
                self.room_changed();
            }
            return;
        }
        let backoff = model.failure.as_ref().and_then(|failure| {
            let until = failure.retry_at.filter(|until| *until > self.now)?;
            Some((Arc::new(failure.error.clone()), until.since(self.now)))
        });
        if let Some((last, retry_in)) = backoff {
            return self.fail_waiter(
                hold,
                LoadError::Failed {
                    model: id.clone(),
                    last,
                    retry_in,
                },
            );
        }
        match model.spec.clone() {
            Some(spec) => self.enqueue(id, spec, Origin::Auto),
            None => self.fail_waiter(hold, LoadError::UnknownModel(id.clone())),
        }
    }

    /// Adds a load to the end of the queue.
    pub(crate) fn enqueue(&mut self, id: &ModelId, spec: Arc<ModelSpec>, origin: Origin) {
        let load_id = self.new_load_id();
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        model.queued = Some(load_id);
        let mut load = Load::new(load_id, spec, origin);
        // Existing replicas of the wanted group stay a part of it.
        let same = |(group, spec): &(Group, Arc<ModelSpec>)| {
            group.size == load.spec.replicas.get() && spec.spec_hash == load.spec.spec_hash
        };
        load.group = self.group_of(id).filter(same).map(|(group, _)| group);
        self.queue.insert(load_id, load);
        self.decided(DecisionKind::LoadQueued, Some(id), None, None);
        self.touch_model(id);
        self.room_changed();
    }

    /// Records whether anybody waits for a running load (I8).
    fn mark_wanted(&mut self, id: &ModelId) {
        let awaited = self.awaited_by_anyone(id);
        let now = self.now;
        let Some(model) = self.models.get(id) else { return };
        for instance in &model.instances {
            if let Some(instance) = self.instances.get_mut(instance)
                && let InstanceState::Loading {
                    load, unwanted_since, ..
                } = &mut instance.state
            {
                let wanted = load.explicit() || awaited;
                let since = if wanted {
                    None
                } else {
                    Some(unwanted_since.unwrap_or(now))
                };
                self.replan |= *unwanted_since != since && !self.queue.is_empty();
                *unwanted_since = since;
            }
        }
    }
}
