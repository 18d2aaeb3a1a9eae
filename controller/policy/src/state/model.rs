//! A model: a catalogue entry, or what remains of one until its last instance has ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::load::LoadId;
use crate::api::{LoadError, ModelSpec, ModelState, Moment, Stage};
use muster_core::{HoldId, InstanceId, RequestId};

/// A model with its instances, callers and last failure.
#[derive(Debug)]
pub(crate) struct Model {
    /// None if the model left the catalogue.
    pub(crate) spec: Option<Arc<ModelSpec>>,
    pub(crate) instances: BTreeSet<InstanceId>,
    pub(crate) waiters: BTreeSet<HoldId>,
    /// Operators' calls that wait for a load to end.
    pub(crate) loads: Vec<WaitingCall>,
    /// Operators' calls that wait for an unload to end.
    pub(crate) unloads: Vec<RequestId>,
    pub(crate) queued: Option<LoadId>,
    pub(crate) failure: Option<Failure>,
    /// Number of failed loads in a row.
    pub(crate) strikes: u32,
    /// The spec it was loaded with last. It can differ from the catalogue's by an operator's overrides.
    pub(crate) loaded_with: Option<Arc<ModelSpec>>,
    /// Number of loads that replaced lost replicas since the model was loaded.
    pub(crate) refills: u32,
    /// The state announced last; none before the first announcement.
    pub(crate) shown: Option<ModelState>,
}

/// An operator's call that waits for a load.
#[derive(Debug)]
pub(crate) struct WaitingCall {
    pub(crate) request: RequestId,
    /// The stage sent last.
    pub(crate) told: Option<Stage>,
}

/// Why a model is `failed`.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: LoadError,
    /// Requests may not cause a load before this moment; none = they may at once.
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

    /// The last failure no longer applies, since a load would now use other settings: the next request may load the model.
    pub(crate) fn failure_is_old_news(&mut self) {
        self.strikes = 0;
        if let Some(failure) = &mut self.failure {
            failure.retry_at = None;
        }
    }

    /// Whether nothing refers to the model any more.
    pub(crate) fn forgettable(&self) -> bool {
        self.spec.is_none()
            && self.instances.is_empty()
            && self.waiters.is_empty()
            && self.queued.is_none()
            && self.loads.is_empty()
            && self.unloads.is_empty()
    }
}
