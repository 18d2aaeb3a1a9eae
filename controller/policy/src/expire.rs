//! Unloads what nobody needs the room of: models idle for longer than they may be, and idle ones that left the catalogue.
//!
//! `expiries` holds for each such model a moment at which it is worth another look: never later than its time is over, earlier if it was
//! used since. So a use costs nothing here.

use std::time::Duration;

use crate::api::{Command, DecisionKind, InstanceId, ModelId, Moment, UnloadMode};
use crate::fleet::{Fleet, Phase};
use crate::state::{Asked, Instance, InstanceState};

/// When to look again if a load runs beside an instance whose time is over.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Fleet {
    /// Notes when a model will have been idle for too long, if nothing happens to it.
    pub(crate) fn watch_idleness(&mut self, id: &ModelId) {
        let due = self.idle_until(id).map(|due| {
            let over = due <= self.now && self.loads_run_beside_any_of(id);
            if over { self.now + LOOK_AGAIN } else { due }
        });
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        let keep = matches!((model.expires_at, due), (Some(noted), Some(due)) if noted <= due);
        if keep || model.expires_at == due {
            return;
        }
        let noted = std::mem::replace(&mut model.expires_at, due);
        if let Some(at) = noted {
            self.expiries.remove(&(at, id.clone()));
        }
        if let Some(at) = due {
            self.expiries.insert((at, id.clone()));
        }
    }

    /// Unloads what is due.
    pub(crate) fn expire(&mut self) {
        if matches!(self.phase, Phase::Settling { .. }) {
            return;
        }
        while let Some((_, id)) = self.expiries.first().filter(|(at, _)| *at <= self.now).cloned() {
            if let Some(model) = self.models.get_mut(&id)
                && let Some(at) = model.expires_at.take()
            {
                self.expiries.remove(&(at, id.clone()));
            }
            self.tend_groups(&id);
            match self.idle_until(&id) {
                Some(at) if at > self.now => self.watch_idleness(&id),
                Some(_) => self.expire_model(&id),
                None => {}
            }
        }
    }

    /// When the model's time is over; none if it has no end, or if the model is in use, wanted, or not loaded.
    fn idle_until(&self, id: &ModelId) -> Option<Moment> {
        let model = self.models.get(id)?;
        if !self.withheld_in_vain(id).is_empty() {
            return Some(self.now + LOOK_AGAIN);
        }
        let ttl = match &model.spec {
            Some(spec) if spec.pinned => return None,
            Some(spec) => self.config.ttl(spec.idle_ttl)?,
            None => Duration::ZERO,
        };
        if !model.waiters.is_empty() || model.queued.is_some() {
            return None;
        }
        let mut until: Option<Moment> = None;
        for instance in model.instances.iter().filter_map(|id| self.instances.get(id)) {
            match &instance.state {
                InstanceState::Ready if !instance.published => return None,
                InstanceState::Ready if instance.busy() || instance.pending.is_some() => return None,
                InstanceState::Ready if instance.doubtful_since.is_some() => return None,
                InstanceState::Ready => {
                    let quiet = instance.usage.idle_from(self.config.quiet);
                    let over = (instance.usage.last_used + ttl).max(quiet);
                    until = Some(until.map_or(over, |until| until.max(over)));
                }
                InstanceState::Loading { .. }
                | InstanceState::Cancelling { .. }
                | InstanceState::Evicting { .. }
                | InstanceState::Quiesced { .. }
                | InstanceState::Resuming
                | InstanceState::Leaving(_)
                | InstanceState::Lost(_)
                | InstanceState::Opaque => {}
            }
        }
        until
    }

    fn expire_model(&mut self, id: &ModelId) {
        let Some(model) = self.models.get(id) else { return };
        let ttl = model.spec.as_ref().map(|spec| self.config.ttl(spec.idle_ttl));
        let ready = |id: &&InstanceId| {
            self.instances
                .get(*id)
                .is_some_and(|instance| matches!(instance.state, InstanceState::Ready))
        };
        let idle: Vec<InstanceId> = model.instances.iter().filter(ready).cloned().collect();
        for instance in idle {
            if self.loads_run_beside(&instance) {
                let at = self.now + LOOK_AGAIN;
                if let Some(model) = self.models.get_mut(id)
                    && model.expires_at.is_none()
                {
                    model.expires_at = Some(at);
                    self.expiries.insert((at, id.clone()));
                }
                continue;
            }
            let kind = match ttl.flatten() {
                Some(ttl) => DecisionKind::TtlOver { ttl },
                None => DecisionKind::NotInCatalogue,
            };
            self.decided_on(kind, &instance);
            let Some(found) = self.instances.get_mut(&instance) else {
                continue;
            };
            found.state = InstanceState::Evicting { quiesced: false };
            let if_touch_seq = found.usage.touch_seq;
            let mode = UnloadMode::IfIdle { if_touch_seq };
            self.send(&instance, Asked::Evict, Command::Unload { mode });
        }
        self.touch_model(id);
        self.room_changed();
    }

    fn loads_run_beside_any_of(&self, id: &ModelId) -> bool {
        let model = self.models.get(id);
        let mut instances = model.into_iter().flat_map(|model| &model.instances);
        instances.any(|instance| self.loads_run_beside(instance))
    }

    /// No unload begins on a device where a load runs (PROTOCOL 13).
    pub(crate) fn loads_run_beside(&self, id: &InstanceId) -> bool {
        let Some(instance) = self.instances.get(id) else {
            return false;
        };
        let mut devices = instance.spec.reservations.iter();
        devices.any(|reservation| {
            let key = Self::key(&instance.host, &reservation.device);
            self.on_device(&key).any(Instance::takes_load_slot)
        })
    }
}
