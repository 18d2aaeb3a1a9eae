//! Gateways' wishes for models. An open stream is both the wish and the hold (PROTOCOL 9).

use crate::api::LoadError;
use crate::fleet::Fleet;
use crate::state::{Place, Waiter};
use muster_core::{HoldId, InstanceId, ModelId, WorkerId};

impl Fleet {
    /// Handles a stream that was opened, or opened again with the same id after its connection broke.
    pub(crate) fn ensure_opened(
        &mut self,
        hold: HoldId,
        model: ModelId,
        avoid_instances: Vec<InstanceId>,
        avoid_workers: Vec<WorkerId>,
    ) {
        self.remove_waiter_quietly(&hold);
        let waiter = Waiter {
            model: model.clone(),
            avoid_instances,
            avoid_workers,
            place: Place::Waiting,
            told: None,
        };
        self.waiters.insert(hold.clone(), waiter);
        match self.models.get_mut(&model).filter(|found| found.spec.is_some()) {
            Some(found) => {
                found.waiters.insert(hold);
                self.touch_model(&model);
            }
            None => self.fail_waiter(&hold, LoadError::UnknownModel(model)),
        }
    }

    /// Handles the end of a stream: its hold is released, and a queued load that only this stream wanted is dropped (I8).
    pub(crate) fn ensure_closed(&mut self, hold: &HoldId) {
        self.remove_waiter(hold);
    }

    /// Removes a stream and releases its hold on every instance that has it (a lost worker that came back may have one too).
    pub(crate) fn remove_waiter(&mut self, hold: &HoldId) {
        let Some(waiter) = self.remove_waiter_quietly(hold) else {
            return;
        };
        let Some(model) = self.models.get(&waiter.model) else {
            return;
        };
        for id in &model.instances {
            if let Some(instance) = self.instances.get_mut(id)
                && (waiter.instance() == Some(id) || instance.holds.contains(hold))
            {
                instance.to_release.insert(hold.clone());
                self.attention.insert(id.clone());
            }
        }
    }

    /// Removes a stream but leaves its hold in place.
    fn remove_waiter_quietly(&mut self, hold: &HoldId) -> Option<Waiter> {
        let waiter = self.waiters.remove(hold)?;
        if let Some(model) = self.models.get_mut(&waiter.model) {
            model.waiters.remove(hold);
        }
        self.touch_model(&waiter.model);
        Some(waiter)
    }
}
