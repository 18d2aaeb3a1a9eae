//! What workers say about themselves: devices, samples, instances.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::failure::WorkerFailure;
use super::spec::{InstanceSpec, Reservation};
use muster_core::{
    BootId, Bytes, DeviceId, DeviceKind, HoldId, HostId, InstanceId, ModelType, Runtime, WorkerId,
};

/// How many models a device may host at once, whatever its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusivity {
    /// As many as fit.
    Shared,
    /// One model at any time, whatever its type (I3).
    OneModel,
    /// At most so many models of each type at any time, in the order of [`ModelType::ALL`]; none = as many as fit. One language model
    /// beside one embedding model is `[Some(1), Some(1), Some(0), Some(0), Some(0)]`.
    PerType([Option<u32>; ModelType::ALL.len()]),
}

impl Exclusivity {
    /// How many models may be there at once that count against one of this type; none = no limit.
    #[must_use]
    pub fn limit(self, kind: ModelType) -> Option<usize> {
        match self {
            Self::Shared => None,
            Self::OneModel => Some(1),
            Self::PerType(limits) => {
                let found = ModelType::ALL.iter().zip(limits).find(|(of, _)| **of == kind);
                let limit = found.and_then(|(_, limit)| limit)?;
                Some(usize::try_from(limit).unwrap_or(usize::MAX))
            }
        }
    }

    /// Whether models of the two types count against each other.
    #[must_use]
    pub fn counts_together(self, one: ModelType, other: ModelType) -> bool {
        match self {
            Self::Shared => false,
            Self::OneModel => true,
            Self::PerType(_) => one == other,
        }
    }
}

/// A device as its worker describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Stable identity, unique within the host.
    pub id: DeviceId,
    /// What it is.
    pub kind: DeviceKind,
    /// Total memory.
    pub capacity: Bytes,
    /// How many models may share it.
    pub exclusivity: Exclusivity,
}

/// A worker as it introduces itself. The roster keeps the last of these for every known worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFacts {
    /// Stable name.
    pub id: WorkerId,
    /// Made up anew at each start of its process.
    pub boot: BootId,
    /// The machine.
    pub host: HostId,
    /// Devices it owns; two workers of a host may list the same one.
    pub devices: Vec<DeviceFacts>,
    /// Runtimes it can host, each with the devices it can use there.
    pub runtimes: BTreeMap<Runtime, BTreeSet<DeviceId>>,
    /// It is shutting down and takes no loads.
    pub draining: bool,
}

/// One look at a device's memory.
///
/// A sample in the same report as an instance's end was taken after that end (PROTOCOL 13); other samples count as newer than a
/// start or exit only if `age` says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    /// The device.
    pub device: DeviceId,
    /// Total memory.
    pub capacity: Bytes,
    /// Free memory, other programs counted as use.
    pub free: Bytes,
    /// How old the sample is.
    pub age: Duration,
    /// Engine starts and exits on this device that it already shows, counted by the worker; a lower number is old news.
    pub lifecycle_seq: u64,
}

/// One use of an instance (I9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    /// The instance.
    pub instance: InstanceId,
    /// Counts its touches.
    pub touch_seq: u64,
    /// Time since it.
    pub age: Duration,
}

/// Where the worker says an instance stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedState {
    /// The engine starts and reads the model.
    Loading {
        /// Phase and share done, for waiters.
        progress: Progress,
    },
    /// Takes requests.
    Ready,
    /// Takes no new requests, reversibly.
    Quiesced,
    /// Finishes what runs, then unloads.
    Draining,
    /// The engine is being ended.
    Unloading,
    /// Ended as asked; memory is back.
    Gone,
    /// Ended by a failure.
    Failed(WorkerFailure),
    /// A state this controller does not know: busy, reserved, not routable (PROTOCOL 6).
    Unknown,
}

/// How far a load is; passed on to waiters as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The phase's number on the wire.
    pub phase: i32,
    /// Share of the phase done, in thousandths.
    pub permille: u16,
    /// Time since the load began.
    pub elapsed: Duration,
}

/// The worker's word on one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    /// The instance.
    pub id: InstanceId,
    /// What it was told to be.
    pub spec: InstanceSpec,
    /// Where it stands.
    pub state: ReportedState,
    /// Counts its state changes; a lower one is old news.
    pub revision: u64,
    /// Requests running.
    pub running: u32,
    /// Requests queued.
    pub queued: u32,
    /// Holds in place at the worker.
    pub holds: BTreeSet<HoldId>,
    /// Counts its touches.
    pub touch_seq: u64,
    /// Time since the last one.
    pub touch_age: Duration,
    /// Memory seen in use by its engine, per device; devices that cannot be observed are absent.
    pub observed: Vec<Reservation>,
}

/// A worker's report: what changed since the last one, or everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Instances.
    pub instances: Vec<InstanceStatus>,
    /// Touches.
    pub touches: Vec<Touch>,
    /// Samples.
    pub samples: Vec<DeviceSample>,
}
