//! One download of one checkpoint into the cache.
//!
//! ```text
//!   look ─ all there ──────────────────────────────────────────────► done, without the network
//!     └─► list ─► select ─► ask for each file ─► room? ─► per file: lock ─► ETAG.incomplete ─► checked ─► ETAG ─► linked ─► refs/main ─► done
//! ```
//!
//! Invariants: dropping it ends it and leaves no half a file; two programs never write the same content at once; what is there already is
//! not fetched again.

use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

use bytes::Bytes;
use futures::StreamExt as _;
use muster_core::{Bytes as Amount, Code, Error};
use muster_proto::{
    hub,
    v1::{CachedFiles, FetchProgress, HubCheckpoint},
};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::sleep,
};

use super::{
    cache::{Cache, Repo},
    remote::{self, FileInfo, Remote},
    select::select,
};

/// Pieces on their way to the disk. When full, the network waits.
const PIECES: usize = 64;
/// Pauses between looks at a lock that another program holds.
const LOCK_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Room that is left on the disk, in bytes.
const SPARE: u64 = 64 << 20;

/// A file to be fetched, or there.
#[derive(Debug)]
struct WantedFile {
    path: String,
    info: FileInfo,
    there: bool,
}

/// Downloads what is missing of a checkpoint.
///
/// # Errors
/// `checkpoint_not_found`, `checkpoint_forbidden`, `hub_unavailable`, `insufficient_storage`, `download_corrupt`, `internal`.
pub(super) async fn fetch(
    cache: &Cache,
    remote: &Remote,
    checkpoint: &HubCheckpoint,
    progress: &watch::Sender<FetchProgress>,
) -> Result<CachedFiles, Error> {
    let found = cached_files(cache, checkpoint).await?;
    if found.complete {
        return Ok(found);
    }
    let name = checkpoint.repo.as_str();
    let listing = remote.list(name).await?;
    let selection = select(&listing.files, checkpoint).map_err(|error| {
        let message = format!("the hub has {name}, but {error}");
        Code::CheckpointNotFound.error(message)
    })?;
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
    check_room(cache, &files)?;
    let mut told = FetchProgress {
        total_files: u32::try_from(files.len()).unwrap_or(u32::MAX),
        all_total: files.iter().map(|file| file.info.size).sum(),
        ..FetchProgress::default()
    };
    for file in &files {
        told.file_index += 1;
        told.file.clone_from(&file.path);
        told.bytes_total = file.info.size;
        told.bytes_downloaded = 0;
        if !file.there {
            progress.send_replace(told.clone());
            let coming = Coming {
                remote,
                repo: &repo,
                name,
                commit: &listing.commit,
                file,
            };
            coming.fetch(&mut told, progress).await?;
        }
        told.all_downloaded += file.info.size - told.bytes_downloaded;
        told.bytes_downloaded = file.info.size;
        let (to, commit, path, etag) = (
            repo.clone(),
            listing.commit.clone(),
            file.path.clone(),
            file.info.etag.clone(),
        );
        on_disk(move || to.link(&commit, &path, &etag)).await?;
        progress.send_replace(told.clone());
    }
    on_disk(move || repo.set_main(&listing.commit)).await?;
    let (cache, checkpoint) = (cache.clone(), checkpoint.clone());
    beside(move || cache.resolve(&checkpoint)).await?
}

/// A file on its way.
#[derive(Debug)]
struct Coming<'a> {
    remote: &'a Remote,
    repo: &'a Repo,
    name: &'a str,
    commit: &'a str,
    file: &'a WantedFile,
}

impl Coming<'_> {
    async fn fetch(
        &self,
        told: &mut FetchProgress,
        progress: &watch::Sender<FetchProgress>,
    ) -> Result<(), Error> {
        let WantedFile { path, info, .. } = self.file;
        let blobs = self.repo.blobs();
        on_disk(move || fs::create_dir_all(blobs)).await?;
        let blob = self.repo.blob(&info.etag);
        let lock = lock(self.repo.blob(&format!("{}.lock", info.etag))).await?;
        // Whoever held the lock may have fetched it.
        if fs::metadata(&blob).is_ok_and(|meta| meta.len() == info.size) {
            return Ok(());
        }
        let response = self.remote.content(self.name, self.commit, path).await?;
        let (pieces, receiver) = mpsc::channel(PIECES);
        let content = Content {
            incomplete: self.repo.blob(&format!("{}.incomplete", info.etag)),
            blob,
            info: info.clone(),
            _lock: lock,
        };
        let writing = spawn_blocking(move || content.write(receiver));
        let mut stream = response.bytes_stream();
        while let Some(piece) = stream.next().await {
            let piece = piece.map_err(|error| remote::broken(&error, self.name))?;
            let length = piece.len() as u64;
            told.bytes_downloaded += length;
            told.all_downloaded += length;
            progress.send_replace(told.clone());
            if told.bytes_downloaded > info.size || pieces.send(Piece::Data(piece)).await.is_err() {
                // More than announced, or the disk refused: the writer says which.
                break;
            }
        }
        // A writer that has failed already is asked why below.
        drop(pieces.send(Piece::End).await);
        drop(pieces);
        writing
            .await
            .map_err(|panic| Code::Internal.error(panic.to_string()))?
            .map_err(|why| why.into_error(path, info))
    }
}

