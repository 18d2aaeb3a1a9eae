//! A model: a catalogue entry, or what is left of one while its instances end.
//!
//! ```text
//!   unloaded ──► loading ──► loaded ──► unloading ──► unloaded
//!                  │ ▲          └── last replica lost ──┐
//!                  ▼ └──────────────────────────────────▼
//!               failed ◄──────────────────────────── failed
//! ```
//!
//! What users see is derived from instances, queue and failure; nothing else stores it.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::load::LoadId;
use crate::api::{LoadError, ModelSpec, ModelState, Moment, Stage};
use muster_core::{HoldId, InstanceId, RequestId};

/// A model.
#[derive(Debug)]
pub(crate) struct Model {
    /// Its catalogue entry; none if it left the catalogue.
    pub(crate) spec: Option<Arc<ModelSpec>>,
    pub(crate) instances: BTreeSet<InstanceId>,
    pub(crate) waiters: BTreeSet<HoldId>,
    /// Operators' calls that wait for a load to end.
    pub(crate) loads: Vec<WaitingCall>,
    /// Operators' calls that wait for an unload to end.
    pub(crate) unloads: Vec<RequestId>,
    pub(crate) queued: Option<LoadId>,
    pub(crate) failure: Option<Failure>,
    /// Failed loads in a row.
    pub(crate) strikes: u32,
    /// What it was loaded with last: an operator's overrides are not in the catalogue.
    pub(crate) loaded_with: Option<Arc<ModelSpec>>,
    /// Loads of what it lacked, since it was loaded.
    pub(crate) refills: u32,
    /// Its state as last announced; none before the first time.
    pub(crate) shown: Option<ModelState>,
}

/// An operator's call that waits.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    pub(crate) request: RequestId,
    /// What it was told last.
    pub(crate) told: Option<Stage>,
}

/// Why a model is `failed`.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: LoadError,
    /// Until then automatic loads are refused; none if the next request may load it again.
    pub(crate) retry_at: Option<Moment>,
}

impl Model {
    pub(crate) fn new(spec: Option<Arc<ModelSpec>>) -> Self {
        Self {
            spec,
            instances: BTreeSet::new(),
            waiters: BTreeSet::new(),
            loads: Vec::new(),
            unloads: Vec::new(),
            queued: None,
            failure: None,
            strikes: 0,
            loaded_with: None,
            refills: 0,
            shown: None,
        }
    }

    /// What failed is not what a load would try now: the next request may.
    pub(crate) fn failure_is_old_news(&mut self) {
        self.strikes = 0;
        if let Some(failure) = &mut self.failure {
            failure.retry_at = None;
        }
    }

    /// Nothing is left of it.
    pub(crate) fn forgettable(&self) -> bool {
        self.spec.is_none()
            && self.instances.is_empty()
            && self.waiters.is_empty()
            && self.queued.is_none()
            && self.loads.is_empty()
            && self.unloads.is_empty()
    }
}
