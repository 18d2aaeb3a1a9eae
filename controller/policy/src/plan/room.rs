//! Who would have to go for a load to fit at one place (I2, I3, I4), and whether it fits there now.

use std::collections::{BTreeMap, BTreeSet};

use super::candidates::Candidate;
use super::obstacle::{Obstacle, Shortage, Victim};
use super::tenure::Tenure;
use crate::api::{
    Bytes, DeviceId, DeviceKey, EvictionRule, Exclusivity, InstanceId, ModelId, ModelType, Moment,
    Reservation,
};
use crate::config::Limit;
use crate::fleet::Fleet;
use crate::state::{Claim, Device, Free, Instance, Load};

/// A host as one load sees it after all earlier claims.
pub(crate) struct Room<'a> {
    fleet: &'a Fleet,
    load: &'a Load,
    candidate: &'a Candidate,
    claims: &'a [Claim],
    victims: BTreeMap<InstanceId, Victim>,
    /// What is on its way out still counts.
    as_of_now: bool,
}

/// Residents that may be asked to go, and those that may not.
struct Residents<'a> {
    movable: Vec<(&'a Instance, Tenure)>,
    ghosts: Vec<ModelId>,
    pinned: Vec<ModelId>,
}

impl<'a> Room<'a> {
    pub(crate) fn new(
        fleet: &'a Fleet,
        load: &'a Load,
        candidate: &'a Candidate,
        claims: &'a [Claim],
    ) -> Self {
        Self {
            fleet,
            load,
            candidate,
            claims,
            victims: BTreeMap::new(),
            as_of_now: false,
        }
    }

    /// Whether the load fits beside all that is there at this moment, victims of claims and what is on its way out included.
    pub(crate) fn fits_now(fleet: &'a Fleet, load: &'a Load, candidate: &'a Candidate) -> bool {
        let room = Self {
            as_of_now: true,
            ..Self::new(fleet, load, candidate, &[])
        };
        let mut models = room.models_of(load.spec.kind);
        models.insert(load.model.clone());
        let slot = fleet.config.limits.of(load.spec.kind).allows(models.len());
        let on_devices = candidate.reservations.iter().all(|reservation| {
            let key = Fleet::key(&candidate.host, &reservation.device);
            let taken = room.exclusive(&key) && fleet.on_device(&key).next().is_some();
            let short = !fleet.config.overcommit && room.short_on(&key, reservation.bytes);
            !taken && !short
        });
        slot && on_devices
    }

    fn exclusive(&self, key: &DeviceKey) -> bool {
        self.fleet
            .devices
            .get(key)
            .is_some_and(|device| device.exclusivity == Exclusivity::OneModel)
    }

    /// The victims that make room, or what no eviction can remove.
    pub(crate) fn make(mut self) -> Result<Vec<Victim>, Obstacle> {
        for reservation in &self.candidate.reservations {
            self.clear_exclusive(&reservation.device)?;
        }
        self.clear_slot()?;
        if !self.fleet.config.overcommit {
            for reservation in &self.candidate.reservations {
                self.clear_memory(reservation)?;
            }
            self.spare_needless();
        }
        Ok(self.victims.into_values().collect())
    }

    fn stays(&self, instance: &Instance) -> Option<Tenure> {
        let tenure = self.fleet.tenure(instance, self.claims);
        let leaves = tenure == Tenure::Going || self.victims.contains_key(&instance.id);
        (self.as_of_now || !leaves).then_some(tenure)
    }

