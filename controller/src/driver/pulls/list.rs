//! Downloads as operators see them: listed, paused, resumed, cancelled.

use muster_core::{Code, Error};
use muster_proto::v1::{
    self, CancelFetch, DownloadAction, DownloadState, FetchProgress, HubCheckpoint,
    files_order::Kind as OrderKind,
};
use tokio::time::Instant;

use super::{About, Place, Pull, Pulls, WORKER_WAIT, told::fail};
use crate::{driver::Driver, state::Saving};

/// Downloads that are remembered after their end.
const REMEMBERED: usize = 32;

/// Why whoever waits for a paused download does so in vain.
pub(super) fn paused() -> Error {
    Code::DownloadCancelled.error("the download is paused by an operator")
}

fn name(checkpoint: &HubCheckpoint) -> String {
    let HubCheckpoint { repo, variant, .. } = checkpoint;
    if variant.is_empty() {
        repo.clone()
    } else {
        format!("{repo}:{variant}")
    }
}

/// Time left for the rest of a download; none if its speed is unknown.
fn time_left(told: &FetchProgress) -> Option<prost_types::Duration> {
    let rest = told.all_total.saturating_sub(told.all_downloaded);
    let seconds = rest.checked_div(told.bytes_per_second)?;
    Some(prost_types::Duration {
        seconds: i64::try_from(seconds).ok()?,
        nanos: 0,
    })
}

impl Pull {
    /// Goes on if it is paused.
    pub(super) fn resume(&mut self) {
        if matches!(self.place, Place::Paused) {
            self.place = Place::Waiting(Instant::now() + WORKER_WAIT);
        }
    }

    fn shown(&self, checkpoint: &HubCheckpoint) -> v1::Download {
        let (state, worker_id) = match &self.place {
            Place::Waiting(_) => (DownloadState::Waiting, String::new()),
            Place::At(worker) => (DownloadState::Running, worker.to_string()),
            Place::Paused => (DownloadState::Paused, String::new()),
        };
        let mut progress = self.told.clone();
        if worker_id.is_empty() {
            progress.bytes_per_second = 0;
        }
        v1::Download {
            model: self.model.id.to_string(),
            checkpoint: name(checkpoint),
            revision: checkpoint.revision.clone(),
            state: state.into(),
            worker_id,
            time_left: time_left(&progress),
            progress: Some(progress),
            error: None,
        }
    }
}

impl Pulls {
    /// Remembers a download that ended.
    pub(super) fn keep(&mut self, pull: &Pull, checkpoint: &HubCheckpoint, result: &Result<(), Error>) {
        let state = match result {
            Ok(()) => DownloadState::Done,
            Err(error) if error.code == Code::DownloadCancelled => DownloadState::Cancelled,
            Err(_) => DownloadState::Failed,
        };
        let mut told = FetchProgress {
            bytes_per_second: 0,
            ..pull.told.clone()
        };
        if result.is_ok() {
            told.all_downloaded = told.all_total;
            told.bytes_downloaded = told.bytes_total;
        }
        let ended = v1::Download {
            state: state.into(),
            worker_id: String::new(),
            progress: Some(told),
            time_left: None,
            error: result.as_ref().err().map(|error| error.clone().into()),
            ..pull.shown(checkpoint)
        };
        self.ended.retain(|old| old.model != ended.model);
        self.ended.push_front(ended);
        self.ended.truncate(REMEMBERED);
    }

    /// The open download of a model, whichever of its files' models it began for.
    fn of(&self, model: &str, checkpoint: Option<&HubCheckpoint>) -> Option<HubCheckpoint> {
        let began = |(_, pull): &(&HubCheckpoint, &Pull)| pull.model.id.as_str() == model;
        let own = checkpoint.filter(|checkpoint| self.open.contains_key(checkpoint));
        own.or_else(|| self.open.iter().find(began).map(|(checkpoint, _)| checkpoint))
            .cloned()
    }
}

