//! Where `muster up` keeps things: the state directory, locked, and a run directory whose path is short enough for unix sockets.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{Read as _, Seek as _, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::UpError;

/// Longest run directory; a unix socket's path has at most 107 bytes, and workers put names of up to 60 below it.
const RUN_DIR_BYTES: usize = 40;

/// The directories of one `muster up`; dropping them gives the lock up.
#[derive(Debug)]
pub(crate) struct Directories {
    state: PathBuf,
    run: PathBuf,
    /// Held for its lock; the operating system frees it when the process ends in any way.
    _lock: File,
}

impl Directories {
    /// Makes and locks them.
    pub(crate) fn open(state_dir: Option<PathBuf>) -> Result<Self, UpError> {
        let state = state_dir.map_or_else(default_state_dir, Ok)?;
        private_dir(&state)?;
        let state = state.canonicalize().map_err(at(&state))?;
        let lock = lock(&state)?;
        let run = run_dir(&state);
        private_dir(&run)?;
        if fs::metadata(&run).map_err(at(&run))?.uid() != rustix::process::getuid().as_raw() {
            return Err(UpError::Foreign(run));
        }
        Ok(Self {
            state,
            run,
            _lock: lock,
        })
    }

    /// For what outlives a run.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    /// For sockets.
    pub(crate) fn run(&self) -> &Path {
        &self.run
    }
}

/// The run directory of a `muster up` that uses the state directory of the environment; none if there never was one.
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

fn run_dir(state: &Path) -> PathBuf {
    let beside = state.join("run");
    if beside.as_os_str().as_bytes().len() <= RUN_DIR_BYTES {
        return beside;
    }
    // Stable, so that workers find what a killed predecessor left behind.
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    let name = format!(
        "muster-{}-{:08x}",
        rustix::process::getuid().as_raw(),
        hasher.finish() >> 32
    );
    Path::new("/tmp").join(name)
}

fn private_dir(path: &Path) -> Result<(), UpError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(at(path))
}

fn lock(state: &Path) -> Result<File, UpError> {
    let path = state.join("up.lock");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(at(&path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        // Who it is only helps the message.
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
    write(&mut file).map_err(at(&path))?;
    Ok(file)
}

/// Says which path an I/O error is about.
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

    #[test]
    fn run_directories_are_short() {
        let long = Path::new("/").join("x".repeat(100));
        assert!(run_dir(&long).as_os_str().len() <= RUN_DIR_BYTES);
        assert_eq!(run_dir(&long), run_dir(&long));
        assert_eq!(run_dir(Path::new("/a")), Path::new("/a/run"));
    }
}
