//! The fleet's limit of models per type, an option beside the limits of each host (I2).
//!
//! ```text
//!   a host's plan ──► models of the type everywhere ≤ limit ──► as it is
//!                                │ more
//!                                ▼
//!                     whoever is worth least goes too, wherever it is
//! ```
//!
//! A place is chosen by its host alone; what the fleet's limit takes besides joins the plan's victims, and goes with them, all or none.

use std::collections::{BTreeMap, BTreeSet};

use super::Pass;
use super::choose::{Ease, Plan, Stop};
use super::obstacle::Victim;
use super::tenure::Tenure;
use crate::api::{EvictionRule, InstanceId, LoadError, ModelId};
use crate::config::Limit;
use crate::fleet::Fleet;
use crate::ledger::Resident;
use crate::state::{Claim, Instance, Load};
use crate::strategy::Worth;

/// Instances of one model that stay.
#[derive(Default)]
struct Copies<'a>(Vec<&'a Resident>);

impl Copies<'_> {
    /// Its place in the order of eviction, as on a host: idle ones first, then by what their going costs; none if it may not be evicted.
    fn turn(&self) -> Option<(u8, Worth)> {
        let movable = |copy: &&Resident| !matches!(copy.tenure, Tenure::Pinned | Tenure::Ghost);
        if !self.0.iter().all(movable) {
            return None;
        }
        let key = |copy: &&Resident| (copy.tenure.rank(), copy.loss);
        let keys = self.0.iter().map(key);
        keys.reduce(|one, other| (one.0.max(other.0), one.1.max(other.1)))
    }

    fn any(&self, tenure: Tenure) -> bool {
        self.0.iter().any(|copy| copy.tenure == tenure)
    }
}

impl Fleet {
    /// Adds to a plan whom the fleet's limit takes besides, or says what stands in the way.
    pub(crate) fn fit_into_fleet(&self, load: &Load, mut plan: Plan, pass: &Pass) -> Result<Plan, Stop> {
        let limit = self.config.fleet_limits.of(load.spec.kind);
        if limit == Limit::Unlimited {
            return Ok(plan);
        }
        let claims = || pass.claims.values().flatten();
        let claiming = |claim: &&Claim| claim.kind == load.spec.kind;
        let claimed: BTreeSet<&ModelId> = claims().filter(claiming).map(|claim| &claim.model).collect();
        let promised: BTreeSet<&InstanceId> = claims().flat_map(|claim| &claim.victims).collect();
        // A group that has begun goes on with the slot that it has.
        let group = load.spec.replicas.get() > 1;
        let own = |resident: &Resident| group && resident.model.id == load.model;
        let goes = |resident: &Resident| {
            promised.contains(&resident.id) && !own(resident)
                || plan.victims.iter().any(|victim| victim.id == resident.id)
        };
        let mut there: BTreeMap<&ModelId, Copies<'_>> = BTreeMap::new();
        let hosts = self.ledger.slots().filter_map(|slot| self.ledger.host(slot));
        for resident in hosts.flat_map(|host| &host.residents) {
            if resident.kind == load.spec.kind && !resident.going() && !goes(resident) {
                there.entry(&resident.model.id).or_default().0.push(resident);
            }
        }
        let mut further = Vec::new();
        loop {
            let models: BTreeSet<&ModelId> = there.keys().copied().chain(claimed.iter().copied()).collect();
            if models.contains(&load.model) || limit.allows(models.len() + 1) {
                break;
            }
            let open = there.iter().filter(|(model, _)| !claimed.contains(*model));
            let turns = open.filter_map(|(model, copies)| Some((copies.turn()?, *model)));
            let Some((_, first)) = turns.min() else {
                return Err(self.fleet_is_full(load, &there, &claimed));
            };
            further.extend(there.remove(first).into_iter().flat_map(|copies| copies.0));
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

    fn fleet_is_full(
        &self,
        load: &Load,
        there: &BTreeMap<&ModelId, Copies<'_>>,
        claimed: &BTreeSet<&ModelId>,
    ) -> Stop {
        let with = |tenure: Tenure| {
            let found = there.iter().filter(|(_, copies)| copies.any(tenure));
            found.map(|(model, _)| (*model).clone()).collect::<Vec<_>>()
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

    /// Whether the fleet's limit allows a load beside all that is there at this moment, what is on its way out included.
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

    /// Those on their way out whose end a load may wait for though its devices are at rest: they have the slot of its type on the host, or
    /// in the fleet if that has a limit.
    pub(crate) fn leaving_for(&self, load: &Load, host: &crate::api::HostId) -> Vec<&Instance> {
        let kind = load.spec.kind;
        let going = |instance: &&Instance| instance.spec.kind == kind && instance.going();
        if self.config.fleet_limits.of(kind) == Limit::Unlimited {
            self.on_host(host).filter(going).collect()
        } else {
            self.instances.values().filter(going).collect()
        }
    }
}
