//! A file that a client brings, on its way into the cache.
//!
//! ```text
//!   lock ─► parts ─► writer (disk, sum) ─► named and linked
//! ```
//!
//! Invariants: as for a download ([`super::transfer`]); but its size is not known before, and what is left of a broken one is of no use: it is removed.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::PathBuf,
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use muster_core::{Code, Error};
use muster_proto::hub::{Sum, UPLOADS};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::{
    cache::Cache,
    fetch::{SPARE, beside, disk, free_bytes, on_disk},
    repo::Repo,
    transfer,
};

/// The only snapshot of uploads.
const SNAPSHOT: &str = "uploaded";
/// What a file's name ends in while it comes, as `huggingface_hub` calls its own.
const SUFFIX: &str = ".incomplete";
/// The first bytes of a model's file.
const MAGIC: &[u8] = b"GGUF";
/// Parts on their way to the disk. When full, the client waits.
const PARTS: usize = 16;
/// Bytes between two looks at the room that is left.
const LOOK_EVERY: u64 = 64 << 20;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Content(Bytes),
    /// All of it has come.
    End,
}

/// The size of a file if it has been uploaded.
///
/// # Errors
/// `internal`.
pub(crate) async fn look(cache: &Cache, sum: &Sum) -> Result<Option<u64>, Error> {
    let (repo, sum) = (cache.repo(UPLOADS), sum.clone());
    beside(move || size(&repo, &sum)).await
}

