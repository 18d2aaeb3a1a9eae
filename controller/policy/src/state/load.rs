//! A load that waits in the queue.
//!
//! ```text
//!   wanted ──► queued ⇄ claiming ──► (an instance in state Loading) ──► done
//!                 ▲                        │          │
//!                 └── worker lost (I8) ────┘          └── failed ──► queued with Goal::RetryAt (I7), once ──► failed
//!   queued or claiming ── nobody waits ──► dropped
//! ```
//!
//! Invariants: one queued load per model at most; ids order the queue, and a load keeps its id (its place) when it comes back.

use std::sync::Arc;

use crate::api::{Group, ModelSpec, Moment, Origin, Reservation, WaitReason, WorkerFailure};
use muster_core::{HostId, InstanceId, ModelId, WorkerId};

/// A load's place in the queue; lower ids come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoadId(pub(crate) u64);

/// A load that somebody asked for.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) id: LoadId,
    pub(crate) model: ModelId,
    /// The model's spec when the load was asked for. What it asks for does not change; what is known of how and where it can run may.
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) origin: Origin,
    /// 1, or 2 after everything on the host was evicted for it (I7).
    pub(crate) attempt: u32,
    /// How often the worker that loaded it was lost.
    pub(crate) lost: u32,
    pub(crate) goal: Goal,
    /// The replica group that it belongs to, once a replica of it was started.
    pub(crate) group: Option<Group>,
    /// Since when it waits for a worker that can host it, or for a ghost to end.
    pub(crate) stuck_since: Option<Moment>,
    /// Since when it waits for busy instances.
    pub(crate) blocked_since: Option<Moment>,
    /// Since when it waits only for instances that finish their last requests.
    pub(crate) drains_since: Option<Moment>,
    pub(crate) standing: Standing,
}

/// Where a load may go.
#[derive(Debug, Clone)]
pub(crate) enum Goal {
    /// The best place that policy finds.
    Anywhere,
    /// The host where its engine failed: every unpinned instance goes, then the load is tried once more (I7).
    RetryAt {
        worker: WorkerId,
        host: HostId,
        failure: WorkerFailure,
    },
}

/// What was decided about a load in the last pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It waits.
    Waiting {
        reason: WaitReason,
        blocked_by: Vec<ModelId>,
    },
    /// Instances of these models are being evicted for it.
    Evicting { models: Vec<ModelId> },
}

impl Standing {
    /// The standing of a load on which nothing was decided yet.
    fn queued() -> Self {
        Self::Waiting {
            reason: WaitReason::LoadSlot,
            blocked_by: Vec::new(),
        }
    }
}

/// What a load has set aside in one pass over the queue (I5). Claims are taken whole and decided anew in each pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) model: ModelId,
    pub(crate) kind: muster_core::ModelType,
    pub(crate) host: HostId,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) victims: Vec<InstanceId>,
    pub(crate) delay: Delay,
}

/// Why a load that has claimed its place has not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    /// Idle instances are being evicted, or engines on its devices are ending.
    MakingRoom,
    /// It waits for a memory sample that shows the last start or exit on its devices.
    Sample,
    /// Instances that it would evict are busy.
    Busy,
    /// Other loads take the host's load slots or run on its devices.
    Loads,
    /// An instance that is ending finishes its requests first.
    Drain,
    /// An earlier claim has the room.
    Claims,
}

impl Delay {
    /// Whether it waits for requests to finish, which may take for ever.
    pub(crate) fn waits_for_work(self) -> bool {
        match self {
            Self::Busy | Self::Drain | Self::Claims => true,
            Self::MakingRoom | Self::Sample | Self::Loads => false,
        }
    }

    /// Whether it keeps the host's next load slot (I5): only if everything it waits for happens soon. A claim that waits for requests or
    /// for other loads keeps its room, and later loads may start beside it.
    pub(crate) fn keeps_load_slot(self) -> bool {
        match self {
            Self::MakingRoom | Self::Sample => true,
            Self::Busy | Self::Loads | Self::Drain | Self::Claims => false,
        }
    }
}

impl Load {
    /// A load that was just asked for.
    pub(crate) fn new(id: LoadId, spec: Arc<ModelSpec>, origin: Origin) -> Self {
        Self {
            id,
            model: spec.id.clone(),
            spec,
            origin,
            attempt: 1,
            lost: 0,
            goal: Goal::Anywhere,
            group: None,
            stuck_since: None,
            blocked_since: None,
            drains_since: None,
            standing: Standing::queued(),
        }
    }

    /// The load back in its place in the queue. Its waiting times begin anew.
    pub(crate) fn requeued(self) -> Self {
        Self {
            stuck_since: None,
            blocked_since: None,
            drains_since: None,
            standing: Standing::queued(),
            ..self
        }
    }

    /// Whether it goes on when nobody waits for it any more (I8).
    pub(crate) fn explicit(&self) -> bool {
        match self.origin {
            Origin::Auto => false,
            Origin::Admin | Origin::Preload => true,
        }
    }
}