impl Driver {
    /// All downloads: open ones by model, then those that ended, the newest first.
    pub(in crate::driver) fn downloads(&self) -> Vec<v1::Download> {
        let mut open: Vec<v1::Download> = self
            .pulls
            .open
            .iter()
            .map(|(checkpoint, pull)| pull.shown(checkpoint))
            .collect();
        open.sort_by(|a, b| a.model.cmp(&b.model));
        let again = |ended: &&v1::Download| open.iter().all(|one| one.model != ended.model);
        let ended: Vec<v1::Download> = self.pulls.ended.iter().filter(again).cloned().collect();
        open.extend(ended);
        open
    }

    /// Pauses, resumes or cancels a model's download. With it comes when a restart would know of it.
    ///
    /// # Errors
    /// `unknown_model`, `no_such_download`, `invalid_request`.
    pub(in crate::driver) fn control_download(
        &mut self,
        request: &v1::ControlDownloadRequest,
    ) -> Result<(v1::Download, Saving), Error> {
        let model = request.model.as_str();
        let own = self
            .catalogue
            .get(model)
            .and_then(|entry| entry.model().hub.clone());
        let Some(checkpoint) = self.pulls.of(model, own.as_ref()) else {
            let error = format!("nothing is being downloaded for {model}");
            return Err(Code::NoSuchDownload.error(error).with_param("model"));
        };
        match request.action() {
            DownloadAction::Unspecified => {
                let error = "action must be pause, resume or cancel";
                return Err(Code::InvalidRequest.error(error).with_param("action"));
            }
            DownloadAction::Pause => self.pause(&checkpoint),
            DownloadAction::Resume => {
                if let Some(pull) = self.pulls.open.get_mut(&checkpoint) {
                    pull.resume();
                }
                self.start_pull(&checkpoint);
            }
            DownloadAction::Cancel => {
                self.leave(&checkpoint, false);
                let error = Code::DownloadCancelled.error("the download was cancelled by an operator");
                self.pulled(&checkpoint, &Err(error));
            }
        }
        let shown = match self.pulls.open.get(&checkpoint) {
            Some(pull) => Some(pull.shown(&checkpoint)),
            None => self.pulls.ended.front().cloned(),
        };
        let shown = shown.ok_or_else(|| Code::Internal.error("the download is gone"))?;
        Ok((shown, self.writer.downloads(&self.pulls.kept)))
    }

    fn pause(&mut self, checkpoint: &HubCheckpoint) {
        self.leave(checkpoint, true);
        let epoch = *self.epoch.borrow();
        if let Some(pull) = self.pulls.open.get_mut(checkpoint) {
            pull.place = Place::Paused;
            for ask in std::mem::take(&mut pull.waiting) {
                fail(&ask, &paused(), epoch);
            }
        }
        self.keep_pulls();
    }

    /// The worker of a download ends it, and its answer to the order is not waited for. What came is kept, or removed wherever it may lie.
    fn leave(&mut self, checkpoint: &HubCheckpoint, keep: bool) {
        self.pulls
            .orders
            .retain(|_, asked| !matches!(&asked.about, About::Fetch(of) if of == checkpoint));
        let workers = match self.pulls.open.get(checkpoint).map(|pull| &pull.place) {
            Some(Place::At(worker)) => vec![worker.clone()],
            Some(Place::Waiting(_) | Place::Paused) if !keep => self.file_workers(checkpoint),
            Some(Place::Waiting(_) | Place::Paused) | None => Vec::new(),
        };
        for worker in workers {
            let kind = OrderKind::Cancel(CancelFetch { keep });
            // One that is not there has lost the order with its session.
            let _ = self.order_files(&worker, checkpoint, About::Look(checkpoint.clone()), kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_what_is_missing_at_this_speed() {
        let told = FetchProgress {
            all_downloaded: 100,
            all_total: 1100,
            bytes_per_second: 10,
            ..FetchProgress::default()
        };
        assert_eq!(time_left(&told).unwrap().seconds, 100);
        assert_eq!(time_left(&FetchProgress::default()), None);
    }
}
