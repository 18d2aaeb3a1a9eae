//! Operators' calls: load, unload, forget (gateway/README.md, Runtime Admin API).

use std::sync::Arc;
use std::time::Duration;

use crate::api::{DecisionKind, Effect, LoadError, ModelSpec, ModelState, Origin, UnloadHow, UnloadMode};
use crate::fleet::Fleet;
use crate::state::{Condemned, Instance, InstanceState, WaitingCall};
use muster_core::{InstanceId, ModelId, RequestId, WorkerId};

impl Fleet {
    /// Handles an operator's load; the call is answered when the load ends. If the model is loaded or loading, a call without overrides is
    /// answered with that, one with overrides is refused.
    pub(crate) fn load_requested(&mut self, request: RequestId, id: &ModelId, overrides: Option<ModelSpec>) {
        let verdict = match (self.model_state(id), self.spec_of(id)) {
            (None, _) | (_, None) => Err(LoadError::UnknownModel(id.clone())),
            (Some(ModelState::Loaded), Some(_)) if overrides.is_some() => {
                Err(LoadError::LoadedAlready(id.clone()))
            }
            (Some(ModelState::Loading), Some(_)) if overrides.is_some() => {
                Err(LoadError::Loading(id.clone()))
            }
            (Some(state @ (ModelState::Loaded | ModelState::Loading)), Some(_)) => Ok(Err(state)),
            (Some(ModelState::Unloading), Some(_)) => Err(LoadError::Unloading(id.clone())),
            (Some(ModelState::Unloaded | ModelState::Failed(_)), Some(spec)) => {
                Ok(Ok(overrides.map_or_else(|| Arc::clone(spec), Arc::new)))
            }
        };
        match verdict {
            Err(error) => self.reply(request, Err(error)),
            Ok(Err(state)) => {
                self.make_explicit(id);
                self.reply(request, Ok(state));
            }
            Ok(Ok(spec)) => {
                if let Some(model) = self.models.get_mut(id) {
                    model.loads.push(WaitingCall { request, told: None });
                }
                self.enqueue(id, spec, Origin::Admin);
            }
        }
    }

    /// Lets an operator join a load that a request began: it then goes on even if the request leaves (I8).
    fn make_explicit(&mut self, id: &ModelId) {
        let Some(model) = self.models.get(id) else { return };
        let queued = model.queued;
        if let Some(load) = queued.and_then(|load| self.queue.get_mut(&load)) {
            load.origin = Origin::Admin;
        }
        for instance in &model.instances {
            if let Some(load) = self.instances.get_mut(instance).and_then(Instance::load_mut) {
                load.origin = Origin::Admin;
            }
        }
        if let Some(load) = queued {
            self.forget_memo(load);
            self.room_changed();
        }
        self.touch_model(id);
    }

    /// Handles a model that the configuration wants loaded at start. It is loaded only if nothing has to be evicted.
    pub(crate) fn preload_requested(&mut self, id: &ModelId) {
        let spec = match (self.model_state(id), self.spec_of(id)) {
            (Some(ModelState::Unloaded), Some(spec)) => Arc::clone(spec),
            _ => return,
        };
        self.enqueue(id, spec, Origin::Preload);
    }

    /// Handles an operator's unload, also of a pinned model: queued requests are cancelled, running ones finish. The call is answered at
    /// the end. `drain_for`: the longest time for running requests to finish; past it the unload is given up.
    pub(crate) fn unload_requested(
        &mut self,
        request: RequestId,
        id: &ModelId,
        how: UnloadHow,
        drain_for: Option<Duration>,
    ) {
        let cancel = match how {
            UnloadHow::Drain => false,
            UnloadHow::Force | UnloadHow::DrainOrCancel => true,
        };
        match self.model_state(id) {
            None => self.reply(request, Err(LoadError::UnknownModel(id.clone()))),
            Some(ModelState::Loading) if !cancel => self.reply(request, Err(LoadError::Loading(id.clone()))),
            Some(ModelState::Unloading) if how == UnloadHow::Drain => {
                self.condemn(id);
                self.reply(request, Ok(ModelState::Unloading));
            }
            Some(state @ (ModelState::Unloaded | ModelState::Failed(_))) => {
                self.condemn(id);
                self.reply(request, Ok(state));
            }
            Some(ModelState::Loading | ModelState::Loaded | ModelState::Unloading) => {
                self.decided(DecisionKind::OperatorUnload, Some(id), None, None);
                self.cancel_queued(id);
                let mode = if how == UnloadHow::Force {
                    UnloadMode::Force
                } else {
                    UnloadMode::Drain {
                        within: drain_for.or(self.config.max_drain),
                    }
                };
                let instances: Vec<InstanceId> = self
                    .models
                    .get(id)
                    .map(|model| model.instances.iter().cloned().collect())
                    .unwrap_or_default();
                for instance in &instances {
                    self.send_away(instance, mode);
                }
                if let Some(model) = self.models.get_mut(id) {
                    model.unloads.push(request);
                }
                self.touch_model(id);
            }
        }
        self.room_changed();
    }

    fn cancel_queued(&mut self, id: &ModelId) {
        let queued = self.models.get(id).is_some_and(|model| model.queued.is_some());
        let loading = self.models.get(id).is_some_and(|model| {
            let loads =
                |instance: &InstanceId| self.instances.get(instance).is_some_and(Instance::carries_load);
            model.instances.iter().any(loads)
        });
        if queued || loading {
            self.refuse_load(id, &LoadError::Cancelled(id.clone()));
        }
    }

    fn send_away(&mut self, id: &InstanceId, mode: UnloadMode) {
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        let leaving = matches!(instance.state, InstanceState::Leaving(_)) && mode != UnloadMode::Force;
        let accepted = instance.condemned.is_some_and(|before| before.accepted);
        instance.condemned = Some(Condemned {
            mode,
            due: !leaving,
            accepted: leaving && accepted,
        });
        // The operator's new call does not count as a repetition of a command.
        instance.given.forget();
        instance.press();
        self.attention.insert(id.clone());
    }

    /// Marks the model's ghosts, and instances whose end somebody else began, to be unloaded for the operator as well.
    fn condemn(&mut self, id: &ModelId) {
        let others = self.instances_of(id).filter(|found| found.condemned.is_none());
        let others: Vec<InstanceId> = others.map(|found| found.id.clone()).collect();
        for instance in &others {
            self.send_away(instance, UnloadMode::DRAIN);
        }
        self.touch_model(id);
    }

    /// Handles an operator's word that a lost worker is gone: its ghosts end.
    pub(crate) fn forget_requested(&mut self, request: RequestId, id: &WorkerId) {
        if self.workers.get(id).is_none_or(|worker| worker.connected()) {
            return self.reply(request, Err(LoadError::NotLost(id.clone())));
        }
        let ghosts: Vec<InstanceId> = self
            .workers
            .get(id)
            .map(|worker| worker.instances.iter().cloned().collect())
            .unwrap_or_default();
        for ghost in &ghosts {
            self.ghost_gone(ghost);
        }
        if let Some(worker) = self.workers.remove(id) {
            self.remove_listing(&worker);
        }
        if let crate::fleet::Phase::Settling { missing, .. } = &mut self.phase {
            missing.remove(id);
        }
        self.effects.push(Effect::RosterRemove { worker: id.clone() });
        self.reply(request, Ok(ModelState::Unloaded));
        self.room_changed();
    }

    pub(crate) fn reply(&mut self, request: RequestId, result: Result<ModelState, LoadError>) {
        self.effects.push(Effect::Reply { request, result });
    }
}
