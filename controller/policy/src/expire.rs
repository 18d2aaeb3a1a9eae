//! Unloads models whose room nobody needs: those idle for longer than their idle time, idle ones that left the catalogue, and replicas
//! beyond the configured number.
//!
//! Each such model has an alarm, never later than the end of its idle time. A use does not move the alarm, so it costs nothing here.

use std::time::Duration;

use crate::api::{Command, DecisionKind, Moment, UnloadMode};
use crate::fleet::Fleet;
use crate::plan::Tenure;
use crate::state::{Asked, Instance, InstanceState};
use crate::timers::Alarm;
use muster_core::{InstanceId, ModelId};

/// Time until the next check if a load runs beside an instance that should be unloaded.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Fleet {
    /// Sets an alarm for the moment at which an instance of the model can be unloaded if it stays unused.
    pub(crate) fn watch_idleness(&mut self, id: &ModelId) {
        let alarm = Alarm::Idle(id.clone());
        match self.needless_from(id) {
            None => self.timers.set(&alarm, None),
            Some(at)
                if at <= self.now
                    && self
                        .instances_of(id)
                        .any(|found| self.loads_run_beside(&found.id)) =>
            {
                self.timers.no_later(&alarm, self.now + LOOK_AGAIN);
            }
            Some(at) => self.timers.no_later(&alarm, at),
        }
    }

    /// Unloads the instances of a model that are not needed any more.
    pub(crate) fn unload_needless(&mut self, id: &ModelId) {
        self.converge(id);
        if self.idle_until(id).is_some_and(|at| at <= self.now) {
            let ttl = self.spec_of(id).and_then(|spec| self.config.ttl(spec.idle_ttl));
            let kind = ttl.map_or(DecisionKind::NotInCatalogue, |ttl| DecisionKind::TtlOver { ttl });
            let ready = self.instances_of(id).filter(|found| found.is_ready());
            for instance in ready.map(|found| found.id.clone()).collect::<Vec<_>>() {
                self.unload_idle(&instance, &kind);
            }
        }
        while let Some((instance, _)) = self.surplus(id).filter(|(_, at)| *at <= self.now) {
            if !self.unload_idle(&instance, &DecisionKind::Surplus) {
                break;
            }
        }
        self.touch_model(id);
    }

    fn needless_from(&self, id: &ModelId) -> Option<Moment> {
        let withheld = !self.withheld_in_vain(id).is_empty();
        let withheld = withheld.then_some(self.now + LOOK_AGAIN);
        let surplus = self.surplus(id).map(|(_, at)| at);
        [withheld, surplus, self.idle_until(id)]
            .into_iter()
            .flatten()
            .min()
    }

    /// When the model's idle time ends. None if it has no limit, or if the model is in use, wanted or not loaded.
    fn idle_until(&self, id: &ModelId) -> Option<Moment> {
        let model = self.models.get(id)?;
        let ttl = match &model.spec {
            Some(spec) if spec.pinned => return None,
            Some(spec) => self.config.ttl(spec.idle_ttl)?,
            None => Duration::ZERO,
        };
        if !model.waiters.is_empty() || model.queued.is_some() {
            return None;
        }
        let mut until: Option<Moment> = None;
        for instance in self.instances_of(id).filter(|found| found.is_ready()) {
            let free = instance.published && !instance.busy() && instance.pending.is_none();
            if !free || instance.doubtful_since.is_some() {
                return None;
            }
            let quiet = instance.usage.idle_from(self.config.quiet);
            until = until.max(Some((instance.usage.last_used + ttl).max(quiet)));
        }
        until
    }

    /// The replica that goes first of a model that has too many, and when it may go. For example, one that came back with its worker after
    /// another was loaded in its place.
    fn surplus(&self, id: &ModelId) -> Option<(InstanceId, Moment)> {
        let serves = |found: &&Instance| found.published && found.is_ready() && !self.draining(&found.worker);
        let serving: Vec<&Instance> = self.instances_of(id).filter(serves).collect();
        if serving.len() < 2 {
            return None;
        }
        // The size that the instances report, not the catalogue's: after a restart the controller does not know the settings they were
        // loaded with.
        let groups = serving.iter().filter_map(|found| found.spec.group.as_ref());
        let size = groups.map(|group| group.size).max().unwrap_or(1);
        if serving.len() <= usize::try_from(size).unwrap_or(usize::MAX) {
            return None;
        }
        let idle_from = |instance: &&Instance| match self.tenure(instance, &[]) {
            Tenure::Idle => Some((self.now, instance.usage.last_used, instance.id.clone())),
            Tenure::Busy { until } => Some((until?, instance.usage.last_used, instance.id.clone())),
            Tenure::Going | Tenure::Finishing | Tenure::Pinned | Tenure::Ghost => None,
        };
        let (at, _, first) = serving.iter().filter_map(idle_from).min()?;
        Some((first, at))
    }

    /// Unloads an instance that is still idle. Returns whether the unload was sent; while a load runs beside the instance it waits.
    fn unload_idle(&mut self, id: &InstanceId, kind: &DecisionKind) -> bool {
        if self.loads_run_beside(id) {
            return false;
        }
        self.decided_on(kind.clone(), id);
        let Some(found) = self.instances.get_mut(id) else {
            return false;
        };
        found.state = InstanceState::Evicting { quiesced: false };
        let if_touch_seq = found.usage.touch_seq;
        let mode = UnloadMode::IfIdle { if_touch_seq };
        self.send(id, Asked::Evict, Command::Unload { mode });
        self.room_changed();
        true
    }

    /// Whether a load runs on one of the instance's devices. No unload may begin there (PROTOCOL 13).
    pub(crate) fn loads_run_beside(&self, id: &InstanceId) -> bool {
        let Some(instance) = self.instances.get(id) else {
            return false;
        };
        let mut devices = instance.spec.reservations.iter();
        devices.any(|reservation| {
            let key = Self::key(&instance.host, &reservation.device);
            self.on_device(&key).any(Instance::loads)
        })
    }
}
