//! Whether the hub has newer files of what is downloaded: which models, and who is asked of each.

use std::collections::BTreeMap;

use muster_core::{Code, Error, WorkerId};
use muster_proto::{
    hub::{Revision, UPLOADS},
    v1::{self, CheckFiles, HubCheckpoint, ModelUpdate, UpdateStatus, files_order::Kind as OrderKind},
};

use super::About;
use crate::{
    catalogue::Entry,
    config::ModelEntry,
    convert::stage::unknown_model,
    driver::{
        Driver,
        inbox::{Checkable, Reply},
    },
};

impl Driver {
    /// How the files of models stand, as far as it is known here, and who is to be asked for the rest; no names: all that were downloaded.
    ///
    /// # Errors
    /// `unknown_model`.
    pub(in crate::driver) fn checkable(&self, names: &[String]) -> Result<Vec<Checkable>, Error> {
        let mut found = Vec::new();
        for name in names {
            let id = self.meant(name).unwrap_or(name);
            let listed = self.catalogue.get(id).map(Entry::model);
            let suggested = || self.shelf.get(id).map(|found| &found.model);
            let model = listed.or_else(suggested).ok_or_else(|| unknown_model(name))?;
            found.extend(self.check_of(model));
        }
        if names.is_empty() {
            let all = self
                .catalogue
                .entries()
                .iter()
                .flat_map(|entry| self.check_of(entry.model()));
            let here = |one: &Checkable| {
                !matches!(
                    one.update.status(),
                    UpdateStatus::Local | UpdateStatus::NotDownloaded
                )
            };
            found.extend(all.filter(here));
        }
        found.sort_by(|one, other| {
            let key = |one: &Checkable| (one.update.model.clone(), one.update.host_id.clone());
            key(one).cmp(&key(other))
        });
        found.dedup_by(|one, other| one.update == other.update);
        Ok(found)
    }

    /// One of each host that has the files, or one that says why there is none.
    fn check_of(&self, model: &ModelEntry) -> Vec<Checkable> {
        let update = |status: UpdateStatus| ModelUpdate {
            model: model.id.to_string(),
            checkpoint: model.checkpoint.clone(),
            status: status.into(),
            ..ModelUpdate::default()
        };
        let told = |update| vec![Checkable { update, ask: None }];
        let Some(checkpoint) = model.hub.as_ref().filter(|hub| hub.repo != UPLOADS) else {
            return told(update(UpdateStatus::Local));
        };
        let update = |status| ModelUpdate {
            revision: checkpoint.revision.clone(),
            ..update(status)
        };
        let (holders, _) = self.pulls.holders(checkpoint);
        if holders.is_empty() {
            return told(update(UpdateStatus::NotDownloaded));
        }
        let mut hosts: BTreeMap<&str, Option<&WorkerId>> = BTreeMap::new();
        for holder in &holders {
            let Some(worker) = self.mirror.worker(holder.as_str()) else {
                continue;
            };
            // Workers of one host share its cache.
            let asked = hosts.entry(worker.hello.host_id.as_str()).or_default();
            *asked = asked.or(Some(holder).filter(|_| worker.checks(checkpoint)));
        }
        let pinned = Revision::of(checkpoint).is_ok_and(|revision| revision.is_commit());
        let one = |(host, worker): (&str, Option<&WorkerId>)| {
            let mut update = ModelUpdate {
                host_id: host.to_owned(),
                ..update(UpdateStatus::Unreachable)
            };
            if pinned {
                update.set_status(UpdateStatus::Pinned);
                update.cached_commit.clone_from(&checkpoint.revision);
                update.hub_commit.clone_from(&checkpoint.revision);
            } else if worker.is_none() {
                let error = "no worker of the host with the files is here to ask the hub";
                update.error = Some(Code::NoWorker.error(error).into());
            }
            let ask = worker
                .filter(|_| !pinned)
                .map(|worker| (worker.clone(), checkpoint.clone()));
            Checkable { update, ask }
        };
        hosts.into_iter().map(one).collect()
    }

    /// Asks a worker whether the hub has newer files.
    pub(in crate::driver) fn check_files(
        &mut self,
        worker: &WorkerId,
        checkpoint: &HubCheckpoint,
        reply: Reply<v1::FilesCheck>,
    ) {
        if !self
            .mirror
            .worker(worker.as_str())
            .is_some_and(|known| known.checks(checkpoint))
        {
            let error = Code::WorkerLost.error(format!("worker {worker} went away"));
            // An asker that has gone is no failure.
            return drop(reply.send(Err(error)));
        }
        // If it is not sent, the reply is dropped with it, and the asker hears so.
        let _ = self.order_files(
            worker,
            checkpoint,
            About::Check(reply),
            OrderKind::Check(CheckFiles {}),
        );
    }
}
