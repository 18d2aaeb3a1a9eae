//! Where a model could go at all: workers whose runtimes and devices can host it. Only the devices' capacity counts here.

use std::cmp::Reverse;

use smallvec::SmallVec;

use super::ways::Ways;
use crate::api::{
    DeviceChoice, DeviceFacts, DeviceKey, LoadError, ModelSpec, Need, NeedPart, Reservation, WorkerFacts,
};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::ledger::{Host, Seat, Space};
use crate::state::{Load, Presence, Worker};
use muster_core::{Bytes, HostId, ModelType, WorkerId};

/// A place for a model, as indexes into its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) seat: usize,
    /// Index into the model's `needs`: 0 is the preferred way to host it.
    pub(crate) need: usize,
    /// Indexes of the host's spaces, each with the bytes to reserve there.
    pub(crate) parts: SmallVec<[(usize, Bytes); 2]>,
}

/// A place for a model, by ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) worker: WorkerId,
    pub(crate) host: HostId,
    pub(crate) need: usize,
    pub(crate) reservations: Vec<Reservation>,
}

/// Why no host has a place for a model.
#[derive(Debug)]
pub(crate) enum Nowhere {
    /// Connected workers have its runtime and devices, but none is large enough.
    TooSmall(LoadError),
    /// No connected worker can host it.
    NobodyHere,
}

impl Host {
    /// Calls `each` with every place for the model on this host.
    pub(crate) fn places(&self, spec: &ModelSpec, config: &Config, mut each: impl FnMut(&Place)) {
        for (index, seat) in self.seats.iter().enumerate() {
            if !spec.workers.is_empty() && !spec.workers.contains(&seat.worker) {
                continue;
            }
            let Some((_, usable)) = seat.runtimes.iter().find(|(has, _)| *has == spec.runtime) else {
                continue;
            };
            for (rank, need) in spec.needs.iter().enumerate() {
                let Some((main, rest)) = need.parts.split_first() else {
                    continue;
                };
                if rest.len() >= seat.spaces.len() {
                    continue;
                }
                for space in positions(usable).filter(|space| self.may_be_main(spec, main, *space)) {
                    self.assign_parts((seat, spec.kind), (space, main), rest, config, &mut |parts| {
                        each(&Place {
                            seat: index,
                            need: rank,
                            parts: self.with_shares(need, parts, config),
                        });
                    });
                }
            }
        }
    }

    fn may_be_main(&self, spec: &ModelSpec, main: &NeedPart, space: usize) -> bool {
        self.spaces.get(space).is_some_and(|space| {
            let chosen = match &spec.device {
                DeviceChoice::Any => true,
                DeviceChoice::Kind(kind) => *kind == space.kind,
                DeviceChoice::Device(id) => *id == space.id,
            };
            chosen && space.kind == main.kind && space.exclusivity.limit(spec.kind) != Some(0)
        })
    }

    /// Calls `each` with every way to give each part its own device, where the first part takes the given device. Devices that can be freed
    /// come first, then those with the most memory left.
    fn assign_parts(
        &self,
        (seat, model): (&Seat, ModelType),
        (first, main): (usize, &NeedPart),
        rest: &[NeedPart],
        config: &Config,
        each: &mut dyn FnMut(SmallVec<[(usize, Bytes); 2]>),
    ) {
        let large_enough = |space: &Space, bytes: Bytes| {
            config.overcommit || bytes <= space.capacity.saturating_sub(config.margin)
        };
        let space = |index: usize| self.spaces.get(index);
        if !space(first).is_some_and(|space| large_enough(space, main.bytes)) {
            return;
        }
        let main = (first, main.bytes);
        let Some(most) = rest.iter().map(|part| part.bytes).max() else {
            return each([main].into_iter().collect());
        };
        let mut options: SmallVec<[usize; 8]> =
            positions(&seat.spaces).filter(|space| *space != first).collect();
        // Spaces are sorted by id, so a stable sort breaks ties by id.
        options.sort_by_key(|&index| {
            let reach = space(index).map_or(Bytes::ZERO, Space::reach);
            let left = space(index).map_or(Bytes::ZERO, Space::uncommitted);
            (Reverse(reach.min(most + config.margin)), Reverse(left), index)
        });
        let mut fits = |part: &NeedPart, index: usize| {
            space(index).is_some_and(|space| {
                let takes = space.kind == part.kind && space.exclusivity.limit(model) != Some(0);
                takes && large_enough(space, part.bytes)
            })
        };
        Ways::new(rest, &options, &mut fits).each(&mut |way| {
            let rest = way.iter().zip(rest).map(|(space, part)| (*space, part.bytes));
            each([main].into_iter().chain(rest).collect());
        });
    }

    /// The parts with the bytes that each reserves on its device.
    fn with_shares(
        &self,
        need: &Need,
        mut parts: SmallVec<[(usize, Bytes); 2]>,
        config: &Config,
    ) -> SmallVec<[(usize, Bytes); 2]> {
        for ((space, bytes), part) in parts.iter_mut().zip(&need.parts) {
            if let Some(space) = self.spaces.get(*space) {
                *bytes = part.on(space.capacity, space.capacity.saturating_sub(config.margin));
            }
        }
        parts
    }

    /// The same place by ids.
    pub(crate) fn candidate(&self, place: &Place) -> Option<Candidate> {
        let reservation = |&(space, bytes): &(usize, Bytes)| {
            let device = self.spaces.get(space)?.id.clone();
            Some(Reservation { device, bytes })
        };
        Some(Candidate {
            worker: self.seats.get(place.seat)?.worker.clone(),
            host: self.id.clone(),
            need: place.need,
            reservations: place.parts.iter().map(reservation).collect::<Option<_>>()?,
        })
    }

