//! Memory on the devices of a place, and the instances to evict for it (I4).

use smallvec::SmallVec;

use super::obstacle::{Obstacle, Shortage};
use super::order;
use super::room::Room;
use crate::api::{DeviceKey, EvictionRule};
use crate::ledger::Resident;
use muster_core::Bytes;

impl<'a> Room<'a> {
    /// I4: on a device that is short of memory, the instances with the least worth go; by `lru`, those of the load's type first.
    pub(super) fn clear_memory(&mut self, space: usize, bytes: Bytes) -> Result<(), Obstacle> {
        while self.short_on(space, bytes) {
            let movable = |found: &Resident| found.tenure.movable() && !self.wanted.sibling(found);
            let there = || self.staying().filter(|(_, found)| found.part_on(space).is_some());
            let turn = |found: &'a Resident| {
                let turn = order::by_instance(found, self.wanted.spec.kind, self.config.eviction);
                (turn, &found.id)
            };
            let first = there()
                .filter(|(_, found)| movable(found))
                .min_by_key(|(_, found)| turn(found));
            let Some((index, _)) = first else {
                let residents = there().map(|(_, found)| found).collect();
                return Err(self.memory_obstacle(space, bytes, residents));
            };
            self.victims.push((index, EvictionRule::Memory));
        }
        Ok(())
    }

    fn memory_obstacle(&self, space: usize, wanted: Bytes, residents: Vec<&Resident>) -> Obstacle {
        let claimed = self.claims_of(space).map(|claim| claim.model.clone()).collect();
        let short = self.host.spaces.get(space).map(|found| Shortage {
            device: DeviceKey {
                host: self.host.id.clone(),
                device: found.id.clone(),
            },
            wanted,
            possible: self.possible_on(space),
        });
        self.obstacle(claimed, residents, short)
    }

    /// Whether the device would be short even without the pinned models, because other programs use it.
    pub(super) fn foreign_use(&self, short: &Shortage) -> bool {
        let Some((index, space)) = self
            .host
            .space_of(&short.device.device)
            .and_then(|index| Some((index, self.host.spaces.get(index)?)))
        else {
            return true;
        };
        let wanted = short.wanted;
        let Some(free) = space.free else {
            return false;
        };
        let parts = self
            .host
            .residents
            .iter()
            .filter_map(|resident| resident.part_on(index));
        let ours: Bytes = parts.map(|part| part.in_use).sum();
        free + ours < wanted + self.config.margin
    }

    /// Bytes that this load can get on the device after all claims and evictions: by reservations, and by the free memory measured (I4).
    pub(super) fn possible_on(&self, index: usize) -> Bytes {
        let Some(space) = self.host.spaces.get(index) else {
            return Bytes::ZERO;
        };
        let mut sums = space.sums;
        let victims = self.victims.iter().map(|(victim, _)| *victim);
        let mut leaving: SmallVec<[usize; 8]> = self.promised.iter().copied().chain(victims).collect();
        leaving.sort_unstable();
        leaving.dedup();
        let parts = leaving
            .iter()
            .filter_map(|resident| self.resident(*resident)?.part_on(index));
        for part in parts {
            sums.charged = sums.charged.saturating_sub(part.charge);
            sums.unrealised = sums.unrealised.saturating_sub(part.unrealised);
            sums.returned += part.in_use;
        }
        let drains = |resident: &&Resident| self.at_present && resident.drains;
        let staying = self.host.residents.iter().filter(drains);
        for part in staying.filter_map(|resident| resident.part_on(index)) {
            sums.charged += part.charge;
            sums.unrealised += part.unrealised;
            sums.returned = sums.returned.saturating_sub(part.in_use);
        }
        let claimed = self.claimed_on(index);
        let margin = self.config.margin;
        let by_reservation = space.capacity.saturating_sub(margin + sums.charged + claimed);
        space.free.map_or(by_reservation, |free| {
            let really = (free + sums.returned).saturating_sub(margin + sums.unrealised + claimed);
            by_reservation.min(really)
        })
    }

    pub(super) fn short_on(&self, space: usize, wanted: Bytes) -> bool {
        self.possible_on(space) < wanted
    }

    fn claimed_on(&self, index: usize) -> Bytes {
        let Some(space) = self.host.spaces.get(index) else {
            return Bytes::ZERO;
        };
        let reservations = self.claims.iter().flat_map(|claim| &claim.reservations);
        reservations
            .filter(|reservation| reservation.device == space.id)
            .map(|reservation| reservation.bytes)
            .sum()
    }
}
