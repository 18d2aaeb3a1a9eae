//! Carries a plan out as far as it can go now: start, evict, or wait.

use std::sync::Arc;

use super::Pass;
use super::candidates::Candidate;
use super::choose::{Ease, Plan};
use super::obstacle::Victim;
use super::tenure::Tenure;
use crate::api::{
    Command, DecisionKind, DeviceKey, EvictionRule, Group, IdSource, InstanceSpec, LoadError, Origin,
    Progress, Quiesce, Reservation, UnloadMode, WaitReason,
};
use crate::fleet::Fleet;
use crate::state::{Asked, Delay, Free, Goal, Instance, InstanceState, Load, Place, Standing};
use muster_core::{GroupId, HoldId, HostId, InstanceId, ModelId};

impl Fleet {
    /// Claims the plan's place and takes the steps towards it that are possible now.
    pub(crate) fn proceed(&mut self, load: &Load, plan: &Plan, pass: &mut Pass, ids: &mut dyn IdSource) {
        if load.origin == Origin::Preload && plan.ease != Ease::Free {
            return self.refuse_load(&load.model, &LoadError::NoRoomToPreload(load.model.clone()));
        }
        let delay = match plan.ease {
            Ease::Wait => {
                self.wait_for_busy(load, plan, pass);
                Some(Delay::Busy)
            }
            Ease::Free | Ease::Evict => {
                let slot_taken_by = self.slot_taken_by(load, &plan.candidate.host, &plan.victims, pass);
                if !slot_taken_by.is_empty() {
                    self.wait(load.id, WaitReason::LoadSlot, slot_taken_by);
                    Some(Delay::Loads)
                } else if plan.ease == Ease::Free {
                    self.start_if_clear(load, &plan.candidate, pass, ids)
                } else {
                    Some(self.evict_all(load, plan, pass))
                }
            }
        };
        if let Some(delay) = delay {
            pass.claim(Self::claim_of(load, plan, delay));
        }
    }

    /// Models whose loads keep this load from starting on the host (I5, I7); empty if it may start. A load that this one is cancelling does
    /// not count.
    pub(crate) fn slot_taken_by(
        &self,
        load: &Load,
        host: &HostId,
        victims: &[Victim],
        pass: &Pass,
    ) -> Vec<ModelId> {
        let cancelled = |victim: &Victim| victim.tenure == Tenure::Idle;
        let spared = |id: &InstanceId| !victims.iter().any(|victim| victim.id == *id && cancelled(victim));
        let loading = self
            .on_host(host)
            .filter(|instance| instance.takes_load_slot() && spared(&instance.id));
        let mut taken: Vec<ModelId> = loading.map(|instance| instance.spec.model.clone()).collect();
        let next = pass
            .claims_on(host)
            .iter()
            .filter(|claim| claim.delay.keeps_load_slot());
        taken.extend(next.map(|claim| claim.model.clone()));
        let slots = usize::try_from(self.config.max_concurrent_loads.get()).unwrap_or(usize::MAX);
        let exclusive = self
            .on_host(host)
            .any(|instance| instance.takes_load_slot() && instance.spec.attempt > 1);
        let retry = self.first_retry(host, pass).filter(|retry| retry.id != load.id);
        if let Some(retry) = retry {
            taken.push(retry.model.clone());
            return taken;
        }
        if exclusive || taken.len() >= slots {
            taken
        } else {
            Vec::new()
        }
    }

    fn wait_for_busy(&mut self, load: &Load, plan: &Plan, pass: &mut Pass) {
        let busy = plan.victims.iter().filter(|victim| victim.tenure != Tenure::Idle);
        let blocked_by = busy.map(|victim| victim.model.clone()).collect();
        self.wait(load.id, WaitReason::Claim, blocked_by);
        let may_begin = |fleet: &Self, pass: &Pass| {
            let taken = fleet.slot_taken_by(load, &plan.candidate.host, &plan.victims, pass);
            taken.is_empty() && fleet.loads_beside(plan).0.is_empty()
        };
        self.lose_patience(load, &plan.victims, may_begin, pass);
    }

