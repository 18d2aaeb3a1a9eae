//! All or nothing: a group of replicas begins to load only if every one of them has a place (PROTOCOL 14).
//!
//! A group that has begun may find an earlier load before it again, whose worker was away. It goes on with the slot that it has; but where
//! that load has claimed the memory that the group still lacks, and waits for the memory that the group has, the two would wait for each
//! other for ever. Then the group, which is the later one, gives way.

use super::Pass;
use super::choose::Stop;
use crate::api::{InstanceId, WaitReason};
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
        if let Some(first) = load.gave_way_to.and_then(|first| self.queue.get(&first)) {
            return Err(Stop::Claims(vec![first.model.clone()]));
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

    /// Unloads withheld parts of a group that only claims keep from going on, if an earlier load waits for their room. It begins anew once
    /// that load has left the queue, and not before: whom a load claims as victims depends on who is there.
    pub(super) fn give_way(&mut self, id: LoadId, pass: &Pass) {
        let Some(load) = self.queue.get(&id) else {
            return;
        };
        let (Some(group), Standing::Waiting { reason, .. }) = (&load.group, &load.standing) else {
            return;
        };
        let claims_alone = match &pass.claimed {
            Some(claim) => claim.delay == Delay::Claims,
            None => *reason == WaitReason::Claim && load.stuck_since.is_none(),
        };
        if !claims_alone {
            return;
        }
        let waiting_for = |part: &InstanceId| {
            let mut claims = pass.claims.values().flatten();
            let claim = claims.find(|claim| claim.victims.contains(part))?;
            self.models.get(&claim.model)?.queued
        };
        let parts = self.ready_members(&load.model, group);
        let parts: Vec<(InstanceId, LoadId)> = parts
            .into_iter()
            .filter(|part| self.may_be_torn_down(part))
            .filter_map(|part| waiting_for(&part).map(|first| (part, first)))
            .collect();
        for (part, first) in parts {
            self.tear_down(&part);
            if let Some(load) = self.queue.get_mut(&id) {
                load.gave_way_to = Some(first);
            }
        }
    }
}
