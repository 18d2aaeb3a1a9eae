//! All or nothing: a group of replicas begins to load only if every one of them has a place (PROTOCOL 14).

use super::Pass;
use super::choose::Stop;
use crate::fleet::Fleet;
use crate::state::{Claim, Delay, Load};

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
}