    /// Starts a load that needs no eviction, if no engine starts or ends on its devices and it fits there now. Returns what delays it; none
    /// if it started.
    pub(crate) fn start_if_clear(
        &mut self,
        load: &Load,
        candidate: &Candidate,
        pass: &mut Pass,
        ids: &mut dyn IdSource,
    ) -> Option<Delay> {
        let mut in_motion: Vec<&Instance> = Vec::new();
        let mut sampled = true;
        for reservation in &candidate.reservations {
            let key = Self::key(&candidate.host, &reservation.device);
            in_motion.extend(self.on_device(&key).filter(|instance| instance.in_motion()));
            let free = self
                .devices
                .get(&key)
                .map(|device| device.free(self.now, self.config.sample_wait));
            if let Some(Free::Stale { until }) = free {
                pass.wake_at(until);
                sampled = false;
            }
        }
        let (delay, reason, mut blocked_by);
        let waits_for_work;
        if !in_motion.is_empty() || !sampled {
            reason = WaitReason::LoadSlot;
            delay = delay_by(&in_motion).unwrap_or(Delay::Sample);
            blocked_by = models_of(&in_motion);
            waits_for_work = drained_by_operator(&in_motion);
        } else if self.fits_now(load, candidate) && self.fleet_slot_free(load) {
            self.start(load, candidate, ids);
            return None;
        } else {
            // An earlier claim will free this room, or an instance that is ending still has the type slot.
            let leaving = self.leaving_for(load, &candidate.host);
            reason = WaitReason::Claim;
            delay = delay_by(&leaving).unwrap_or(Delay::Claims);
            blocked_by = models_of(&leaving);
            waits_for_work = drained_by_operator(&leaving);
            let claims = pass.claims_on(&candidate.host).iter();
            blocked_by.extend(claims.map(|claim| claim.model.clone()));
        }
        self.wait(load.id, reason, blocked_by);
        self.drains(load, waits_for_work, pass);
        Some(delay)
    }

    fn start(&mut self, load: &Load, candidate: &Candidate, ids: &mut dyn IdSource) {
        let Some(need) = load.spec.needs.get(candidate.need) else {
            return;
        };
        self.queue.remove(&load.id);
        let id = ids.next_instance_id();
        let size = load.spec.replicas.get();
        let group = load.group.clone().or_else(|| {
            (size > 1).then(|| Group {
                id: GroupId::from(&id),
                size,
            })
        });
        let spec = Arc::new(InstanceSpec {
            model: load.model.clone(),
            kind: load.spec.kind,
            runtime: load.spec.runtime,
            settings: need.settings.clone(),
            spec_hash: load.spec.spec_hash.clone(),
            reservations: candidate.reservations.clone(),
            source: need.source,
            origin: load.origin,
            attempt: load.attempt,
            pinned: load.spec.pinned,
            idle_ttl: self.config.ttl(load.spec.idle_ttl),
            group: group.clone(),
        });
        let holds = self.place_waiters(&load.model, &id);
        let state = InstanceState::Loading {
            load: Box::new(Load {
                goal: Goal::Anywhere,
                group: group.clone(),
                ..load.clone()
            }),
            progress: Progress::default(),
            unwanted_since: None,
        };
        let place = (candidate.worker.clone(), candidate.host.clone());
        let mut instance = Instance::new(id.clone(), place, Arc::clone(&spec), state, self.now);
        instance.holds.extend(holds.iter().cloned());
        instance.published = group.is_none();
        self.insert_instance(instance);
        let (now, wait) = (self.now, self.config.sample_wait);
        for reservation in &candidate.reservations {
            if let Some(device) = self
                .devices
                .get_mut(&Self::key(&candidate.host, &reservation.device))
            {
                device.load_begins(now, wait);
            }
        }
        if group.is_some() {
            self.groups_loading.insert(load.model.clone());
        }
        if let Some(model) = self.models.get_mut(&load.model) {
            model.queued = None;
            model.failure = None;
            model.loaded_with = Some(Arc::clone(&load.spec));
        }
        self.decided_on(
            DecisionKind::LoadStarted {
                attempt: load.attempt,
                need: candidate.need,
                reservations: candidate.reservations.clone(),
            },
            &id,
        );
        self.send(&id, Asked::Load, Command::Load { spec, holds });
    }

