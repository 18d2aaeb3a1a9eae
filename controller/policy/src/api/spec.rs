//! What a model is and needs, and the settings an instance was loaded with.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::units::Share;
use muster_core::{Bytes, DeviceId, DeviceKind, GroupId, ModelId, ModelType, Runtime, SpecHash, WorkerId};

/// Who asked for a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A request for a model that is not loaded. The load is dropped when nobody waits for it any more (I8).
    Auto,
    /// An operator. The load goes on after the operator's call has ended.
    Admin,
    /// The configuration, at start. Such a load never evicts anything.
    Preload,
}

/// Where a memory figure came from, best first. Policy copies it into the instance's spec and does not read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EstimateSource {
    /// Measured when the model ran on this kind of device with the same settings.
    Observed,
    /// Computed from the file's metadata.
    Computed,
    /// The size of the model's files.
    Artifact,
    /// Given in the configuration.
    Configured,
    /// No figure is known.
    Unavailable,
}

/// Which devices a model may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Any device; policy chooses.
    Any,
    /// Only devices of this kind.
    Kind(DeviceKind),
    /// Only the device with this id, on any host that has it.
    Device(DeviceId),
}

/// Memory that a model needs on one device of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeedPart {
    pub kind: DeviceKind,
    /// Bytes on the device; zero if unknown.
    pub bytes: Bytes,
    /// The model takes this share of the device's memory if that is more than `bytes` (vLLM's `gpu_memory_utilization`).
    pub share: Option<Share>,
}

impl NeedPart {
    /// Bytes to reserve on a device with `capacity` bytes, of which `possible` are the most the load could get: the larger of `bytes` and
    /// the share. The share is cut to `possible`, so a device that cannot give the whole share is still large enough.
    #[must_use]
    pub fn on(&self, capacity: Bytes, possible: Bytes) -> Bytes {
        let share = self.share.map_or(Bytes::ZERO, |share| share.of(capacity));
        self.bytes.max(share.min(possible))
    }
}

/// One way to host a model. Each part takes a device of its own; all devices belong to one worker.
///
/// One part = one device; two GPU parts = a split over two GPUs; GPU and CPU parts = partial offload; GPU and NPU parts = hybrid recipes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Memory per device, the main device first.
    pub parts: Vec<NeedPart>,
    pub source: EstimateSource,
    /// Settings to load with if policy chooses this way. They differ between ways, for example in the number of offloaded layers.
    pub settings: Settings,
}

/// Effective settings as the driver encoded them. Policy passes them on and never looks inside.
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
    pub id: ModelId,
    pub kind: ModelType,
    pub runtime: Runtime,
    /// Devices that the catalogue or the operator allows.
    pub device: DeviceChoice,
    /// Ways to host the model, the preferred one first. A later one is used only where no earlier one can ever work.
    pub needs: Vec<Need>,
    /// Hash of the effective settings.
    pub spec_hash: SpecHash,
    /// Never evicted by policy (I6).
    pub pinned: bool,
    /// Idle time before the model is unloaded.
    pub idle_ttl: IdleTtl,
    /// Number of instances that are loaded together.
    pub replicas: NonZeroU32,
    /// Workers whose hosts have the model's files; empty = all of them, or unknown (PROTOCOL 15).
    pub workers: BTreeSet<WorkerId>,
}

/// A set of replicas that are loaded together and begin to take requests together (PROTOCOL 14).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub id: GroupId,
    /// Number of replicas that the group should have.
    pub size: u32,
}

/// Idle time before a model is unloaded although no load needs its room. Pinned models are never unloaded for being idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IdleTtl {
    /// [`Config::idle_ttl`](crate::Config::idle_ttl).
    #[default]
    Default,
    /// No limit, whatever the configured default.
    Never,
    /// This time after the model's last use.
    After(Duration),
}

/// Memory set aside on one device of the instance's host. It is fixed when the load begins.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reservation {
    pub device: DeviceId,
    pub bytes: Bytes,
}

/// Everything decided about an instance. The worker stores it and reports all of it when it joins (PROTOCOL 7).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    pub model: ModelId,
    pub kind: ModelType,
    pub runtime: Runtime,
    /// Effective settings; they never change.
    pub settings: Settings,
    /// Hash of `settings`.
    pub spec_hash: SpecHash,
    /// Memory set aside, per device.
    pub reservations: Vec<Reservation>,
    /// Where the reservations came from.
    pub source: EstimateSource,
    /// Who asked for the load.
    pub origin: Origin,
    /// 1, or 2 for the retry after everything was evicted (I7).
    pub attempt: u32,
    /// Whether the worker shows the model as pinned. Policy reads the catalogue's value instead.
    pub pinned: bool,
    /// The idle time that the worker shows; none = never unloaded for being idle. Policy reads the catalogue's value instead.
    pub idle_ttl: Option<Duration>,
    /// The replica group; none if the instance was loaded alone.
    pub group: Option<Group>,
}
