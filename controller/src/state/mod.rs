//! What survives a restart: the epoch, the known workers, measured memory, open downloads, pins and users' models. Nothing else about the fleet is stored
//! (PROTOCOL.md 2, 7).
//!
//! ```text
//! DIR                mode 0700, its files 0600
//! DIR/lock           held (flock) for as long as the process lives: two controllers never share a directory; says the process id
//! DIR/epoch.json     raised and written before anything is served (PROTOCOL.md 5)
//! DIR/roster.json    workers that ever joined and were not forgotten since, see `roster`
//! DIR/observed.json  see `estimate`
//! DIR/downloads.json models whose files were coming, and whether that is paused
//! DIR/pins.json      models that operators pinned (true) or unpinned (false); wins over the configuration
//! DIR/user_models.json, model_options.json, aliases.json    see `own`
//! DIR/NAME.backup    of each file that people's changes are in, as it was before the last change, see `kept`
//! ```
//!
//! Every file is replaced as a whole and atomically, and says of which version it is, see `saved`; one of a newer version stops the start before anything
//! is written. Serving needs none of them: what cannot be written is kept in memory, reported in
//! health, and written when there is room (`writer`). A file that the controller made for itself and cannot read any more is renamed to
//! `NAME.damaged`; only a damaged file that an operator or a user wrote, and that has no backup, stops the start. An epoch that cannot be
//! read or written is replaced by the time in seconds, which is higher than any counted epoch and rises over restarts.

mod kept;
mod own;
mod roster;
mod saved;
mod writer;

use std::{
    collections::BTreeMap,
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use atomic_write_file::{AtomicWriteFile, unix::OpenOptionsExt as _};
use muster_proto::{disk::no_room, private::PrivateDir};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

pub(crate) use own::{Own, Registration};
pub(crate) use roster::{Expiry, Roster};
pub(crate) use writer::{Saving, Writer};

use saved::{Saved, Unreadable};

use crate::{config::Adjustments, estimate::Observed};

/// Downloads that have not ended, by model id.
pub(crate) type Downloads = BTreeMap<String, KeptDownload>;

/// How a download stood when it was begun, paused or resumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeptDownload {
    /// An operator has stopped it for now.
    pub(crate) paused: bool,
    /// Bytes of all its files that were there.
    pub(crate) downloaded: u64,
    /// Bytes of all its files.
    pub(crate) total: u64,
}

/// Operators' pins, by model id.
pub(crate) type Pins = BTreeMap<String, Pin>;

/// What an operator said of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Pin {
    /// It is pinned, or not, until somebody says otherwise.
    Always(bool),
    /// It is pinned until it is unloaded.
    Until(Until),
}

/// How long a pin counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Until {
    /// It goes with the model.
    Unloaded,
    /// It goes with the model, which is unpinned for good then, as it was before.
    UnpinnedAgain,
}

impl Pin {
    /// A pin that goes with the model.
    pub(crate) const WHILE_LOADED: Self = Self::Until(Until::Unloaded);

    /// What is kept of `self`, said after `former`.
    pub(crate) fn after(self, former: Option<Self>) -> Self {
        match (self, former) {
            (Self::Until(_), Some(Self::Always(false) | Self::Until(Until::UnpinnedAgain))) => {
                Self::Until(Until::UnpinnedAgain)
            }
            (said, _) => said,
        }
    }

    /// What is left once the model is unloaded: none, or what to keep instead.
    pub(crate) const fn once_unloaded(self) -> Option<Option<Self>> {
        match self {
            Self::Always(_) => None,
            Self::Until(Until::Unloaded) => Some(None),
            Self::Until(Until::UnpinnedAgain) => Some(Some(Self::Always(false))),
        }
    }

    /// Whether the model is pinned.
    pub(crate) const fn pins(self) -> bool {
        match self {
            Self::Always(pinned) => pinned,
            Self::Until(Until::Unloaded | Until::UnpinnedAgain) => true,
        }
    }
}

/// The locked state directory.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    /// None if there was no room for the lock file.
    _lock: Option<File>,
}

/// How far a worker's claim may raise the epoch. It is more than a time used as an epoch can be ahead of a counted one, and so little that
/// 2^31 false claims would not use up the numbers.
const FURTHEST_JUMP: u64 = 1 << 32;

