//! The roster: workers that have joined and were not forgotten since; and its form on disk.
//!
//! ```text
//!   joined ──► here ──session lost──► lost ──roster_ttl──► expired
//!               ▲ └──said goodbye──► left ──absent_counts──► expired
//!               └──── joined ─────────┘ (from either)
//! ```
//!
//! At a start, workers that were present or lost are waited for, because their engines may run. Those that left in order are not
//! (PROTOCOL.md 2).

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use muster_core::{BootId, Bytes, DeviceId, DeviceKind, HostId, Missing, Runtime, WorkerId};
use muster_policy::{DeviceFacts, Exclusivity, WorkerFacts};
use serde::{Deserialize, Serialize};

use crate::convert::ids;

/// All known workers. A copy shares the unchanged entries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Roster(BTreeMap<WorkerId, Arc<Known>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    facts: WorkerFacts,
    away: Option<Away>,
}

/// The absence of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Away {
    /// Begin of the absence as Unix time in seconds; only a wall clock goes on over restarts.
    since: u64,
    /// The worker said goodbye: none of its engines runs.
    in_order: bool,
}

/// When absent workers are dropped.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expiry {
    /// Time for workers that left in order.
    pub(crate) left: Duration,
    /// Time for lost workers.
    pub(crate) lost: Duration,
}

impl Roster {
    /// Records that a worker is present.
    pub(crate) fn put(&mut self, facts: WorkerFacts) {
        let known = Known { facts, away: None };
        self.0.insert(known.facts.id.clone(), Arc::new(known));
    }

    /// Whether the roster has the worker as present with the same facts.
    pub(crate) fn has(&self, facts: &WorkerFacts) -> bool {
        let known = self.0.get(&facts.id);
        known.is_some_and(|known| known.away.is_none() && known.facts == *facts)
    }

    /// Records that a worker is absent. Returns false if it was known.
    pub(crate) fn away(&mut self, worker: &WorkerId, in_order: bool, now: SystemTime) -> bool {
        let since = seconds(now);
        match self.0.get_mut(worker) {
            Some(known) if known.away.is_none() || in_order => {
                Arc::make_mut(known).away = Some(Away { since, in_order });
                true
            }
            Some(_) | None => false,
        }
    }

    /// Drops a worker. Returns false if it was unknown.
    pub(crate) fn remove(&mut self, worker: &WorkerId) -> bool {
        self.0.remove(worker).is_some()
    }

    /// Workers to wait for at a start, and those that had left in order. Expired ones are dropped.
    pub(crate) fn at_start(
        &mut self,
        now: SystemTime,
        expiry: Expiry,
    ) -> (Vec<WorkerFacts>, Vec<WorkerFacts>) {
        let now = seconds(now);
        self.0.retain(|_, known| {
            known.away.is_none_or(|away| {
                let limit = if away.in_order { expiry.left } else { expiry.lost };
                now.saturating_sub(away.since) < limit.as_secs()
            })
        });
        let left = |known: &&Arc<Known>| known.away.is_some_and(|away| away.in_order);
        let (left, expected): (Vec<_>, Vec<_>) = self.0.values().partition(left);
        let facts = |known: Vec<&Arc<Known>>| known.into_iter().map(|known| known.facts.clone()).collect();
        (facts(expected), facts(left))
    }

    /// Workers recorded as present.
    pub(crate) fn here(&self) -> impl Iterator<Item = &WorkerId> {
        let here = self.0.iter().filter(|(_, known)| known.away.is_none());
        here.map(|(id, _)| id)
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        let entry = |known: &Arc<Known>| Entry {
            away: known.away,
            ..Entry::from(&known.facts)
        };
        self.0.values().map(entry).collect()
    }
}