    /// Assigns everyone who waits for the model to the new instance. Returns their holds, which travel with the Load command.
    fn place_waiters(&mut self, model: &ModelId, id: &InstanceId) -> Vec<HoldId> {
        let Some(model) = self.models.get(model) else {
            return Vec::new();
        };
        let mut holds = Vec::new();
        for hold in &model.waiters {
            if let Some(waiter) = self.waiters.get_mut(hold)
                && waiter.place == Place::Waiting
            {
                waiter.place = Place::Placing(id.clone());
                holds.push(hold.clone());
            }
        }
        holds
    }

    /// Evicts a plan's victims, which are all idle as far as known. A single one goes at once. Several are quiesced first and go only if
    /// all stay idle, so that none is lost for a plan that is dropped (PROTOCOL 10).
    fn evict_all(&mut self, load: &Load, plan: &Plan, pass: &mut Pass) -> Delay {
        let (models, lost) = self.loads_beside(plan);
        if lost {
            let error = self.no_worker(&load.spec);
            self.wait_stuck(load, WaitReason::Claim, models, &error, pass);
            return Delay::Loads;
        }
        if !models.is_empty() {
            self.wait(load.id, WaitReason::LoadSlot, models);
            return Delay::Loads;
        }
        let alone = plan.victims.len() == 1;
        let quiesced = |victim: &Victim| {
            self.instances.get(&victim.id).is_some_and(|instance| {
                let confirmed = matches!(instance.state, InstanceState::Quiesced { confirmed: true, .. });
                confirmed && instance.pending.is_none()
            })
        };
        let loaded = |victim: &&Victim| {
            !self
                .instances
                .get(&victim.id)
                .is_some_and(|instance| instance.takes_load_slot())
        };
        let to_quiesce = plan.victims.iter().filter(loaded);
        let ready = alone || to_quiesce.clone().all(quiesced);
        for victim in &plan.victims {
            self.evict_one(load, victim, ready, pass);
        }
        if let Some(queued) = self.queue.get_mut(&load.id) {
            let models = plan.victims.iter().map(|victim| victim.model.clone()).collect();
            queued.standing = Standing::Evicting { models };
        }
        Delay::MakingRoom
    }

    /// Models that load on the devices of the plan or of its victims, and whether the worker of such a load is lost, so that nobody sees
    /// its end.
    fn loads_beside(&self, plan: &Plan) -> (Vec<ModelId>, bool) {
        let mut devices: Vec<DeviceKey> = Vec::new();
        let mut add = |host: &HostId, parts: &[Reservation]| {
            devices.extend(parts.iter().map(|part| Self::key(host, &part.device)));
        };
        add(&plan.candidate.host, &plan.candidate.reservations);
        for victim in plan
            .victims
            .iter()
            .filter_map(|victim| self.instances.get(&victim.id))
        {
            add(&victim.host, &victim.spec.reservations);
        }
        let other = |instance: &&Instance| !plan.victims.iter().any(|victim| victim.id == instance.id);
        let there = devices.iter().flat_map(|key| self.on_device(key));
        let loading: Vec<&Instance> = there.filter(|found| found.loads()).filter(other).collect();
        let lost = loading.iter().any(|instance| instance.lost());
        (models_of(&loading), lost)
    }

