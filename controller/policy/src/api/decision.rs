//! What policy decided and why, in words for people. `WatchEvents` and the log show it.

use std::fmt;
use std::time::Duration;

use super::failure::LoadError;
use super::spec::Reservation;
use muster_core::{InstanceId, ModelId, WorkerId};

/// One decision, with the model, instance and worker it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub kind: DecisionKind,
    /// None if the decision is not about one model.
    pub model: Option<ModelId>,
    /// None if the decision is not about one instance.
    pub instance: Option<InstanceId>,
    /// None if the decision is not about one worker.
    pub worker: Option<WorkerId>,
}

/// What policy decided or noticed. [`word`](Self::word) is for programs, `Display` for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DecisionKind {
    /// A load joined the queue.
    LoadQueued,
    /// A load began.
    LoadStarted {
        attempt: u32,
        /// Index into the model's `needs`: 0 is the preferred way to host it.
        need: usize,
        /// Memory set aside for the load, per device.
        reservations: Vec<Reservation>,
    },
    /// The model is loaded and takes requests.
    Loaded,
    /// A load failed, or a loaded engine ended by itself.
    Failed(LoadError),
    /// A failed load is tried once more after everything idle on the host was evicted (I7).
    RetryAfterEvictingAll,
    /// A load was refused at once, or given up after waiting.
    Refused(LoadError),
    /// A queued load was dropped, or a running one cancelled: nobody waits for it (I8).
    Abandoned,
    /// A queued load was dropped: instances of the model take its requests again.
    Needless,
    /// An instance is unloaded to make room for another model's load.
    Evicting {
        for_model: ModelId,
        /// The rule that chose this instance.
        rule: EvictionRule,
    },
    /// An instance stops taking requests because another model needs its room.
    Quiescing {
        for_model: ModelId,
        /// Why it is not evicted at once.
        why: Quiesce,
    },
    /// An instance was idle for longer than its time to live, so it is unloaded although no load needs its room.
    TtlOver {
        /// The model's idle time to live.
        ttl: Duration,
    },
    /// An idle instance is unloaded because its model left the catalogue.
    NotInCatalogue,
    /// An idle instance is unloaded because its model has more replicas than configured.
    Surplus,
    /// All replicas of a model are ready and take requests.
    GroupPublished {
        /// Number of replicas that begin to take requests.
        size: usize,
    },
    /// A replica is unloaded before it took any request, because another replica of its group failed to load.
    GroupTornDown,
    /// A replica ended by itself; a new one is loaded in its place.
    Refilling,
    /// The worker refused an eviction: the instance was in use again.
    EvictionRefused,
    /// An eviction was called off; the quiesced instance takes requests again.
    Resumed,
    OperatorUnload,
    /// An instance ended and its memory is free.
    Unloaded,
    WorkerJoined,
    /// A worker's session was lost; its instances became ghosts.
    WorkerLost,
    /// A worker shut down in order.
    WorkerLeft,
    /// An instance of a lost worker turned out to have ended.
    GhostEnded,
    /// The controller has heard from all known workers after its start, or has waited long enough for them.
    Settled,
}

/// Why an instance is quiesced (takes no new requests) before it is evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiesce {
    /// The load needs several idle instances gone: they are quiesced first, and go only if all of them stay idle (PROTOCOL 10).
    AllOrNone,
    /// The instance is busy: it finishes its requests and then goes (PROTOCOL 11).
    Patience {
        /// How long the load had waited for the instance.
        waited: Duration,
    },
}

/// Which rule chose an instance for eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionRule {
    /// The host has reached its limit for the type: the least recently used instance of that type goes (I2).
    TypeSlot,
    /// The device takes one model at a time (I3).
    ExclusiveDevice,
    /// The device is short of memory (I4).
    Memory,
    /// An engine failed to load: every idle instance of the host goes before the retry (I7).
    FailedLoad,
}

impl EvictionRule {
    /// The rule in words, with its number (I2 to I7).
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
    /// The event's name in `WatchEvents`.
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
