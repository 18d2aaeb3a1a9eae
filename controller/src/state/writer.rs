//! Writes roster, measured memory, open downloads, pins and users' models in the background, so that the driver never waits for a disk.
//!
//! Only the newest value is written: a `watch` channel holds one, and older ones are skipped. When the handle is dropped, what is not on
//! disk is written and the task ends. A failed write is reported in health ([`Writer::troubles`]) and tried again until there is room. A
//! caller that must know when a change is on disk ([`Writer::pins`]) can wait for it.

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use muster_core::WorkerId;
use muster_policy::WorkerFacts;
use muster_proto::life::Life;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{Downloads, Own, Pins, Roster, StateDir, StateError};
use crate::{aside::aside, estimate::Observed};

/// Pause before a failed write is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Pause after a write that nobody waits for. When thousands of workers join together, the roster changes as often.
const PACE: Duration = Duration::from_millis(100);

/// The handle of the task.
#[derive(Debug)]
pub(crate) struct Writer {
    state: Arc<StateDir>,
    roster: Arc<Roster>,
    sender: watch::Sender<Pending>,
    written: watch::Receiver<Written>,
    troubles: watch::Receiver<Vec<String>>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Default)]
struct Pending {
    epoch: Option<u64>,
    roster: Option<Arc<Roster>>,
    observed: Option<Observed>,
    downloads: Option<Downloads>,
    pins: Option<Pins>,
    own: Option<Own>,
    /// Counts changes.
    turn: u64,
}

/// The progress of the task.
#[derive(Debug, Clone)]
struct Written {
    /// The [`Pending::turn`] that was written last.
    turn: u64,
    /// Why it could not be written.
    failed: Option<Arc<StateError>>,
}

/// A change that is being written.
#[derive(Debug)]
pub(crate) struct Saving {
    turn: u64,
    written: watch::Receiver<Written>,
}

impl Saving {
    /// Waits until the change is on disk.
    ///
    /// # Errors
    /// It could not be written; none if the task ended before.
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
    /// Starts the task; `roster` is the one on disk.
    pub(crate) fn spawn(state: StateDir, roster: Roster, life: &Life) -> Self {
        let state = Arc::new(state);
        let (sender, receiver) = watch::channel(Pending::default());
        let (done, written) = watch::channel(Written {
            turn: 0,
            failed: None,
        });
        let (say, troubles) = watch::channel(Vec::new());
        let work = write(Arc::clone(&state), receiver, (done, say));
        let task = tokio::spawn(life.part("writer").run(work));
        Self {
            state,
            roster: Arc::new(roster),
            sender,
            written,
            troubles,
            task,
        }
    }

    /// Records that a worker is present.
    pub(crate) fn put(&mut self, facts: WorkerFacts) {
        if !self.roster.has(&facts) {
            self.change_roster(|roster| roster.put(facts));
        }
    }

    /// Records that a worker is absent, and whether it left in order.
    pub(crate) fn away(&mut self, worker: &WorkerId, in_order: bool) {
        self.change_roster(|roster| {
            roster.away(worker, in_order, SystemTime::now());
        });
    }

    /// Workers recorded as present.
    pub(crate) fn here(&self) -> Vec<WorkerId> {
        self.roster.here().cloned().collect()
    }

    /// Drops a worker.
    pub(crate) fn remove(&mut self, worker: &WorkerId) {
        self.change_roster(|roster| {
            roster.remove(worker);
        });
    }

    /// Writes measured memory.
    pub(crate) fn observed(&self, observed: &Observed) {
        self.sender
            .send_modify(|pending| pending.observed = Some(observed.clone()));
    }

    /// Writes which downloads have not ended. The result tells when they are on disk.
    pub(crate) fn downloads(&self, downloads: &Downloads) -> Saving {
        self.save(|pending| pending.downloads = Some(downloads.clone()))
    }

    /// Path of the state directory.
    pub(crate) fn path(&self) -> &Path {
        self.state.path()
    }

    /// Writes operators' pins. The result tells when they are on disk.
    pub(crate) fn pins(&self, pins: &Pins) -> Saving {
        self.save(|pending| pending.pins = Some(pins.clone()))
    }

    /// Writes users' models and options. The result tells when they are on disk.
    pub(crate) fn own(&self, own: &Own) -> Saving {
        self.save(|pending| pending.own = Some(own.clone()))
    }

    /// The turn of the last change that is on disk; none while one is being written, or could not be.
    pub(crate) fn saved(&self) -> Option<u64> {
        let turn = self.sender.borrow().turn;
        let written = self.written.borrow();
        (written.turn >= turn && written.failed.is_none()).then_some(turn)
    }

    /// The directory.
    pub(crate) fn disk(&self) -> Arc<StateDir> {
        Arc::clone(&self.state)
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

    /// Writes the epoch. If the controller restarts before that, workers that have seen the epoch raise it again.
    pub(crate) fn epoch(&self, epoch: u64) {
        self.sender.send_modify(|pending| pending.epoch = Some(epoch));
    }

    /// What could not be written, in sentences.
    pub(crate) fn troubles(&self) -> watch::Receiver<Vec<String>> {
        self.troubles.clone()
    }

    /// Writes what is not on disk and ends the task.
    pub(crate) async fn finish(self) {
        drop(self.sender);
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the state writer failed");
        }
    }