impl FromIterator<Entry> for Roster {
    fn from_iter<T: IntoIterator<Item = Entry>>(entries: T) -> Self {
        let known = |entry: Entry| {
            let away = entry.away;
            match WorkerFacts::try_from(entry) {
                Ok(facts) => Some((facts.id.clone(), Arc::new(Known { away, facts }))),
                Err(error) => {
                    tracing::error!(%error, "a worker of the roster that cannot be understood is left out");
                    None
                }
            }
        };
        Self(entries.into_iter().filter_map(known).collect())
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// A known worker on disk.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// None if the worker was present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    away: Option<Away>,
    worker: String,
    boot: String,
    host: String,
    devices: Vec<Device>,
    runtimes: BTreeMap<String, Vec<String>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Device {
    id: String,
    kind: Kind,
    capacity_bytes: u64,
    exclusive: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Cpu,
    Gpu,
    Npu,
    Sim,
}

impl From<&WorkerFacts> for Entry {
    fn from(facts: &WorkerFacts) -> Self {
        let runtimes = facts.runtimes.iter().map(|(name, devices)| {
            (
                name.to_string(),
                devices.iter().map(DeviceId::to_string).collect(),
            )
        });
        Self {
            away: None,
            worker: facts.id.to_string(),
            boot: facts.boot.to_string(),
            host: facts.host.to_string(),
            devices: facts.devices.iter().map(Device::from).collect(),
            runtimes: runtimes.collect(),
        }
    }
}

impl TryFrom<Entry> for WorkerFacts {
    type Error = Missing;

    fn try_from(entry: Entry) -> Result<Self, Missing> {
        let mut runtimes = BTreeMap::new();
        for (name, devices) in entry.runtimes {
            // A runtime that this version does not know is left out.
            if let Ok(runtime) = name.parse::<Runtime>() {
                runtimes.insert(runtime, ids(&devices, DeviceId::new)?);
            }
        }
        let devices = entry.devices.into_iter().map(DeviceFacts::try_from);
        Ok(Self {
            id: WorkerId::new(entry.worker)?,
            boot: BootId::new(entry.boot)?,
            host: HostId::new(entry.host)?,
            devices: devices.collect::<Result<_, _>>()?,
            runtimes,
            draining: false,
        })
    }
}

impl From<&DeviceFacts> for Device {
    fn from(facts: &DeviceFacts) -> Self {
        Self {
            id: facts.id.to_string(),
            kind: match facts.kind {
                DeviceKind::Cpu => Kind::Cpu,
                DeviceKind::Gpu => Kind::Gpu,
                DeviceKind::Npu => Kind::Npu,
                DeviceKind::Sim => Kind::Sim,
            },
            capacity_bytes: facts.capacity.get(),
            exclusive: facts.exclusivity == Exclusivity::OneModel,
        }
    }
}

impl TryFrom<Device> for DeviceFacts {
    type Error = Missing;

    fn try_from(device: Device) -> Result<Self, Missing> {
        Ok(Self {
            id: DeviceId::new(device.id)?,
            kind: match device.kind {
                Kind::Cpu => DeviceKind::Cpu,
                Kind::Gpu => DeviceKind::Gpu,
                Kind::Npu => DeviceKind::Npu,
                Kind::Sim => DeviceKind::Sim,
            },
            capacity: Bytes::new(device.capacity_bytes),
            exclusivity: if device.exclusive {
                Exclusivity::OneModel
            } else {
                Exclusivity::Shared
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str) -> WorkerFacts {
        WorkerFacts {
            id: name.into(),
            boot: "boot".into(),
            host: "host".into(),
            devices: Vec::new(),
            runtimes: BTreeMap::new(),
            draining: false,
        }
    }

    fn names(workers: &[WorkerFacts]) -> Vec<&str> {
        workers.iter().map(|facts| facts.id.as_str()).collect()
    }

    #[test]
    fn only_those_that_may_still_run_are_waited_for_and_all_expire() {
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let after = |seconds| start + Duration::from_secs(seconds);
        let expiry = Expiry {
            left: Duration::from_secs(60),
            lost: Duration::from_secs(600),
        };
        let mut roster = Roster::default();
        for name in ["back", "here", "left", "lost"] {
            roster.put(worker(name));
        }
        assert!(roster.away(&"lost".into(), false, start));
        assert!(
            !roster.away(&"lost".into(), false, after(500)),
            "it was lost before"
        );
        assert!(roster.away(&"left".into(), true, start));
        assert!(roster.away(&"back".into(), true, start));
        roster.put(worker("back"));
        assert!(!roster.away(&"stranger".into(), true, start));
        let here: Vec<&str> = roster.here().map(WorkerId::as_str).collect();
        assert_eq!(here, ["back", "here"]);

        let mut roster: Roster = roster.entries().into_iter().collect();
        let (expected, left) = roster.at_start(after(59), expiry);
        assert_eq!(
            (names(&expected), names(&left)),
            (vec!["back", "here", "lost"], vec!["left"])
        );
        let (expected, left) = roster.at_start(after(60), expiry);
        assert_eq!(
            (names(&expected), names(&left)),
            (vec!["back", "here", "lost"], vec![])
        );
        let (expected, _) = roster.at_start(after(600), expiry);
        assert_eq!(names(&expected), ["back", "here"]);
    }
}
