//! A host in the form that planning reads: instances, devices and workers in arrays, with sums, so that nothing is looked up by name.
//!
//! Architecture invariant: everything here is derived from the fleet by [`Fleet::read_host`] and agrees with it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use smallvec::SmallVec;

use crate::api::{Exclusivity, Moment};
use crate::fleet::Fleet;
use crate::plan::Tenure;
use crate::state::{Free, Instance};
use crate::strategy::Worth;
use muster_core::{Bytes, DeviceId, DeviceKind, HostId, InstanceId, ModelId, ModelType, Runtime, WorkerId};

/// A host with its instances, devices and workers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Host {
    pub(crate) id: HostId,
    /// Its instances, in the order of their ids.
    pub(crate) residents: Vec<Resident>,
    /// Its devices, in the order of their ids. A single one is stored inline, since a placement reads the devices of every host.
    pub(crate) spaces: SmallVec<[Space; 1]>,
    /// Its workers that take loads now, in the order of their ids.
    pub(crate) seats: SmallVec<[Seat; 1]>,
    /// Number of models of each type that are not ending; replicas count once.
    pub(crate) models: [usize; ModelType::ALL.len()],
    /// Whether some instance takes a load slot.
    pub(crate) loading: bool,
    /// The worth of the idle instance that is cheapest to evict; none if none is idle.
    pub(crate) cheapest: Option<Worth>,
}

/// An instance on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) id: InstanceId,
    pub(crate) model: ModelTag,
    pub(crate) kind: ModelType,
    /// How easily it can be evicted, without regard to claims.
    pub(crate) tenure: Tenure,
    pub(crate) worth: Worth,
    /// The worth of the whole instance.
    pub(crate) loss: Worth,
    /// When its tenure or worth changes by time alone; none = never.
    pub(super) turns: Option<Moment>,
    pub(crate) parts: SmallVec<[Part; 2]>,
    takes_load_slot: bool,
    /// It is a ghost whose engine may be starting or ending.
    pub(crate) moves_unseen: bool,
    /// It is ending and finishes its requests first, however long that takes.
    pub(crate) drains: bool,
}

/// An instance's memory on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Index into the host's spaces.
    pub(crate) space: usize,
    pub(crate) charge: Bytes,
    pub(crate) unrealised: Bytes,
    /// Bytes that a sample shows as free once it has ended.
    pub(crate) in_use: Bytes,
}

/// A device of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) id: DeviceId,
    pub(crate) kind: DeviceKind,
    pub(crate) exclusivity: Exclusivity,
    pub(crate) capacity: Bytes,
    /// Free memory; none without a sample that can be relied on.
    pub(crate) free: Option<Bytes>,
    /// Sums over the instances on the device.
    pub(crate) sums: Sums,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Charges of the instances that stay.
    pub(crate) charged: Bytes,
    /// What the instances that stay may still take.
    pub(crate) unrealised: Bytes,
    /// What a sample will show as free after the ending instances have ended.
    pub(crate) returned: Bytes,
    /// Charges of all instances.
    pub(crate) committed: Bytes,
    /// Charges of the instances that no load can evict: pinned ones and ghosts.
    pub(crate) firm: Bytes,
    /// What a sample would show as free after all other instances had ended.
    pub(crate) movable_use: Bytes,
}

/// A worker that takes loads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) worker: WorkerId,
    /// Its devices as indexes into the host's spaces, in the worker's own order.
    pub(crate) spaces: SmallVec<[u16; 8]>,
    /// Its runtimes, each with the devices it can use.
    pub(crate) runtimes: SmallVec<[(Runtime, SmallVec<[u16; 8]>); 3]>,
}

/// A model's id with its hash, for fast comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ModelTag {
    hash: u64,
    pub(crate) id: ModelId,
}

impl ModelTag {
    pub(crate) fn new(id: &ModelId) -> Self {
        let mut hasher = DefaultHasher::new();
        id.hash(&mut hasher);
        Self {
            hash: hasher.finish(),
            id: id.clone(),
        }
    }
}

impl Space {
    /// Memory that no instance has reserved or is seen to use.
    pub(crate) fn uncommitted(&self) -> Bytes {
        self.capacity.saturating_sub(self.sums.committed)
    }

    /// The most memory a load could get beside the instances that stay, claims not counted.
    pub(crate) fn room(&self, margin: Bytes) -> Bytes {
        let by_reservation = self.capacity.saturating_sub(margin + self.sums.charged);
        self.free.map_or(by_reservation, |free| {
            let really = (free + self.sums.returned).saturating_sub(margin + self.sums.unrealised);
            by_reservation.min(really)
        })
    }

    /// The most memory a load could get if everything evictable were gone.
    pub(crate) fn reach(&self) -> Bytes {
        let by_reservation = self.capacity.saturating_sub(self.sums.firm);
        self.free.map_or(by_reservation, |free| {
            by_reservation.min(free + self.sums.movable_use)
        })
    }
}

impl Resident {
    pub(crate) fn going(&self) -> bool {
        self.tenure == Tenure::Going
    }

    pub(crate) fn part_on(&self, space: usize) -> Option<&Part> {
        self.parts.iter().find(|part| part.space == space)
    }
}

impl Host {
    /// Stores a resident. Returns whether it differs from the stored one.
    pub(super) fn put_resident(&mut self, resident: Resident) -> bool {
        let Ok(place) = self
            .residents
            .binary_search_by(|known| known.id.cmp(&resident.id))
        else {
            return false;
        };
        match self.residents.get_mut(place) {
            Some(known) if *known != resident => {
                *known = resident;
                self.sum_up();
                true
            }
            Some(_) | None => false,
        }
    }