/// What a writer gets.
#[derive(Debug)]
enum Piece {
    Data(Bytes),
    End,
}

/// A file's content on its way to the disk.
#[derive(Debug)]
struct Content {
    incomplete: PathBuf,
    blob: PathBuf,
    info: FileInfo,
    /// Held until the last byte is written, or removed again.
    _lock: File,
}

/// Why content is not on the disk.
#[derive(Debug)]
enum Unwritten {
    Disk(io::Error),
    Size(u64),
    Hash(String),
    Abandoned,
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl Unwritten {
    fn into_error(self, path: &str, info: &FileInfo) -> Error {
        match self {
            Self::Disk(error) => disk(&error),
            Self::Size(size) => Code::DownloadCorrupt
                .error(format!(
                    "`{path}` should have {} bytes, but {size} came",
                    info.size
                ))
                .with_detail("announced_bytes", info.size)
                .with_detail("received_bytes", size),
            Self::Hash(sum) => Code::DownloadCorrupt
                .error(format!("the content of `{path}` is not what the hub announced"))
                .with_detail("announced_sha256", &info.etag)
                .with_detail("received_sha256", sum),
            Self::Abandoned => Code::DownloadCancelled.error(format!("the download of `{path}` was ended")),
        }
    }
}

impl Content {
    /// Writes what comes, and gives it its name if it is what was announced; else nothing is left of it.
    fn write(self, pieces: mpsc::Receiver<Piece>) -> Result<(), Unwritten> {
        let written = self.take(pieces);
        if written.is_err() {
            // It may never have been made.
            drop(fs::remove_file(&self.incomplete));
        }
        written
    }

    fn take(&self, mut pieces: mpsc::Receiver<Piece>) -> Result<(), Unwritten> {
        let mut file = File::create(&self.incomplete)?;
        let mut size = 0;
        let mut hasher = Sha256::new();
        loop {
            match pieces.blocking_recv() {
                Some(Piece::Data(data)) => {
                    hasher.update(&data);
                    file.write_all(&data)?;
                    size += data.len() as u64;
                }
                Some(Piece::End) => break,
                None => return Err(Unwritten::Abandoned),
            }
        }
        if size != self.info.size {
            return Err(Unwritten::Size(size));
        }
        // Large files are named by their SHA-256; small ones by git's SHA-1 of something else.
        let named_by_sum =
            self.info.etag.len() == 64 && self.info.etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        if named_by_sum {
            let sum: String = hasher
                .finalize()
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            if !sum.eq_ignore_ascii_case(&self.info.etag) {
                return Err(Unwritten::Hash(sum));
            }
        }
        file.sync_data()?;
        Ok(fs::rename(&self.incomplete, &self.blob)?)
    }
}

async fn cached_files(cache: &Cache, checkpoint: &HubCheckpoint) -> Result<CachedFiles, Error> {
    let (cache, checkpoint) = (cache.clone(), checkpoint.clone());
    beside(move || cache.cached_files(&checkpoint)).await
}

/// Takes a lock that other downloads of this content respect; the operating system gives it back with the process.
async fn lock(path: PathBuf) -> Result<File, Error> {
    let file = on_disk(move || File::create(path)).await?;
    let mut pause = LOCK_WAIT.0;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => sleep(pause).await,
            Err(TryLockError::Error(error)) => return Err(disk(&error)),
        }
        pause = (pause * 2).min(LOCK_WAIT.1);
    }
}

/// Refuses what cannot end well.
fn check_room(cache: &Cache, files: &[WantedFile]) -> Result<(), Error> {
    let missing = files.iter().filter(|file| !file.there).map(|file| file.info.size);
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

fn free_bytes(path: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn disk(error: &io::Error) -> Error {
    if matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    ) {
        return Code::InsufficientStorage.error(format!("the disk of the cache is full: {error}"));
    }
    Code::Internal.error(format!("the cache cannot be written: {error}"))
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Error> {
    beside(work).await?.map_err(|error| disk(&error))
}

async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    spawn_blocking(work)
        .await
        .map_err(|panic| Code::Internal.error(panic.to_string()))
}
