//! The operator's folder with the caches of sequences (`--slot-save-path`): a file is there whole or not at all, and nothing outside of the
//! folder is read or written.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Component, Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use muster_core::{Code, Error};
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

use crate::{
    context::{ContextInfo, ContextParams},
    model::Token,
    saved::{Fingerprint, Most, Refused, Saved},
};

/// Where sequences of one model are saved.
#[derive(Debug)]
pub(crate) struct SlotFiles {
    folder: PathBuf,
    fingerprint: Fingerprint,
    /// What a sequence of this model can have.
    most: Most,
    /// Tokens of the vocabulary.
    vocabulary: usize,
    /// Numbers the files that are being written.
    written: AtomicU64,
}

impl SlotFiles {
    pub(crate) const fn new(
        folder: PathBuf,
        fingerprint: Fingerprint,
        most: Most,
        vocabulary: usize,
    ) -> Self {
        Self {
            folder,
            fingerprint,
            most,
            vocabulary,
            written: AtomicU64::new(0),
        }
    }

    /// Saves a sequence. A file of that name is replaced once the new one is on disk.
    ///
    /// # Errors
    /// `invalid_request` for a name that is not bare, `insufficient_storage`, `runtime_error`; then the old file is as it was.
    pub(crate) fn save(&self, name: &str, saved: &Saved) -> Result<(), Error> {
        let path = self.path(name)?;
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let new = self
            .folder
            .join(format!(".muster-{}-{number}.part", std::process::id()));
        let done = self.write(&new, saved).and_then(|()| fs::rename(&new, &path));
        done.map_err(|error| {
            // Of no use, and not there if it could not be made.
            drop(fs::remove_file(&new));
            let full = [
                ErrorKind::StorageFull,
                ErrorKind::QuotaExceeded,
                ErrorKind::FileTooLarge,
            ];
            let code = if full.contains(&error.kind()) {
                Code::InsufficientStorage
            } else {
                Code::RuntimeError
            };
            code.error(format!("Unable to save slot: `{name}`: {error}"))
        })
    }

    fn write(&self, new: &Path, saved: &Saved) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(new)?;
        let mut out = BufWriter::new(&file);
        saved.write(self.fingerprint, &mut out)?;
        out.flush()?;
        drop(out);
        file.sync_all()
    }

    /// Reads a sequence; returns it and the size of its file in bytes.
    ///
    /// # Errors
    /// `invalid_request` if the name is not bare, or there is no such file, or it can't be used with this model.
    pub(crate) fn read(&self, name: &str) -> Result<(Saved, u64), Error> {
        let path = self.path(name)?;
        let refused = |why: &dyn std::fmt::Display| {
            Code::InvalidRequest
                .error(format!("Unable to restore slot: `{name}`: {why}"))
                .with_param("filename")
        };
        // Neither a link out of the folder nor a pipe that nobody writes to.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(i32::try_from(flags).unwrap_or_default())
            .open(path);
        let file = opened.map_err(|error| refused(&error))?;
        let about = file.metadata().map_err(|error| refused(&error))?;
        if !about.is_file() {
            return Err(refused(&"it is no file"));
        }
        let saved = Saved::read(file, about.len(), self.fingerprint, self.most).map_err(|why| {
            if let Refused::Io(error) = &why {
                tracing::warn!(name, %error, "a saved sequence cannot be read");
            }
            refused(&why)
        })?;
        let known = |token: &Token| usize::try_from(*token).is_ok_and(|token| token < self.vocabulary);
        if !saved.tokens.iter().all(known) {
            return Err(refused(&Refused::Damaged));
        }
        Ok((saved, about.len()))
    }

    /// Refuses a name that is not bare.
    ///
    /// # Errors
    /// `invalid_request`.
    pub(crate) fn check(&self, name: &str) -> Result<(), Error> {
        self.path(name).map(drop)
    }

    fn path(&self, name: &str) -> Result<PathBuf, Error> {
        let mut parts = Path::new(name).components();
        let bare =
            matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == name);
        if bare && !name.starts_with('.') && !name.contains(char::is_control) {
            return Ok(self.folder.join(name));
        }
        let error = Code::InvalidRequest.error("`filename` must be the name of a file, without a folder");
        Err(error.with_param("filename"))
    }
}

