//! What policy decided and why, for people (`WatchEvents`, logs).

use std::fmt;
use std::time::Duration;

use super::failure::LoadError;
use super::spec::Reservation;
use muster_core::{InstanceId, ModelId, WorkerId};

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// What.
    pub kind: DecisionKind,
    /// The model concerned.
    pub model: Option<ModelId>,
    /// The instance concerned.
    pub instance: Option<InstanceId>,
    /// The worker concerned.
    pub worker: Option<WorkerId>,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionKind {
    /// A load joined the queue.
    LoadQueued,
    /// A load began.
    LoadStarted {
        /// Which attempt.
        attempt: u32,
        /// Which of the model's needs its place meets, from 0; lower is preferred.
        need: usize,
        /// What was set aside for it.
        reservations: Vec<Reservation>,
    },
    /// A load ended well.
    Loaded,
    /// A load failed, or a loaded engine ended by itself.
    Failed(LoadError),
    /// A failed load is tried once more after everything idle on the host was evicted (I7).
    RetryAfterEvictingAll,
    /// A load was refused, or given up.
    Refused(LoadError),
    /// A queued load was dropped, or a running one cancelled: nobody waits for it (I8).
    Abandoned,
    /// A queued load was dropped: instances of the model take its requests again.
    Needless,
    /// An instance is evicted for a load.
    Evicting {
        /// For which model.
        for_model: ModelId,
        /// By which rule.
        rule: EvictionRule,
    },
    /// An instance takes no new work, so that it can make room.
    Quiescing {
        /// For which model.
        for_model: ModelId,
        /// Why it is not evicted at once.
        why: Quiesce,
    },
    /// An instance is unloaded though nobody needs its room: it was idle for longer than it may be.
    TtlOver {
        /// How long it may be idle.
        ttl: Duration,
    },
    /// An instance is unloaded since its model left the catalogue.
    NotInCatalogue,
    /// An instance is unloaded since its model has more of them than it is to have.
    Surplus,
    /// All replicas of a model are ready and take requests.
    GroupPublished {
        /// How many.
        size: usize,
    },
    /// A replica is unloaded before it took requests: another one of its group could not be loaded.
    GroupTornDown,
    /// A replica ended by itself; another one is loaded in its place.
    Refilling,
    /// An eviction did not happen: the victim was in use again.
    EvictionRefused,
    /// Victims of a plan that fell apart take work again.
    Resumed,
    /// An operator unloads.
    OperatorUnload,
    /// An instance ended.
    Unloaded,
    /// A worker joined.
    WorkerJoined,
    /// A worker's session was lost; its instances became ghosts.
    WorkerLost,
    /// A worker ended in order.
    WorkerLeft,
    /// A lost instance turned out to be gone.
    GhostEnded,
    /// The fleet settled after a start.
    Settled,
}

/// Why an instance takes no new work first, before it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiesce {
    /// It is one of several idle ones that go only if all of them are idle (PROTOCOL 10).
    AllOrNone,
    /// It is busy, and finishes what it has (PROTOCOL 11).
    Patience {
        /// How long the load has waited for it.
        waited: Duration,
    },
}

/// Why an instance was chosen to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionRule {
    /// Least recently used of its type on a full host (I2).
    TypeSlot,
    /// The device takes one model only (I3).
    ExclusiveDevice,
    /// The device is short of memory (I4).
    Memory,
    /// Everything goes after a failed load (I7).
    FailedLoad,
}

impl EvictionRule {
    /// The rule's name (I1 to I10) and in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TypeSlot => "type slot (I2)",
            Self::ExclusiveDevice => "exclusive device (I3)",
            Self::Memory => "memory (I4)",
            Self::FailedLoad => "failed load (I7)",
        }
    }
}

impl DecisionKind {
    /// The event's word in `WatchEvents`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::LoadQueued => "load_queued",
            Self::LoadStarted { .. } => "load_started",
            Self::Loaded => "loaded",
            Self::Failed(_) => "load_failed",
            Self::RetryAfterEvictingAll => "load_retry",
            Self::Refused(_) => "load_refused",
            Self::Abandoned => "load_abandoned",
            Self::Needless => "load_needless",
            Self::Evicting { .. } => "evicting",
            Self::Quiescing { .. } => "quiescing",
            Self::TtlOver { .. } => "idle_ttl",
            Self::NotInCatalogue => "not_in_catalogue",
            Self::Surplus => "surplus",
            Self::GroupPublished { .. } => "group_published",
            Self::GroupTornDown => "group_torn_down",
            Self::Refilling => "refilling",
            Self::EvictionRefused => "eviction_refused",
            Self::Resumed => "resumed",
            Self::OperatorUnload => "unloading",
            Self::Unloaded => "unloaded",
            Self::WorkerJoined => "worker_joined",
            Self::WorkerLost => "worker_lost",
            Self::WorkerLeft => "worker_left",
            Self::GhostEnded => "ghost_ended",
            Self::Settled => "settled",
        }
    }
}

impl fmt::Display for DecisionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LoadQueued => f.write_str("waits in the load queue"),
            Self::LoadStarted {
                attempt,
                need,
                reservations,
            } => {
                let parts: Vec<String> = reservations
                    .iter()
                    .map(|part| format!("{} on {}", part.bytes, part.device))
                    .collect();
                write!(f, "attempt {attempt} begins with {}", parts.join(", "))?;
                match need {
                    0 => Ok(()),
                    rank => write!(f, ", choice {} of how to host it", rank + 1),
                }
            }
            Self::Loaded => f.write_str("takes requests"),
            Self::Failed(error) | Self::Refused(error) => write!(f, "{error}"),
            Self::RetryAfterEvictingAll => f.write_str(
                "the engine failed to load: evicting all idle models of the host, then one retry (I7)",
            ),
            Self::Abandoned => f.write_str("nobody waits for it any more (I8)"),
            Self::Needless => f.write_str("instances that were there before take its requests again"),
            Self::Evicting { for_model, rule } => write!(f, "makes room for '{for_model}': {}", rule.name()),
            Self::Quiescing { for_model, why } => match why {
                Quiesce::AllOrNone => write!(
                    f,
                    "takes no new requests: it goes for '{for_model}' if all whose room that takes are idle"
                ),
                Quiesce::Patience { waited } => write!(
                    f,
                    "takes no new requests: '{for_model}' has waited {} ms for its room",
                    waited.as_millis()
                ),
            },
            Self::TtlOver { ttl } => write!(f, "unloaded after {} ms without use", ttl.as_millis()),
            Self::NotInCatalogue => f.write_str("unloaded as it is idle: it left the catalogue"),
            Self::Surplus => f.write_str("unloaded as it is idle: others of its model are enough"),
            Self::GroupPublished { size } => write!(f, "all replicas are ready: {size} more take requests"),
            Self::GroupTornDown => f.write_str("unloaded: another replica of its group could not be loaded"),
            Self::Refilling => f.write_str("one of its replicas ended; another one is loaded"),
            Self::EvictionRefused => f.write_str("was in use again; planned anew"),
            Self::Resumed => f.write_str("takes work again: the plan it was to go for fell apart"),
            Self::OperatorUnload => f.write_str("unloaded by an operator"),
            Self::Unloaded => f.write_str("ended, memory is back"),
            Self::WorkerJoined => f.write_str("joined"),
            Self::WorkerLost => f.write_str("session lost; its engines may still run"),
            Self::WorkerLeft => f.write_str("left in order"),
            Self::GhostEnded => f.write_str("is gone"),
            Self::Settled => f.write_str("all known workers have been heard or had their time"),
        }
    }
}
