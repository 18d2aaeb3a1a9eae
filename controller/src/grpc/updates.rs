//! Whether the hub has newer files of downloaded models: each model is asked about by itself, a few at a time, and answers for itself.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use muster_core::{Code, Error};
use muster_proto::v1::{FilesCheck, ModelUpdate, UpdateStatus};
use tokio::time::{Instant, timeout_at};

use crate::driver::{
    handle::Handle,
    inbox::{Checkable, Models as Change},
};

/// Questions at once.
const AT_ONCE: usize = 8;
/// Longest wait for all answers. Workers give up on a hub before.
const WAIT: Duration = Duration::from_secs(60);

/// How the files of models stand; no names: those of all that were downloaded.
///
/// # Errors
/// `unknown_model`.
pub(super) async fn check(handle: &Handle, names: Vec<String>) -> Result<Vec<ModelUpdate>, Error> {
    let until = Instant::now() + WAIT;
    let checkable = handle.models(|reply| Change::Checkable(names, reply)).await?;
    let asked = stream::iter(checkable).map(|one| ask(handle, one, until));
    Ok(asked.buffered(AT_ONCE).collect().await)
}

async fn ask(handle: &Handle, one: Checkable, until: Instant) -> ModelUpdate {
    let Checkable { update, ask } = one;
    let Some((worker, checkpoint)) = ask else {
        return update;
    };
    let late = || Code::HubUnavailable.error("others took too long: there was no time left to ask");
    if Instant::now() >= until {
        return answered(update, Err(late()));
    }
    let asking = handle.models(|reply| Change::Check(worker, checkpoint, reply));
    let check = timeout_at(until, asking).await;
    answered(update, check.unwrap_or_else(|_| Err(late())))
}

fn answered(mut update: ModelUpdate, check: Result<FilesCheck, Error>) -> ModelUpdate {
    match check {
        Ok(check) => {
            update.set_status(
                match (check.cached_commit.as_str(), check.changed_files.as_slice()) {
                    ("", _) => UpdateStatus::NotDownloaded,
                    (_, []) => UpdateStatus::Current,
                    (_, [_, ..]) => UpdateStatus::Outdated,
                },
            );
            ModelUpdate {
                cached_commit: check.cached_commit,
                hub_commit: check.hub_commit,
                changed_files: check.changed_files,
                ..update
            }
        }
        Err(error) => {
            let told = [
                (Code::CheckpointNotFound, UpdateStatus::NotFound),
                (Code::CheckpointForbidden, UpdateStatus::Forbidden),
            ];
            let told = told.iter().find(|(code, _)| *code == error.code);
            update.set_status(told.map_or(UpdateStatus::Unreachable, |(_, status)| *status));
            ModelUpdate {
                error: Some(error.into()),
                ..update
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_has_a_status() {
        let check = |commit: &str, changed: &[&str]| FilesCheck {
            cached_commit: commit.to_owned(),
            hub_commit: "c2".to_owned(),
            changed_files: changed.iter().map(|path| (*path).to_owned()).collect(),
        };
        for (answer, status) in [
            (Ok(check("c1", &[])), UpdateStatus::Current),
            (Ok(check("c1", &["m.gguf"])), UpdateStatus::Outdated),
            (Ok(check("", &[])), UpdateStatus::NotDownloaded),
            (Err(Code::CheckpointNotFound.error("")), UpdateStatus::NotFound),
            (Err(Code::CheckpointForbidden.error("")), UpdateStatus::Forbidden),
            (Err(Code::HubUnavailable.error("")), UpdateStatus::Unreachable),
            (Err(Code::WorkerLost.error("")), UpdateStatus::Unreachable),
        ] {
            let failed = answer.is_err();
            let update = answered(ModelUpdate::default(), answer);
            assert_eq!((update.status(), update.error.is_some()), (status, failed));
        }
    }
}
