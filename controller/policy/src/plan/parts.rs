//! All or nothing: a group of replicas begins to load only if every one of them has a place (PROTOCOL 14).
//!
//! A group that has begun may find an earlier load before it again, whose worker was away: the two would wait for each other for ever, one
//! for the other's room and the other for the group to be whole. The later one, which is the group, gives way.

use super::Pass;
use super::choose::Stop;
use crate::api::{DecisionKind, InstanceId, WaitReason};
use crate::fleet::Fleet;
use crate::state::{Claim, Delay, Load, LoadId, Standing};

impl Fleet {
    /// Looks for places for all parts that a group still lacks, one beside the other; says what keeps it from them.
    pub(crate) fn whole_group(&mut self, load: &Load, pass: &Pass) -> Result<(), Stop> {
        let size = load.spec.replicas.get();
        let group = load.group.as_ref();
        let serves = group.is_some_and(|group| self.group_serves(&load.model, group));
        if size < 2 || serves {
            return Ok(());
        }
        let ready = group.map_or(0, |group| self.ready_members(&load.model, group).len());
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        let mut trial = Pass {
            claims: pass.claims.clone(),
            retries: pass.retries.clone(),
            ..Pass::default()
        };
        for part in ready..size {
            let plan = match self.best_plan_anew(load, &trial) {
                Ok(plan) => plan,
                // Only its own parts stand in the way.
                Err(Stop::Claims(models)) if models.iter().all(|model| *model == load.model) && part > 0 => {
                    return Err(Stop::Refused(self.lacks_places(load, part)));
                }
                Err(stop) => return Err(stop),
            };
            let claim = Claim {
                model: load.model.clone(),
                kind: load.spec.kind,
                host: plan.candidate.host,
                reservations: plan.candidate.reservations,
                victims: plan.victims.into_iter().map(|victim| victim.id).collect(),
                delay: Delay::Loads,
            };
            trial.claims.entry(claim.host.clone()).or_default().push(claim);
        }
        Ok(())
    }

    /// Unloads withheld parts of a group that cannot go on, if an earlier load waits for their room. A load slot it would get in a moment.
    pub(super) fn give_way(&mut self, id: LoadId, pass: &Pass) {
        let Some(load) = self.queue.get(&id) else {
            return;
        };
        let (Some(group), Standing::Waiting { reason, .. }) = (&load.group, &load.standing) else {
            return;
        };
        if *reason == WaitReason::LoadSlot {
            return;
        }
        let in_the_way = |part: &InstanceId| {
            let withheld = self.instances.get(part).is_some_and(|found| !found.published);
            let mut claims = pass.claims.values().flatten();
            withheld && claims.any(|claim| claim.victims.contains(part)) && !self.loads_run_beside(part)
        };
        let parts = self.ready_members(&load.model, group);
        let parts: Vec<InstanceId> = parts.into_iter().filter(in_the_way).collect();
        for part in parts {
            self.decided_on(DecisionKind::GroupTornDown, &part);
            self.tear_down(&part);
        }
    }
}
