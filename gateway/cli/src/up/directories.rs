//! The directories of `muster up`: a locked state directory on disk, and a run directory in memory whose path is short enough for unix
//! sockets. Serving needs only the run directory.

use std::{
    fs::{File, OpenOptions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{Read as _, Seek as _, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use muster_proto::{
    disk::no_room,
    private::{NotPrivate, PrivateDir},
    trust::place,
};
use rustix::fs::{FlockOperation, flock};

use super::UpError;

/// Longest path of the run directory. A unix socket's path has at most 107 bytes, and workers add names of up to 60.
const RUN_DIR_BYTES: usize = 40;

/// Name of the lock file; its presence marks a state directory.
const LOCK: &str = "up.lock";

/// The directories of one `muster up`. Dropping them releases the lock.
#[derive(Debug)]
pub(crate) struct Directories {
    state: PathBuf,
    run: PathBuf,
    /// Kept open for its lock, which the operating system releases when the process ends.
    _lock: File,
}

impl Directories {
    /// Creates the directories and locks the state directory.
    pub(crate) fn open(state_dir: Option<PathBuf>) -> Result<Self, UpError> {
        let state = state_dir.map_or_else(default_state_dir, Ok)?;
        if let Err(error) = private_dir(&state) {
            go_on_without_room(error)?;
        }
        // If the directory could not be created, its path is used as given.
        let state = state.canonicalize().unwrap_or(state);
        let run = run_dir(&state);
        private_dir(&run)?;
        let lock = lock(&state, &state).or_else(|error| {
            go_on_without_room(error)?;
            lock(&run, &state)
        })?;
        Ok(Self {
            state,
            run,
            _lock: lock,
        })
    }

    /// The directory for what outlives a run.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// The directory for sockets.
    pub(crate) fn run(&self) -> &Path {
        &self.run
    }
}

/// The run directory of a `muster up` with the environment's state directory; none if there never was one.
pub(crate) fn expected_run_dir() -> Option<PathBuf> {
    let told = std::env::var_os("MUSTER_STATE_DIR").filter(|dir| !dir.is_empty());
    let state = told.map_or_else(default_state_dir, |dir| Ok(dir.into())).ok()?;
    Some(run_dir(&state.canonicalize().ok()?))
}

fn default_state_dir() -> Result<PathBuf, UpError> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_STATE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("muster"))
        .ok_or(UpError::NoHome)
}

/// The directory for sockets, in memory if possible, so that serving needs no disk. Its name is derived from the state directory, so that
/// workers find what a killed predecessor left.
fn run_dir(state: &Path) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    let name = format!("muster-{:08x}", hasher.finish() >> 32);
    let mut runs = place::bases().map(|base| base.join(&name));
    // The last one is always short enough.
    let short = |run: &PathBuf| run.as_os_str().as_bytes().len() <= RUN_DIR_BYTES;
    runs.find(short).unwrap_or_else(|| Path::new("/tmp").join(&name))
}

fn private_dir(path: &Path) -> Result<(), UpError> {
    match PrivateDir::open(path, LOCK) {
        Ok(_) => Ok(()),
        Err(NotPrivate::Io { path, why }) => Err(UpError::Path { path, source: why }),
        Err(error) => Err(error.into()),
    }
}

/// A full disk is no reason to stop: only what would be stored there is lost.
fn go_on_without_room(error: UpError) -> Result<(), UpError> {
    if let UpError::Path { path, source } = &error
        && no_room(source)
    {
        tracing::warn!(path = %path.display(), %source, "no room for state: it is kept in memory only");
        return Ok(());
    }
    Err(error)
}

/// Locks a state directory. The lock file is in that directory, or in the run directory if the disk is full.
fn lock(place: &Path, state: &Path) -> Result<File, UpError> {
    let path = place.join(LOCK);
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(&path)
        .map_err(at(&path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // The process id is only for the message.
        drop(file.read_to_string(&mut holder));
        return Err(UpError::Locked {
            path: state.to_owned(),
            holder: holder.trim().to_owned(),
        });
    }
    let write = |file: &mut File| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    // Without it, only another `muster up`'s message has less detail.
    if let Err(error) = write(&mut file) {
        tracing::warn!(path = %path.display(), %error, "cannot write who uses the state directory");
    }
    Ok(file)
}

/// Adds the path to an I/O error.
pub(crate) fn at(path: &Path) -> impl FnOnce(std::io::Error) -> UpError + use<> {
    let path = path.to_owned();
    move |source| UpError::Path { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_directory_has_one_owner() {
        let base = tempfile::tempdir().unwrap();
        let first = Directories::open(Some(base.path().join("state"))).unwrap();
        let error = Directories::open(Some(base.path().join("state"))).unwrap_err();
        assert!(
            matches!(&error, UpError::Locked { holder, .. } if *holder == std::process::id().to_string()),
            "{error}"
        );
        drop(first);
        Directories::open(Some(base.path().join("state"))).unwrap();
    }

    /// Regression: with a full state directory no model could be loaded, since sockets and the engines' records were in it.
    #[test]
    fn run_directories_are_short_and_need_no_disk_of_ours() {
        let long = Path::new("/").join("x".repeat(100));
        for state in [&long, Path::new("/a")] {
            let run = run_dir(state);
            assert!(
                run.as_os_str().len() <= RUN_DIR_BYTES && !run.starts_with(state),
                "{run:?}"
            );
            assert_eq!(run_dir(state), run);
        }
        assert_ne!(run_dir(&long), run_dir(Path::new("/a")));
    }
}
