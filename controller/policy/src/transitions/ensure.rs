//! Gateways want a model: the open stream is the interest and the hold (PROTOCOL 9).

use crate::api::LoadError;
use crate::fleet::Fleet;
use crate::state::{Place, Waiter};
use muster_core::{HoldId, InstanceId, ModelId, WorkerId};

impl Fleet {
    /// A stream was opened, or opened again with the same id after its connection broke.
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

    /// A stream ended: its hold is released, and a queued load that only it wanted is dropped (I8).
    pub(crate) fn ensure_closed(&mut self, hold: &HoldId) {
        self.remove_waiter(hold);
    }

    /// Forgets a stream and releases its hold, wherever a copy of it is (a lost worker that came back may have one too).
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

    /// Forgets a stream and leaves its hold where it is.
    fn remove_waiter_quietly(&mut self, hold: &HoldId) -> Option<Waiter> {
        let waiter = self.waiters.remove(hold)?;
        if let Some(model) = self.models.get_mut(&waiter.model) {
            model.waiters.remove(hold);
        }
        self.touch_model(&waiter.model);
        Some(waiter)
    }
}
