//! Writes roster and observations in the background, so that the driver never waits for a disk.
//!
//! Only the newest value counts: a `watch` channel holds one, and what was overtaken is never written. When the handle is dropped, what is
//! still unwritten is written and the task ends. A failed write is logged and repeated with the next change; losing the roster only makes
//! the next start settle without it.

use std::{collections::BTreeMap, sync::Arc};

use muster_policy::{WorkerFacts, WorkerId};
use tokio::{sync::watch, task::JoinHandle};

use super::{StateDir, StateError};
use crate::estimate::Observed;

/// Handle of the task.
#[derive(Debug)]
pub(crate) struct Writer {
    state: Arc<StateDir>,
    roster: BTreeMap<WorkerId, WorkerFacts>,
    sender: watch::Sender<Pending>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct Pending {
    roster: Option<Vec<WorkerFacts>>,
    observed: Option<Observed>,
}

impl Writer {
    /// Starts the task; `roster` is what is on disk.
    pub(crate) fn spawn(state: StateDir, roster: &[WorkerFacts]) -> Self {
        let state = Arc::new(state);
        let (sender, receiver) = watch::channel(Pending::default());
        let task = tokio::spawn(write(Arc::clone(&state), receiver));
        let roster = roster
            .iter()
            .map(|facts| (facts.id.clone(), facts.clone()))
            .collect();
        Self {
            state,
            roster,
            sender,
            task,
        }
    }

    /// Keeps a worker.
    pub(crate) fn put(&mut self, facts: WorkerFacts) {
        self.roster.insert(facts.id.clone(), facts);
        self.save_roster();
    }

    /// Drops a worker.
    pub(crate) fn remove(&mut self, worker: &WorkerId) {
        if self.roster.remove(worker).is_some() {
            self.save_roster();
        }
    }

    /// Writes what was learned about memory.
    pub(crate) fn observed(&self, observed: &Observed) {
        self.sender
            .send_modify(|pending| pending.observed = Some(observed.clone()));
    }

    /// Raises the epoch, at once: nothing may be said under an epoch that a restart could repeat.
    ///
    /// # Errors
    /// The epoch cannot be written.
    pub(crate) fn raise_epoch(&self, seen: u64) -> Result<u64, StateError> {
        self.state.raise_epoch(seen)
    }

    /// Writes what is unwritten and ends the task.
    pub(crate) async fn finish(self) {
        drop(self.sender);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the state writer failed");
        }
    }

    fn save_roster(&self) {
        let roster: Vec<WorkerFacts> = self.roster.values().cloned().collect();
        self.sender.send_modify(|pending| pending.roster = Some(roster));
    }
}

async fn write(state: Arc<StateDir>, mut receiver: watch::Receiver<Pending>) {
    let mut written = Pending::default();
    while receiver.changed().await.is_ok() {
        let pending = receiver.borrow_and_update().clone();
        let roster = pending
            .roster
            .clone()
            .filter(|roster| written.roster.as_ref() != Some(roster));
        let observed = pending
            .observed
            .clone()
            .filter(|observed| written.observed.as_ref() != Some(observed));
        let state = Arc::clone(&state);
        let save = move || -> Result<(), StateError> {
            roster.map_or(Ok(()), |roster| state.save_roster(&roster))?;
            observed.map_or(Ok(()), |observed| state.save_observed(&observed))
        };
        match tokio::task::spawn_blocking(save).await {
            Ok(Ok(())) => written = pending,
            Ok(Err(error)) => tracing::error!(error = ?error, "state could not be written"),
            Err(error) => tracing::error!(%error, "the state writer was ended"),
        }
    }
}
