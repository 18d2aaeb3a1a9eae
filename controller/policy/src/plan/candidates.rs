//! Where a model could go at all: workers whose runtime and devices can host it, by capacity alone.

use crate::api::{
    Bytes, DeviceChoice, DeviceFacts, DeviceId, DeviceKey, HostId, LoadError, ModelSpec, Need, NeedPart,
    Reservation, WorkerFacts, WorkerId,
};
use crate::fleet::Fleet;
use crate::state::{Load, Place, Presence, Worker};

/// A place for a model.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) worker: WorkerId,
    pub(crate) host: HostId,
    /// Which of the model's needs it meets; lower is preferred.
    pub(crate) need: usize,
    pub(crate) reservations: Vec<Reservation>,
    /// A gateway just could not reach this worker.
    pub(crate) avoided: bool,
}

/// What was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// Places, at least one.
    Places(Vec<Candidate>),
    /// Workers that could host it are here, but the model can never fit on any.
    TooSmall(LoadError),
    /// No worker that could host it is here.
    NobodyHere,
}

/// The device that came closest to fitting.
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
    /// All places for a load now.
    pub(crate) fn candidates(&self, load: &Load) -> Found {
        let avoid = self.avoided_workers(load);
        let mut places = Vec::new();
        let mut closest = Closest::default();
        let mut fits_on_absent = false;
        for worker in self
            .workers
            .values()
            .filter(|worker| Self::can_run(&worker.facts, &load.spec))
        {
            if worker.takes_loads() {
                let avoided = avoid.contains(&&worker.facts.id);
                self.places_on(worker, &load.spec, avoided, &mut places, &mut closest);
            } else if self.counts_though_absent(worker) {
                let mut there = Vec::new();
                self.places_on(worker, &load.spec, false, &mut there, &mut Closest::default());
                fits_on_absent |= !there.is_empty();
            }
        }
        match closest.0 {
            _ if !places.is_empty() => Found::Places(places),
            Some((wanted, possible, device)) if !fits_on_absent => {
                Found::TooSmall(LoadError::InsufficientMemory {
                    model: load.model.clone(),
                    wanted,
                    possible,
                    device: Some(device),
                })
            }
            Some(_) | None => Found::NobodyHere,
        }
    }

    fn avoided_workers(&self, load: &Load) -> Vec<&WorkerId> {
        let Some(model) = self.models.get(&load.model) else {
            return Vec::new();
        };
        let waiting = model.waiters.iter().filter_map(|hold| self.waiters.get(hold));
        waiting
            .filter(|waiter| waiter.place == Place::Waiting)
            .flat_map(|waiter| &waiter.avoid_workers)
            .collect()
    }

    /// An absent worker still counts for "can never fit" for a while (PROTOCOL 2).
    fn counts_though_absent(&self, worker: &Worker) -> bool {
        match worker.presence {
            Presence::Connected(_) => true,
            Presence::Away(since) => self.now.since(since) < self.config.absent_counts,
        }
    }

    fn can_run(facts: &WorkerFacts, spec: &ModelSpec) -> bool {
        facts.runtimes.contains_key(&spec.runtime)
    }

    fn places_on(
        &self,
        worker: &Worker,
        spec: &ModelSpec,
        avoided: bool,
        places: &mut Vec<Candidate>,
        closest: &mut Closest,
    ) {
        let facts = &worker.facts;
        for (rank, need) in spec.needs.iter().enumerate() {
            let Some(main) = need.parts.first() else { continue };
            for device in facts
                .devices
                .iter()
                .filter(|device| Self::may_be_main(facts, spec, main, device))
            {
                if let Some(reservations) = self.assign_parts(facts, need, device, closest) {
                    places.push(Candidate {
                        worker: facts.id.clone(),
                        host: facts.host.clone(),
                        need: rank,
                        reservations,
                        avoided,
                    });
                }
            }
        }
    }

    fn may_be_main(facts: &WorkerFacts, spec: &ModelSpec, main: &NeedPart, device: &DeviceFacts) -> bool {
        let usable = facts
            .runtimes
            .get(&spec.runtime)
            .is_some_and(|devices| devices.contains(&device.id));
        let chosen = match &spec.device {
            DeviceChoice::Any => true,
            DeviceChoice::Kind(kind) => *kind == device.kind,
            DeviceChoice::Device(id) => *id == device.id,
        };
        usable && chosen && device.kind == main.kind
    }

    /// Gives every part a device of its own: the first the given one, the others those with most left.
    fn assign_parts(
        &self,
        facts: &WorkerFacts,
        need: &Need,
        main: &DeviceFacts,
        closest: &mut Closest,
    ) -> Option<Vec<Reservation>> {
        let (first, rest) = need.parts.split_first()?;
        if !self.large_enough(&facts.host, main, first.bytes, closest) {
            return None;
        }
        let mut reservations = vec![Reservation {
            device: main.id.clone(),
            bytes: first.bytes,
        }];
        for part in rest {
            let free_of = |device: &&DeviceFacts| {
                let taken = reservations.iter().any(|r| r.device == device.id);
                device.kind == part.kind && !taken
            };
            let mut options: Vec<&DeviceFacts> = facts.devices.iter().filter(free_of).collect();
            options.retain(|device| self.large_enough(&facts.host, device, part.bytes, closest));
            let best = options.into_iter().min_by_key(|device| {
                let left = self.uncommitted(&Self::key(&facts.host, &device.id));
                (std::cmp::Reverse(left), device.id.clone())
            })?;
            reservations.push(Reservation {
                device: best.id.clone(),
                bytes: part.bytes,
            });
        }
        Some(reservations)
    }

    fn large_enough(&self, host: &HostId, device: &DeviceFacts, bytes: Bytes, closest: &mut Closest) -> bool {
        let key = Self::key(host, &device.id);
        let capacity = self
            .devices
            .get(&key)
            .map_or(device.capacity, |known| known.capacity);
        let possible = capacity.saturating_sub(self.config.margin);
        closest.offer(bytes, possible, key);
        self.config.overcommit || bytes <= possible
    }

    /// Capacity that no instance has reserved or is seen to use.
    pub(crate) fn uncommitted(&self, key: &DeviceKey) -> Bytes {
        let Some(device) = self.devices.get(key) else {
            return Bytes::ZERO;
        };
        device.capacity.saturating_sub(self.charged(key, &key.device))
    }

    fn charged(&self, key: &DeviceKey, device: &DeviceId) -> Bytes {
        self.on_device(key)
            .map(|instance| instance.charge_on(device))
            .sum()
    }
}