    /// Changes the roster. It is copied only if the task holds it, so at most a few times for each write.
    fn change_roster(&mut self, change: impl FnOnce(&mut Roster)) {
        let roster = &mut self.roster;
        self.sender.send_modify(|pending| {
            pending.roster = None;
            change(Arc::make_mut(roster));
            pending.roster = Some(Arc::clone(roster));
        });
    }
}

async fn write(
    state: Arc<StateDir>,
    mut receiver: watch::Receiver<Pending>,
    (done, say): (watch::Sender<Written>, watch::Sender<Vec<String>>),
) {
    let mut on_disk = Pending::default();
    let mut failing = false;
    loop {
        tokio::select! {
            biased;
            changed = receiver.changed() => if changed.is_err() { return },
            () = sleep(RETRY), if failing => {}
        }
        let pending = receiver.borrow_and_update().clone();
        let turn = pending.turn;
        let (state, old) = (Arc::clone(&state), on_disk.clone());
        let (saved, failed) = match aside(move || save(&state, old, &pending)).await {
            Ok(saved) => saved,
            Err(error) => {
                tracing::error!(%error, "the state writer was ended");
                continue;
            }
        };
        on_disk = saved;
        let failed = failed.map(Arc::new);
        match &failed {
            Some(error) if !failing => {
                tracing::error!(error = ?error, "state could not be written; it is kept in memory until there is room");
            }
            Some(error) => tracing::debug!(error = ?error, "state still cannot be written"),
            None if failing => tracing::info!("state is written again"),
            None => {}
        }
        failing = failed.is_some();
        let trouble = failed.as_deref().map(|error| {
            let cause =
                std::error::Error::source(error).map_or_else(String::new, |cause| format!(": {cause}"));
            format!("state is kept in memory only, since {error}{cause}")
        });
        // If nobody waits, that is no failure, here and below.
        say.send_if_modified(|said| {
            let new: Vec<String> = trouble.into_iter().collect();
            let news = *said != new;
            *said = new;
            news
        });
        done.send_replace(Written { turn, failed });
        // A change that somebody waits for is written at once, and so is the last one.
        let mut ahead = receiver.clone();
        drop(timeout(PACE, ahead.wait_for(|pending| pending.turn != turn)).await);
    }
}

/// Writes what differs from the disk. Returns what is on disk then, and the first error.
fn save(state: &StateDir, mut disk: Pending, new: &Pending) -> (Pending, Option<StateError>) {
    fn put<T: PartialEq + Clone>(
        disk: &mut Option<T>,
        new: &Option<T>,
        write: impl FnOnce(Option<&T>, &T) -> Result<(), StateError>,
    ) -> Option<StateError> {
        let changed = new.as_ref().filter(|new| disk.as_ref() != Some(*new))?;
        match write(disk.as_ref(), changed) {
            Ok(()) => {
                *disk = Some(changed.clone());
                None
            }
            Err(error) => Some(error),
        }
    }
    let failures = [
        put(&mut disk.epoch, &new.epoch, |_, epoch| state.save_epoch(*epoch)),
        put(&mut disk.pins, &new.pins, |_, pins| state.save_pins(pins)),
        put(&mut disk.own, &new.own, |old, own| match old {
            Some(old) => state.save_own(old, own),
            // What is on disk is what was read at the start.
            None => state.save_own(&state.own()?, own),
        }),
        put(&mut disk.roster, &new.roster, |_, roster| {
            state.save_roster(roster)
        }),
        put(&mut disk.observed, &new.observed, |_, observed| {
            state.save_observed(observed)
        }),
        put(&mut disk.downloads, &new.downloads, |_, downloads| {
            state.save_downloads(downloads)
        }),
    ];
    (disk, failures.into_iter().flatten().next())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::DirBuilderExt as _;

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
        let one = Pins::from([("a".to_owned(), crate::state::Pin::Always(true))]);
        writer.pins(&one).done().await.unwrap();
        let two = Pins::from([("a".to_owned(), crate::state::Pin::Always(false))]);
        let (overtaken, last) = (writer.pins(&one), writer.pins(&two));
        last.done().await.unwrap();
        overtaken.done().await.unwrap();
        writer.finish().await;
        assert_eq!(StateDir::open(&path).unwrap().pins().unwrap(), two);
    }

    #[tokio::test]
    async fn what_cannot_be_written_is_told_and_written_when_there_is_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let writer = Writer::spawn(
            StateDir::open(&path).unwrap(),
            Roster::default(),
            &Life::default(),
        );
        let mut troubles = writer.troubles();
        std::fs::remove_dir_all(&path).unwrap();
        let pins = Pins::from([("a".to_owned(), crate::state::Pin::Always(true))]);
        let failed = writer.pins(&pins).done().await.unwrap_err().unwrap();
        assert!(failed.to_string().contains("pins.json"), "{failed}");
        writer.epoch(7);
        let told = troubles
            .wait_for(|troubles| !troubles.is_empty())
            .await
            .unwrap()
            .clone();
        assert!(
            told[0].contains("memory") && told[0].contains("cannot be used"),
            "{told:?}"
        );

        std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        troubles.wait_for(Vec::is_empty).await.unwrap();
        let state = StateDir::open(&path).unwrap();
        assert_eq!(state.pins().unwrap(), pins);
        assert_eq!(state.begin_epoch(), (8, true));
    }
}
