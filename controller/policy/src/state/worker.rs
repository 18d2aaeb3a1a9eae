//! A worker: connected, or away (lost, or known from the roster only).

use std::collections::BTreeSet;

use crate::api::{Moment, WorkerFacts};
use muster_core::InstanceId;

/// A worker.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) facts: WorkerFacts,
    pub(crate) presence: Presence,
    /// Its instances; while it is away, ghosts.
    pub(crate) instances: BTreeSet<InstanceId>,
    /// Those whose end an outcome told, until this session reports it too: what it reports of them meanwhile was written before.
    pub(crate) ended: BTreeSet<InstanceId>,
}

/// Whether its session is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Connected since then.
    Connected(Moment),
    /// Away since then.
    Away(Moment),
}

impl Worker {
    pub(crate) fn connected(&self) -> bool {
        match self.presence {
            Presence::Connected(_) => true,
            Presence::Away(_) => false,
        }
    }

    /// It takes loads now.
    pub(crate) fn takes_loads(&self) -> bool {
        self.connected() && !self.facts.draining
    }
}
