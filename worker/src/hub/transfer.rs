//! One file on its way into the cache.
//!
//! ```text
//!   lock ─► partial ─► missing ranges ─► lanes (requests) ─► writer (disk, sum) ─► named
//!              ▲                          │ the hub knows no ranges: one lane, from the beginning
//!              └── once more, if the sum is wrong and not all of it came now
//! ```
//!
//! Invariants: dropping it ends it, and what has come stays for the next one; two programs never write the same content at once; a file gets its name only
//! once its sum is the one that the hub announced.

use std::{
    collections::VecDeque,
    fs::{self, File, TryLockError},
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt as _, future::try_join_all};
use muster_core::{Code, Error};
use muster_proto::pauses::Pauses;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::mpsc::{self, error::TryRecvError},
    task::spawn_blocking,
};

use super::{
    fetch::{disk, on_disk},
    meter::Meter,
    partial::Partial,
    remote::{self, Content, FileInfo, Remote},
    repo::Repo,
    tries::{Tries, Trouble},
};

/// Requests for content of one file at once.
const LANES: usize = 4;
/// Chunks on their way to the disk. When full, the network waits.
const CHUNKS: usize = 64;
/// Pauses between looks at a lock that another program holds.
const LOCK_WAIT: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A file to be fetched.
#[derive(Debug)]
pub(super) struct Transfer<'a> {
    pub(super) remote: &'a Remote,
    pub(super) repo: &'a Repo,
    /// The repository's name.
    pub(super) name: &'a str,
    pub(super) commit: &'a str,
    pub(super) path: &'a str,
    pub(super) info: &'a FileInfo,
    pub(super) meter: &'a Meter,
}

/// What the writer gets.
#[derive(Debug)]
enum Chunk {
    /// What begins at a byte.
    Data(u64, Bytes),
    /// All begins anew.
    Anew,
    End,
}

/// Why nothing more comes.
#[derive(Debug)]
enum Stop {
    Failed(Error),
    NoRanges,
    /// The writer says why.
    Writer,
}

impl Transfer<'_> {
    /// Fetches it.
    ///
    /// # Errors
    /// `checkpoint_not_found`, `checkpoint_forbidden`, `hub_unavailable`, `insufficient_storage`, `download_corrupt`, `internal`.
    pub(super) async fn run(&self) -> Result<(), Error> {
        let blobs = self.repo.blobs();
        on_disk(move || fs::create_dir_all(blobs)).await?;
        let lock = Arc::new(lock(self.repo, &self.info.etag).await?);
        let mut anew = false;
        loop {
            // Whoever held the lock may have fetched it.
            let blob = self.repo.blob(&self.info.etag);
            if fs::metadata(&blob).is_ok_and(|meta| meta.len() == self.info.size) {
                return Ok(());
            }
            let (place, path, size) = (
                self.repo.part(&self.info.etag),
                self.path.to_owned(),
                self.info.size,
            );
            let partial = on_disk(move || Partial::open(&place, &path, size)).await?;
            let there = partial.there();
            self.meter.there(there);
            if there > 0 {
                tracing::info!(repo = self.name, path = self.path, there, size, "going on");
            }
            let missing = partial.missing();
            let (sender, receiver) = mpsc::channel(CHUNKS);
            let writer = Writer {
                partial,
                blob,
                sum: announced_sum(&self.info.etag).map(|_| (0, Sha256::new())),
                info: self.info.clone(),
                _lock: Arc::clone(&lock),
            };
            let writing = spawn_blocking(move || writer.run(receiver));
            let came = self.pieces(missing, &sender).await;
            if came.is_ok() {
                // A writer that has failed already is asked why below.
                drop(sender.send(Chunk::End).await);
            }
            drop(sender);
            let written = writing
                .await
                .map_err(|panic| Code::Internal.error(panic.to_string()))?;
            match (came, written) {
                (Ok(()), Ok(())) => return Ok(()),
                (_, Err(Unwritten::Sum(_))) if there > 0 && !anew => {
                    tracing::warn!(
                        path = self.path,
                        "what was there is not what it should be: once more"
                    );
                    anew = true;
                }
                (Err(Stop::Failed(error)), _) => return Err(error),
                (_, Err(why)) => return Err(why.into_error(self.path, self.info)),
                (Err(Stop::NoRanges | Stop::Writer), Ok(())) => {
                    return Err(Code::Internal.error("a download ended without a reason"));
                }
            }
        }
    }

    /// Fetches what is missing.
    async fn pieces(&self, missing: Vec<Range<u64>>, sender: &mpsc::Sender<Chunk>) -> Result<(), Stop> {
        let lanes = missing.len().min(LANES);
        let queue = Mutex::new(VecDeque::from(missing));
        let lanes = (0..lanes).map(|_| self.lane(&queue, sender));
        match try_join_all(lanes).await {
            Err(Stop::NoRanges) => self.whole(sender).await,
            other => other.map(drop),
        }
    }

    /// Fetches one missing range after the other.
    async fn lane(
        &self,
        queue: &Mutex<VecDeque<Range<u64>>>,
        sender: &mpsc::Sender<Chunk>,
    ) -> Result<(), Stop> {
        // Held for a pop.
        let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some(mut range) = next() {
            let mut tries = self.tries();
            while !range.is_empty() {
                let before = range.start;
                let asked = (range != (0..self.info.size)).then(|| range.clone());
                let Err(failed) = self.request(asked.as_ref(), &mut range, sender).await else {
                    continue;
                };
                if range.start > before {
                    tries.refill();
                }
                self.or_again(&mut tries, failed).await?;
            }
        }
        Ok(())
    }

    /// Fetches all of it from the beginning, however much of that was there.
    async fn whole(&self, sender: &mpsc::Sender<Chunk>) -> Result<(), Stop> {
        let mut tries = self.tries();
        loop {
            sender.send(Chunk::Anew).await.map_err(|_| Stop::Writer)?;
            self.meter.there(0);
            let mut range = 0..self.info.size;
            match self.request(None, &mut range, sender).await {
                Ok(()) => return Ok(()),
                Err(failed) => self.or_again(&mut tries, failed).await?,
            }
        }
    }

    /// One request; `range` is what is still missing of it.
    async fn request(
        &self,
        asked: Option<&Range<u64>>,
        range: &mut Range<u64>,
        sender: &mpsc::Sender<Chunk>,
    ) -> Result<(), Failed> {
        let file = (self.commit, self.path, self.info.size);
        let response = match self.remote.content(self.name, file, asked).await? {
            Content::Whole(_) if asked.is_some() => return Err(Failed::Stop(Stop::NoRanges)),
            Content::Part(response) | Content::Whole(response) => response,
        };
        let mut stream = response.bytes_stream();
        while let Some(data) = stream.next().await {
            let data = data.map_err(|error| remote::broken(&error, self.name))?;
            let length = data.len() as u64;
            if length > range.end - range.start {
                let received = range.start + length;
                return Err(Trouble::never(remote::other_size(self.path, self.info.size, received)).into());
            }
            self.remote.limit().took(length).await;
            let chunk = Chunk::Data(range.start, data);
            sender.send(chunk).await.map_err(|_| Failed::Stop(Stop::Writer))?;
            range.start += length;
            self.meter.came(length);
        }
        if range.is_empty() {
            return Ok(());
        }
        Err(Trouble::soon(remote::other_size(self.path, self.info.size, range.start)).into())
    }

    fn tries(&self) -> Tries {
        let patience = self.remote.patience();
        Tries::new(patience.content, patience.pauses)
    }

    async fn or_again(&self, tries: &mut Tries, failed: Failed) -> Result<(), Stop> {
        match failed {
            Failed::Stop(stop) => Err(stop),
            Failed::Trouble(trouble) => tries.again(trouble).await.map_err(Stop::Failed),
        }
    }
}

