//! Which instances would have to go for a load to fit at one place (I2, I3, I4), and whether it fits there now.

use smallvec::SmallVec;

use super::candidates::Place;
use super::obstacle::{Obstacle, Shortage, Victim};
use super::order;
use super::tenure::Tenure;
use crate::api::{EvictionRule, ModelSpec};
use crate::config::{Config, Limit};
use crate::ledger::{Host, ModelTag, Resident};
use crate::state::Claim;
use muster_core::{Bytes, ModelId, ModelType};

/// The model to load.
#[derive(Debug)]
pub(crate) struct WantedLoad<'a> {
    pub(crate) model: ModelTag,
    pub(crate) spec: &'a ModelSpec,
    /// Other instances may be evicted for it.
    pub(crate) evicts: bool,
}

impl WantedLoad<'_> {
    /// Whether the resident is another replica of the same model.
    pub(super) fn sibling(&self, resident: &Resident) -> bool {
        self.spec.replicas.get() > 1 && resident.model == self.model
    }
}

/// A place on a host as one load finds it after all earlier claims.
pub(crate) struct Room<'a> {
    pub(super) config: &'a Config,
    pub(super) host: &'a Host,
    pub(super) wanted: &'a WantedLoad<'a>,
    place: &'a Place,
    pub(super) claims: SmallVec<[&'a Claim; 4]>,
    /// Indexes of residents that go for earlier claims, beside those that are ending anyway. Replicas of the model itself count as staying:
    /// a group that has begun keeps its type slot and takes no room of its own.
    pub(super) promised: SmallVec<[usize; 4]>,
    pub(super) victims: SmallVec<[(usize, EvictionRule); 4]>,
    /// Count instances that finish requests before they end, and victims of claims that wait for requests, as present.
    pub(super) at_present: bool,
    /// The place also waits for requests of instances that are not its victims.
    pub(crate) waits: bool,
}

impl<'a> Room<'a> {
    pub(crate) fn new(
        config: &'a Config,
        host: &'a Host,
        wanted: &'a WantedLoad<'a>,
        place: &'a Place,
        claims: &'a [Claim],
    ) -> Self {
        Self::among(config, host, (wanted, place), claims.iter().collect())
    }

