//! All or nothing: a group of replicas claims places for all its parts at once, and begins to load only if every one has its own (PROTOCOL 14).
//!
//! ```text
//!   pass: second attempts ─► groups that have begun, in order ─► all others
//!                                 claim what they lack, also while a part of theirs loads
//! ```
//!
//! So no load that waits for a group's room takes what the group still needs. Only a group that began earlier can stand in the way, if
//! something else has changed; then the later group gives up what it has, and begins again when there are places for all its replicas.

use super::Pass;
use super::choose::{Plan, Stop};
use crate::fleet::Fleet;
use crate::state::{Claim, Delay, InstanceState, Load};
use muster_core::ModelId;

impl Fleet {
    /// Plans for every replica that a load still has to place, one beside the other; or what keeps it from them.
    pub(crate) fn plans(&mut self, load: &Load, pass: &mut Pass) -> Result<Vec<Plan>, Stop> {
        match self.parts_to_place(load) {
            1 => Ok(vec![self.best_plan(load, pass)?]),
            parts => self.plans_for(load, parts, pass),
        }
    }

    /// Plans for `parts` replicas of a load, one beside the other.
    fn plans_for(&mut self, load: &Load, parts: u32, pass: &Pass) -> Result<Vec<Plan>, Stop> {
        let mut plans: Vec<Plan> = Vec::new();
        let mut trial = pass.fork();
        for _ in 0..parts {
            match self.best_plan_anew(load, &trial) {
                Ok(plan) => {
                    trial.claim(Self::claim_of(load, &plan, Delay::Loads));
                    plans.push(plan);
                }
                // Only its own replicas stand in the way.
                Err(Stop::Claims(models)) if models.iter().all(|model| *model == load.model) => {
                    let possible = load.spec.replicas.get().saturating_sub(parts);
                    let possible = possible + u32::try_from(plans.len()).unwrap_or(u32::MAX);
                    return Err(Stop::Refused(self.lacks_places(load, possible)));
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(plans)
    }

    /// Number of replicas of the load that have no place yet: one, unless its group does not serve yet.
    fn parts_to_place(&self, load: &Load) -> u32 {
        let size = load.spec.replicas.get();
        let group = load.group.as_ref();
        if size < 2 || group.is_some_and(|group| self.group_serves(&load.model, group)) {
            return 1;
        }
        let here = group.map_or(0, |group| self.ready_members(&load.model, group).len());
        size.saturating_sub(u32::try_from(here).unwrap_or(u32::MAX))
            .max(1)
    }

    pub(super) fn claim_of(load: &Load, plan: &Plan, delay: Delay) -> Claim {
        Claim {
            model: load.model.clone(),
            kind: load.spec.kind,
            host: plan.candidate.host.clone(),
            reservations: plan.candidate.reservations.clone(),
            victims: plan.victims.iter().map(|victim| victim.id.clone()).collect(),
            delay,
        }
    }

    /// Whether some replica of its group is ready and waits for the others.
    pub(super) fn has_begun(&self, load: &Load) -> bool {
        let group = load.group.as_ref();
        group.is_some_and(|group| {
            !self.group_serves(&load.model, group) && !self.ready_members(&load.model, group).is_empty()
        })
    }

    /// Loads of groups that still lack replicas while one of them loads.
    pub(super) fn loading_groups(&mut self) -> Vec<Load> {
        let mut loads = Vec::new();
        for model in self.groups_loading.iter().cloned().collect::<Vec<ModelId>>() {
            let loading = self.instances_of(&model).find_map(|found| {
                if let InstanceState::Loading { load, .. } = &found.state {
                    Some(Load::clone(load))
                } else {
                    None
                }
            });
            match loading.filter(|load| self.parts_to_place(load) > 1) {
                Some(load) => loads.push(load),
                None => drop(self.groups_loading.remove(&model)),
            }
        }
        loads
    }

    /// Claims the places that these groups still lack.
    pub(super) fn claim_for_loading_groups(&mut self, loads: &[Load], pass: &mut Pass) {
        for load in loads {
            let lacking = self.parts_to_place(load).saturating_sub(1);
            if let Ok(plans) = self.plans_for(load, lacking, pass) {
                for plan in &plans {
                    pass.claim(Self::claim_of(load, plan, Delay::Loads));
                }
            }
            self.note_claims(load.id, std::mem::take(&mut pass.claimed));
        }
    }

    /// Unloads what has begun of a group, because a group that began earlier needs the room.
    pub(super) fn begin_anew(&mut self, load: &Load) {
        let parts = load
            .group
            .as_ref()
            .map(|group| self.ready_members(&load.model, group));
        for part in parts.into_iter().flatten() {
            self.tear_down(&part);
        }
    }
}
