//! What may wait once everything that ends has ended: only what needs an instance that is in use. Judged by what really runs, with
//! conditions that are enough for a load to begin, not all that would be.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_core::{Bytes, HostId, ModelId, ModelType};
use muster_policy::{DeviceChoice, DeviceFacts, Exclusivity, ModelSpec, Need};

use super::Rig;
use super::world::{Life, SimWorker, worker::SimInstance};

/// Longer than anything is waited for that ends by itself: quiet times, samples, unknown outcomes, abandoned loads, holds of strangers.
const LONG_ENOUGH: u32 = 80;

/// A device of a worker that takes loads, for one need of a model.
struct Spot<'a> {
    host: &'a HostId,
    device: &'a DeviceFacts,
    bytes: Bytes,
}

impl Rig {
    /// Lets time pass. Loads, unloads and sessions come to their ends, requests that run do not. Then asserts that no load waits that
    /// could begin.
    pub(super) async fn run_on(&mut self) {
        self.calm().await;
        for _ in 0..LONG_ENOUGH {
            self.let_end().await;
            self.close_ended().await;
            self.advance(Duration::from_millis(500)).await;
        }
        self.let_end().await;
        self.check_waits();
    }

    fn check_waits(&self) {
        let models = self.driver().fleet.models();
        let mut queued: Vec<_> = models
            .iter()
            .filter_map(|m| Some((m.queue_position?, &m.id)))
            .collect();
        queued.sort();
        let retries = |model: &ModelId| self.world.retrying.contains_key(model);
        let closed: BTreeSet<&HostId> = queued
            .iter()
            .filter_map(|(_, model)| self.world.retrying.get(*model))
            .map(|worker| &self.world.workers[worker].facts.host)
            .collect();
        let first = queued.iter().position(|(_, model)| !retries(model));
        for (place, (_, model)) in queued.iter().enumerate() {
            let plain =
                !self.overridden.contains(*model) && !self.avoiding.contains(*model) && !retries(model);
            let Some(spec) = self
                .world
                .catalogue
                .get(*model)
                .filter(|spec| plain && spec.replicas.get() == 1)
            else {
                continue;
            };
            let earlier: Vec<&ModelId> = queued[..place].iter().map(|(_, model)| *model).collect();
            let spots = self.spots(spec);
            let open = spots.iter().filter(|spot| !closed.contains(spot.host));
            for spot in open {
                let begins = if Some(place) == first {
                    self.evictions_do(spec, spot, &[])
                } else {
                    self.fits_beside(spec, spot, &earlier) || self.out_of_their_way(spec, spot, &earlier)
                };
                assert!(
                    !begins,
                    "{model} waits though it could begin on {} of {}\n{}",
                    spot.device.id,
                    spot.host,
                    self.world.tail()
                );
            }
            let hopeless = !spots.is_empty() && spec.needs.iter().all(|need| need.parts.len() == 1);
            if Some(place) == first && hopeless && closed.is_empty() {
                let pinned = self
                    .all_spots(spec)
                    .iter()
                    .all(|spot| self.pinned_stand_in(spec, spot));
                assert!(
                    !pinned,
                    "I6: {model} waits behind pinned models\n{}",
                    self.world.tail()
                );
            }
        }
    }