/// Keeps a file and returns its size.
///
/// # Errors
/// `invalid_request`: it is no GGUF, not what its sum says, or it broke off; `insufficient_storage`, `internal`, and those of `parts`.
pub(crate) async fn put(
    cache: &Cache,
    sum: &Sum,
    parts: impl Stream<Item = Result<Part, Error>>,
) -> Result<u64, Error> {
    let repo = cache.repo(UPLOADS);
    let blobs = repo.blobs();
    on_disk(move || fs::create_dir_all(blobs)).await?;
    let lock = transfer::lock(&repo, sum.hex()).await?;
    if let Some(size) = look(cache, sum).await? {
        return Ok(size);
    }
    let (sender, receiver) = mpsc::channel(PARTS);
    let (of, root) = (sum.clone(), cache.root().to_owned());
    let writing = tokio::task::spawn_blocking(move || {
        let written = Writer::open(repo, of, root).and_then(|writer| writer.run(receiver));
        drop(lock);
        written
    });
    let mut broken = None;
    let mut parts = std::pin::pin!(parts);
    while let Some(part) = parts.next().await {
        match part {
            Ok(part) => {
                // A writer that has failed says why below.
                if sender.send(part).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
    }
    drop(sender);
    let written = writing
        .await
        .map_err(|panic| Code::Internal.error(panic.to_string()))?;
    broken.map_or(written, Err)
}

/// The size of a file that is there under its name.
fn size(repo: &Repo, sum: &Sum) -> Option<u64> {
    let file = repo.snapshot(SNAPSHOT).join(sum.file());
    fs::metadata(file).ok().map(|meta| meta.len())
}

#[derive(Debug)]
struct Writer {
    repo: Repo,
    sum: Sum,
    /// The cache, whose room is watched.
    root: PathBuf,
    place: PathBuf,
    file: File,
    hasher: Sha256,
    size: u64,
    /// The first bytes.
    head: Vec<u8>,
}

impl Writer {
    fn open(repo: Repo, sum: Sum, root: PathBuf) -> Result<Self, Error> {
        let place = repo.blob(&format!("{}{SUFFIX}", sum.hex()));
        let file = File::create(&place).map_err(|error| disk(&error))?;
        Ok(Self {
            repo,
            sum,
            root,
            place,
            file,
            hasher: Sha256::new(),
            size: 0,
            head: Vec::new(),
        })
    }

    fn run(mut self, mut parts: mpsc::Receiver<Part>) -> Result<u64, Error> {
        let written = self.write(&mut parts).and_then(|()| self.finish());
        if written.is_err() {
            // What cannot be removed is written over by the next one.
            drop(fs::remove_file(&self.place));
        }
        written
    }

    fn write(&mut self, parts: &mut mpsc::Receiver<Part>) -> Result<(), Error> {
        loop {
            match parts.blocking_recv() {
                Some(Part::Content(content)) => self.add(&content)?,
                Some(Part::End) => return Ok(()),
                None => return Err(Code::InvalidRequest.error("the file broke off before its end")),
            }
        }
    }

    fn add(&mut self, content: &[u8]) -> Result<(), Error> {
        if self.head.len() < MAGIC.len() {
            let missing = (MAGIC.len() - self.head.len()).min(content.len());
            self.head.extend(&content[..missing]);
            if !MAGIC.starts_with(&self.head) {
                return Err(
                    Code::InvalidRequest.error("the file is no GGUF: only models in this form are kept")
                );
            }
        }
        let before = self.size / LOOK_EVERY;
        self.size += content.len() as u64;
        if self.size / LOOK_EVERY > before && free_bytes(&self.root).is_some_and(|free| free < SPARE) {
            return Err(disk(&io::ErrorKind::StorageFull.into()));
        }
        self.hasher.update(content);
        self.file.write_all(content).map_err(|error| disk(&error))
    }

    fn finish(&mut self) -> Result<u64, Error> {
        if self.head != MAGIC {
            return Err(Code::InvalidRequest.error("the file is empty or too short"));
        }
        let found: String = self
            .hasher
            .finalize_reset()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        if found != self.sum.hex() {
            let error = format!("the SHA-256 of the file is {found}, not {}", self.sum.hex());
            return Err(Code::InvalidRequest.error(error));
        }
        let named = || {
            self.file.sync_all()?;
            fs::rename(&self.place, self.repo.blob(self.sum.hex()))?;
            self.repo.link(SNAPSHOT, &self.sum.file(), self.sum.hex())
        };
        named().map_err(|error| disk(&error))?;
        Ok(self.size)
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use muster_proto::{hub::Revision, v1::HubCheckpoint};

    use super::*;

    const MODEL: &[u8] = b"GGUF and the rest of a model";

    fn sum(content: &[u8]) -> Sum {
        let hex: String = Sha256::digest(content)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        hex.parse().unwrap()
    }

    fn parts(content: &[u8], end: bool) -> impl Stream<Item = Result<Part, Error>> + use<> {
        let parts: Vec<_> = content
            .chunks(3)
            .map(|part| Part::Content(part.to_vec().into()))
            .collect();
        stream::iter(parts.into_iter().chain(end.then_some(Part::End)).map(Ok))
    }

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(dir.path().join("hub"));
        (dir, cache)
    }

    #[tokio::test]
    async fn an_uploaded_file_is_a_checkpoint_of_the_cache() {
        let (_dir, cache) = cache();
        let sum = sum(MODEL);
        assert_eq!(look(&cache, &sum).await, Ok(None));
        assert_eq!(
            put(&cache, &sum, parts(MODEL, true)).await,
            Ok(MODEL.len() as u64)
        );
        // Once more needs no content.
        assert_eq!(put(&cache, &sum, parts(b"", false)).await, Ok(MODEL.len() as u64));
        assert_eq!(look(&cache, &sum).await, Ok(Some(MODEL.len() as u64)));
        let checkpoint: HubCheckpoint = sum.checkpoint().checkpoint(&Revision::default(), "", false);
        let found = cache.resolve(&checkpoint).unwrap();
        assert_eq!(fs::read(&found.path).unwrap(), MODEL);
        assert_eq!(cache.remove(&checkpoint, &[]).unwrap(), MODEL.len() as u64);
        assert_eq!(look(&cache, &sum).await, Ok(None));
    }

    #[tokio::test]
    async fn what_is_not_whole_is_refused_and_leaves_nothing() {
        let (_dir, cache) = cache();
        let broken = Err(Code::SlowRequest.error("too slow"));
        let slow = stream::iter([Ok(Part::Content(MODEL.into())), broken]);
        let error = put(&cache, &sum(MODEL), slow).await.unwrap_err();
        assert_eq!(error.code, Code::SlowRequest);
        let cases: [(&[u8], Sum, bool, &str); 5] = [
            (MODEL, sum(MODEL), false, "broke off"),
            (b"GGUF other", sum(MODEL), true, "SHA-256"),
            (b"PK zip", sum(b"PK zip"), true, "no GGUF"),
            (b"GG", sum(b"GG"), true, "empty"),
            (b"", sum(b""), true, "empty"),
        ];
        for (content, sum, end, why) in cases {
            let error = put(&cache, &sum, parts(content, end)).await.unwrap_err();
            assert_eq!(error.code, Code::InvalidRequest, "{why}");
            assert!(error.message.contains(why), "{}", error.message);
            assert_eq!(look(&cache, &sum).await, Ok(None));
        }
        let left = fs::read_dir(cache.repo(UPLOADS).blobs()).unwrap().count();
        assert_eq!(left, 0);
    }
}