/// An epoch that leaves no room to count on; only a false claim can lead to it.
const ABSURD: u64 = 1 << 62;

/// An epoch above ours and the one that a worker has seen; none if the worker's is absurd.
pub(crate) fn outbid(mine: u64, seen: u64) -> Option<u64> {
    if seen <= mine {
        return Some(mine);
    }
    (seen - mine <= FURTHEST_JUMP && seen < ABSURD).then(|| seen + 1)
}

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The operating system refused.
    #[error("{} cannot be used", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// Another process has locked it.
    #[error("{} is in use by another controller{}", path.display(), pid.map_or_else(String::new, |pid| format!(" (pid {pid})")))]
    InUse {
        path: PathBuf,
        /// Its process id, if it could write that.
        pid: Option<u32>,
    },
    /// A file cannot be read by this version.
    #[error(
        "{0} cannot be understood: repair it, or start without what it holds: mv {0} {0}.damaged",
        path.display()
    )]
    Malformed {
        path: PathBuf,
        source: serde_json::Error,
    },
    /// A newer Muster wrote a file.
    #[error(
        "{0} is of version {version}, and this Muster reads versions up to {known}: start the newer Muster that wrote it, or this one without \
         what it holds: mv {0} {0}.newer",
        path.display()
    )]
    Newer { path: PathBuf, version: u64, known: u64 },
}

const LOCK: &str = "lock";
/// What operators adjusted while the controller ran. It has no version: it is one more file of the configuration, whose keys are those of every
/// version's, and one with keys that this version does not know is set aside by name at a start.
pub(crate) const ADJUSTMENTS: &str = SETTINGS.name;

/// A counter, which an older version must be able to read and to set aside.
const EPOCH: Saved<u64> = Saved::plain("epoch.json");
const SETTINGS: Saved<Adjustments> = Saved::plain("settings.json");
const ROSTER: Saved<Vec<roster::Entry>> = Saved::new("roster.json", "workers", &[None]);
const OBSERVED: Saved<Observed> = Saved::new("observed.json", "memory", &[None]);
const DOWNLOADS: Saved<Downloads> = Saved::new("downloads.json", "downloads", &[None]);
const PINS: Saved<Pins> = Saved::new("pins.json", "pins", &[None]);
const MODELS: Saved<BTreeMap<String, Registration>> = Saved::new("user_models.json", "models", &[None]);
const OPTIONS: Saved<BTreeMap<String, Map<String, Value>>> =
    Saved::new("model_options.json", "options", &[None]);
const ALIASES: Saved<BTreeMap<String, String>> = Saved::new("aliases.json", "aliases", &[None]);