    /// The indexes of a candidate; none if its worker or a device is gone.
    pub(crate) fn place_of(&self, candidate: &Candidate) -> Option<Place> {
        let seat = self
            .seats
            .iter()
            .position(|seat| seat.worker == candidate.worker)?;
        let part = |reservation: &Reservation| Some((self.space_of(&reservation.device)?, reservation.bytes));
        Some(Place {
            seat,
            need: candidate.need,
            parts: candidate.reservations.iter().map(part).collect::<Option<_>>()?,
        })
    }
}

fn positions(spaces: &[u16]) -> impl Iterator<Item = usize> + '_ {
    spaces.iter().map(|space| usize::from(*space))
}

/// Of the devices that are too small: the one that comes closest, with the bytes wanted and possible.
#[derive(Debug, Default)]
struct Closest(Option<(Bytes, Bytes, DeviceKey)>);

impl Closest {
    fn offer(&mut self, wanted: Bytes, possible: Bytes, key: DeviceKey) {
        let short = |wanted: Bytes, possible: Bytes| wanted.saturating_sub(possible);
        let closer = self
            .0
            .as_ref()
            .is_none_or(|(w, p, _)| short(wanted, possible) < short(*w, *p));
        if closer {
            self.0 = Some((wanted, possible, key));
        }
    }
}

impl Fleet {
    /// Why no host has a place for the load.
    pub(crate) fn nowhere(&self, load: &Load) -> Nowhere {
        let mut closest = Closest::default();
        let mut fits_on_absent = false;
        let capable = |worker: &&Worker| {
            let has_files = load.spec.workers.is_empty() || load.spec.workers.contains(&worker.facts.id);
            has_files && worker.facts.runtimes.contains_key(&load.spec.runtime)
        };
        for worker in self.workers.values().filter(capable) {
            if worker.takes_loads() {
                self.fits_by_capacity(&worker.facts, &load.spec, &mut closest);
            } else if self.counts_though_absent(worker) {
                fits_on_absent |= self.fits_by_capacity(&worker.facts, &load.spec, &mut Closest::default());
            }
        }
        match closest.0 {
            Some((wanted, possible, device)) if !fits_on_absent => {
                Nowhere::TooSmall(LoadError::InsufficientMemory {
                    model: load.model.clone(),
                    wanted,
                    possible,
                    device: Some(device),
                })
            }
            Some(_) | None => Nowhere::NobodyHere,
        }
    }

    /// Whether an absent worker still counts as a place where the model might fit (PROTOCOL 2).
    fn counts_though_absent(&self, worker: &Worker) -> bool {
        match worker.presence {
            Presence::Connected(_) => true,
            Presence::Away(since) => self.now.since(since) < self.config.absent_counts,
        }
    }

    /// Whether the worker's devices are large enough for one of the model's needs.
    fn fits_by_capacity(&self, facts: &WorkerFacts, spec: &ModelSpec, closest: &mut Closest) -> bool {
        let mut fits = false;
        let enough = |need: &Need| {
            need.parts.iter().all(|part| {
                let wanted = need.parts.iter().filter(|other| other.kind == part.kind).count();
                let there = facts.devices.iter().filter(|device| device.kind == part.kind);
                there.count() >= wanted
            })
        };
        for need in spec.needs.iter().filter(|need| enough(need)) {
            let Some(main) = need.parts.first() else { continue };
            let usable = |device: &&DeviceFacts| {
                let usable = facts
                    .runtimes
                    .get(&spec.runtime)
                    .is_some_and(|devices| devices.contains(&device.id));
                let chosen = match &spec.device {
                    DeviceChoice::Any => true,
                    DeviceChoice::Kind(kind) => *kind == device.kind,
                    DeviceChoice::Device(id) => *id == device.id,
                };
                let known = self.devices.get(&Self::key(&facts.host, &device.id));
                let barred = known.is_some_and(|known| known.exclusivity.limit(spec.kind) == Some(0));
                usable && chosen && device.kind == main.kind && !barred
            };
            for device in facts.devices.iter().filter(usable) {
                fits |= self.parts_fit(facts, need, device, closest);
            }
        }
        fits
    }

    /// Whether every part finds its own device that is large enough, the first part on `main`.
    fn parts_fit(&self, facts: &WorkerFacts, need: &Need, main: &DeviceFacts, closest: &mut Closest) -> bool {
        let Some((first, rest)) = need.parts.split_first() else {
            return false;
        };
        if !self.large_enough(&facts.host, main, first.bytes, closest) {
            return false;
        }
        let device = |index: usize| facts.devices.get(index);
        let others =
            (0..facts.devices.len()).filter(|index| device(*index).is_some_and(|other| other.id != main.id));
        let options: SmallVec<[usize; 8]> = others.collect();
        let mut fits = |part: &NeedPart, index: usize| {
            device(index).is_some_and(|device| {
                device.kind == part.kind && self.large_enough(&facts.host, device, part.bytes, closest)
            })
        };
        let mut found = false;
        Ways::new(rest, &options, &mut fits).each(&mut |_| found = true);
        found
    }

    fn large_enough(&self, host: &HostId, device: &DeviceFacts, bytes: Bytes, closest: &mut Closest) -> bool {
        let key = Self::key(host, &device.id);
        let capacity = self
            .devices
            .get(&key)
            .map_or(device.capacity, |known| known.capacity);
        let possible = capacity.saturating_sub(self.config.margin);
        let enough = self.config.overcommit || bytes <= possible;
        if !enough {
            closest.offer(bytes, possible, key);
        }
        enough
    }
}