    fn sort(&self, instances: impl Iterator<Item = &'a Instance>) -> Residents<'a> {
        let mut residents = Residents {
            movable: Vec::new(),
            ghosts: Vec::new(),
            pinned: Vec::new(),
        };
        for instance in instances {
            match self.stays(instance) {
                None | Some(Tenure::Going) => {}
                Some(tenure @ (Tenure::Idle | Tenure::Busy { .. })) => {
                    residents.movable.push((instance, tenure))
                }
                Some(Tenure::Ghost) => residents.ghosts.push(instance.spec.model.clone()),
                Some(Tenure::Pinned) => residents.pinned.push(instance.spec.model.clone()),
            }
        }
        residents
    }

    fn evict(&mut self, instance: &Instance, tenure: Tenure, rule: EvictionRule) {
        let victim = Victim {
            id: instance.id.clone(),
            model: instance.spec.model.clone(),
            rule,
            tenure,
            last_used: instance.usage.last_used,
        };
        self.victims.insert(instance.id.clone(), victim);
    }

    /// I3: whatever is on an exclusive device goes.
    fn clear_exclusive(&mut self, device: &DeviceId) -> Result<(), Obstacle> {
        let key = Fleet::key(&self.candidate.host, device);
        if !self.exclusive(&key) {
            return Ok(());
        }
        let claimed = self.claimants(|claim| claim.reservations.iter().any(|r| r.device == *device));
        if !claimed.is_empty() {
            return Err(Obstacle::Claims(claimed));
        }
        let residents = self.sort(self.fleet.on_device(&key));
        if !residents.ghosts.is_empty() {
            return Err(Obstacle::Ghosts {
                models: residents.ghosts,
                short: None,
            });
        }
        if !residents.pinned.is_empty() {
            return Err(Obstacle::Pinned(residents.pinned));
        }
        for (instance, tenure) in residents.movable {
            self.evict(instance, tenure, EvictionRule::ExclusiveDevice);
        }
        Ok(())
    }

    /// I2: the least recently used models of the type go until the limit holds.
    fn clear_slot(&mut self) -> Result<(), Obstacle> {
        let kind = self.load.spec.kind;
        let limit = self.fleet.config.limits.of(kind);
        if limit == Limit::Unlimited {
            return Ok(());
        }
        loop {
            let models = self.models_of(kind);
            if models.contains(&self.load.model) || limit.allows(models.len() + 1) {
                return Ok(());
            }
            let residents = self.of_kind(kind);
            let Some(model) = self.least_recent_model(&residents) else {
                let claimed = self.claimants(|claim| claim.kind == kind);
                return Err(if !claimed.is_empty() {
                    Obstacle::Claims(claimed)
                } else if !residents.ghosts.is_empty() {
                    Obstacle::Ghosts {
                        models: residents.ghosts,
                        short: None,
                    }
                } else {
                    Obstacle::Pinned(residents.pinned)
                });
            };
            for (instance, tenure) in residents.movable {
                if instance.spec.model == model {
                    self.evict(instance, tenure, EvictionRule::TypeSlot);
                }
            }
        }
    }

    fn of_kind(&self, kind: ModelType) -> Residents<'a> {
        self.sort(
            self.fleet
                .on_host(&self.candidate.host)
                .filter(move |instance| instance.spec.kind == kind),
        )
    }

    /// Models of a type on the host after all claims; replicas count once.
    fn models_of(&self, kind: ModelType) -> BTreeSet<ModelId> {
        let residents = self
            .fleet
            .on_host(&self.candidate.host)
            .filter(|instance| instance.spec.kind == kind);
        let staying = residents.filter(|instance| self.stays(instance).is_some());
        let claimed = self
            .claims
            .iter()
            .filter(|claim| claim.kind == kind)
            .map(|claim| claim.model.clone());
        staying
            .map(|instance| instance.spec.model.clone())
            .chain(claimed)
            .collect()
    }

    /// The model to evict for a slot: all its instances must be movable; idle ones first, then least recently used (I9).
    fn least_recent_model(&self, residents: &Residents<'_>) -> Option<ModelId> {
        let firm: BTreeSet<&ModelId> = residents.ghosts.iter().chain(&residents.pinned).collect();
        let mut keys: BTreeMap<&ModelId, (bool, Moment)> = BTreeMap::new();
        for (instance, tenure) in &residents.movable {
            let entry = keys.entry(&instance.spec.model).or_insert((false, Moment::ZERO));
            entry.0 |= *tenure != Tenure::Idle;
            entry.1 = entry.1.max(instance.usage.last_used);
        }
        let evictable = |model: &ModelId| {
            !firm.contains(model)
                && *model != self.load.model
                && !self.claims.iter().any(|c| c.model == *model)
        };
        let best = keys
            .into_iter()
            .filter(|(model, _)| evictable(model))
            .min_by_key(|(model, key)| (*key, *model))?;
        Some(best.0.clone())
    }

