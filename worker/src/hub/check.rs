//! Whether the hub has newer files than the cache. Nothing is downloaded.
//!
//! A newer commit is no news by itself: most change nothing but a README. Files are told apart by what names their content, which a listing says of all
//! of them at once.

use std::time::Duration;

use muster_core::{Code, Error};
use muster_proto::{
    hub::Revision,
    v1::{FilesCheck, HubCheckpoint},
};
use tokio::time::timeout;

use super::{
    cache::{Cache, Held},
    fetch::{beside, none_of},
    remote::Remote,
    select::select,
};

/// Longest wait for a hub.
const WAIT: Duration = Duration::from_secs(30);

/// Compares a checkpoint in the cache with its revision on the hub.
///
/// # Errors
/// As [`Remote::list`]; `checkpoint_not_found` if the revision no longer has such files.
pub(super) async fn check(
    cache: &Cache,
    remote: &Remote,
    checkpoint: &HubCheckpoint,
) -> Result<FilesCheck, Error> {
    let asked = timeout(WAIT, compare(cache, remote, checkpoint)).await;
    asked.unwrap_or_else(|_| {
        let error = format!(
            "the hub did not answer for {} within {} s",
            checkpoint.repo,
            WAIT.as_secs()
        );
        Err(Code::HubUnavailable.error(error))
    })
}

async fn compare(cache: &Cache, remote: &Remote, checkpoint: &HubCheckpoint) -> Result<FilesCheck, Error> {
    let revision = Revision::of(checkpoint).map_err(|error| {
        Code::InvalidRequest
            .error(error.to_string())
            .with_param("revision")
    })?;
    let (of, wanted) = (cache.clone(), checkpoint.clone());
    let Some(Held { commit, files }) = beside(move || of.held(&wanted)).await? else {
        return Ok(FilesCheck::default());
    };
    let repo = checkpoint.repo.as_str();
    let listing = remote.list(repo, &revision).await?;
    let selection = select(&listing.files, checkpoint).map_err(|error| none_of(repo, &error))?;
    let mut changed_files = Vec::new();
    for path in selection.files().filter(|_| listing.commit != commit) {
        let told = listing.files.iter().find(|file| file.path == *path);
        let etag = match told.and_then(|file| file.etag.clone()) {
            Some(etag) => etag,
            None => remote.info(repo, &listing.commit, path).await?.etag,
        };
        let same = files
            .iter()
            .any(|file| file.path == *path && file.etag.as_deref() == Some(&*etag));
        if !same {
            changed_files.push(path.clone());
        }
    }
    Ok(FilesCheck {
        cached_commit: commit,
        hub_commit: listing.commit,
        changed_files,
    })
}
