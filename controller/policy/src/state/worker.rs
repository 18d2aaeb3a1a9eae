//! A worker: connected, or away (lost, or known from the roster only).

use std::collections::BTreeSet;

use crate::api::{Moment, WorkerFacts};
use muster_core::InstanceId;

/// A worker, connected or not.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) facts: WorkerFacts,
    pub(crate) presence: Presence,
    /// Its instances; they are ghosts while it is away.
    pub(crate) instances: BTreeSet<InstanceId>,
    /// Instances whose end an outcome told and this session has not reported yet. Reports of them until then are older than their end.
    pub(crate) ended: BTreeSet<InstanceId>,
}

/// Whether its session is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Connected since this moment.
    Connected(Moment),
    /// Away since this moment.
    Away(Moment),
}

impl Worker {
    pub(crate) fn connected(&self) -> bool {
        match self.presence {
            Presence::Connected(_) => true,
            Presence::Away(_) => false,
        }
    }

    /// Whether it takes new loads now.
    pub(crate) fn takes_loads(&self) -> bool {
        self.connected() && !self.facts.draining
    }
}
