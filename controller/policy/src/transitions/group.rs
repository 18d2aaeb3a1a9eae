//! Replica groups (PROTOCOL 14): several instances of a model that are loaded one after another and take requests together, or not at all.
//!
//! ```text
//!   load ─► places for all are claimed ─► part loads ─► ready, withheld ─┬─ more to come ─► back into the queue, at its old place
//!               │ too few                    │ fails for good           └─ the last one ─► all are published
//!               ▼                            ▼
//!            refused                all withheld ones are unloaded
//!   published ── fewer than wanted ──► after a backoff one more is loaded, if that evicts nobody
//!             ── more than wanted ───► idle ones go, the least recently used first (`expire`)
//! ```
//!
//! Every action follows from the instances that exist, never from how one ended. So the number of replicas becomes right again after
//! anything that a worker, an operator or a restart did.
//!
//! A withheld instance has no route and is promised to nobody. It is not evicted, since its group's load is still under way.

use std::sync::Arc;

use crate::api::{Command, DecisionKind, Group, LoadError, ModelSpec, Origin, UnloadMode};
use crate::fleet::{Fleet, Phase};
use crate::state::{Asked, Instance, InstanceState, Load};
use crate::timers::Alarm;
use muster_core::{InstanceId, ModelId};

/// Touches of an instance that was loaded and never used (I9).
const LOAD_TOUCHES: u64 = 2;

/// Whether a replica that a new controller finds has taken requests; if so, its group was published.
pub(super) fn has_served(running: u32, touch_seq: u64) -> bool {
    running > 0 || touch_seq > LOAD_TOUCHES
}

impl Fleet {
    /// Handles a replica that became ready. `load`: the load that made it; none if it was found ready.
    pub(crate) fn part_ready(&mut self, id: &InstanceId, load: Option<Load>) {
        let Some(instance) = self.instances.get(id).filter(|found| !found.published) else {
            return;
        };
        let spec = Arc::clone(&instance.spec);
        let Some(group) = &spec.group else { return };
        let goes_on = !instance.going() && self.spec_of(&spec.model).is_some();
        if !self.publish_if_whole(&spec.model, group) && goes_on {
            let load = load.unwrap_or_else(|| self.load_of(&spec, id));
            self.back_into_queue(Load { attempt: 1, ..load });
        }
    }

    /// Brings the number of a model's instances to the configured one.
    pub(crate) fn converge(&mut self, id: &ModelId) {
        for part in self.withheld_in_vain(id) {
            let group = self
                .instances
                .get(&part)
                .and_then(|found| found.spec.group.clone());
            let published = group.is_some_and(|group| self.publish_if_whole(id, &group));
            // Otherwise `expire` tries again later: no unload begins beside a load.
            if !published && self.may_be_torn_down(&part) {
                self.tear_down(&part);
            }
        }
        let refill = Alarm::Refill(id.clone());
        if !self.lacks_replicas(id) {
            return self.timers.set(&refill, None);
        }
        if self.timers.get(&refill).is_none()
            && let Some(model) = self.models.get_mut(id)
        {
            model.refills = model.refills.saturating_add(1);
            let at = self.now + self.config.backoff.after(model.refills);
            self.timers.set(&refill, Some(at));
        }
    }

    /// Publishes the ready replicas of a group if it is complete or already serves. Returns whether it serves now.
    fn publish_if_whole(&mut self, model: &ModelId, group: &Group) -> bool {
        let ready = self.ready_members(model, group);
        let size = usize::try_from(group.size).unwrap_or(usize::MAX);
        if ready.len() < size && !self.group_serves(model, group) {
            return false;
        }
        let withheld = |id: &&InstanceId| self.instances.get(*id).is_some_and(|found| !found.published);
        let withheld: Vec<InstanceId> = ready.iter().filter(withheld).cloned().collect();
        for id in &withheld {
            if let Some(member) = self.instances.get_mut(id) {
                member.published = true;
            }
            self.confirm_holds(id);
            self.attention.insert(id.clone());
        }
        let size = withheld.len();
        self.decided(DecisionKind::GroupPublished { size }, Some(model), None, None);
        self.touch_model(model);
        self.room_changed();
        true
    }

