//! What a model is and needs, and what an instance was told to be.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::units::Share;
use muster_core::{Bytes, DeviceId, DeviceKind, GroupId, ModelId, ModelType, Runtime, SpecHash, WorkerId};

/// Who asked for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A request for a cold model; dropped when nobody waits any more (I8).
    Auto,
    /// An operator; survives its caller.
    Admin,
    /// The configuration at start; never evicts anything.
    Preload,
}

/// Where a memory figure came from, in order of trust. Carried through to the instance's spec, never read by policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateSource {
    /// Seen on this device kind with the same settings.
    Observed,
    /// Computed from the file's metadata.
    Computed,
    /// The size of the files.
    Artifact,
    /// Given in the configuration.
    Configured,
    /// Nothing is known.
    Unavailable,
}

/// An explicit wish for a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Policy chooses.
    Any,
    /// Only devices of this kind.
    Kind(DeviceKind),
    /// Only this device (on any host that has it).
    Device(DeviceId),
}

/// Memory on one device of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedPart {
    /// The kind of device.
    pub kind: DeviceKind,
    /// Bytes on it; zero if nothing is known.
    pub bytes: Bytes,
    /// It takes this share of the device, however much that is, if it is more than `bytes` (vLLM's `gpu_memory_utilization`).
    pub share: Option<Share>,
}

impl NeedPart {
    /// Bytes to set aside on a device with `capacity` bytes, of which `possible` can be had at most: `bytes`, or the share of the capacity if that is
    /// more. A device that cannot give the whole share is not too small for it: the share is cut to what is possible.
    #[must_use]
    pub fn on(&self, capacity: Bytes, possible: Bytes) -> Bytes {
        let share = self.share.map_or(Bytes::ZERO, |share| share.of(capacity));
        self.bytes.max(share.min(possible))
    }
}

/// One way to host a model: every part on a device of its own, all of one worker.
///
/// One part = one device; two GPU parts = a split over two GPUs; GPU and CPU parts = partial offload; GPU and NPU = hybrid recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// The parts, the main device first.
    pub parts: Vec<NeedPart>,
    /// Where the numbers came from.
    pub source: EstimateSource,
    /// Settings to load with if this way is chosen (they may differ per way, for example in offloaded layers).
    pub settings: Settings,
}

/// Effective settings as the driver encoded them. Policy stores and hands them on and never looks inside.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings(pub Arc<[u8]>);

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settings({} bytes)", self.0.len())
    }
}

/// A catalogue entry as policy needs it, with overrides already folded in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSpec {
    /// Its id.
    pub id: ModelId,
    /// Its type.
    pub kind: ModelType,
    /// The runtime that hosts it.
    pub runtime: Runtime,
    /// An explicit device, if the catalogue or the operator names one.
    pub device: DeviceChoice,
    /// Ways to host it, the preferred one first; a later one is used only where no earlier one can ever work.
    pub needs: Vec<Need>,
    /// Hash of the settings.
    pub spec_hash: SpecHash,
    /// Never evicted by policy (I6).
    pub pinned: bool,
    /// How long it may be idle before it is unloaded.
    pub idle_ttl: IdleTtl,
    /// Instances that are loaded together.
    pub replicas: NonZeroU32,
    /// Workers whose hosts have its files; empty = all, or nobody knows (PROTOCOL 15).
    pub workers: BTreeSet<WorkerId>,
}

/// Replicas that are loaded together and take requests together (PROTOCOL 14).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub id: GroupId,
    /// How many they are to be.
    pub size: u32,
}

/// How long a model may be idle before it is unloaded, though nobody needs its room. Pinned models never are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdleTtl {
    /// As [`Config::idle_ttl`](crate::Config::idle_ttl) says.
    #[default]
    Default,
    /// As long as it likes, whatever the default.
    Never,
    /// So long after its last use.
    After(Duration),
}

/// Memory set aside on one device of the instance's host, as admitted, never re-estimated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reservation {
    /// The device.
    pub device: DeviceId,
    /// Bytes on it.
    pub bytes: Bytes,
}

/// All that was decided about an instance; the worker stores it and echoes it whole (PROTOCOL 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    /// The model.
    pub model: ModelId,
    /// Its type.
    pub kind: ModelType,
    /// The runtime.
    pub runtime: Runtime,
    /// Effective settings, frozen.
    pub settings: Settings,
    /// Their hash.
    pub spec_hash: SpecHash,
    /// Memory set aside.
    pub reservations: Vec<Reservation>,
    /// Where these numbers came from.
    pub source: EstimateSource,
    /// Who asked.
    pub origin: Origin,
    /// 1, or 2 for the retry after everything was evicted (I7).
    pub attempt: u32,
    /// As the worker was told last, for people; policy itself reads the catalogue's.
    pub pinned: bool,
    /// As the worker was told last, for people; none = never. Policy itself reads the catalogue's.
    pub idle_ttl: Option<Duration>,
    /// Its replica group; none if it is loaded alone.
    pub group: Option<Group>,
}
