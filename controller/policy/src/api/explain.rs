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

/// The whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The model.
    pub model: ModelId,
    /// Its state now.
    pub state: ModelState,
    /// Its place in the load queue, from 1, if it waits there.
    pub queue_position: Option<u32>,
    /// What would be done.
    pub verdict: Verdict,
    /// Places where it could go, the chosen one first.
    pub places: Vec<PlaceView>,
    /// Places left out.
    pub more: usize,
}

/// What would be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: these instances take its requests, or will once they are loaded.
    Here(Vec<InstanceId>),
    /// It would be loaded at once.
    Load,
    /// These idle models would go first.
    Evict(Vec<ModelId>),
    /// These models would have to finish their work first (I1).
    WaitForBusy(Vec<ModelId>),
    /// These models' loads go first (I5).
    WaitForLoads(Vec<ModelId>),
    /// The room is claimed by loads of these models that came earlier (I5).
    WaitForClaims(Vec<ModelId>),
    /// These models' workers are lost, and they may still run (PROTOCOL 1).
    WaitForLost(Vec<ModelId>),
    /// It would be refused, or wait in vain.
    Refuse(LoadError),
}

/// A place where the model could go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceView {
    /// The worker.
    pub worker: WorkerId,
    /// Its host.
    pub host: HostId,
    /// Which of the model's needs it meets, from 0; lower is preferred.
    pub need: usize,
    /// What it takes on each device.
    pub parts: Vec<PartView>,
    /// Who would have to go; nobody if something else stands in the way whoever goes.
    pub victims: Vec<VictimView>,
    /// What no eviction can remove; none if evicting the victims is enough.
    pub obstruction: Option<Obstruction>,
    /// Policy would choose this place.
    pub chosen: bool,
}

/// What a place takes on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartView {
    /// The device.
    pub device: DeviceId,
    /// What it is.
    pub kind: DeviceKind,
    /// Bytes wanted there.
    pub wanted: Bytes,
    /// All its memory.
    pub capacity: Bytes,
    /// Bytes that instances reserved or are seen to use.
    pub committed: Bytes,
    /// Free memory by a sample that can be relied on.
    pub free: Option<Bytes>,
    /// Bytes for this load without evicting anybody, after earlier claims and the margin.
    pub possible: Bytes,
}

/// An instance that would have to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VictimView {
    /// The instance.
    pub instance: InstanceId,
    /// Its model.
    pub model: ModelId,
    /// By which rule.
    pub rule: EvictionRule,
    /// Whether it could go now.
    pub standing: VictimStanding,
    /// Its last use.
    pub last_used: Option<Moment>,
    /// What would come back.
    pub reservations: Vec<Reservation>,
}

/// Whether a victim could go now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VictimStanding {
    /// Yes.
    Idle,
    /// It takes nothing new and finishes what it has.
    Finishing,
    /// Not yet.
    Busy {
        /// Not before so long from now, as things are; none if that depends on its work.
        at_least: Option<Duration>,
    },
}

/// What keeps a load from a place whoever is evicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Obstruction {
    /// Claims of earlier loads, for these models.
    Claims(Vec<ModelId>),
    /// Instances of lost workers.
    Lost(Vec<ModelId>),
    /// Pinned models (I6).
    Pinned(Vec<ModelId>),
    /// Memory that other programs use (I4).
    OtherPrograms {
        /// The device.
        device: DeviceKey,
        /// Bytes wanted.
        wanted: Bytes,
        /// Bytes possible.
        possible: Bytes,
    },
}

impl Verdict {
    /// One word for tables.
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