    /// I4: instances on a device that is short go, same type first, least recently used first.
    fn clear_memory(&mut self, reservation: &Reservation) -> Result<(), Obstacle> {
        let key = Fleet::key(&self.candidate.host, &reservation.device);
        while self.short_on(&key, reservation.bytes) {
            let mut residents = self.sort(self.fleet.on_device(&key));
            residents.movable.sort_by_key(|(instance, tenure)| {
                let other_type = instance.spec.kind != self.load.spec.kind;
                (
                    *tenure != Tenure::Idle,
                    other_type,
                    instance.usage.last_used,
                    instance.id.clone(),
                )
            });
            match residents.movable.first() {
                Some((instance, tenure)) => self.evict(instance, *tenure, EvictionRule::Memory),
                None => return Err(self.memory_obstacle(&key, reservation, residents)),
            }
        }
        Ok(())
    }

    fn memory_obstacle(
        &self,
        key: &DeviceKey,
        reservation: &Reservation,
        residents: Residents<'_>,
    ) -> Obstacle {
        let claimed = self.claimants(|claim| claim.reservations.iter().any(|r| r.device == key.device));
        let possible = self
            .fleet
            .devices
            .get(key)
            .map_or(Bytes::ZERO, |device| self.possible_on(key, device));
        let short = Shortage {
            device: key.clone(),
            wanted: reservation.bytes,
            possible,
        };
        if !claimed.is_empty() {
            Obstacle::Claims(claimed)
        } else if !residents.ghosts.is_empty() {
            Obstacle::Ghosts {
                models: residents.ghosts,
                short: Some(short),
            }
        } else if !residents.pinned.is_empty() && !self.foreign_use(key, reservation.bytes) {
            Obstacle::Pinned(residents.pinned)
        } else {
            Obstacle::Foreign(short)
        }
    }

    /// Even without the pinned models the device would be short: other programs use it.
    fn foreign_use(&self, key: &DeviceKey, wanted: Bytes) -> bool {
        let Some(device) = self.fleet.devices.get(key) else {
            return true;
        };
        let Free::Known(free) = device.free(self.fleet.now, self.fleet.config.sample_wait) else {
            return false;
        };
        let ours: Bytes = self
            .fleet
            .on_device(key)
            .map(|instance| instance.in_use_on(&key.device))
            .sum();
        free + ours < wanted + self.fleet.config.margin
    }

    /// What the device has for this load after all claims and evictions: by reservations, and by what is really free (I4).
    fn possible_on(&self, key: &DeviceKey, device: &Device) -> Bytes {
        let config = &self.fleet.config;
        let (mut charged, mut returned, mut unrealised) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        for instance in self.fleet.on_device(key) {
            if self.stays(instance).is_some() {
                charged += instance.charge_on(&key.device);
                unrealised += instance.unrealised_on(&key.device);
            } else {
                returned += instance.in_use_on(&key.device);
            }
        }
        let claimed = self.claimed_on(&key.device);
        let by_reservation = device.capacity.saturating_sub(config.margin + charged + claimed);
        match device.free(self.fleet.now, config.sample_wait) {
            Free::Known(free) => {
                by_reservation.min((free + returned).saturating_sub(config.margin + unrealised + claimed))
            }
            Free::Stale { .. } | Free::Unknown => by_reservation,
        }
    }

    fn short_on(&self, key: &DeviceKey, wanted: Bytes) -> bool {
        self.fleet
            .devices
            .get(key)
            .is_none_or(|device| self.possible_on(key, device) < wanted)
    }

    fn claimed_on(&self, device: &DeviceId) -> Bytes {
        let reservations = self.claims.iter().flat_map(|claim| &claim.reservations);
        reservations
            .filter(|reservation| reservation.device == *device)
            .map(|reservation| reservation.bytes)
            .sum()
    }

    fn claimants(&self, test: impl Fn(&Claim) -> bool) -> Vec<ModelId> {
        self.claims
            .iter()
            .filter(|claim| test(claim))
            .map(|claim| claim.model.clone())
            .collect()
    }

    /// Of those chosen for memory, spares whom it does not take after all, the most recently used first.
    fn spare_needless(&mut self) {
        let mut chosen: Vec<Victim> = self
            .victims
            .values()
            .filter(|victim| victim.rule == EvictionRule::Memory)
            .cloned()
            .collect();
        chosen.sort_by_key(|victim| std::cmp::Reverse((victim.tenure != Tenure::Idle, victim.last_used)));
        for victim in chosen {
            self.victims.remove(&victim.id);
            let short = self.candidate.reservations.iter().any(|reservation| {
                self.short_on(
                    &Fleet::key(&self.candidate.host, &reservation.device),
                    reservation.bytes,
                )
            });
            if short {
                self.victims.insert(victim.id.clone(), victim);
            }
        }
    }
}
