//! The fleet's limit of models per type, an option beside the limits of each host (I2).
//!
//! ```text
//!   a host's plan ──► models of the type everywhere ≤ limit ──► as it is
//!                                │ more
//!                                ▼
//!                     whoever is worth least goes too, wherever it is
//! ```
//!
//! A place is chosen by its host alone. Victims that the fleet's limit requires are added to the plan; all of the plan's victims go, or
//! none.

use std::collections::BTreeSet;

use super::Pass;
use super::choose::{Ease, Plan, Stop};
use super::obstacle::Victim;
use super::order;
use super::tenure::Tenure;
use crate::api::{EvictionRule, LoadError};
use crate::config::Limit;
use crate::fleet::Fleet;
use crate::ledger::Resident;
use crate::state::{Claim, Instance, Load};
use muster_core::{InstanceId, ModelId};

impl Fleet {
    /// Adds the victims that the fleet's limit requires, or returns what stands in the way.
    pub(crate) fn fit_into_fleet(&self, load: &Load, mut plan: Plan, pass: &Pass) -> Result<Plan, Stop> {
        let limit = self.config.fleet_limits.of(load.spec.kind);
        if limit == Limit::Unlimited {
            return Ok(plan);
        }
        let claims = || pass.claims.values().flatten();
        let claiming = |claim: &&Claim| claim.kind == load.spec.kind;
        let claimed: BTreeSet<&ModelId> = claims().filter(claiming).map(|claim| &claim.model).collect();
        let promised: BTreeSet<&InstanceId> = claims().flat_map(|claim| &claim.victims).collect();
        // A group that has begun keeps its type slot.
        let group = load.spec.replicas.get() > 1;
        let own = |resident: &Resident| group && resident.model.id == load.model;
        let goes = |resident: &Resident| {
            promised.contains(&resident.id) && !own(resident)
                || plan.victims.iter().any(|victim| victim.id == resident.id)
        };
        let hosts = self.ledger.slots().filter_map(|slot| self.ledger.host(slot));
        let all = hosts.flat_map(|host| &host.residents);
        let stays =
            |resident: &&Resident| resident.kind == load.spec.kind && !resident.going() && !goes(resident);
        let mut there: Vec<&Resident> = all.filter(stays).collect();
        let mut further = Vec::new();
        loop {
            let models = there.iter().map(|resident| &resident.model.id);
            let models = models.chain(claimed.iter().copied()).chain([&load.model]);
            let models: BTreeSet<&ModelId> = models.collect();
            if limit.allows(models.len()) {
                break;
            }
            let has_claim = |model: &ModelId| claimed.contains(model);
            let others = there
                .iter()
                .copied()
                .filter(|resident| resident.model.id != load.model);
            let Some(first) = order::first_model(others, has_claim) else {
                return Err(self.fleet_is_full(load, &there, &claimed));
            };
            let (gone, stay) = there.into_iter().partition(|resident| resident.model == *first);
            further.extend::<Vec<&Resident>>(gone);
            there = stay;
        }
        for copy in further {
            plan.victims.push(Victim {
                id: copy.id.clone(),
                model: copy.model.id.clone(),
                rule: EvictionRule::TypeSlot,
                tenure: copy.tenure,
            });
            plan.ease = plan.ease.max(if copy.tenure == Tenure::Idle {
                Ease::Evict
            } else {
                Ease::Wait
            });
        }
        plan.victims.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(plan)
    }

    fn fleet_is_full(&self, load: &Load, there: &[&Resident], claimed: &BTreeSet<&ModelId>) -> Stop {
        let with = |tenure: Tenure| {
            let found = there.iter().filter(|found| found.tenure == tenure);
            let models: BTreeSet<&ModelId> = found.map(|found| &found.model.id).collect();
            models.into_iter().cloned().collect::<Vec<_>>()
        };
        let ghosts = with(Tenure::Ghost);
        if !claimed.is_empty() {
            Stop::Claims(claimed.iter().map(|model| (*model).clone()).collect())
        } else if !ghosts.is_empty() {
            Stop::Ghosts {
                models: ghosts,
                error: self.no_worker(&load.spec),
            }
        } else {
            Stop::Refused(LoadError::SlotsPinned {
                model: load.model.clone(),
                pinned: with(Tenure::Pinned),
            })
        }
    }

    /// Whether the fleet's limit allows the load at this moment, counting instances that are still ending.
    pub(crate) fn fleet_slot_free(&self, load: &Load) -> bool {
        let limit = self.config.fleet_limits.of(load.spec.kind);
        limit == Limit::Unlimited || {
            let of_type = self
                .instances
                .values()
                .filter(|found| found.spec.kind == load.spec.kind);
            let there = of_type.map(|found| &found.spec.model);
            let models: BTreeSet<&ModelId> = there.chain([&load.model]).collect();
            limit.allows(models.len())
        }
    }

    /// Instances that are ending and have a type slot that the load needs, on the host or, if the fleet has a limit, anywhere. The load
    /// waits for them even if nothing moves on its own devices.
    pub(crate) fn leaving_for(&self, load: &Load, host: &muster_core::HostId) -> Vec<&Instance> {
        let kind = load.spec.kind;
        let going = |instance: &&Instance| instance.spec.kind == kind && instance.going();
        if self.config.fleet_limits.of(kind) == Limit::Unlimited {
            self.on_host(host).filter(going).collect()
        } else {
            self.instances.values().filter(going).collect()
        }
    }
}
