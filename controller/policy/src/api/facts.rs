//! What workers report: themselves, their devices, memory samples and instances.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::failure::WorkerFailure;
use super::spec::{InstanceSpec, Reservation};
use muster_core::{
    BootId, Bytes, DeviceId, DeviceKind, HoldId, HostId, InstanceId, ModelType, Runtime, WorkerId,
};

/// How many models a device may host at once, apart from its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusivity {
    /// As many as fit into its memory.
    Shared,
    /// One model at any time, whatever its type (I3).
    OneModel,
    /// At most so many models of each type at any time, in the order of [`ModelType::ALL`]; none = as many as fit. One language model
    /// beside one embedding model is `[Some(1), Some(1), Some(0), Some(0), Some(0)]`.
    PerType([Option<u32>; ModelType::ALL.len()]),
}

impl Exclusivity {
    /// The largest number of models on the device that count against a model of this type; none = no limit.
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
    /// Stable and unique within the host (UUID or PCI address).
    pub id: DeviceId,
    pub kind: DeviceKind,
    /// Total memory.
    pub capacity: Bytes,
    /// How many models may share it.
    pub exclusivity: Exclusivity,
}

/// A worker as it introduces itself when it joins. The roster keeps the newest introduction of every known worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerFacts {
    /// Stays the same over restarts.
    pub id: WorkerId,
    /// New at each start of the worker's process.
    pub boot: BootId,
    /// The machine it runs on.
    pub host: HostId,
    /// Its devices; two workers of a host may list the same one.
    pub devices: Vec<DeviceFacts>,
    /// Its runtimes, each with the devices that the runtime can use.
    pub runtimes: BTreeMap<Runtime, BTreeSet<DeviceId>>,
    /// The worker is shutting down and takes no loads.
    pub draining: bool,
}

/// A measurement of a device's memory.
///
/// A sample in the same report as an instance's end was taken after that end (PROTOCOL 13). Any other sample counts as newer than an
/// engine's start or exit only if `age` says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSample {
    pub device: DeviceId,
    /// Total memory.
    pub capacity: Bytes,
    /// Free memory: what other programs use is not free.
    pub free: Bytes,
    /// Time since the measurement.
    pub age: Duration,
    /// Number of engine starts and exits on this device before the sample, counted by the worker. A sample with a lower number than a known
    /// one is out of date.
    pub lifecycle_seq: u64,
}

/// One use of an instance (I9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Touch {
    pub instance: InstanceId,
    /// Number of uses of the instance so far.
    pub touch_seq: u64,
    /// Time since this use.
    pub age: Duration,
}

/// An instance's state as its worker reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportedState {
    /// The engine starts and reads the model.
    Loading { progress: Progress },
    /// Takes requests.
    Ready,
    /// Takes no new requests; can be resumed.
    Quiesced,
    /// Finishes its running requests, then unloads.
    Draining,
    /// Its engine is being ended.
    Unloading,
    /// Ended on request, and its memory is free.
    Gone,
    /// Ended by a failure.
    Failed(WorkerFailure),
    /// A state that this controller does not know. The instance counts as busy, keeps its reservation and gets no route (PROTOCOL 6).
    Unknown,
}

/// How far a load has got. Policy passes it on without reading it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// The phase as a number of `muster.v1.LoadPhase`.
    pub phase: i32,
    /// Share of the phase done, in thousandths.
    pub permille: u16,
    /// Time since the load began.
    pub elapsed: Duration,
}

/// What a worker reports about one instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    pub id: InstanceId,
    /// What the controller told the worker to load.
    pub spec: InstanceSpec,
    pub state: ReportedState,
    /// Number of state changes so far. A report with a lower number than a known one is out of date.
    pub revision: u64,
    /// Number of requests that run.
    pub running: u32,
    /// Number of requests that wait at the instance.
    pub queued: u32,
    /// Holds that the worker has in place.
    pub holds: BTreeSet<HoldId>,
    /// Number of uses so far.
    pub touch_seq: u64,
    /// Time since the last use.
    pub touch_age: Duration,
    /// Memory that the engine is seen to use, per device. Devices that cannot be measured are absent.
    pub observed: Vec<Reservation>,
}

/// A worker's report: what changed since the last one, or everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    pub instances: Vec<InstanceStatus>,
    pub touches: Vec<Touch>,
    pub samples: Vec<DeviceSample>,
}
