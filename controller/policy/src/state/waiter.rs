//! An open `EnsureLoaded` stream: the interest in a model, and the hold on an instance (PROTOCOL 9).
//!
//! ```text
//!   Waiting ──► Placing (PlaceHold sent, or part of Load) ──► Held (told Ready) ── stream closed ──► released
//!      ▲            │ refused                                    │ instance lost
//!      └────────────┴────────────────────────────────────────────┘
//! ```

use crate::api::Stage;
use muster_core::{InstanceId, ModelId, WorkerId};

/// One stream.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) model: ModelId,
    pub(crate) avoid_instances: Vec<InstanceId>,
    pub(crate) avoid_workers: Vec<WorkerId>,
    pub(crate) place: Place,
    /// What it was told last.
    pub(crate) told: Option<Stage>,
}

/// Where its hold is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere yet.
    Waiting,
    /// On its way to that instance.
    Placing(InstanceId),
    /// In place there.
    Held(InstanceId),
}

impl Waiter {
    /// The instance it holds or is about to hold.
    pub(crate) fn instance(&self) -> Option<&InstanceId> {
        match &self.place {
            Place::Waiting => None,
            Place::Placing(id) | Place::Held(id) => Some(id),
        }
    }
}
