//! Files that people's changes are in have one backup: what stood there before the last change.
//!
//! ```text
//! NAME          replaced atomically; before that, what stands there and can be read becomes the backup
//! NAME.backup   takes the place of a damaged NAME at a start, with a warning; NAME is kept as NAME.damaged
//! ```
//!
//! The epoch has none: one that was counted before would be used twice. What is measured or learnt again has none either.

use std::{fs, io};

use serde::{Serialize, de::DeserializeOwned};

use super::{StateDir, StateError, damaged};

impl StateDir {
    /// Writes a file, and keeps what stood there as its backup.
    pub(super) fn write_kept<T: Serialize + DeserializeOwned + Default>(
        &self,
        name: &str,
        value: &T,
    ) -> Result<(), StateError> {
        // A broken edit of somebody's is no backup.
        if self.read::<T>(name).is_ok()
            && let Err(error) = self.back_up(name)
        {
            tracing::warn!(file = name, %error, "no backup can be kept");
        }
        self.write(name, value)
    }

    /// Reads a file, or puts its backup in its place if it cannot be understood.
    pub(super) fn read_kept<T: Serialize + DeserializeOwned + Default>(
        &self,
        name: &str,
    ) -> Result<T, StateError> {
        let (path, why) = match self.read(name) {
            Err(StateError::Malformed { path, source }) => (path, source),
            other => return other,
        };
        let backup = backup(name);
        let usable = self.path.join(&backup).exists();
        let Some(value) = self.read::<T>(&backup).ok().filter(|_| usable) else {
            return Err(StateError::Malformed { path, source: why });
        };
        let aside = self.path.join(damaged(name));
        if let Err(source) = fs::copy(&path, &aside) {
            return Err(StateError::Io { path: aside, source });
        }
        self.write(name, &value)?;
        tracing::error!(
            path = %path.display(), %why, aside = %aside.display(), backup,
            "a damaged file is replaced by its backup: the last change that was saved is missing"
        );
        Ok(value)
    }

    /// A second name for the file as it is; the file itself is never changed, only replaced.
    fn back_up(&self, name: &str) -> io::Result<()> {
        let fresh = self.path.join(format!("{}.new", backup(name)));
        let absent = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        absent(fs::remove_file(&fresh))?;
        absent(
            fs::hard_link(self.path.join(name), &fresh)
                .and_then(|()| fs::rename(&fresh, self.path.join(backup(name)))),
        )
    }
}

fn backup(name: &str) -> String {
    format!("{name}.backup")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::state::{Own, Pin, Pins};

    fn pins(id: &str) -> Pins {
        Pins::from([(id.to_owned(), Pin::Always(true))])
    }

    fn own(alias: &str) -> Own {
        Own {
            aliases: [(alias.to_owned(), "m".to_owned())].into(),
            ..Own::default()
        }
    }

    fn text(dir: &Path, name: &str) -> String {
        fs::read_to_string(dir.join(name)).unwrap()
    }

    #[test]
    fn what_people_saved_has_a_backup_that_takes_the_place_of_a_damaged_file_at_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        for id in ["a", "b", "c"] {
            state.save_pins(&pins(id)).unwrap();
        }
        state.save_own(&Own::default(), &own("a")).unwrap();
        state.save_own(&own("a"), &own("b")).unwrap();
        for name in ["pins.json", "aliases.json"] {
            fs::write(dir.path().join(name), "{ seven").unwrap();
        }
        assert!(state.own().is_err(), "an edit while running is refused");
        // Twice: what is restored stays.
        for _ in 0..2 {
            assert_eq!(state.pins().unwrap(), pins("b"));
            assert_eq!(state.own_at_start().unwrap(), own("a"));
        }
        for name in ["pins.json", "aliases.json"] {
            assert_eq!(text(dir.path(), &damaged(name)), "{ seven");
        }
    }

    #[test]
    fn a_broken_edit_never_becomes_the_backup_and_a_broken_backup_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        for id in ["a", "b"] {
            state.save_pins(&pins(id)).unwrap();
        }
        // A killed process may have left this.
        fs::write(dir.path().join("pins.json.backup.new"), "").unwrap();
        // Of a kind that it cannot have.
        fs::write(dir.path().join("pins.json"), r#"{"a": 7}"#).unwrap();
        state.save_pins(&pins("c")).unwrap();
        assert_eq!(state.read::<Pins>(&backup("pins.json")).unwrap(), pins("a"));
        assert_eq!(state.pins().unwrap(), pins("c"));

        for name in ["pins.json", "pins.json.backup"] {
            fs::write(dir.path().join(name), "{ seven").unwrap();
        }
        assert!(matches!(state.pins(), Err(StateError::Malformed { .. })));
        assert_eq!(text(dir.path(), "pins.json"), "{ seven");
    }
}