/// Why a request brought not all.
#[derive(Debug)]
enum Failed {
    Trouble(Trouble),
    Stop(Stop),
}

impl From<Trouble> for Failed {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// Writes what comes, and sums it up in order as far as it is there.
#[derive(Debug)]
struct Writer {
    partial: Partial,
    blob: PathBuf,
    info: FileInfo,
    /// The next piece to be added, and the sum so far; none where the hub announced none.
    sum: Option<(usize, Sha256)>,
    /// Held until the last byte is written.
    _lock: Arc<File>,
}

/// Why content has no name yet.
#[derive(Debug)]
enum Unwritten {
    Disk(io::Error),
    Sum(String),
    /// Nothing more comes now.
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
            Self::Sum(sum) => Code::DownloadCorrupt
                .error(format!("the content of `{path}` is not what the hub announced"))
                .with_detail("announced_sha256", &info.etag)
                .with_detail("received_sha256", sum),
            Self::Abandoned => Code::DownloadCancelled.error(format!("the download of `{path}` was ended")),
        }
    }
}

impl Writer {
    fn run(mut self, mut chunks: mpsc::Receiver<Chunk>) -> Result<(), Unwritten> {
        loop {
            let chunk = match chunks.try_recv() {
                Ok(chunk) => Some(chunk),
                // While nothing comes: the sum is ready soon after the last byte then.
                Err(TryRecvError::Empty) if self.add_piece()? => continue,
                Err(TryRecvError::Empty) => chunks.blocking_recv(),
                Err(TryRecvError::Disconnected) => None,
            };
            match chunk {
                Some(Chunk::Data(at, data)) => self.partial.write(at, &data)?,
                Some(Chunk::Anew) => {
                    self.partial.reset()?;
                    self.sum = self.sum.map(|_| (0, Sha256::new()));
                }
                Some(Chunk::End) => return self.finish(),
                None => return Err(Unwritten::Abandoned),
            }
        }
    }

    /// Adds the next piece to the sum; false if it is not there.
    fn add_piece(&mut self) -> io::Result<bool> {
        let Some((next, sum)) = &mut self.sum else {
            return Ok(false);
        };
        let added = self.partial.sum(*next, sum)?;
        *next += usize::from(added);
        Ok(added)
    }

    fn finish(mut self) -> Result<(), Unwritten> {
        while self.add_piece()? {}
        if let (Some((_, sum)), Some(announced)) = (self.sum, announced_sum(&self.info.etag)) {
            let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
            if !sum.eq_ignore_ascii_case(announced) {
                self.partial.remove()?;
                return Err(Unwritten::Sum(sum));
            }
        }
        Ok(self.partial.finish(&self.blob)?)
    }
}

/// Large files are named by their SHA-256; small ones by git's SHA-1 of something else.
fn announced_sum(etag: &str) -> Option<&str> {
    (etag.len() == 64 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(etag)
}

/// Takes a lock that other downloads of this content respect; the operating system gives it back with the process.
pub(super) async fn lock(repo: &Repo, etag: &str) -> Result<File, Error> {
    let (repo, etag) = (repo.clone(), etag.to_owned());
    let file = on_disk(move || repo.lock_file(&etag)).await?;
    let mut pauses = Pauses::new(LOCK_WAIT);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => pauses.wait().await,
            Err(TryLockError::Error(error)) => return Err(disk(&error)),
        }
    }
}
