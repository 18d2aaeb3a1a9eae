//! Files that people's changes are in have one backup: what stood there before the last change.
//!
//! ```text
//! NAME          replaced atomically; before that, what stands there and can be read becomes the backup
//! NAME.backup   takes the place of a damaged NAME at a start, with a warning; NAME is kept as NAME.damaged
//! ```
//!
//! One that a newer version wrote is neither replaced nor written over.
//!
//! The epoch has none: one that was counted before would be used twice. What is measured or learnt again has none either.

use std::{fs, io};

use serde::{Serialize, de::DeserializeOwned};

use super::{Saved, StateDir, StateError, damaged};

impl StateDir {
    /// Writes a file, and keeps what stood there as its backup.
    pub(super) fn write_kept<T: Serialize + DeserializeOwned + Default>(
        &self,
        file: &Saved<T>,
        value: &T,
    ) -> Result<(), StateError> {
        match self.read(file) {
            Err(error @ StateError::Newer { .. }) => return Err(error),
            // A broken edit of somebody's is no backup.
            Err(StateError::Malformed { .. } | StateError::Io { .. } | StateError::InUse { .. }) => {}
            Ok(_) => {
                if let Err(error) = self.back_up(file.name) {
                    tracing::warn!(file = file.name, %error, "no backup can be kept");
                }
            }
        }
        self.write(file, value)
    }

    /// Reads a file, or puts its backup in its place if it cannot be understood.
    pub(super) fn read_kept<T: Serialize + DeserializeOwned + Default>(
        &self,
        file: &Saved<T>,
    ) -> Result<T, StateError> {
        let name = file.name;
        let (path, why) = match self.read(file) {
            Err(StateError::Malformed { path, source }) => (path, source),
            other => return other,
        };
        let backup = backup(name);
        let usable = self.path.join(&backup).exists();
        let value = match self.read_as(file, &backup) {
            Ok(value) if usable => value,
            Err(error @ StateError::Newer { .. }) => return Err(error),
            Ok(_) | Err(_) => return Err(StateError::Malformed { path, source: why }),
        };
        let aside = self.path.join(damaged(name));
        if let Err(source) = fs::copy(&path, &aside) {
            return Err(StateError::Io { path: aside, source });
        }
        self.write(file, &value)?;
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
    use crate::state::{Own, PINS, Pin, Pins};

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
    fn files_of_before_there_were_versions_are_read_and_written_anew_with_the_next_change() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let older = [
            ("pins.json", r#"{"a": true, "b": "unloaded"}"#),
            (
                "user_models.json",
                r#"{"m": {"checkpoint": "o/n:Q4_0", "recipe": "llamacpp"}}"#,
            ),
            ("model_options.json", r#"{"m": {"ctx_size": 512}}"#),
            ("aliases.json", r#"{"gpt": "m"}"#),
        ];
        for (name, text) in older {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let own = state.own_at_start().unwrap();
        let mut pins = state.pins().unwrap();
        assert_eq!(
            (pins.len(), own.models.len(), own.options.len(), own.aliases.len()),
            (2, 1, 1, 1)
        );
        for (name, text) in older {
            assert_eq!(self::text(dir.path(), name), text, "reading writes nothing");
        }
        pins.remove("b");
        state.save_pins(&pins).unwrap();
        let json =
            |name: &str| -> serde_json::Value { serde_json::from_str(&text(dir.path(), name)).unwrap() };
        assert_eq!(
            json("pins.json"),
            serde_json::json!({"version": 1, "pins": {"a": true}})
        );
        // The one before is its backup, and can be read too.
        assert_eq!(text(dir.path(), "pins.json.backup"), older[0].1);
        let mut changed = own.clone();
        changed.models.clear();
        changed.options.clear();
        changed.aliases.clear();
        state.save_own(&own, &changed).unwrap();
        assert_eq!(
            json("user_models.json"),
            serde_json::json!({"version": 1, "models": {}})
        );
        fs::write(dir.path().join("user_models.json"), "{ seven").unwrap();
        assert_eq!(state.own_at_start().unwrap().models, own.models);
    }

    #[test]
    fn a_newer_version_is_neither_replaced_nor_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        for id in ["a", "b"] {
            state.save_pins(&pins(id)).unwrap();
        }
        let newer = r#"{"version": 7, "pins": ["another form"]}"#;
        fs::write(dir.path().join("pins.json"), newer).unwrap();
        let error = state.pins().unwrap_err();
        let said = error.to_string();
        assert!(matches!(
            error,
            StateError::Newer {
                version: 7,
                known: 1,
                ..
            }
        ));
        let file = dir.path().join("pins.json");
        assert!(
            said.contains(&format!("mv {0} {0}.newer", file.display())),
            "{said}"
        );
        let refused = state.save_pins(&pins("c")).unwrap_err();
        assert!(matches!(refused, StateError::Newer { .. }));
        assert_eq!(text(dir.path(), "pins.json"), newer);
        assert_eq!(state.read_as(&PINS, &backup(PINS.name)).unwrap(), pins("a"));
        // Nor does a newer backup take the place of a damaged file.
        fs::write(dir.path().join("pins.json.backup"), newer).unwrap();
        fs::write(dir.path().join("pins.json"), "{ seven").unwrap();
        assert!(matches!(state.pins(), Err(StateError::Newer { .. })));
        assert_eq!(text(dir.path(), "pins.json"), "{ seven");
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
        assert_eq!(state.read_as(&PINS, &backup(PINS.name)).unwrap(), pins("a"));
        assert_eq!(state.pins().unwrap(), pins("c"));

        for name in ["pins.json", "pins.json.backup"] {
            fs::write(dir.path().join(name), "{ seven").unwrap();
        }
        assert!(matches!(state.pins(), Err(StateError::Malformed { .. })));
        assert_eq!(text(dir.path(), "pins.json"), "{ seven");
    }
}