    /// Takes the next step towards the end of one victim.
    pub(crate) fn evict_one(&mut self, load: &Load, victim: &Victim, all_ready: bool, pass: &mut Pass) {
        let now = self.now;
        // No unload begins beside a load, not even beside one that this plan cancels (PROTOCOL 13).
        let beside_a_load = self.loads_run_beside(&victim.id);
        let rests = !all_ready && self.quiesced_just_now(&victim.id, pass);
        let Some(instance) = self.instances.get_mut(&victim.id) else {
            return;
        };
        let rule = victim.rule;
        let if_touch_seq = instance.usage.touch_seq;
        let unload = Command::Unload {
            mode: UnloadMode::IfIdle { if_touch_seq },
        };
        let outstanding = instance.pending.is_some();
        match &mut instance.state {
            InstanceState::Loading { .. } => {
                instance.state = InstanceState::Cancelling { sent: false };
                self.attention.insert(victim.id.clone());
                self.decided_on(DecisionKind::Abandoned, &victim.id);
            }
            InstanceState::Ready if outstanding || beside_a_load || rests => {}
            InstanceState::Ready if all_ready => {
                instance.state = InstanceState::Evicting { quiesced: false };
                self.note_eviction(load, victim, rule);
                self.send(&victim.id, Asked::Evict, unload);
            }
            InstanceState::Quiesced { .. } if all_ready && !outstanding && !beside_a_load => {
                instance.state = InstanceState::Evicting { quiesced: true };
                self.note_eviction(load, victim, rule);
                self.send(&victim.id, Asked::Evict, unload);
            }
            InstanceState::Ready => {
                instance.state = InstanceState::Quiesced {
                    plan: Some(load.id),
                    confirmed: false,
                    patient: false,
                    since: now,
                };
                self.attention.insert(victim.id.clone());
                pass.kept.insert(victim.id.clone());
                let kind = DecisionKind::Quiescing {
                    for_model: load.model.clone(),
                    why: Quiesce::AllOrNone,
                };
                self.decided_on(kind, &victim.id);
                self.send(&victim.id, Asked::Quiesce, Command::Quiesce);
            }
            InstanceState::Quiesced { plan, .. } => {
                *plan = Some(load.id);
                self.attention.insert(victim.id.clone());
                pass.kept.insert(victim.id.clone());
            }
            InstanceState::Cancelling { .. }
            | InstanceState::Evicting { .. }
            | InstanceState::Resuming
            | InstanceState::Leaving(_)
            | InstanceState::Lost(_)
            | InstanceState::Opaque => {}
        }
        self.touch_model(&victim.model);
    }

    fn note_eviction(&mut self, load: &Load, victim: &Victim, rule: EvictionRule) {
        let for_model = load.model.clone();
        self.decided_on(DecisionKind::Evicting { for_model, rule }, &victim.id);
    }
}

/// What a load waits for because of the instances that start or end in its way; none if there are none.
fn delay_by(in_motion: &[&Instance]) -> Option<Delay> {
    let any = |test: fn(&Instance) -> bool| in_motion.iter().any(|instance| test(instance));
    if in_motion.is_empty() {
        None
    } else if any(|instance| instance.going() && instance.works()) {
        Some(Delay::Drain)
    } else if any(Instance::takes_load_slot) {
        Some(Delay::Loads)
    } else {
        Some(Delay::MakingRoom)
    }
}

/// Whether one of them is being unloaded by an operator and finishes its requests first, which may take long.
fn drained_by_operator(in_the_way: &[&Instance]) -> bool {
    let drains = |instance: &&Instance| instance.condemned.is_some() && instance.works();
    in_the_way.iter().any(drains)
}

fn models_of(instances: &[&Instance]) -> Vec<ModelId> {
    instances
        .iter()
        .map(|instance| instance.spec.model.clone())
        .collect()
}
