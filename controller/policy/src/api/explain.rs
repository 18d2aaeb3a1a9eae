//! The answer to "what would happen to a load of this model now, and why" ([`Fleet::explain`](crate::Fleet::explain)).

use std::fmt;
use std::time::Duration;

use super::decision::EvictionRule;
use super::effect::ModelState;
use super::failure::LoadError;
use super::ids::DeviceKey;
use super::spec::Reservation;
use super::units::Moment;
use muster_core::{Bytes, DeviceId, DeviceKind, HostId, InstanceId, ModelId, WorkerId};

/// What a load of the model would lead to, and the places that policy looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    pub model: ModelId,
    pub state: ModelState,
    /// Place in the load queue, 1 is next; none if the model is not queued.
    pub queue_position: Option<u32>,
    pub verdict: Verdict,
    /// Places where the model could go, the chosen one first.
    pub places: Vec<PlaceView>,
    /// Number of places that are left out of `places`.
    pub more: usize,
}

/// What policy would do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: these instances take the model's requests, or will once they are loaded.
    Here(Vec<InstanceId>),
    /// Load it at once.
    Load,
    /// Load it after evicting these idle models.
    Evict(Vec<ModelId>),
    /// Wait until these models have finished their requests (I1).
    WaitForBusy(Vec<ModelId>),
    /// Wait until the loads of these models are over (I5).
    WaitForLoads(Vec<ModelId>),
    /// Wait: earlier loads of these models have claimed the room (I5).
    WaitForClaims(Vec<ModelId>),
    /// Wait: these models' workers are lost, but their engines may still run in the room (PROTOCOL 1).
    WaitForLost(Vec<ModelId>),
    /// Refuse it, or let it wait without hope.
    Refuse(LoadError),
}

/// A worker that could host the model, with the devices it would use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceView {
    pub worker: WorkerId,
    pub host: HostId,
    /// Index into the model's `needs`: 0 is the preferred way to host it.
    pub need: usize,
    /// Memory on each device.
    pub parts: Vec<PartView>,
    /// Instances that would have to go; empty if evicting them would not be enough.
    pub victims: Vec<VictimView>,
    /// What eviction cannot remove; none if evicting the victims is enough.
    pub obstruction: Option<Obstruction>,
    /// Policy would choose this place.
    pub chosen: bool,
}

/// Memory that a place takes on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartView {
    pub device: DeviceId,
    pub kind: DeviceKind,
    /// Bytes that the model needs there.
    pub wanted: Bytes,
    /// The device's total memory.
    pub capacity: Bytes,
    /// Bytes that instances have reserved or are seen to use.
    pub committed: Bytes,
    /// Free memory by a sample recent enough to rely on; none if there is no such sample.
    pub free: Option<Bytes>,
    /// Bytes this load could get without evicting anything, after earlier claims and the margin.
    pub possible: Bytes,
}

/// An instance that would have to be evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimView {
    pub instance: InstanceId,
    pub model: ModelId,
    /// The rule that chose it.
    pub rule: EvictionRule,
    /// Whether it could be evicted now.
    pub standing: VictimStanding,
    /// When it was last used; none if unknown.
    pub last_used: Option<Moment>,
    /// Memory its end would free, per device.
    pub reservations: Vec<Reservation>,
}

/// Whether a victim could be evicted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VictimStanding {
    /// It is idle and can go at once.
    Idle,
    /// It takes no new requests and finishes those it has.
    Finishing,
    /// It cannot go yet.
    Busy {
        /// The earliest time from now at which it can go; none if that depends on its requests.
        at_least: Option<Duration>,
    },
}

/// What keeps a load from a place even if all evictable instances go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstruction {
    /// Earlier loads of these models have claimed the room.
    Claims(Vec<ModelId>),
    /// Instances of these models run on lost workers.
    Lost(Vec<ModelId>),
    /// These models are pinned (I6).
    Pinned(Vec<ModelId>),
    /// Other programs use the device's memory (I4).
    OtherPrograms {
        device: DeviceKey,
        wanted: Bytes,
        possible: Bytes,
    },
}

impl Verdict {
    /// The verdict as one word, for tables and programs.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Here(_) => "here",
            Self::Load => "load",
            Self::Evict(_) => "evict",
            Self::WaitForBusy(_) => "wait_for_busy",
            Self::WaitForLoads(_) => "wait_for_loads",
            Self::WaitForClaims(_) => "wait_for_claims",
            Self::WaitForLost(_) => "wait_for_lost",
            Self::Refuse(_) => "refuse",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, before: &str, models: &[ModelId], after: &str| {
            let names: Vec<&str> = models.iter().map(ModelId::as_str).collect();
            write!(f, "{before}{}{after}", names.join(", "))
        };
        match self {
            Self::Here(_) => f.write_str("it is loaded, or loading"),
            Self::Load => f.write_str("it would be loaded at once"),
            Self::Evict(models) => list(f, "it would be loaded after evicting ", models, ""),
            Self::WaitForBusy(models) => list(f, "it would wait until ", models, " finish their work (I1)"),
            Self::WaitForLoads(models) => list(f, "it would wait for the loads of ", models, " (I5)"),
            Self::WaitForClaims(models) => {
                list(f, "its room is claimed by earlier loads of ", models, " (I5)")
            }
            Self::WaitForLost(models) => list(f, "lost workers may still run ", models, " in its room"),
            Self::Refuse(error) => write!(f, "{error}"),
        }
    }
}
