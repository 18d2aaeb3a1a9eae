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

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LoadId(pub(crate) u64);

/// A load.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    pub(crate) id: LoadId,
    pub(crate) model: ModelId,
    /// Frozen when the load was asked for.
    pub(crate) spec: Arc<ModelSpec>,
    pub(crate) origin: Origin,
    /// 1, or 2 after everything was evicted for it.
    pub(crate) attempt: u32,
    /// How often its worker was lost on the way.
    pub(crate) lost: u32,
    pub(crate) goal: Goal,
    /// The replica group it is a part of, once one of it was started.
    pub(crate) group: Option<Group>,
    /// Since when it waits for a worker that could host it, or for a ghost to end.
    pub(crate) stuck_since: Option<Moment>,
    /// Since when it waits for busy victims.
    pub(crate) blocked_since: Option<Moment>,
    /// Since when those in its way only finish their work.
    pub(crate) drains_since: Option<Moment>,
    pub(crate) standing: Standing,
}

/// Where it may go.
#[derive(Debug, Clone)]
pub(crate) enum Goal {
    /// Wherever policy finds best.
    Anywhere,
    /// Its engine failed to load there: everything unpinned on the host goes, then it is tried once more (I7).
    RetryAt {
        worker: WorkerId,
        host: HostId,
        failure: WorkerFailure,
    },
}

/// How it stands, as last decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It waits for something else to happen.
    Waiting {
        reason: WaitReason,
        blocked_by: Vec<ModelId>,
    },
    /// Room is being made for it.
    Evicting { models: Vec<ModelId> },
}

impl Standing {
    /// Nothing was decided yet.
    fn queued() -> Self {
        Self::Waiting {
            reason: WaitReason::LoadSlot,
            blocked_by: Vec::new(),
        }
    }
}

/// What a load has set aside in one pass over the queue (I5): taken whole, decided anew at each pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) model: ModelId,
    pub(crate) kind: muster_core::ModelType,
    pub(crate) host: HostId,
    pub(crate) reservations: Vec<Reservation>,
    pub(crate) victims: Vec<InstanceId>,
    pub(crate) delay: Delay,
}

/// Why a load that has claimed its place has not begun there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delay {
    /// Idle victims are told to go, or engines on its devices end.
    MakingRoom,
    /// No memory sample shows the last start or exit on its devices yet.
    Sample,
    /// Busy victims, which have to become idle first.
    Busy,
    /// Other loads have the host's load slots, or run on its devices.
    Loads,
    /// Somebody on its way out finishes work first, for as long as that takes.
    Drain,
    /// The room is there, but an earlier claim has it.
    Claims,
}

impl Delay {
    /// Whether it waits for somebody to end their work, which may take for ever.
    pub(crate) fn waits_for_work(self) -> bool {
        match self {
            Self::Busy | Self::Drain | Self::Claims => true,
            Self::MakingRoom | Self::Sample | Self::Loads => false,
        }
    }

    /// Whether the next load slot of the host is its own (I5): only if all it waits for is about to happen. A claim that waits for
    /// work, or for other loads, keeps its room and lets later loads begin beside it.
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

    /// It goes back to its place in the queue, and its waits begin anew.
    pub(crate) fn requeued(self) -> Self {
        Self {
            stuck_since: None,
            blocked_since: None,
            drains_since: None,
            standing: Standing::queued(),
            ..self
        }
    }

    /// Whether it goes on without anybody waiting for it (I8).
    pub(crate) fn explicit(&self) -> bool {
        match self.origin {
            Origin::Auto => false,
            Origin::Admin | Origin::Preload => true,
        }
    }
}