impl StateDir {
    /// Creates the directory if it is missing, and locks it. If the disk is full, everything is kept in memory.
    ///
    /// # Errors
    /// Another controller uses it, other users could change its contents, or the operating system refuses.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let lock_path = path.join(LOCK);
        let create = || PrivateDir::open(path, LOCK)?.file(LOCK);
        // A full file system still allows locks on existing files.
        let lock = create().or_else(|error| match File::open(&lock_path) {
            Ok(lock) if no_room(&error) => Ok(lock),
            Ok(_) | Err(_) => Err(error),
        });
        let lock = match lock {
            Ok(lock) => lock,
            Err(error) if no_room(&error) => {
                tracing::warn!(path = %path.display(), %error, "no room for state: all of it is kept in memory only");
                return Ok(Self {
                    path: path.to_owned(),
                    _lock: None,
                });
            }
            Err(source) => {
                return Err(StateError::Io {
                    path: lock_path,
                    source,
                });
            }
        };
        match lock.try_lock() {
            Ok(()) => {
                sign(&lock);
                Ok(Self {
                    path: path.to_owned(),
                    _lock: Some(lock),
                })
            }
            Err(TryLockError::WouldBlock) => Err(StateError::InUse {
                path: path.to_owned(),
                pid: signed(&lock_path),
            }),
            Err(TryLockError::Error(source)) => Err(StateError::Io {
                path: lock_path,
                source,
            }),
        }
    }

    /// The epoch of this start. It is written unless the disk is full, which the second value tells.
    pub(crate) fn begin_epoch(&self) -> (u64, bool) {
        // A number is of no version.
        let counted = self.cache(&EPOCH, |epoch| *epoch < ABSURD).unwrap_or_default();
        let next = counted.map_or_else(now_in_seconds, |counted| counted + 1);
        match self.save_epoch(next) {
            Ok(()) => (next, true),
            Err(error) => {
                let timed = next.max(now_in_seconds());
                tracing::warn!(error = ?error, epoch = timed, "the epoch cannot be written; the time stands in for it");
                (timed, false)
            }
        }
    }

    /// Writes the epoch.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_epoch(&self, epoch: u64) -> Result<(), StateError> {
        self.write(&EPOCH, &epoch)
    }

    /// The known workers.
    ///
    /// # Errors
    /// A newer version wrote them.
    pub(crate) fn roster(&self) -> Result<Roster, StateError> {
        let entries = self.cache(&ROSTER, |_| true)?;
        Ok(entries.into_iter().flatten().collect())
    }

    /// Writes the known workers.
    ///
    /// # Errors
    /// The roster cannot be written.
    pub(crate) fn save_roster(&self, roster: &Roster) -> Result<(), StateError> {
        self.write(&ROSTER, &roster.entries())
    }

    /// Memory measured before.
    ///
    /// # Errors
    /// A newer version wrote it.
    pub(crate) fn observed(&self) -> Result<Observed, StateError> {
        Ok(self.cache(&OBSERVED, |_| true)?.unwrap_or_default())
    }

    /// Writes measured memory.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_observed(&self, observed: &Observed) -> Result<(), StateError> {
        self.write(&OBSERVED, observed)
    }

    /// Downloads that had not ended.
    ///
    /// # Errors
    /// A newer version wrote them.
    pub(crate) fn downloads(&self) -> Result<Downloads, StateError> {
        Ok(self.cache(&DOWNLOADS, |_| true)?.unwrap_or_default())
    }

    /// Writes which downloads have not ended.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_downloads(&self, downloads: &Downloads) -> Result<(), StateError> {
        self.write(&DOWNLOADS, downloads)
    }

    /// Operators' pins.
    ///
    /// # Errors
    /// They cannot be read, and have no backup, or a newer version wrote them.
    pub(crate) fn pins(&self) -> Result<Pins, StateError> {
        self.read_kept(&PINS)
    }

    /// Writes operators' pins.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn save_pins(&self, pins: &Pins) -> Result<(), StateError> {
        self.write_kept(&PINS, pins)
    }

    /// Writes what operators adjusted.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_adjustments(&self, adjustments: &Adjustments) -> Result<(), StateError> {
        self.write(&SETTINGS, adjustments)
    }

    /// The files of [`own`](Self::own).
    pub(crate) fn own_files(&self) -> Vec<PathBuf> {
        [MODELS.name, OPTIONS.name, ALIASES.name]
            .map(|name| self.path.join(name))
            .to_vec()
    }

    /// Models that users registered and options they saved.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn own(&self) -> Result<Own, StateError> {
        Ok(Own {
            models: self.read(&MODELS)?,
            options: self.read(&OPTIONS)?,
            aliases: self.read(&ALIASES)?,
        })
    }

    /// As [`own`](Self::own) at a start, when nothing is in force that could stay: a damaged file is replaced by its backup. Later, it is
    /// somebody's edit, which is refused.
    ///
    /// # Errors
    /// One cannot be read, and has no backup, or a newer version wrote it.
    pub(crate) fn own_at_start(&self) -> Result<Own, StateError> {
        Ok(Own {
            models: self.read_kept(&MODELS)?,
            options: self.read_kept(&OPTIONS)?,
            aliases: self.read_kept(&ALIASES)?,
        })
    }

    /// Writes those of users' models and options that differ from `old`.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn save_own(&self, old: &Own, new: &Own) -> Result<(), StateError> {
        if old.models != new.models {
            self.write_kept(&MODELS, &new.models)?;
        }
        if old.options != new.options {
            self.write_kept(&OPTIONS, &new.options)?;
        }
        if old.aliases != new.aliases {
            self.write_kept(&ALIASES, &new.aliases)?;
        }
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file that the controller can do without. None if it cannot be used; then it is renamed.
    ///
    /// # Errors
    /// A newer version wrote it, which will want it again.
    fn cache<T: DeserializeOwned + Default>(
        &self,
        file: &Saved<T>,
        sane: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, StateError> {
        let why = match self.read(file) {
            Ok(value) if sane(&value) => return Ok(Some(value)),
            Ok(_) => "what it says cannot be".to_owned(),
            Err(StateError::Malformed { source, .. }) => source.to_string(),
            Err(error @ StateError::Newer { .. }) => return Err(error),
            Err(error @ (StateError::Io { .. } | StateError::InUse { .. })) => {
                tracing::warn!(error = ?error, "state cannot be read; starting without it");
                return Ok(None);
            }
        };
        let path = self.path.join(file.name);
        let aside = self.path.join(damaged(file.name));
        let moved = fs::rename(&path, &aside).is_ok();
        tracing::warn!(path = %path.display(), why, moved, aside = %aside.display(), "a damaged file is set aside; starting without it");
        Ok(None)
    }

    fn read<T: DeserializeOwned + Default>(&self, file: &Saved<T>) -> Result<T, StateError> {
        self.read_as(file, file.name)
    }

    /// Reads a file of this form that has another name.
    fn read_as<T: DeserializeOwned + Default>(&self, file: &Saved<T>, name: &str) -> Result<T, StateError> {
        let path = self.path.join(name);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(T::default()),
            Err(source) => return Err(StateError::Io { path, source }),
        };
        file.decode(&text).map_err(|why| match why {
            Unreadable::Malformed(source) => StateError::Malformed { path, source },
            Unreadable::Newer { version, known } => StateError::Newer { path, version, known },
        })
    }

    fn write<T: Serialize>(&self, file: &Saved<T>, value: &T) -> Result<(), StateError> {
        let path = self.path.join(file.name);
        let text = match file.encode(value) {
            Ok(text) => text,
            Err(source) => return Err(StateError::Malformed { path, source }),
        };
        let replace = || {
            let mut options = AtomicWriteFile::options();
            options.preserve_mode(false).mode(0o600);
            let mut file = options.open(&path)?;
            file.write_all(&text)?;
            file.commit()
        };
        replace().map_err(|source| StateError::Io {
            path: path.clone(),
            source,
        })
    }
}

