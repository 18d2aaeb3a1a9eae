//! An open `EnsureLoaded` stream: the interest in a model, and the hold on an instance (PROTOCOL 9).
//!
//! ```text
//!   Waiting ──► Placing (PlaceHold sent, or part of Load) ──► Held (told Ready) ── stream closed ──► released
//!      ▲            │ refused                                    │ instance lost
//!      └────────────┴────────────────────────────────────────────┘
//! ```

use crate::api::Stage;
use muster_core::{InstanceId, ModelId, WorkerId};

/// An open stream and what it was told.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) model: ModelId,
    pub(crate) avoid_instances: Vec<InstanceId>,
    pub(crate) avoid_workers: Vec<WorkerId>,
    pub(crate) place: Place,
    /// The stage sent last.
    pub(crate) told: Option<Stage>,
}

/// Where the stream's hold is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// On no instance.
    Waiting,
    /// On its way to this instance.
    Placing(InstanceId),
    /// In place at this instance.
    Held(InstanceId),
}

impl Waiter {
    /// The instance that has the hold or is about to get it.
    pub(crate) fn instance(&self) -> Option<&InstanceId> {
        match &self.place {
            Place::Waiting => None,
            Place::Placing(id) | Place::Held(id) => Some(id),
        }
    }
}