/// Bytes of a model's file that count for its fingerprint: its head, and samples from all of it, which tell apart models that differ in their
/// weights only.
const HEAD: u64 = 64 << 10;
const SAMPLE: u64 = 4 << 10;
const SAMPLES: u64 = 64;

/// The fingerprint of a model and its adapters, all files in order, with a context of these parameters, in this llama.cpp and with what its
/// flags change in it.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn fingerprint(
    files: &[PathBuf],
    (llama_cpp, flags): (&str, &[u8]),
    params: &ContextParams,
    info: &ContextInfo,
) -> io::Result<Fingerprint> {
    // What does not change how a state is laid out or what it means. A parameter that is added to them counts.
    let params = ContextParams {
        n_ctx: 0,
        n_batch: 0,
        n_ubatch: 0,
        n_seq_max: 0,
        n_outputs_max: 0,
        n_threads: 0,
        n_threads_batch: 0,
        kv_unified: true,
        ..params.clone()
    };
    let streams = if info.is_split() { info.n_seq_max } else { 1 };
    let mut sum = Sha256::new();
    sum.update(serde_json::to_vec(&(llama_cpp, flags, &params, streams))?);
    for path in files {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        sum.update(len.to_le_bytes());
        let mut take = |from: u64, most: u64| -> io::Result<()> {
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(from))?;
            io::Read::by_ref(&mut file).take(most).read_to_end(&mut bytes)?;
            sum.update(&bytes);
            Ok(())
        };
        take(0, HEAD)?;
        for sample in 0..SAMPLES {
            take(len / SAMPLES * sample, SAMPLE)?;
        }
        take(len.saturating_sub(SAMPLE), SAMPLE)?;
    }
    Ok(Fingerprint(sum.finalize().into()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn files(folder: &Path) -> SlotFiles {
        let most = Most {
            tokens: 10,
            adapters: 0,
        };
        SlotFiles::new(folder.to_owned(), Fingerprint([1; 32]), most, 100)
    }

    fn saved(tokens: &[Token]) -> Saved {
        Saved {
            scales: vec![],
            tokens: tokens.to_vec(),
            state: vec![9; 5],
        }
    }

    #[test]
    fn a_file_is_its_owners_alone_and_replaced_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        files.save("a.bin", &saved(&[1])).unwrap();
        files.save("a.bin", &saved(&[1, 2])).unwrap();
        let (read, len) = files.read("a.bin").unwrap();
        assert_eq!((read, len), (saved(&[1, 2]), saved(&[1, 2]).file_len()));
        let mode = fs::metadata(folder.path().join("a.bin"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_outside_of_the_folder_is_read_or_written() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let there = outside.path().join("secret");
        files(outside.path()).save("secret", &saved(&[1])).unwrap();
        let before = fs::read(&there).unwrap();
        let files = files(folder.path());
        let absolute = there.to_str().unwrap();
        for name in [
            "",
            ".",
            "..",
            "../secret",
            absolute,
            "a/b",
            "./a",
            "a/",
            ".a",
            "a\0",
            "a\n",
        ] {
            for error in [
                files.read(name).map(drop).unwrap_err(),
                files.save(name, &saved(&[2])).unwrap_err(),
            ] {
                assert_eq!(
                    (error.code, error.param.as_deref()),
                    (Code::InvalidRequest, Some("filename"))
                );
            }
        }
        symlink(&there, folder.path().join("link")).unwrap();
        assert_eq!(files.read("link").unwrap_err().code, Code::InvalidRequest);
        // A link is replaced, not followed.
        files.save("link", &saved(&[2])).unwrap();
        assert_eq!(files.read("link").unwrap().0, saved(&[2]));
        assert_eq!(fs::read(&there).unwrap(), before);
    }

    #[test]
    fn what_is_no_file_and_tokens_of_another_vocabulary_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        fs::create_dir(folder.path().join("folder")).unwrap();
        for name in ["none", "folder"] {
            assert_eq!(files.read(name).unwrap_err().code, Code::InvalidRequest);
        }
        for token in [-1, 100] {
            files.save("tokens", &saved(&[token])).unwrap();
            assert!(files.read("tokens").unwrap_err().message.contains("damaged"));
        }
    }

    #[test]
    fn a_save_that_fails_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        // A folder stands where the file should go, as a disk that is full would be in the way.
        fs::create_dir(folder.path().join("a")).unwrap();
        assert_eq!(
            files.save("a", &saved(&[1])).unwrap_err().code,
            Code::RuntimeError
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