/// Writes the process id into the lock file, for the message of whoever comes second. Without room it says nothing.
fn sign(mut lock: &File) {
    let signed = lock
        .set_len(0)
        .and_then(|()| lock.write_all(std::process::id().to_string().as_bytes()));
    if let Err(error) = signed {
        tracing::debug!(%error, "the lock does not say whose it is");
    }
}

fn signed(lock: &Path) -> Option<u32> {
    fs::read_to_string(lock).ok()?.trim().parse().ok()
}

/// The name that a damaged file gets.
fn damaged(name: &str) -> String {
    format!("{name}.damaged")
}

/// The time in seconds as an epoch: above any that was counted from 0, and below that of the next start.
fn now_in_seconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use muster_core::{Bytes, DeviceKind};
    use muster_policy::{DeviceFacts, Exclusivity, WorkerFacts};

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
            runtimes: BTreeMap::from([(muster_core::Runtime::Flm, ["npu0".into()].into())]),
            draining: false,
        }
    }

    #[test]
    fn the_epoch_rises_over_restarts_and_over_what_was_seen() {
        let dir = tempfile::tempdir().unwrap();
        let open = || StateDir::open(dir.path()).unwrap();
        assert_eq!(open().begin_epoch(), (1, true));
        assert_eq!(open().begin_epoch(), (2, true));
        open().save_epoch(outbid(2, 10).unwrap()).unwrap();
        assert_eq!(open().begin_epoch(), (12, true));
        assert_eq!(outbid(12, 7), Some(12));
    }

    /// Regression: a single hello with 2^64 - 1 disabled all fencing, even after restarts.
    #[test]
    fn an_absurd_epoch_raises_nothing_and_is_set_aside_where_it_was_kept() {
        for absurd in [u64::MAX, u64::MAX - 1, 12 + FURTHEST_JUMP + 1] {
            assert_eq!(outbid(12, absurd), None, "{absurd}");
        }
        // False claims in allowed steps cannot use up the numbers.
        assert_eq!(outbid(ABSURD - 10, ABSURD + 10), None);
        // A controller that lost its state is told the time that was used as an epoch.
        assert_eq!(outbid(1, now_in_seconds()), Some(now_in_seconds() + 1));

        let dir = tempfile::tempdir().unwrap();
        drop(StateDir::open(dir.path()).unwrap());
        fs::write(dir.path().join(EPOCH.name), u64::MAX.to_string()).unwrap();
        let before = now_in_seconds();
        let (epoch, kept) = StateDir::open(dir.path()).unwrap().begin_epoch();
        assert!(kept && (before..before + 1000).contains(&epoch), "{epoch}");
        assert!(dir.path().join("epoch.json.damaged").exists());
        assert_eq!(StateDir::open(dir.path()).unwrap().begin_epoch().0, epoch + 1);
    }

    #[test]
    fn two_controllers_never_share_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        let second = StateDir::open(dir.path()).unwrap_err().to_string();
        let me = format!("in use by another controller (pid {})", std::process::id());
        assert!(second.ends_with(&me), "{second}");
        drop(first);
        // Of an earlier process, with a longer number.
        fs::write(dir.path().join(LOCK), "4294967295").unwrap();
        let again = StateDir::open(dir.path()).unwrap();
        assert_eq!(signed(&dir.path().join(LOCK)), Some(std::process::id()));
        drop(again);
    }

    #[test]
    fn nobody_else_reads_the_directory_or_its_files() {
        use std::os::unix::fs::PermissionsExt as _;
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("state");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        // As earlier versions made it.
        fs::create_dir(&path).unwrap();
        fs::write(path.join(LOCK), "").unwrap();
        fs::write(path.join(EPOCH.name), "7").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(path.join(EPOCH.name), fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(StateDir::open(&path).unwrap().begin_epoch(), (8, true));
        assert_eq!((mode(&path), mode(&path.join(EPOCH.name))), (0o700, 0o600));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(StateDir::open(&path), Err(StateError::Io { .. })));
    }

    #[test]
    fn the_roster_survives() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("new/deep")).unwrap();
        assert_eq!(state.roster().unwrap(), Roster::default());
        let mut roster = Roster::default();
        roster.put(worker("a"));
        roster.put(worker("b"));
        roster.away(&"b".into(), true, SystemTime::now());
        state.save_roster(&roster).unwrap();
        assert_eq!(state.roster().unwrap(), roster);
    }

    #[test]
    fn a_damaged_cache_is_set_aside_and_what_somebody_wrote_stops_the_start() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        for name in [
            EPOCH.name,
            ROSTER.name,
            OBSERVED.name,
            PINS.name,
            MODELS.name,
            OPTIONS.name,
            ALIASES.name,
        ] {
            fs::write(dir.path().join(name), "{ seven").unwrap();
        }
        assert!(state.begin_epoch().0 > 1_000_000_000);
        assert_eq!(state.roster().unwrap(), Roster::default());
        assert_eq!(state.observed().unwrap(), Observed::default());
        for name in [EPOCH.name, ROSTER.name, OBSERVED.name] {
            let aside = fs::read_to_string(dir.path().join(damaged(name))).unwrap();
            assert_eq!(aside, "{ seven");
        }
        let said = state.pins().unwrap_err().to_string();
        assert!(
            said.contains(&format!(
                "mv {0} {0}.damaged",
                dir.path().join(PINS.name).display()
            )),
            "{said}"
        );
        assert!(state.own_at_start().is_err());
    }

    #[test]
    fn what_a_newer_version_made_for_itself_is_left_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let newer = r#"{"version": 2, "form": "unknown"}"#;
        for name in [ROSTER.name, OBSERVED.name, DOWNLOADS.name] {
            fs::write(dir.path().join(name), newer).unwrap();
        }
        let refused = [
            state.roster().map(drop),
            state.observed().map(drop),
            state.downloads().map(drop),
        ];
        for refused in refused {
            assert!(
                matches!(
                    refused,
                    Err(StateError::Newer {
                        version: 2,
                        known: 1,
                        ..
                    })
                ),
                "{refused:?}"
            );
        }
        for name in [ROSTER.name, OBSERVED.name, DOWNLOADS.name] {
            assert_eq!(fs::read_to_string(dir.path().join(name)).unwrap(), newer);
        }
    }

    #[test]
    fn state_that_has_no_room_is_kept_in_memory() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(no_room(&full) && !no_room(&io::ErrorKind::PermissionDenied.into()));
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(&dir.path().join("state")).unwrap();
        fs::remove_dir_all(state.path()).unwrap();
        let (epoch, kept) = state.begin_epoch();
        assert!(!kept && epoch > 1_000_000_000, "{epoch}");
    }
}