    /// Where the first of its needs that can ever come true could go; none if that takes several devices.
    fn spots<'a>(&'a self, spec: &ModelSpec) -> Vec<Spot<'a>> {
        let possible = spec
            .needs
            .iter()
            .find(|need| need.parts.len() > 1 || !self.spots_of(spec, need).is_empty());
        possible.map(|need| self.spots_of(spec, need)).unwrap_or_default()
    }

    fn all_spots<'a>(&'a self, spec: &ModelSpec) -> Vec<Spot<'a>> {
        spec.needs
            .iter()
            .flat_map(|need| self.spots_of(spec, need))
            .collect()
    }

    fn spots_of<'a>(&'a self, spec: &ModelSpec, need: &Need) -> Vec<Spot<'a>> {
        let [part] = need.parts.as_slice() else {
            return Vec::new();
        };
        let part = *part;
        let takes = |worker: &&SimWorker| {
            let has_files = spec.workers.is_empty() || spec.workers.contains(&worker.facts.id);
            has_files && worker.connected && !worker.facts.draining
        };
        let chosen = |device: &DeviceFacts| match &spec.device {
            DeviceChoice::Any => true,
            DeviceChoice::Kind(kind) => *kind == device.kind,
            DeviceChoice::Device(id) => *id == device.id,
        };
        let workers = self.world.workers.values().filter(takes);
        let devices = workers.flat_map(|w| w.facts.devices.iter().map(move |device| (&w.facts.host, device)));
        devices
            .filter(|(_, device)| device.kind == part.kind && chosen(device))
            .filter(|(_, device)| self.world.config.overcommit || part.bytes <= device.capacity)
            .filter(|(_, device)| self.class(device).limit(spec.kind) != Some(0))
            .map(|(host, device)| Spot {
                host,
                device,
                bytes: part.bytes,
            })
            .collect()
    }

    fn class(&self, device: &DeviceFacts) -> Exclusivity {
        self.world
            .config
            .exclusivity
            .get(&device.kind)
            .copied()
            .unwrap_or(device.exclusivity)
    }

    /// Another copy of a loaded model fits somewhere beside all that is there.
    pub(super) fn has_room_beside(&self, spec: &ModelSpec) -> bool {
        let one = ModelSpec {
            replicas: std::num::NonZeroU32::MIN,
            ..spec.clone()
        };
        let spots = self.spots(&one);
        let mut spots = spots.iter();
        spots.any(|spot| self.fits_beside(&one, spot, &[]))
    }

    /// Nothing is known against its end: nobody uses it or waits for it, nobody pinned it, and it is alone.
    fn may_go(&self, found: &SimInstance) -> bool {
        let model = &found.spec.model;
        let wanted = self
            .driver()
            .fleet
            .models()
            .iter()
            .any(|m| m.id == *model && m.queue_position.is_some());
        let pinned = self.world.catalogue.get(model).is_some_and(|spec| spec.pinned);
        let idle = found.life == Life::Ready && found.running == 0 && found.holds.is_empty();
        idle && !pinned && !wanted && found.spec.group.is_none()
    }

    /// It fits if all that is idle on the host goes, on a device where nothing is on its way out, beside those that are to come.
    fn evictions_do(&self, spec: &ModelSpec, spot: &Spot<'_>, coming: &[&ModelSpec]) -> bool {
        let stays = |found: &&SimInstance| found.spec.model == spec.id || !self.may_go(found);
        let staying: Vec<&SimInstance> = self.world.on_host(spot.host).filter(stays).collect();
        let on_device = staying.iter().filter(|found| uses(found, spot));
        let mut at_rest = on_device.map(|found| matches!(found.life, Life::Ready | Life::Quiesced));
        at_rest.all(|rests| rests)
            && self.memory_left(spot, &staying) >= spot.bytes
            && self.takes_another(spec, spot, &staying, coming)
            && self.fleet_takes_another(spec, coming)
    }

    /// No earlier load can ever want that device, and there is room in the limits for all of them: whoever is idle there may go for this one.
    fn out_of_their_way(&self, spec: &ModelSpec, spot: &Spot<'_>, earlier: &[&ModelId]) -> bool {
        let known: Vec<&ModelSpec> = earlier
            .iter()
            .filter_map(|model| self.world.catalogue.get(*model))
            .collect();
        let elsewhere = |other: &&ModelSpec| {
            let whole = other.needs.iter().all(|need| need.parts.len() == 1);
            let there = |own: &Spot<'_>| own.host == spot.host && own.device.id == spot.device.id;
            whole && !self.overridden.contains(&other.id) && !self.all_spots(other).iter().any(there)
        };
        known.len() == earlier.len() && known.iter().all(elsewhere) && self.evictions_do(spec, spot, &known)
    }

    /// It fits beside all that is there, even if every earlier load went there too.
    fn fits_beside(&self, spec: &ModelSpec, spot: &Spot<'_>, earlier: &[&ModelId]) -> bool {
        let known: Vec<&ModelSpec> = earlier
            .iter()
            .filter_map(|model| self.world.catalogue.get(*model))
            .collect();
        let plain =
            known.len() == earlier.len() && !earlier.iter().any(|model| self.overridden.contains(*model));
        let most = |spec: &&ModelSpec| {
            let of = |need: &Need| need.parts.iter().map(|part| part.bytes).sum::<Bytes>();
            let bytes = spec.needs.iter().map(of).max().unwrap_or_default();
            Bytes::new(bytes.get() * u64::from(spec.replicas.get()))
        };
        let claimed: Bytes = known.iter().map(most).sum();
        let there: Vec<&SimInstance> = self.world.on_host(spot.host).collect();
        let at_rest = there
            .iter()
            .filter(|found| uses(found, spot))
            .all(|found| found.life == Life::Ready);
        plain
            && at_rest
            && self.class(spot.device) == Exclusivity::Shared
            && self.memory_left(spot, &there) >= claimed + spot.bytes
            && self.takes_another(spec, spot, &there, &known)
            && self.fleet_takes_another(spec, &known)
    }

    fn memory_left(&self, spot: &Spot<'_>, staying: &[&SimInstance]) -> Bytes {
        if self.world.config.overcommit {
            return Bytes::new(u64::MAX);
        }
        let device = &spot.device.id;
        let takes = |found: &&SimInstance| found.reserved_on(device).max(found.used_on(device));
        let used: Bytes = staying.iter().map(takes).sum();
        let key = (spot.host.clone(), spot.device.id.clone());
        let foreign = self.world.foreign.get(&key).copied().unwrap_or_default();
        spot.device.capacity.saturating_sub(used + foreign)
    }

    /// Limits of its type on the host and of the device allow it beside those that stay and those that are to come.
    fn takes_another(
        &self,
        spec: &ModelSpec,
        spot: &Spot<'_>,
        staying: &[&SimInstance],
        coming: &[&ModelSpec],
    ) -> bool {
        let of_type = |kind: ModelType| kind == spec.kind;
        let there = staying
            .iter()
            .filter(|found| of_type(found.spec.kind))
            .map(|found| &found.spec.model);
        let to_come = coming
            .iter()
            .filter(|other| of_type(other.kind))
            .map(|other| &other.id);
        let models: BTreeSet<&ModelId> = there.chain(to_come).chain([&spec.id]).collect();
        let class = self.class(spot.device);
        let together =
            |found: &&&SimInstance| uses(found, spot) && class.counts_together(spec.kind, found.spec.kind);
        let in_class: BTreeSet<&ModelId> = staying
            .iter()
            .filter(together)
            .map(|found| &found.spec.model)
            .collect();
        self.world.config.limits.of(spec.kind).allows(models.len())
            && class.limit(spec.kind).is_none_or(|limit| in_class.len() < limit)
    }

    /// The fleet's limit allows it beside everything that stays anywhere.
    fn fleet_takes_another(&self, spec: &ModelSpec, coming: &[&ModelSpec]) -> bool {
        let all = self
            .world
            .workers
            .values()
            .flat_map(|worker| worker.instances.values());
        let stays = |found: &&SimInstance| {
            let goes = coming.is_empty() && self.may_go(found);
            found.exists() && found.spec.kind == spec.kind && !goes
        };
        let there = all.filter(stays).map(|found| &found.spec.model);
        let to_come = coming
            .iter()
            .filter(|other| other.kind == spec.kind)
            .map(|other| &other.id);
        let models: BTreeSet<&ModelId> = there.chain(to_come).chain([&spec.id]).collect();
        self.world.config.fleet_limits.of(spec.kind).allows(models.len())
    }

    /// Pinned models alone keep it from there.
    fn pinned_stand_in(&self, spec: &ModelSpec, spot: &Spot<'_>) -> bool {
        let pinned = |found: &&SimInstance| {
            let model = self.world.catalogue.get(&found.spec.model);
            found.life == Life::Ready && model.is_some_and(|spec| spec.pinned) && found.spec.model != spec.id
        };
        let pinned: Vec<&SimInstance> = self.world.on_host(spot.host).filter(pinned).collect();
        self.memory_left(spot, &pinned) < spot.bytes || !self.takes_another(spec, spot, &pinned, &[])
    }
}

fn uses(found: &SimInstance, spot: &Spot<'_>) -> bool {
    found
        .spec
        .reservations
        .iter()
        .any(|part| part.device == spot.device.id)
}
