//! Writes roster, observations, pins and what users made in the background, so that the driver never waits for a disk.
//!
//! Only the newest value counts: a `watch` channel holds one, and what was overtaken is never written. When the handle is dropped, what is
//! still unwritten is written and the task ends. A failed write is logged and repeated with the next change; losing the roster only makes
//! the next start settle without it. Who must know whether it is on disk ([`Writer::pins`]) waits for its turn to be over.

use std::{path::Path, sync::Arc, time::SystemTime};

use muster_policy::{WorkerFacts, WorkerId};
use muster_proto::life::Life;
use tokio::{sync::watch, task::JoinHandle};

use super::{Own, Pins, Roster, StateDir, StateError};
use crate::estimate::Observed;

/// Handle of the task.
#[derive(Debug)]
pub(crate) struct Writer {
    state: Arc<StateDir>,
    roster: Roster,
    sender: watch::Sender<Pending>,
    written: watch::Receiver<Written>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct Pending {
    roster: Option<Roster>,
    observed: Option<Observed>,
    pins: Option<Pins>,
    own: Option<Own>,
    /// Counts changes of both.
    turn: u64,
}

/// How far the task is.
#[derive(Debug, Clone)]
struct Written {
    /// [`Pending::turn`] of what it wrote last.
    turn: u64,
    /// Why it could not.
    failed: Option<Arc<StateError>>,
}

/// A change on its way to the disk.
#[derive(Debug)]
pub(crate) struct Saving {
    turn: u64,
    written: watch::Receiver<Written>,
}

impl Saving {
    /// Resolves when the change is on disk.
    ///
    /// # Errors
    /// It could not be written; none if the task ended before its turn.
    pub(crate) async fn done(mut self) -> Result<(), Option<Arc<StateError>>> {
        let turn = self.turn;
        let written = self.written.wait_for(|written| written.turn >= turn).await;
        match written.map(|written| written.failed.clone()) {
            Ok(None) => Ok(()),
            Ok(failed) => Err(failed),
            Err(_) => Err(None),
        }
    }
}

impl Writer {
    /// Starts the task; `roster` is what is on disk.
    pub(crate) fn spawn(state: StateDir, roster: Roster, life: &Life) -> Self {
        let state = Arc::new(state);
        let (sender, receiver) = watch::channel(Pending::default());
        let (done, written) = watch::channel(Written {
            turn: 0,
            failed: None,
        });
        let task = tokio::spawn(life.part("writer").run(write(Arc::clone(&state), receiver, done)));
        Self {
            state,
            roster,
            sender,
            written,
            task,
        }
    }

    /// Keeps a worker.
    pub(crate) fn put(&mut self, facts: WorkerFacts) {
        self.roster.put(facts);
        self.save_roster();
    }

    /// Notes that a worker went away, in order or not.
    pub(crate) fn away(&mut self, worker: &WorkerId, in_order: bool) {
        if self.roster.away(worker, in_order, SystemTime::now()) {
            self.save_roster();
        }
    }

    /// Workers that are taken to be here.
    pub(crate) fn here(&self) -> Vec<WorkerId> {
        self.roster.here().cloned().collect()
    }

    /// Drops a worker.
    pub(crate) fn remove(&mut self, worker: &WorkerId) {
        if self.roster.remove(worker) {
            self.save_roster();
        }
    }

    /// Writes what was learned about memory.
    pub(crate) fn observed(&self, observed: &Observed) {
        self.sender
            .send_modify(|pending| pending.observed = Some(observed.clone()));
    }

    /// Where it all is.
    pub(crate) fn path(&self) -> &Path {
        self.state.path()
    }

    /// Writes what operators pinned and unpinned; the answer tells when it is on disk.
    pub(crate) fn pins(&self, pins: &Pins) -> Saving {
        self.save(|pending| pending.pins = Some(pins.clone()))
    }

    /// Writes what users registered and saved; the answer tells when it is on disk.
    pub(crate) fn own(&self, own: &Own) -> Saving {
        self.save(|pending| pending.own = Some(own.clone()))
    }

    fn save(&self, change: impl FnOnce(&mut Pending)) -> Saving {
        let mut turn = 0;
        self.sender.send_modify(|pending| {
            change(pending);
            pending.turn += 1;
            turn = pending.turn;
        });
        Saving {
            turn,
            written: self.written.clone(),
        }
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
        let roster = self.roster.clone();
        self.sender.send_modify(|pending| pending.roster = Some(roster));
    }
}

async fn write(state: Arc<StateDir>, mut receiver: watch::Receiver<Pending>, done: watch::Sender<Written>) {
    let mut on_disk = Pending::default();
    while receiver.changed().await.is_ok() {
        let pending = receiver.borrow_and_update().clone();
        let (state, new) = (Arc::clone(&state), pending.clone());
        let old = on_disk.clone();
        let saved = match tokio::task::spawn_blocking(move || save(&state, &old, &new)).await {
            Ok(saved) => saved,
            Err(error) => {
                tracing::error!(%error, "the state writer was ended");
                continue;
            }
        };
        let turn = pending.turn;
        let failed = match saved {
            Ok(()) => {
                on_disk = pending;
                None
            }
            Err(error) => {
                tracing::error!(error = ?error, "state could not be written");
                Some(Arc::new(error))
            }
        };
        // Nobody waiting is no failure.
        done.send_replace(Written { turn, failed });
    }
}

/// Writes what differs from what is on disk.
fn save(state: &StateDir, old: &Pending, new: &Pending) -> Result<(), StateError> {
    fn changed<'a, T: PartialEq>(old: &Option<T>, new: &'a Option<T>) -> Option<&'a T> {
        new.as_ref().filter(|new| old.as_ref() != Some(*new))
    }
    if let Some(pins) = changed(&old.pins, &new.pins) {
        state.save_pins(pins)?;
    }
    if let Some(own) = changed(&old.own, &new.own) {
        match &old.own {
            Some(old) => state.save_own(old, own)?,
            // What is on disk is what was read at the start.
            None => state.save_own(&state.own()?, own)?,
        }
    }
    if let Some(roster) = changed(&old.roster, &new.roster) {
        state.save_roster(roster)?;
    }
    if let Some(observed) = changed(&old.observed, &new.observed) {
        state.save_observed(observed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pin_is_told_to_be_on_disk_only_when_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let writer = Writer::spawn(
            StateDir::open(&path).unwrap(),
            Roster::default(),
            &Life::default(),
        );
        let one = Pins::from([("a".to_owned(), true)]);
        writer.pins(&one).done().await.unwrap();
        let two = Pins::from([("a".to_owned(), false)]);
        let (overtaken, last) = (writer.pins(&one), writer.pins(&two));
        last.done().await.unwrap();
        overtaken.done().await.unwrap();
        writer.finish().await;
        assert_eq!(StateDir::open(&path).unwrap().pins().unwrap(), two);
    }

    #[tokio::test]
    async fn a_pin_that_cannot_be_written_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let writer = Writer::spawn(
            StateDir::open(&path).unwrap(),
            Roster::default(),
            &Life::default(),
        );
        std::fs::remove_dir_all(&path).unwrap();
        let saving = writer.pins(&Pins::from([("a".to_owned(), true)]));
        let failed = saving.done().await.unwrap_err().unwrap();
        assert!(failed.to_string().contains("pins.json"), "{failed}");
    }
}
