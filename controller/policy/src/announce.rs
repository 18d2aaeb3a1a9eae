//! Tells the outside what changed in a step: routes, model states, stages of waiters and calls, the timer. Never tells the same thing
//! twice.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{Effect, ModelState, RouteState, Stage, WaitReason};
use crate::fleet::{Fleet, Phase};
use crate::state::{InstanceState, LoadId, Place, Standing};
use muster_core::{HoldId, InstanceId, ModelId};

/// The timer is never set closer than this.
const SOONEST: Duration = Duration::from_millis(1);

impl Fleet {
    /// Announces what changed in this step.
    pub(crate) fn announce(&mut self) {
        let dirty = std::mem::take(&mut self.dirty);
        let any_queued = dirty
            .iter()
            .any(|model| self.models.get(model).is_some_and(|found| found.queued.is_some()));
        let positions = if any_queued {
            self.positions()
        } else {
            BTreeMap::new()
        };
        for model in &dirty {
            self.announce_routes(model);
            self.announce_state(model);
            self.announce_stages(model, &positions);
            if self
                .models
                .get(model)
                .is_some_and(crate::state::Model::forgettable)
            {
                self.models.remove(model);
            }
        }
    }

    pub(crate) fn positions(&self) -> BTreeMap<LoadId, u32> {
        self.queue.keys().copied().zip(1..).collect()
    }

    fn announce_routes(&mut self, id: &ModelId) {
        let Some(model) = self.models.get(id) else { return };
        // A model that left the catalogue finishes its requests.
        let orphaned = model.spec.is_none();
        for instance_id in &model.instances {
            let Some(instance) = self.instances.get_mut(instance_id) else {
                continue;
            };
            let draining = self
                .workers
                .get(&instance.worker)
                .is_some_and(|worker| worker.facts.draining);
            let wanted = match instance.wanted_route() {
                Some(RouteState::Ready) if draining || orphaned => Some(RouteState::Draining),
                route @ (Some(RouteState::Ready | RouteState::Suspect | RouteState::Draining) | None) => {
                    route
                }
            };
            if instance.route == wanted {
                continue;
            }
            instance.route = wanted;
            self.effects.push(match wanted {
                Some(state) => Effect::PublishRoute {
                    instance: instance_id.clone(),
                    worker: instance.worker.clone(),
                    model: id.clone(),
                    state,
                },
                None => Effect::RetractRoute {
                    instance: instance_id.clone(),
                },
            });
        }
    }

    fn announce_state(&mut self, id: &ModelId) {
        let state = self.model_state(id);
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        let state = state.unwrap_or(ModelState::Unloaded);
        if model.shown.as_ref() != Some(&state) {
            model.shown = Some(state.clone());
            self.effects.push(Effect::ModelChanged {
                model: id.clone(),
                state,
            });
        }
    }

    fn announce_stages(&mut self, id: &ModelId, positions: &BTreeMap<LoadId, u32>) {
        let Some(model) = self.models.get(id) else { return };
        if model.waiters.is_empty() && model.loads.is_empty() {
            return;
        }
        let common = self.common_stage(id, positions);
        let waiting: Vec<HoldId> = model.waiters.iter().cloned().collect();
        for hold in waiting {
            let Some(stage) = self.waiter_stage(&hold, &common) else {
                continue;
            };
            if let Some(waiter) = self.waiters.get_mut(&hold)
                && waiter.told.as_ref() != Some(&stage)
            {
                waiter.told = Some(stage.clone());
                self.effects.push(Effect::Notify { hold, stage });
            }
        }
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        for call in &mut model.loads {
            if call.told.as_ref() != Some(&common) {
                call.told = Some(common.clone());
                self.effects.push(Effect::Progress {
                    request: call.request.clone(),
                    stage: common.clone(),
                });
            }
        }
    }

    fn waiter_stage(&self, hold: &HoldId, common: &Stage) -> Option<Stage> {
        match &self.waiters.get(hold)?.place {
            Place::Waiting => Some(common.clone()),
            Place::Held(id) => {
                let worker = self.instances.get(id)?.worker.clone();
                Some(Stage::Ready {
                    instance: id.clone(),
                    worker,
                })
            }
            Place::Placing(id) => self.loading_stage(id),
        }
    }

    fn loading_stage(&self, id: &InstanceId) -> Option<Stage> {
        let instance = self.instances.get(id)?;
        // The hold is already being placed: there is nothing new to tell.
        if let InstanceState::Loading { progress, .. } = &instance.state {
            Some(Stage::Loading {
                instance: id.clone(),
                worker: instance.worker.clone(),
                progress: *progress,
            })
        } else {
            None
        }
    }

    /// The stage of the model's load, for everyone who waits for it without a hold.
    fn common_stage(&self, id: &ModelId, positions: &BTreeMap<LoadId, u32>) -> Stage {
        let queued = self.models.get(id).and_then(|model| model.queued);
        if let Some(load) = queued.and_then(|load| self.queue.get(&load)) {
            let position = positions.get(&load.id).copied().unwrap_or(1);
            return match (&self.phase, &load.standing) {
                (Phase::Settling { .. }, _) => Stage::Queued {
                    position,
                    reason: WaitReason::Settling,
                    blocked_by: Vec::new(),
                },
                (Phase::Running, Standing::Waiting { reason, blocked_by }) => Stage::Queued {
                    position,
                    reason: *reason,
                    blocked_by: blocked_by.clone(),
                },
                (Phase::Running, Standing::Evicting { models }) => Stage::Evicting {
                    models: models.clone(),
                },
            };
        }
        let instances = self.models.get(id).into_iter().flat_map(|model| &model.instances);
        let loading = instances
            .filter_map(|instance| self.loading_stage(instance))
            .next();
        loading.unwrap_or_else(|| Stage::Queued {
            position: 1,
            reason: WaitReason::Claim,
            blocked_by: vec![id.clone()],
        })
    }

    /// Asks for the next tick. The ledger is fresh here. A waiting load is planned again at the moment an instance becomes idle by time
    /// alone. A queue that was not planned to its end is planned again at once.
    pub(crate) fn announce_timer(&mut self) {
        let turn = self.ledger.next_turn();
        let turn = turn.filter(|_| self.phase == Phase::Running && !self.queue.is_empty());
        let undecided = self.replan.then_some(self.now);
        let wake = [self.timers.next(), turn, undecided].into_iter().flatten().min();
        // Never at once: what is due now was done in this step, and a bug here must not cause a busy loop.
        let wake = wake.map(|at| at.max(self.now + SOONEST));
        if let Some(at) = wake
            && self.wake_sent != Some(at)
        {
            self.effects.push(Effect::WakeAt { at });
        }
        self.wake_sent = wake;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Moment};

    #[test]
    fn a_queue_that_was_not_decided_to_the_end_is_looked_at_again_at_once() {
        let now = Moment::after_start(SOONEST);
        let mut fleet = Fleet::new(Config::default(), Vec::new(), now);
        fleet.replan = true;
        fleet.announce_timer();
        assert_eq!(fleet.effects, [Effect::WakeAt { at: now + SOONEST }]);
    }
}
