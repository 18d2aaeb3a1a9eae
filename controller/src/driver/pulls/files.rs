//! Orders to workers about files, and what they answer: who has which, removals, listings.

use std::collections::HashSet;

use muster_core::{Code, Error, WorkerId};
use muster_proto::v1::{
    self, CachedFiles, FilesNews, FilesOrder, HubCheckpoint, ListFiles, LookForFiles,
    files_news::Kind as News, files_order::Kind as OrderKind,
};
use tokio::{sync::oneshot, time::Instant};

use super::{About, Place, Removal, WORKER_WAIT};
use crate::driver::{Driver, inbox::Removed, sessions::Sent};

impl Driver {
    pub(super) fn order_files(
        &mut self,
        worker: &WorkerId,
        checkpoint: &HubCheckpoint,
        about: About,
        kind: OrderKind,
    ) -> Sent {
        let order_id = self.pulls.order(worker, about);
        let order = FilesOrder {
            order_id: order_id.clone(),
            checkpoint: Some(checkpoint.clone()),
            kind: Some(kind),
        };
        let sent = self.sessions.order(worker, order);
        if sent == Sent::No {
            self.pulls.orders.remove(&order_id);
        }
        sent
    }

    /// Workers that take orders about a checkpoint's files.
    pub(super) fn file_workers(&self, checkpoint: &HubCheckpoint) -> Vec<WorkerId> {
        self.mirror.taking(checkpoint).collect()
    }

    /// A worker joined: what does it have, and can it do what waits?
    pub(in crate::driver) fn files_joined(&mut self, worker: &WorkerId) {
        let mut wanted = self.wanted_checkpoints();
        let known = self.mirror.worker(worker.as_str());
        wanted.retain(|checkpoint| known.is_some_and(|known| known.takes(checkpoint)));
        for checkpoint in wanted {
            self.look_for(worker, &checkpoint);
        }
        self.pulls.looked.get_or_insert_with(Instant::now);
        let open: Vec<HubCheckpoint> = self.pulls.open.keys().cloned().collect();
        for checkpoint in open {
            self.start_pull(&checkpoint);
        }
    }

    /// Checkpoints of the hub that would be of use.
    pub(super) fn wanted_checkpoints(&self) -> HashSet<HubCheckpoint> {
        let mut wanted = self.catalogue.checkpoints();
        wanted.extend(self.shelf.all().filter_map(|found| found.model.hub.clone()));
        wanted
    }

    /// Asks all workers for files.
    pub(in crate::driver) fn look_everywhere(&mut self, checkpoint: &HubCheckpoint) {
        for worker in self.file_workers(checkpoint) {
            self.look_for(&worker, checkpoint);
        }
    }

    fn look_for(&mut self, worker: &WorkerId, checkpoint: &HubCheckpoint) {
        let kind = OrderKind::Look(LookForFiles {});
        // One that is not there is asked when it joins.
        let _ = self.order_files(worker, checkpoint, About::Look(checkpoint.clone()), kind);
    }

    /// A worker's session ended: it forgets our orders. What it has stays known; it is asked anew when it joins.
    pub(in crate::driver) fn files_lost(&mut self, worker: &WorkerId) {
        let lost: Vec<String> = self
            .pulls
            .orders
            .iter()
            .filter(|(_, asked)| asked.worker == *worker)
            .map(|(order, _)| order.clone())
            .collect();
        for order in lost {
            let Some(asked) = self.pulls.orders.remove(&order) else {
                continue;
            };
            let away = || Code::WorkerLost.error(format!("worker {worker} went away"));
            match asked.about {
                About::Look(_) => {}
                About::Fetch(checkpoint) => {
                    if let Some(pull) = self.pulls.open.get_mut(&checkpoint) {
                        pull.place = Place::Waiting(Instant::now() + WORKER_WAIT);
                        self.start_pull(&checkpoint);
                    }
                }
                About::Remove(number, _) => self.removed(number, Err(away())),
                // An asker that has gone is no failure.
                About::List(reply) => drop(reply.send(Err(away()))),
                About::Check(reply) => drop(reply.send(Err(away()))),
            }
        }
    }

    /// A worker left in order, or was forgotten: what it has is of no use any more.
    pub(in crate::driver) fn files_gone(&mut self, worker: &WorkerId) {
        let checkpoints: Vec<HubCheckpoint> = self.pulls.known.keys().cloned().collect();
        for checkpoint in checkpoints {
            if let Some(known) = self.pulls.known.get_mut(&checkpoint) {
                known.remove(worker);
            }
            self.files_changed(&checkpoint);
        }
    }