    /// Withheld instances whose group will not be completed.
    pub(crate) fn withheld_in_vain(&self, id: &ModelId) -> Vec<InstanceId> {
        let loads = self.models.get(id).is_some_and(|model| model.queued.is_some())
            || self
                .instances_of(id)
                .any(|found| matches!(found.state, InstanceState::Loading { .. }));
        if loads || self.phase != Phase::Running {
            return Vec::new();
        }
        let withheld = self
            .instances_of(id)
            .filter(|found| !found.published && found.is_ready());
        withheld.map(|found| found.id.clone()).collect()
    }

    /// Whether a withheld instance can be unloaded: no command is outstanding for it and no load runs beside it.
    pub(crate) fn may_be_torn_down(&self, id: &InstanceId) -> bool {
        let free = |instance: &Instance| !instance.published && instance.pending.is_none();
        self.instances.get(id).is_some_and(free) && !self.loads_run_beside(id)
    }

    /// Unloads a withheld instance, which has no requests. Does nothing while a command is outstanding or a load runs beside it.
    pub(crate) fn tear_down(&mut self, id: &InstanceId) {
        if !self.may_be_torn_down(id) {
            return;
        }
        self.decided_on(DecisionKind::GroupTornDown, id);
        let Some(instance) = self.instances.get_mut(id) else {
            return;
        };
        instance.state = InstanceState::Evicting { quiesced: false };
        let model = instance.spec.model.clone();
        let mode = UnloadMode::DRAIN;
        self.send(id, Asked::Evict, Command::Unload { mode });
        self.touch_model(&model);
    }

    /// Queues a load for a missing replica.
    pub(crate) fn refill(&mut self, id: &ModelId) {
        let wanted = self.group_of(id).filter(|_| self.lacks_replicas(id));
        if let Some((_, spec)) = wanted {
            self.decided(DecisionKind::Refilling, Some(id), None, None);
            self.enqueue(id, spec, Origin::Preload);
        }
    }

    /// Whether the model serves with fewer replicas than configured and no load for another is under way.
    fn lacks_replicas(&self, id: &ModelId) -> bool {
        let idle = self.models.get(id).is_some_and(|model| model.queued.is_none());
        let looks = idle && self.phase == Phase::Running && self.serving(id);
        let Some((group, _)) = self.group_of(id).filter(|_| looks) else {
            return false;
        };
        let stays = |found: &&Instance| !found.going() && !self.draining(&found.worker);
        let here = self.instances_of(id).filter(stays).count();
        here < usize::try_from(group.size).unwrap_or(usize::MAX)
    }

    /// The group of the model's instances and the spec they were loaded with; none if that is no longer known (controller/README.md,
    /// Settings: overrides live through replica restarts).
    pub(crate) fn group_of(&self, id: &ModelId) -> Option<(Group, Arc<ModelSpec>)> {
        let model = self.models.get(id)?;
        let member = |found: &&Instance| found.spec.group.is_some() && found.condemned.is_none();
        let member = self.instances_of(id).find(member)?;
        let known = model.loaded_with.iter().chain(&model.spec);
        let mut same = known.filter(|spec| spec.spec_hash == member.spec.spec_hash);
        model.spec.as_ref()?;
        Some((member.spec.group.clone()?, Arc::clone(same.next()?)))
    }

    /// The error of a group of which only some replicas have places.
    pub(crate) fn lacks_places(&self, load: &Load, ready: u32) -> LoadError {
        LoadError::TooFewPlaces {
            model: load.model.clone(),
            replicas: load.spec.replicas.get(),
            possible: ready,
        }
    }

    /// Instances of a group that are ready.
    pub(crate) fn ready_members(&self, model: &ModelId, group: &Group) -> Vec<InstanceId> {
        let members = self.instances_of(model);
        let ready = members.filter(|found| found.is_ready() && found.spec.group.as_ref() == Some(group));
        ready.map(|found| found.id.clone()).collect()
    }

    /// Whether some instance of the group takes requests.
    pub(crate) fn group_serves(&self, model: &ModelId, group: &Group) -> bool {
        let mut members = self.instances_of(model);
        members.any(|found| found.published && found.is_ready() && found.spec.group.as_ref() == Some(group))
    }
}
