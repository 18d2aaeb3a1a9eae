//! Which downloads have not ended, on the disk: a controller that starts again goes on with them, and with none that is paused.

use muster_proto::v1::FetchProgress;

use super::{Place, Pull, Pulls};
use crate::{
    driver::Driver,
    state::{Downloads, KeptDownload},
};

impl Pulls {
    /// None is open; `kept` had not ended when the last controller did.
    pub(in crate::driver) fn new(kept: Downloads) -> Self {
        Self {
            kept,
            ..Self::default()
        }
    }

    fn to_keep(&self) -> Downloads {
        let standing = |pull: &Pull| KeptDownload {
            paused: matches!(pull.place, Place::Paused),
            downloaded: pull.told.all_downloaded,
            total: pull.told.all_total,
        };
        let pulls = self.open.values();
        pulls
            .map(|pull| (pull.model.id.to_string(), standing(pull)))
            .collect()
    }
}

impl Driver {
    /// Goes on with what had not ended, of models that are still there.
    pub(in crate::driver) fn reopen_pulls(&mut self) {
        for (model, standing) in self.pulls.kept.clone() {
            let entry = self.catalogue.get(&model).map(|entry| entry.model().clone());
            let Some((entry, checkpoint)) = entry.and_then(|entry| Some((entry.clone(), entry.hub?))) else {
                continue;
            };
            let pull = self.pull(&checkpoint, &entry);
            // It may have been for newer files than those that are there.
            pull.refresh = true;
            pull.told = FetchProgress {
                all_downloaded: standing.downloaded,
                all_total: standing.total,
                ..FetchProgress::default()
            };
            if standing.paused {
                pull.place = Place::Paused;
            }
        }
        self.keep_pulls();
    }

    /// Has it written which have not ended.
    pub(super) fn keep_pulls(&mut self) {
        let open = self.pulls.to_keep();
        if open != self.pulls.kept {
            // Nobody waits for it.
            drop(self.writer.downloads(&open));
            self.pulls.kept = open;
        }
    }
}
