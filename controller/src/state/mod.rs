//! What survives a restart: the epoch, the roster of known workers, memory seen in use, and pins. Nothing else of the fleet (PROTOCOL.md 2, 7).
//!
//! ```text
//! DIR/lock           held (flock) for as long as the process lives: two controllers never share a directory
//! DIR/epoch.json     raised and written before anything is served (PROTOCOL.md 5)
//! DIR/roster.json    workers that ever joined and were not forgotten since, see `roster`
//! DIR/observed.json  see `estimate`
//! DIR/pins.json      models that operators pinned (true) or unpinned (false); wins over the configuration
//! DIR/user_models.json, model_options.json, aliases.json    see `own`
//! ```
//!
//! Every file is replaced as a whole and atomically. A file that cannot be understood stops the start: guessing an epoch would let two
//! controllers believe they are the newer one.

mod own;
mod roster;
mod writer;

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};

pub(crate) use own::{Own, Registration};
pub(crate) use roster::{Expiry, Roster};
pub(crate) use writer::{Saving, Writer};

use crate::estimate::Observed;

/// What operators pinned and unpinned, by model id.
pub(crate) type Pins = BTreeMap<String, bool>;

/// The state directory, locked.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    _lock: File,
}

/// Why the state directory is of no use.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The operating system refused.
    #[error("{} cannot be used", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another process holds it.
    #[error("{} is in use by another controller", .0.display())]
    InUse(PathBuf),
    /// A file is not what this version writes.
    #[error("{} cannot be understood", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

const EPOCH: &str = "epoch.json";
const ROSTER: &str = "roster.json";
const OBSERVED: &str = "observed.json";
const PINS: &str = "pins.json";
const MODELS: &str = "user_models.json";
const OPTIONS: &str = "model_options.json";
const ALIASES: &str = "aliases.json";

impl StateDir {
    /// Creates the directory if it is missing, and locks it.
    ///
    /// # Errors
    /// Another controller has it, or the operating system refuses.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StateError::Io { path, source }
        };
        fs::create_dir_all(path).map_err(failed(path))?;
        let lock_path = path.join("lock");
        let lock = File::create(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self {
                path: path.to_owned(),
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => Err(failed(&lock_path)(source)),
        }
    }

    /// Raises the epoch to at least `seen + 1`, writes it, and returns it.
    ///
    /// # Errors
    /// The epoch cannot be read or written.
    pub(crate) fn raise_epoch(&self, seen: u64) -> Result<u64, StateError> {
        let persisted: u64 = self.read(EPOCH)?;
        let epoch = persisted.max(seen).saturating_add(1);
        self.write(EPOCH, &epoch)?;
        Ok(epoch)
    }

    /// The workers known.
    ///
    /// # Errors
    /// The roster cannot be read.
    pub(crate) fn roster(&self) -> Result<Roster, StateError> {
        let entries: Vec<roster::Entry> = self.read(ROSTER)?;
        Ok(entries.into_iter().collect())
    }

    /// Writes the workers known.
    ///
    /// # Errors
    /// The roster cannot be written.
    pub(crate) fn save_roster(&self, roster: &Roster) -> Result<(), StateError> {
        self.write(ROSTER, &roster.entries())
    }

    /// Memory seen in use.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn observed(&self) -> Result<Observed, StateError> {
        self.read(OBSERVED)
    }

    /// Writes memory seen in use.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_observed(&self, observed: &Observed) -> Result<(), StateError> {
        self.write(OBSERVED, observed)
    }

    /// What operators pinned and unpinned.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn pins(&self) -> Result<Pins, StateError> {
        self.read(PINS)
    }

    /// Writes what operators pinned and unpinned.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_pins(&self, pins: &Pins) -> Result<(), StateError> {
        self.write(PINS, pins)
    }

    /// What users registered and saved.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn own(&self) -> Result<Own, StateError> {
        Ok(Own {
            models: self.read(MODELS)?,
            options: self.read(OPTIONS)?,
            aliases: self.read(ALIASES)?,
        })
    }

    /// Writes what differs from `old` of what users registered and saved.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_own(&self, old: &Own, new: &Own) -> Result<(), StateError> {
        if old.models != new.models {
            self.write(MODELS, &new.models)?;
        }
        if old.options != new.options {
            self.write(OPTIONS, &new.options)?;
        }
        if old.aliases != new.aliases {
            self.write(ALIASES, &new.aliases)?;
        }
        Ok(())
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn read<T: DeserializeOwned + Default>(&self, name: &str) -> Result<T, StateError> {
        let path = self.path.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
            Err(source) => return Err(StateError::Io { path, source }),
        };
        serde_json::from_slice(&text).map_err(|source| StateError::Malformed { path, source })
    }

    fn write<T: Serialize>(&self, name: &str, value: &T) -> Result<(), StateError> {
        let path = self.path.join(name);
        let text = match serde_json::to_vec_pretty(value) {
            Ok(text) => text,
            Err(source) => return Err(StateError::Malformed { path, source }),
        };
        let replace = || {
            let mut file = atomic_write_file::AtomicWriteFile::open(&path)?;
            file.write_all(&text)?;
            file.commit()
        };
        replace().map_err(|source| StateError::Io {
            path: path.clone(),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use muster_policy::{Bytes, DeviceFacts, DeviceKind, Exclusivity, WorkerFacts};

    use super::*;

    fn worker(name: &str) -> WorkerFacts {
        WorkerFacts {
            id: name.into(),
            boot: "boot".into(),
            host: "host".into(),
            devices: vec![DeviceFacts {
                id: "npu0".into(),
                kind: DeviceKind::Npu,
                capacity: Bytes::mib(7),
                exclusivity: Exclusivity::OneModel,
            }],
            runtimes: BTreeMap::from([("flm".into(), ["npu0".into()].into())]),
            draining: false,
        }
    }

    #[test]
    fn the_epoch_rises_over_restarts_and_over_what_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        let open = || StateDir::open(dir.path()).unwrap();
        assert_eq!(open().raise_epoch(0).unwrap(), 1);
        assert_eq!(open().raise_epoch(0).unwrap(), 2);
        assert_eq!(open().raise_epoch(10).unwrap(), 11);
        assert_eq!(open().raise_epoch(0).unwrap(), 12);
    }

    #[test]
    fn two_controllers_never_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        assert!(matches!(StateDir::open(dir.path()), Err(StateError::InUse(_))));
        drop(first);
        StateDir::open(dir.path()).unwrap();
    }

    #[test]
    fn the_roster_survives() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("new/deep")).unwrap();
        assert_eq!(state.roster().unwrap(), Roster::default());
        let mut roster = Roster::default();
        roster.put(worker("a"));
        roster.put(worker("b"));
        roster.away(&"b".into(), true, std::time::SystemTime::now());
        state.save_roster(&roster).unwrap();
        assert_eq!(state.roster().unwrap(), roster);
    }

    #[test]
    fn a_broken_file_stops_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        fs::write(dir.path().join(EPOCH), "seven").unwrap();
        assert!(matches!(state.raise_epoch(0), Err(StateError::Malformed { .. })));
    }
}