    fn among(
        config: &'a Config,
        host: &'a Host,
        (wanted, place): (&'a WantedLoad<'a>, &'a Place),
        claims: SmallVec<[&'a Claim; 4]>,
    ) -> Self {
        let mut promised = SmallVec::new();
        for victim in claims.iter().flat_map(|claim| &claim.victims) {
            let found = host
                .residents
                .binary_search_by(|resident| resident.id.cmp(victim));
            let leaves = |index: &usize| {
                host.residents.get(*index).is_some_and(|resident| {
                    !matches!(resident.tenure, Tenure::Going | Tenure::Ghost) && !wanted.sibling(resident)
                })
            };
            promised.extend(found.ok().filter(leaves));
        }
        promised.sort_unstable();
        promised.dedup();
        Self {
            config,
            host,
            wanted,
            place,
            claims,
            promised,
            victims: SmallVec::new(),
            at_present: false,
            waits: false,
        }
    }

    /// The same place before any request has finished, beside claims that need not wait for requests; none if it would be the same.
    fn before_work_ends(&self) -> Option<Self> {
        let soon = |claim: &&&Claim| !claim.delay.waits_for_work();
        let claims: SmallVec<[&'a Claim; 4]> = self.claims.iter().filter(soon).copied().collect();
        let drains = self.host.residents.iter().any(|resident| resident.drains);
        if claims.len() == self.claims.len() && !drains {
            return None;
        }
        let room = Self::among(self.config, self.host, (self.wanted, self.place), claims);
        Some(Self {
            at_present: true,
            ..room
        })
    }

    /// Whether the load fits beside everything that is there at this moment, including victims of claims and instances that are ending.
    pub(crate) fn fits_now(config: &Config, host: &Host, wanted: &WantedLoad<'_>, place: &Place) -> bool {
        let models: std::collections::BTreeSet<&ModelTag> = host
            .residents
            .iter()
            .filter(|resident| resident.kind == wanted.spec.kind)
            .map(|resident| &resident.model)
            .chain([&wanted.model])
            .collect();
        let on_devices = place.parts.iter().all(|&(index, bytes)| {
            let Some(space) = host.spaces.get(index) else {
                return false;
            };
            let counts = |resident: &&Resident| {
                space.exclusivity.counts_together(wanted.spec.kind, resident.kind)
                    && resident.part_on(index).is_some()
            };
            let taken = space.exclusivity.limit(wanted.spec.kind).is_some_and(|limit| {
                let models: std::collections::BTreeSet<&ModelTag> = host
                    .residents
                    .iter()
                    .filter(counts)
                    .map(|resident| &resident.model)
                    .collect();
                models.len() >= limit
            });
            let unrealised: Bytes = host
                .residents
                .iter()
                .filter_map(|resident| resident.part_on(index))
                .map(|part| part.unrealised)
                .sum();
            let by_reservation = space
                .capacity
                .saturating_sub(config.margin + space.sums.committed);
            let possible = space.free.map_or(by_reservation, |free| {
                by_reservation.min(free.saturating_sub(config.margin + unrealised))
            });
            !taken && (config.overcommit || bytes <= possible)
        });
        config.limits.of(wanted.spec.kind).allows(models.len()) && on_devices
    }

    /// Whether the load fits once its victims are gone.
    fn free(&self) -> bool {
        let devices = self.place.parts.iter().all(|&(space, bytes)| {
            let taken = self
                .class_limit(space)
                .is_some_and(|limit| self.count_in_class(space) >= limit);
            !taken && (self.config.overcommit || !self.short_on(space, bytes))
        });
        self.slot_free() && devices
    }

    /// Whether an instance of the model stays here or a claim is for it.
    fn is_here(&self) -> bool {
        self.staying()
            .any(|(_, resident)| resident.model == self.wanted.model)
            || self
                .claims
                .iter()
                .any(|claim| claim.model == self.wanted.model.id)
    }

    /// Chooses the victims that make room, or returns what eviction cannot remove. Room that depends on requests in progress is used only
    /// if idle victims cannot make room sooner (I9). In any case the room must be there beside all earlier claims (I5).
    pub(crate) fn make(&mut self) -> Result<(), Obstacle> {
        self.check_unseen_motion()?;
        let Some(mut present) = self.before_work_ends() else {
            self.clear()?;
            self.spare_needless(|_| true);
            return Ok(());
        };
        if present.clear().is_ok() && present.all_idle() {
            self.victims.clone_from(&present.victims);
            if self.clear().is_ok() && self.all_idle() {
                self.spare_needless(|victims| {
                    present.victims.clone_from(victims);
                    present.free()
                });
                if self.victims.is_empty() || self.wanted.evicts {
                    return Ok(());
                }
            }
        }
        self.victims.clear();
        self.clear()?;
        self.spare_needless(|_| true);
        present.victims.clone_from(&self.victims);
        self.waits = !present.free();
        Ok(())
    }

    fn all_idle(&self) -> bool {
        self.chosen().all(|(resident, _)| resident.tenure == Tenure::Idle)
    }

    fn clear(&mut self) -> Result<(), Obstacle> {
        for &(space, _) in &self.place.parts {
            self.clear_exclusive(space)?;
        }
        self.clear_slot()?;
        if !self.config.overcommit {
            for &(space, bytes) in &self.place.parts {
                self.clear_memory(space, bytes)?;
            }
        }
        Ok(())
    }

    /// The chosen victims, in the order of their ids.
    pub(crate) fn victims(&self) -> Vec<Victim> {
        let mut victims: Vec<Victim> = self
            .chosen()
            .map(|(resident, rule)| Victim {
                id: resident.id.clone(),
                model: resident.model.id.clone(),
                rule,
                tenure: resident.tenure,
            })
            .collect();
        victims.sort_by(|a, b| a.id.cmp(&b.id));
        victims
    }

    /// The chosen residents and the rule that chose each.
    pub(crate) fn chosen(&self) -> impl Iterator<Item = (&'a Resident, EvictionRule)> + '_ {
        self.victims
            .iter()
            .filter_map(|&(index, rule)| Some((self.host.residents.get(index)?, rule)))
    }

    fn stays(&self, index: usize, resident: &Resident) -> bool {
        let going = resident.going() && !(self.at_present && resident.drains);
        !(going || self.promised.contains(&index) || self.victims.iter().any(|(victim, _)| *victim == index))
    }

    pub(super) fn staying(&self) -> impl Iterator<Item = (usize, &'a Resident)> + '_ {
        let residents = self.host.residents.iter().enumerate();
        residents.filter(|(index, resident)| self.stays(*index, resident))
    }

    /// Whether another replica of the model is, or will be, on one of the place's devices.
    pub(crate) fn doubles(&self) -> bool {
        if self.wanted.spec.replicas.get() < 2 {
            return false;
        }
        let own = |claim: &&Claim| claim.model == self.wanted.model.id;
        self.place.parts.iter().any(|&(space, _)| {
            self.claims_of(space).any(|claim| own(&claim))
                || self
                    .staying()
                    .any(|(_, resident)| self.wanted.sibling(resident) && resident.part_on(space).is_some())
        })
    }

    /// Whether an instance that is ending still finishes requests on one of the place's devices.
    pub(crate) fn drains(&self) -> bool {
        let mut draining = self.host.residents.iter().filter(|resident| resident.drains);
        draining.any(|resident| {
            let mut parts = self.place.parts.iter();
            parts.any(|&(space, _)| resident.part_on(space).is_some())
        })
    }

    /// Refuses a device where an engine of a lost worker may be starting or ending (I5).
    fn check_unseen_motion(&self) -> Result<(), Obstacle> {
        let parts = &self.place.parts;
        let here = |resident: &&Resident| {
            resident.moves_unseen && parts.iter().any(|(space, _)| resident.part_on(*space).is_some())
        };
        let moving = self.host.residents.iter().filter(here);
        let models: Vec<ModelId> = moving.map(|resident| resident.model.id.clone()).collect();
        if models.is_empty() {
            Ok(())
        } else {
            Err(Obstacle::Ghosts { models, short: None })
        }
    }

    /// How many models of this load's exclusivity class a device may host; none = no limit.
    fn class_limit(&self, space: usize) -> Option<usize> {
        let space = self.host.spaces.get(space)?;
        space.exclusivity.limit(self.wanted.spec.kind)
    }

    /// Whether a model of type `kind` counts against this load on a device.
    fn in_class(&self, space: usize, kind: ModelType) -> bool {
        let space = self.host.spaces.get(space);
        space.is_some_and(|space| space.exclusivity.counts_together(self.wanted.spec.kind, kind))
    }

    /// Number of models that count against this load on a device, after all claims and evictions.
    fn count_in_class(&self, index: usize) -> usize {
        let claims = self
            .claims_of(index)
            .filter(|claim| self.in_class(index, claim.kind));
        let mut models: SmallVec<[&ModelId; 4]> = self
            .staying()
            .filter(|(_, resident)| self.in_class(index, resident.kind) && resident.part_on(index).is_some())
            .map(|(_, resident)| &resident.model.id)
            .chain(claims.map(|claim| &claim.model))
            .collect();
        models.sort_unstable();
        models.dedup();
        models.len()
    }

    /// I3: on a device that takes only a number of models of a class, those with the least worth go.
    fn clear_exclusive(&mut self, space: usize) -> Result<(), Obstacle> {
        let Some(limit) = self.class_limit(space) else {
            return Ok(());
        };
        while self.count_in_class(space) >= limit {
            let there = |room: &Self, found: &Resident| {
                room.in_class(space, found.kind) && found.part_on(space).is_some()
            };
            let claimed = self
                .claims_of(space)
                .filter(|claim| self.in_class(space, claim.kind));
            let claimed = claimed.map(|claim| claim.model.clone()).collect();
            self.evict_model(EvictionRule::ExclusiveDevice, there, claimed)?;
        }
        Ok(())
    }

    /// I2: the models of the type with the least worth go until the limit holds; by `lru` strictly the least recently used.
    fn clear_slot(&mut self) -> Result<(), Obstacle> {
        let kind = self.wanted.spec.kind;
        while !self.slot_free() {
            let claimed = self.claims.iter().filter(|claim| claim.kind == kind);
            let claimed = claimed.map(|claim| claim.model.clone()).collect();
            self.evict_model(EvictionRule::TypeSlot, |_, found| found.kind == kind, claimed)?;
        }
        Ok(())
    }

    /// Whether the type's limit holds with this load. More models than the limit may be loaded if it was higher before.
    fn slot_free(&self) -> bool {
        let limit = self.config.limits.of(self.wanted.spec.kind);
        if limit == Limit::Unlimited {
            return true;
        }
        let models = self.count_models();
        limit.allows(models + 1) || limit.allows(models) && self.is_here()
    }

    /// Chooses one model of those that count together, with all its instances.
    fn evict_model(
        &mut self,
        rule: EvictionRule,
        counts: impl Fn(&Self, &Resident) -> bool,
        claimed: Vec<ModelId>,
    ) -> Result<(), Obstacle> {
        let counted = || self.staying().filter(|(_, resident)| counts(self, resident));
        let others = counted().map(|(_, resident)| resident);
        let others = others.filter(|resident| !self.wanted.sibling(resident));
        let has_claim = |model: &ModelId| self.claims.iter().any(|claim| claim.model == *model);
        let Some(model) = order::first_model(others, has_claim) else {
            let residents = counted().map(|(_, resident)| resident).collect();
            return Err(self.obstacle(claimed, residents, None));
        };
        let going = counted().filter(|(_, resident)| resident.model == *model);
        let going: SmallVec<[usize; 4]> = going.map(|(index, _)| index).collect();
        self.victims.extend(going.into_iter().map(|index| (index, rule)));
        Ok(())
    }

    /// What keeps the staying instances from being evicted. Replicas of the model itself never make room for one another: they count as
    /// claims.
    pub(super) fn obstacle(
        &self,
        mut claimed: Vec<ModelId>,
        residents: Vec<&Resident>,
        short: Option<Shortage>,
    ) -> Obstacle {
        let (siblings, others): (Vec<&Resident>, Vec<&Resident>) = residents
            .into_iter()
            .partition(|resident| self.wanted.sibling(resident));
        let models = |of: &[&Resident]| of.iter().map(|found| found.model.id.clone()).collect::<Vec<_>>();
        let with = |tenure: Tenure| {
            let found = others.iter().filter(|found| found.tenure == tenure);
            found.map(|found| found.model.id.clone()).collect::<Vec<_>>()
        };
        claimed.extend(models(&siblings));
        let ghosts = with(Tenure::Ghost);
        let pinned = with(Tenure::Pinned);
        match short {
            _ if !claimed.is_empty() => Obstacle::Claims(claimed),
            short if !ghosts.is_empty() => Obstacle::Ghosts {
                models: ghosts,
                short,
            },
            Some(short) if pinned.is_empty() || self.foreign_use(&short) => Obstacle::Foreign(short),
            Some(_) | None => Obstacle::Pinned(pinned),
        }
    }

    /// Number of models of the type on the host after all claims; replicas count once.
    fn count_models(&self) -> usize {
        let kind = self.wanted.spec.kind;
        if self.claims.is_empty() && self.victims.is_empty() && !self.at_present {
            return self.host.models_of(kind);
        }
        let mut models: SmallVec<[&ModelId; 16]> = self
            .staying()
            .filter(|(_, resident)| resident.kind == kind)
            .map(|(_, resident)| &resident.model.id)
            .chain(
                self.claims
                    .iter()
                    .filter(|claim| claim.kind == kind)
                    .map(|claim| &claim.model),
            )
            .collect();
        models.sort_unstable();
        models.dedup();
        models.len()
    }

    pub(super) fn resident(&self, index: usize) -> Option<&'a Resident> {
        self.host.residents.get(index)
    }

    /// Claims that reserve memory on a device.
    pub(super) fn claims_of(&self, index: usize) -> impl Iterator<Item = &'a Claim> + '_ {
        let space = self.host.spaces.get(index);
        self.claims.iter().copied().filter(move |claim| {
            space.is_some_and(|space| claim.reservations.iter().any(|r| r.device == space.id))
        })
    }

    /// Drops victims that turned out to be unnecessary, the most valuable first: a victim chosen for memory may also free a slot.
    fn spare_needless(&mut self, mut enough: impl FnMut(&SmallVec<[(usize, EvictionRule); 4]>) -> bool) {
        if self.victims.len() < 2 {
            return;
        }
        let mut chosen: SmallVec<[usize; 4]> = self.victims.iter().map(|(index, _)| *index).collect();
        chosen.sort_unstable();
        chosen.sort_by_key(|index| self.resident(*index).map(order::most_worth_first));
        for index in chosen {
            let at = self.victims.iter().position(|(victim, _)| *victim == index);
            let Some(spared) = at.map(|at| self.victims.remove(at)) else {
                continue;
            };
            if !(self.free() && enough(&self.victims)) {
                self.victims.push(spared);
            }
        }
    }
}
