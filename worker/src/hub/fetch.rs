//! One download of one checkpoint into the cache.
//!
//! ```text
//!   look ─ all there, and nobody wants newer ones ────────────────────────────────────────────► done, without the network
//!     └─► list ─► select ─► ask for each file ─► room? ─► per file: transfer ─► linked ─► refs ─► done
//!          └ all there, and the hub cannot be reached ─► done
//! ```
//!
//! Invariants: what is there already is not fetched again, whole files and parts of files alike.

use std::{fs, io, path::Path, time::Duration};

use muster_core::{Bytes as Amount, Code, Error};
use muster_proto::{
    hub::{self, Revision},
    v1::{CachedFiles, HubCheckpoint},
};
use tokio::task::spawn_blocking;

use super::{
    cache::Cache,
    meter::Meter,
    partial,
    remote::{FileInfo, Remote},
    repo::Repo,
    select::{NoSuchFile, select},
    transfer::{self, Transfer},
};

/// How long what began to come of a file is kept once the file has come with another content.
const STALE: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Room that is left on the disk, in bytes.
pub(super) const SPARE: u64 = 64 << 20;

/// A file to be fetched, or there.
#[derive(Debug)]
struct WantedFile {
    path: String,
    info: FileInfo,
    there: bool,
}

/// Downloads what is missing of a checkpoint; with `refresh`, also what the hub has in a newer commit of its revision.
///
/// # Errors
/// `checkpoint_not_found`, `checkpoint_forbidden`, `hub_unavailable`, `insufficient_storage`, `download_corrupt`, `internal`.
pub(super) async fn fetch(
    cache: &Cache,
    remote: &Remote,
    checkpoint: &HubCheckpoint,
    refresh: bool,
    meter: &Meter,
) -> Result<CachedFiles, Error> {
    let revision = Revision::of(checkpoint).map_err(|error| {
        Code::InvalidRequest
            .error(error.to_string())
            .with_param("revision")
    })?;
    let found = cached_files(cache, checkpoint).await?;
    if found.complete && (!refresh || revision.is_commit()) {
        return Ok(found);
    }
    let name = checkpoint.repo.as_str();
    let listing = match remote.list(name, &revision).await {
        Err(error) if found.complete && error.code == Code::HubUnavailable => {
            tracing::warn!(repo = name, %error, "the hub cannot be asked for newer files: those that are here stay");
            return Ok(found);
        }
        listed => listed?,
    };
    let selection = select(&listing.files, checkpoint).map_err(|error| none_of(name, &error))?;
    let repo = cache.repo(name);
    let mut files = Vec::new();
    for path in selection.files() {
        if !hub::is_plain_path(path) {
            let message = format!("{name} has a file of an impossible name: `{path}`");
            return Err(Code::DownloadCorrupt.error(message));
        }
        let info = remote.info(name, &listing.commit, path).await?;
        let blob = fs::metadata(repo.blob(&info.etag));
        files.push(WantedFile {
            path: path.clone(),
            there: blob.is_ok_and(|meta| meta.len() == info.size),
            info,
        });
    }
    check_room(cache, &repo, &files)?;
    let (to, of, commit) = (repo.clone(), revision.clone(), listing.commit.clone());
    on_disk(move || to.claim(&of, &commit)).await?;
    meter.begin(files.len(), files.iter().map(|file| file.info.size).sum());
    for WantedFile { path, info, there } in &files {
        meter.file(path, info.size);
        if !there {
            let transfer = Transfer {
                remote,
                repo: &repo,
                name,
                commit: &listing.commit,
                path,
                info,
                meter,
            };
            transfer.run().await?;
        }
        meter.there(info.size);
        let (to, commit) = (repo.clone(), listing.commit.clone());
        let (path, etag) = (path.clone(), info.etag.clone());
        on_disk(move || to.link(&commit, &path, &etag)).await?;
    }
    on_disk(move || repo.set_newest(&revision, &listing.commit)).await?;
    discard(cache, checkpoint, STALE).await;
    let (cache, checkpoint) = (cache.clone(), checkpoint.clone());
    beside(move || cache.resolve(&checkpoint)).await?
}

/// Removes what began to come of a checkpoint and was not written to for so long, once nobody writes it any more. What cannot be removed is only
/// in the way of nothing.
pub(super) async fn discard(cache: &Cache, checkpoint: &HubCheckpoint, untouched: Duration) {
    let repo = cache.repo(&checkpoint.repo);
    let (found, of) = (repo.clone(), checkpoint.clone());
    let coming = beside(move || found.coming(&of, untouched))
        .await
        .unwrap_or_default();
    for (etag, _) in coming {
        let Ok(_lock) = transfer::lock(&repo, &etag).await else {
            continue;
        };
        let part = repo.part(&etag);
        if let Err(error) = on_disk(move || fs::remove_file(part)).await {
            tracing::debug!(repo = checkpoint.repo, %error, "part of a download stays");
        }
    }
}

/// A repository without such files.
pub(super) fn none_of(repo: &str, error: &NoSuchFile) -> Error {
    Code::CheckpointNotFound.error(format!("the hub has {repo}, but {error}"))
}

async fn cached_files(cache: &Cache, checkpoint: &HubCheckpoint) -> Result<CachedFiles, Error> {
    let (cache, checkpoint) = (cache.clone(), checkpoint.clone());
    beside(move || cache.cached_files(&checkpoint)).await
}

/// Refuses what cannot end well.
fn check_room(cache: &Cache, repo: &Repo, files: &[WantedFile]) -> Result<(), Error> {
    let missing = files
        .iter()
        .filter(|file| !file.there)
        .map(|WantedFile { info, .. }| info.size.saturating_sub(partial::taken(&repo.part(&info.etag))));
    let wanted: u64 = missing.sum();
    fs::create_dir_all(cache.root()).map_err(|error| disk(&error))?;
    let Some(free) = free_bytes(cache.root()) else {
        return Ok(());
    };
    if wanted.saturating_add(SPARE) <= free {
        return Ok(());
    }
    let message = format!(
        "the download needs {} and {} has {} free",
        Amount::new(wanted),
        cache.root().display(),
        Amount::new(free)
    );
    let error = Code::InsufficientStorage.error(message);
    Err(error
        .with_detail("wanted_bytes", wanted)
        .with_detail("free_bytes", free))
}

pub(super) fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

pub(super) fn disk(error: &io::Error) -> Error {
    if matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) {
        return Code::InsufficientStorage.error(format!("the disk of the cache is full: {error}"));
    }
    Code::Internal.error(format!("the cache cannot be written: {error}"))
}

pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    beside(work).await?.map_err(|error| disk(&error))
}

pub(super) async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    spawn_blocking(work)
        .await
        .map_err(|panic| Code::Internal.error(panic.to_string()))
}