    /// Stores the devices' new state. Returns whether it differs. The set of devices changes only with the workers.
    pub(super) fn put_spaces(&mut self, spaces: SmallVec<[Space; 1]>) -> bool {
        let mut changed = false;
        for (known, read) in self.spaces.iter_mut().zip(spaces) {
            let read = Space {
                sums: known.sums,
                ..read
            };
            changed |= *known != read;
            *known = read;
        }
        changed
    }

    fn sum_up(&mut self) {
        for space in &mut self.spaces {
            space.sums = Sums::default();
        }
        self.loading = false;
        self.cheapest = None;
        let mut staying: SmallVec<[(ModelType, &ModelTag); 16]> = SmallVec::new();
        for resident in &self.residents {
            let going = resident.going();
            self.loading |= resident.takes_load_slot;
            if resident.tenure == Tenure::Idle {
                let least = self
                    .cheapest
                    .map_or(resident.loss, |least| least.min(resident.loss));
                self.cheapest = Some(least);
            }
            if !going {
                staying.push((resident.kind, &resident.model));
            }
            for part in &resident.parts {
                let Some(space) = self.spaces.get_mut(part.space) else {
                    continue;
                };
                let sums = &mut space.sums;
                sums.committed += part.charge;
                match resident.tenure {
                    Tenure::Pinned | Tenure::Ghost => sums.firm += part.charge,
                    Tenure::Going | Tenure::Idle | Tenure::Finishing | Tenure::Busy { .. } => {
                        sums.movable_use += part.in_use;
                    }
                }
                if going {
                    sums.returned += part.in_use;
                } else {
                    sums.charged += part.charge;
                    sums.unrealised += part.unrealised;
                }
            }
        }
        staying.sort_unstable();
        staying.dedup();
        self.models = ModelType::ALL.map(|kind| staying.iter().filter(|(of, _)| *of == kind).count());
    }

    /// Number of models of a type that are not ending; replicas count once.
    pub(crate) fn models_of(&self, kind: ModelType) -> usize {
        ModelType::ALL
            .iter()
            .zip(self.models)
            .find(|(of, _)| **of == kind)
            .map_or(0, |(_, count)| count)
    }

    pub(crate) fn space_of(&self, device: &DeviceId) -> Option<usize> {
        self.spaces.iter().position(|space| space.id == *device)
    }
}

impl Fleet {
    /// Reads a host from the fleet; none if it has no workers.
    pub(super) fn read_host(&self, id: &HostId) -> Option<Host> {
        let workers = self.hosts.get(id)?;
        let mut host = Host {
            id: id.clone(),
            residents: Vec::new(),
            spaces: self.read_spaces(id),
            seats: SmallVec::new(),
            models: [0; ModelType::ALL.len()],
            loading: false,
            cheapest: None,
        };
        host.seats = workers
            .iter()
            .filter_map(|worker| self.workers.get(worker))
            .filter(|worker| worker.takes_loads())
            .map(|worker| {
                let space = |device: &DeviceId| u16::try_from(host.space_of(device)?).ok();
                let listed = worker.facts.devices.iter().map(|device| &device.id);
                let spaces = listed.clone().filter_map(space).collect();
                let usable = |(runtime, usable): (&Runtime, &BTreeSet<DeviceId>)| {
                    let spaces = listed.clone().filter(|device| usable.contains(*device));
                    (*runtime, spaces.filter_map(space).collect())
                };
                Seat {
                    worker: worker.facts.id.clone(),
                    spaces,
                    runtimes: worker.facts.runtimes.iter().map(usable).collect(),
                }
            })
            .collect();
        host.residents = self
            .on_host(id)
            .map(|instance| self.read_resident(instance, &host))
            .collect();
        host.residents.sort_by(|a, b| a.id.cmp(&b.id));
        host.sum_up();
        Some(host)
    }

    pub(super) fn read_spaces(&self, id: &HostId) -> SmallVec<[Space; 1]> {
        let first = Self::key(id, &DeviceId::first());
        self.devices
            .range(first..)
            .take_while(|(key, _)| key.host == *id)
            .map(|(key, device)| Space {
                id: key.device.clone(),
                kind: device.kind,
                exclusivity: device.exclusivity,
                capacity: device.capacity,
                free: match device.free(self.now, self.config.sample_wait) {
                    Free::Known(free) => Some(free),
                    Free::Stale { .. } | Free::Unknown => None,
                },
                sums: Sums::default(),
            })
            .collect()
    }

    pub(super) fn read_resident(&self, instance: &Instance, host: &Host) -> Resident {
        let mut parts: SmallVec<[Part; 2]> = SmallVec::new();
        for reservation in &instance.spec.reservations {
            let device = &reservation.device;
            let Some(space) = host.space_of(device) else {
                continue;
            };
            if parts.iter().all(|part| part.space != space) {
                parts.push(Part {
                    space,
                    charge: instance.charge_on(device),
                    unrealised: instance.unrealised_on(device),
                    in_use: instance.returned_by_end(device),
                });
            }
        }
        let tenure = self.tenure(instance, &[]);
        let bytes = parts.iter().map(|part| part.charge).sum();
        let appraisal = self.appraiser.appraise(instance, bytes, self.now);
        let tenure_until = if let Tenure::Busy { until } = tenure {
            until
        } else {
            None
        };
        Resident {
            id: instance.id.clone(),
            model: ModelTag::new(&instance.spec.model),
            kind: instance.spec.kind,
            tenure,
            worth: appraisal.worth,
            loss: appraisal.loss,
            turns: [tenure_until, appraisal.until].into_iter().flatten().min(),
            parts,
            takes_load_slot: instance.takes_load_slot(),
            moves_unseen: instance.moves_unseen(),
            drains: instance.going() && instance.works(),
        }
    }
}
