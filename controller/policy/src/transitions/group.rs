//! Replica groups (PROTOCOL 14): several instances of a model that are loaded one after another and take requests together, or not at all.
//!
//! ```text
//!   load ─► all places are looked for ─► part loads ─► ready, withheld ─┬─ more to come ─► back into the queue, at its old place
//!               │ too few                    │ fails for good           └─ the last one ─► all are published
//!               ▼                            ▼
//!            refused                all withheld ones are unloaded
//!   published ── one crashes ──► after a backoff one more is loaded, if that evicts nobody
//! ```
//!
//! An instance that is withheld has no route, nobody is promised it, and it is not evicted: its group's load is under way.

use std::sync::Arc;

use crate::api::{
    Command, DecisionKind, Group, InstanceId, LoadError, ModelId, ModelSpec, Moment, Origin, UnloadMode,
};
use crate::fleet::{Fleet, Phase};
use crate::state::{Asked, Instance, InstanceState, Load};

impl Fleet {
    /// A part of a group is ready.
    pub(crate) fn part_ready(&mut self, id: &InstanceId, load: Option<Load>) {
        let Some(instance) = self.instances.get(id).filter(|instance| !instance.published) else {
            return;
        };
        let (model, Some(group)) = (instance.spec.model.clone(), instance.spec.group.clone()) else {
            return;
        };
        let members = self.ready_members(&model, &group);
        let size = usize::try_from(group.size).unwrap_or(usize::MAX);
        if members.len() >= size || self.group_serves(&model, &group) {
            self.publish(&model, &members);
        } else if let Some(load) = load {
            self.back_into_queue(Load { attempt: 1, ..load });
        }
    }

    fn publish(&mut self, model: &ModelId, members: &[InstanceId]) {
        for id in members {
            if let Some(member) = self.instances.get_mut(id) {
                member.published = true;
            }
            self.confirm_holds(id);
            self.attention.insert(id.clone());
        }
        let size = members.len();
        self.decided(DecisionKind::GroupPublished { size }, Some(model), None, None);
        self.touch_model(model);
        self.room_changed();
    }

    /// Withheld instances whose group nobody completes any more.
    pub(crate) fn withheld_in_vain(&self, id: &ModelId) -> Vec<InstanceId> {
        let Some(model) = self.models.get(id) else {
            return Vec::new();
        };
        let withheld = |instance: &&InstanceId| {
            self.instances
                .get(*instance)
                .is_some_and(|found| !found.published && matches!(found.state, InstanceState::Ready))
        };
        let withheld: Vec<InstanceId> = model.instances.iter().filter(withheld).cloned().collect();
        let queued = model.queued.is_some();
        if queued || self.any_instance(id, |state| matches!(state, InstanceState::Loading { .. })) {
            return Vec::new();
        }
        withheld
    }

    /// Withheld instances whose group nobody completes any more go, or join those that serve.
    pub(crate) fn tend_groups(&mut self, id: &ModelId) {
        let withheld = self.withheld_in_vain(id);
        for instance in withheld {
            let group = self
                .instances
                .get(&instance)
                .and_then(|found| found.spec.group.clone());
            if group.is_some_and(|group| self.group_serves(id, &group)) {
                self.publish(id, &[instance]);
            } else if self.may_be_torn_down(&instance) {
                // Else it is looked at again in a while (`expire`): no unload begins beside a load.
                self.tear_down(&instance);
            }
        }
    }

    /// It is withheld, no command is outstanding there, and no load runs beside it.
    pub(crate) fn may_be_torn_down(&self, id: &InstanceId) -> bool {
        let free = |instance: &Instance| !instance.published && instance.pending.is_none();
        self.instances.get(id).is_some_and(free) && !self.loads_run_beside(id)
    }

    /// Unloads a withheld instance; nothing runs there. Waits for an outstanding command.
    pub(crate) fn tear_down(&mut self, id: &InstanceId) {
        if self.instances.get(id).is_none_or(|found| found.pending.is_some()) {
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

    /// One of several replicas ended by itself: another one is to take its place, after a while.
    pub(crate) fn replica_lost(&mut self, id: &ModelId) {
        if !self.lacks_replicas(id) {
            return;
        }
        let Some(model) = self.models.get_mut(id) else {
            return;
        };
        model.refills = model.refills.saturating_add(1);
        let at = self.now + self.config.backoff.after(model.refills);
        if let Some(before) = model.refill_at.replace(at) {
            self.refills.remove(&(before, id.clone()));
        }
        self.refills.insert((at, id.clone()));
    }

    /// Queues loads for replicas that are due.
    pub(crate) fn refill(&mut self) {
        if matches!(self.phase, Phase::Settling { .. }) {
            return;
        }
        while let Some((_, id)) = self.refills.first().filter(|(at, _)| *at <= self.now).cloned() {
            self.refills.pop_first();
            let Some(model) = self.models.get_mut(&id) else {
                continue;
            };
            model.refill_at = None;
            if !self.lacks_replicas(&id) {
                continue;
            }
            let Some((group, spec)) = self.group_to_fill(&id) else {
                continue;
            };
            self.decided(DecisionKind::Refilling, Some(&id), None, None);
            self.enqueue(&id, spec, Origin::Preload);
            let queued = self.models.get(&id).and_then(|model| model.queued);
            if let Some(load) = queued.and_then(|load| self.queue.get_mut(&load)) {
                load.group = Some(group);
            }
        }
    }

    /// It serves, with fewer replicas than it is to have, and nothing is being done about it.
    fn lacks_replicas(&self, id: &ModelId) -> bool {
        let Some(model) = self.models.get(id) else {
            return false;
        };
        let wanted = self.group_to_fill(id).map_or(1, |(group, _)| group.size);
        let here = model.instances.iter().filter_map(|id| self.instances.get(id));
        let here = here.filter(|instance| !instance.going()).count();
        self.serving(id) && model.queued.is_none() && here < usize::try_from(wanted).unwrap_or(usize::MAX)
    }

    /// The group of the model's instances, and what these were loaded with; none if that is not known any more (controller/README.md, Settings: overrides
    /// live through replica restarts).
    fn group_to_fill(&self, id: &ModelId) -> Option<(Group, Arc<ModelSpec>)> {
        let model = self.models.get(id)?;
        let mut instances = model.instances.iter().filter_map(|id| self.instances.get(id));
        let member = instances.find(|instance| instance.spec.group.is_some())?;
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
        let instances = self
            .models
            .get(model)
            .into_iter()
            .flat_map(|model| &model.instances);
        let ready = instances.filter(|id| {
            self.instances.get(*id).is_some_and(|instance| {
                matches!(instance.state, InstanceState::Ready) && instance.spec.group.as_ref() == Some(group)
            })
        });
        ready.cloned().collect()
    }

    /// Some of its instances take requests.
    pub(crate) fn group_serves(&self, model: &ModelId, group: &Group) -> bool {
        let members = self.ready_members(model, group);
        let mut members = members.iter().filter_map(|id| self.instances.get(id));
        members.any(|member| member.published)
    }

    /// When a replica is due.
    pub(crate) fn next_refill(&self) -> Option<Moment> {
        self.refills.first().map(|(at, _)| *at)
    }
}
