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
//! What is done follows from what is there, never from what ended an instance: so whatever a worker, an operator or a restart did, the counts
//! come right again.
//!
//! An instance that is withheld has no route, nobody is promised it, and it is not evicted: its group's load is under way.

use std::sync::Arc;

use crate::api::{Command, DecisionKind, Group, LoadError, ModelSpec, Origin, UnloadMode};
use crate::fleet::{Fleet, Phase};
use crate::state::{Asked, Instance, InstanceState, Load};
use crate::timers::Alarm;
use muster_core::{InstanceId, ModelId};

/// Touches of an instance that was loaded and not used (I9).
const LOAD_TOUCHES: u64 = 2;

/// Whether a part of a group that a new controller finds has taken requests: then its group was published.
pub(super) fn has_served(running: u32, touch_seq: u64) -> bool {
    running > 0 || touch_seq > LOAD_TOUCHES
}

impl Fleet {
    /// A part of a group is ready. `load`: the one it came from; none if it was found ready.
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

    /// Makes the counts of a model's instances what they are to be.
    pub(crate) fn converge(&mut self, id: &ModelId) {
        for part in self.withheld_in_vain(id) {
            let group = self
                .instances
                .get(&part)
                .and_then(|found| found.spec.group.clone());
            let published = group.is_some_and(|group| self.publish_if_whole(id, &group));
            // Else it is looked at again in a while (`expire`): no unload begins beside a load.
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

    /// Publishes what is ready of a group if that is all of it, or if some of it serves already; says whether it does now.
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

    /// Withheld instances whose group nobody completes any more.
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

    /// It is withheld, no command is outstanding there, and no load runs beside it.
    pub(crate) fn may_be_torn_down(&self, id: &InstanceId) -> bool {
        let free = |instance: &Instance| !instance.published && instance.pending.is_none();
        self.instances.get(id).is_some_and(free) && !self.loads_run_beside(id)
    }

    /// Unloads a withheld instance; nothing runs there. Waits for an outstanding command, and for a load beside it.
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

    /// Queues a load for a replica that is due.
    pub(crate) fn refill(&mut self, id: &ModelId) {
        let wanted = self.group_of(id).filter(|_| self.lacks_replicas(id));
        if let Some((_, spec)) = wanted {
            self.decided(DecisionKind::Refilling, Some(id), None, None);
            self.enqueue(id, spec, Origin::Preload);
        }
    }

    /// It serves, with fewer replicas than it is to have, and nothing is being done about it.
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

    /// The group that the model's instances make up, and what these were loaded with; none if that is not known any more
    /// (controller/README.md, Settings: overrides live through replica restarts).
    pub(crate) fn group_of(&self, id: &ModelId) -> Option<(Group, Arc<ModelSpec>)> {
        let model = self.models.get(id)?;
        let member = |found: &&Instance| found.spec.group.is_some() && found.condemned.is_none();
        let member = self.instances_of(id).find(member)?;
        let known = model.loaded_with.iter().chain(&model.spec);
        let mut same = known.filter(|spec| spec.spec_hash == member.spec.spec_hash);
        model.spec.as_ref()?;
        Some((member.spec.group.clone()?, Arc::clone(same.next()?)))
    }

    /// There are places for some of a group's parts only.
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

    /// Some of its instances take requests.
    pub(crate) fn group_serves(&self, model: &ModelId, group: &Group) -> bool {
        let mut members = self.instances_of(model);
        members.any(|found| found.published && found.is_ready() && found.spec.group.as_ref() == Some(group))
    }
}