    /// A worker answered an order.
    pub(in crate::driver) fn files_said(&mut self, worker: &WorkerId, news: FilesNews) {
        let FilesNews { order_id, kind } = news;
        if let Some(News::Progress(told)) = kind {
            self.progressed(&order_id, told);
            return;
        }
        let Some(asked) = self.pulls.orders.remove(&order_id) else {
            tracing::debug!(%worker, order_id, "news of files that nobody waits for");
            return;
        };
        let strange = || Code::Internal.error(format!("worker {worker} answered something else"));
        match (asked.about, kind) {
            (About::Look(checkpoint), Some(News::Cached(files))) => self.has(worker, &checkpoint, files),
            (About::Look(checkpoint), Some(News::Failed(error))) => {
                tracing::warn!(%worker, repo = checkpoint.repo, %error, "a worker cannot look for files");
            }
            (About::Fetch(checkpoint), Some(News::Cached(files))) => {
                self.has(worker, &checkpoint, files);
                self.pulled(&checkpoint, &Ok(()));
                // Others may share its cache.
                self.look_everywhere(&checkpoint);
            }
            (About::Fetch(checkpoint), Some(News::Failed(error))) => {
                self.pulled(&checkpoint, &Err(error.into()))
            }
            (About::Remove(number, checkpoint), Some(News::Cached(files))) => {
                let freed = files.freed_bytes;
                self.has(worker, &checkpoint, files);
                self.removed(number, Ok(freed));
            }
            (About::Remove(number, _), Some(News::Failed(error))) => self.removed(number, Err(error.into())),
            (About::List(reply), Some(News::Listing(listing))) => drop(reply.send(Ok(listing))),
            (About::List(reply), Some(News::Failed(error))) => drop(reply.send(Err(error.into()))),
            (About::Check(reply), Some(News::Checked(check))) => drop(reply.send(Ok(check))),
            (About::Check(reply), Some(News::Failed(error))) => drop(reply.send(Err(error.into()))),
            (About::Look(_), _) => {}
            (About::Fetch(checkpoint), _) => self.pulled(&checkpoint, &Err(strange())),
            (About::Remove(number, _), _) => self.removed(number, Err(strange())),
            (About::List(reply), _) => drop(reply.send(Err(strange()))),
            (About::Check(reply), _) => drop(reply.send(Err(strange()))),
        }
    }

    /// A worker's word on what it has.
    fn has(&mut self, worker: &WorkerId, checkpoint: &HubCheckpoint, files: CachedFiles) {
        let files = CachedFiles {
            freed_bytes: 0,
            ..files
        };
        let complete = files.complete;
        let known = self.pulls.known.entry(checkpoint.clone()).or_default();
        known.insert(worker.clone(), files);
        if complete {
            // Whoever downloaded it.
            for id in self.shelf.of_checkpoint(checkpoint) {
                self.take_from_shelf(&id);
            }
        }
        self.files_changed(checkpoint);
    }

    fn files_changed(&mut self, checkpoint: &HubCheckpoint) {
        if self.files_known(checkpoint) {
            let ids = self.catalogue.of_checkpoint(checkpoint);
            self.models_changed(ids);
            self.look_again();
        }
    }

    /// Tells the catalogue who has a checkpoint; true if that is news.
    pub(in crate::driver) fn files_known(&mut self, checkpoint: &HubCheckpoint) -> bool {
        let (workers, files) = self.pulls.holders(checkpoint);
        self.catalogue.cached(checkpoint, &workers, files.as_ref())
    }

    /// Removes files from all workers that may have them; a download of them ends.
    pub(in crate::driver) fn remove_files(
        &mut self,
        checkpoint: &HubCheckpoint,
        keep: &[HubCheckpoint],
        reply: oneshot::Sender<Result<Removed, Error>>,
    ) {
        let cancelled = Code::DownloadCancelled.error("the model is being deleted");
        let fetching = match self.pulls.open.get(checkpoint).map(|pull| &pull.place) {
            Some(Place::At(worker)) => Some(worker.clone()),
            Some(Place::Waiting(_) | Place::Paused) | None => None,
        };
        self.pulled(checkpoint, &Err(cancelled));
        self.pulls.failed.remove(checkpoint);
        if let Some(worker) = fetching {
            let kind = OrderKind::Cancel(v1::CancelFetch { keep: false });
            let _ = self.order_files(&worker, checkpoint, About::Look(checkpoint.clone()), kind);
        }
        self.pulls.removals_begun += 1;
        let number = self.pulls.removals_begun;
        let mut removal = Removal {
            left: 0,
            freed: 0,
            failed: None,
            reply,
        };
        for worker in self.file_workers(checkpoint) {
            let kind = OrderKind::Remove(v1::RemoveFiles { keep: keep.to_vec() });
            if self.order_files(
                &worker,
                checkpoint,
                About::Remove(number, checkpoint.clone()),
                kind,
            ) == Sent::Yes
            {
                removal.left += 1;
            }
        }
        if removal.left == 0 {
            let error = Code::NoWorker.error("no worker is here whose cache could have the files");
            return drop(removal.reply.send(Err(error)));
        }
        self.pulls.removals.insert(number, removal);
    }

    fn removed(&mut self, number: u64, result: Result<u64, Error>) {
        let Some(removal) = self.pulls.removals.get_mut(&number) else {
            return;
        };
        removal.left -= 1;
        match result {
            Ok(freed) => removal.freed += freed,
            Err(error) => removal.failed = Some(error),
        }
        if removal.left == 0
            && let Some(removal) = self.pulls.removals.remove(&number)
        {
            let Removal {
                freed, failed, reply, ..
            } = removal;
            // An asker that has gone is no failure.
            drop(reply.send(failed.map_or(Ok(Removed { freed }), Err)));
        }
    }

    /// Asks a worker what the hub has.
    pub(in crate::driver) fn list_repo(
        &mut self,
        repo: &str,
        reply: oneshot::Sender<Result<v1::HubListing, Error>>,
    ) {
        let checkpoint = HubCheckpoint {
            repo: repo.to_owned(),
            ..HubCheckpoint::default()
        };
        let Some(worker) = self.file_workers(&checkpoint).into_iter().next() else {
            let error = Code::NoWorker.error("no worker is here to ask the hub");
            return drop(reply.send(Err(error)));
        };
        // If it is not sent, the reply is dropped with it, and the asker hears so.
        let _ = self.order_files(
            &worker,
            &checkpoint,
            About::List(reply),
            OrderKind::List(ListFiles {}),
        );
    }
}
