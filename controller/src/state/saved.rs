//! The form of a saved file: what it holds, and of which version of Muster's making that is.
//!
//! ```text
//! {"version": 1, "pins": {…}}    as it is written
//! {…}                            as it was before there were versions, or as people write it by hand: version 0
//! ```
//!
//! An older version is read by steps, each from one version to the next, and is written anew with the next change. A newer one is refused, and never
//! written over: whoever goes back to an older Muster shall not lose what the newer one kept.
//!
//! To change a form: add a step to the file's list. That is its next version.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor},
    ser::SerializeMap as _,
};
use serde_json::Value;

/// What older contents become; none: nothing changed but the version.
pub(super) type Step = Option<fn(Value) -> Value>;

/// A file of the directory.
#[derive(Debug)]
pub(super) struct Saved<T> {
    pub(super) name: &'static str,
    /// The key of what it holds; none: it has no version, and is that alone.
    key: Option<&'static str>,
    /// From each version to the next.
    steps: &'static [Step],
    holds: PhantomData<fn() -> T>,
}

/// Why a file cannot be read.
#[derive(Debug)]
pub(super) enum Unreadable {
    Malformed(serde_json::Error),
    /// A newer Muster wrote it.
    Newer {
        version: u64,
        known: u64,
    },
}

/// The member that tells versions apart. No file ever held a number of this name.
#[derive(Deserialize)]
struct Versioned {
    #[serde(default)]
    version: Option<Value>,
}

impl<T> Saved<T> {
    /// A file of the version that `steps` lead to.
    pub(super) const fn new(name: &'static str, key: &'static str, steps: &'static [Step]) -> Self {
        Self {
            name,
            key: Some(key),
            steps,
            holds: PhantomData,
        }
    }

    /// A file whose form never changes.
    pub(super) const fn plain(name: &'static str) -> Self {
        Self {
            name,
            key: None,
            steps: &[],
            holds: PhantomData,
        }
    }

    fn version(&self) -> usize {
        self.steps.len()
    }
}

impl<T: DeserializeOwned> Saved<T> {
    /// What a file holds.
    ///
    /// # Errors
    /// It is none of ours, or of a newer version.
    pub(super) fn decode(&self, text: &[u8]) -> Result<T, Unreadable> {
        let malformed = Unreadable::Malformed;
        let Some(key) = self.key else {
            return serde_json::from_slice(text).map_err(malformed);
        };
        // What is no object at all is of no version, or broken, which is said below.
        let told = serde_json::from_slice(text).ok();
        let found = told.and_then(|Versioned { version }| version?.as_u64());
        let known = self.version() as u64;
        let steps = usize::try_from(found.unwrap_or(0))
            .ok()
            .and_then(|from| self.steps.get(from..));
        let Some(steps) = steps else {
            let version = found.unwrap_or_default();
            return Err(Unreadable::Newer { version, known });
        };
        if steps.iter().any(Option::is_some) {
            let contents: Value = match found {
                Some(_) => read(text, key),
                None => serde_json::from_slice(text),
            }
            .map_err(malformed)?;
            let contents = steps
                .iter()
                .flatten()
                .fold(contents, |contents, step| step(contents));
            return serde_json::from_value(contents).map_err(malformed);
        }
        // Straight from the text, so that an error says the line.
        match found {
            Some(_) => read(text, key),
            None => serde_json::from_slice(text),
        }
        .map_err(malformed)
    }
}

impl<T: Serialize> Saved<T> {
    /// A file that holds `value`.
    ///
    /// # Errors
    /// The value has no form in JSON.
    pub(super) fn encode(&self, value: &T) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = Vec::new();
        let mut serializer = serde_json::Serializer::pretty(&mut text);
        match self.key {
            None => value.serialize(&mut serializer)?,
            Some(key) => {
                let mut map = serde::Serializer::serialize_map(&mut serializer, Some(2))?;
                map.serialize_entry("version", &self.version())?;
                map.serialize_entry(key, value)?;
                map.end()?;
            }
        }
        Ok(text)
    }
}

/// What stands under `key` beside the version, which was read before.
fn read<T: DeserializeOwned>(text: &[u8], key: &'static str) -> Result<T, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let held = Held {
        key,
        holds: PhantomData,
    };
    let held = held.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(held)
}

struct Held<T> {
    key: &'static str,
    holds: PhantomData<T>,
}

impl<'de, T: DeserializeOwned> DeserializeSeed<'de> for Held<T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, T: DeserializeOwned> Visitor<'de> for Held<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`version` and `{}`", self.key)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut held = None;
        while let Some(name) = map.next_key::<String>()? {
            if name == self.key {
                held = Some(map.next_value()?);
            } else if name == "version" {
                map.next_value::<u64>()?;
            } else {
                // What somebody put beside it would be lost with the next change.
                let error = format!("`{name}` stands beside `{}`, not in it", self.key);
                return Err(A::Error::custom(error));
            }
        }
        held.ok_or_else(|| A::Error::custom(format!("`{}` is missing", self.key)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    type Names = BTreeMap<String, u8>;

    const FIRST: Saved<Names> = Saved::new("names.json", "names", &[None]);

    /// Values doubled, then keys in capitals.
    const THIRD: Saved<Names> = Saved::new("names.json", "names", &[None, Some(doubled), Some(capitals)]);

    fn entries(value: Value) -> impl Iterator<Item = (String, Value)> {
        let Value::Object(entries) = value else {
            panic!("{value}")
        };
        entries.into_iter()
    }

    fn doubled(value: Value) -> Value {
        let double = |(name, value): (String, Value)| (name, json!(value.as_u64().unwrap() * 2));
        entries(value).map(double).collect()
    }

    fn capitals(value: Value) -> Value {
        let capital = |(name, value): (String, Value)| (name.to_uppercase(), value);
        entries(value).map(capital).collect()
    }

    fn names(pairs: &[(&str, u8)]) -> Names {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect()
    }

    #[test]
    fn every_older_version_is_read_and_the_newest_is_written() {
        for (text, read) in [
            (r#"{"a": 1}"#, names(&[("A", 2)])),
            (r#"{"version": 0, "names": {"a": 1}}"#, names(&[("A", 2)])),
            (r#"{"version": 1, "names": {"a": 1}}"#, names(&[("A", 2)])),
            (r#"{"names": {"a": 1}, "version": 2}"#, names(&[("A", 1)])),
            (r#"{"version": 3, "names": {"a": 1}}"#, names(&[("a", 1)])),
            ("{}", names(&[])),
        ] {
            assert_eq!(THIRD.decode(text.as_bytes()).unwrap(), read, "{text}");
        }
        let written = THIRD.encode(&names(&[("A", 2)])).unwrap();
        let shown: Value = serde_json::from_slice(&written).unwrap();
        assert_eq!(shown, json!({"version": 3, "names": {"A": 2}}));
        assert_eq!(THIRD.decode(&written).unwrap(), names(&[("A", 2)]));
    }

    #[test]
    fn a_newer_version_is_told_from_a_broken_file() {
        for version in [2, u64::MAX] {
            let text = format!(r#"{{"version": {version}, "other": []}}"#);
            match FIRST.decode(text.as_bytes()) {
                Err(Unreadable::Newer { version: told, known }) => assert_eq!((told, known), (version, 1)),
                other => panic!("{other:?}"),
            }
        }
        let wrong = |text: &str| match FIRST.decode(text.as_bytes()) {
            Err(Unreadable::Malformed(error)) => error.to_string(),
            other => panic!("{text}: {other:?}"),
        };
        assert!(wrong(r#"{"version": 1}"#).contains("`names` is missing"));
        let beside = wrong(r#"{"version": 1, "names": {}, "a": 1}"#);
        assert!(beside.contains("`a` stands beside `names`"), "{beside}");
        let line = wrong("{\"version\": 1,\n\"names\": {\n\"a\": \"x\"}}");
        assert!(line.contains("line 3"), "{line}");
        let line = wrong("{\n\"a\": 7000}");
        assert!(line.contains("line 2"), "{line}");
        for broken in ["", "{", "[]", "7", r#"{"version": 1, "names": {}} x"#] {
            wrong(broken);
        }
    }

    #[test]
    fn an_entry_that_is_called_version_is_one() {
        const ALIASES: Saved<BTreeMap<String, String>> = Saved::new("aliases.json", "aliases", &[None]);
        let read = ALIASES.decode(br#"{"version": "m"}"#).unwrap();
        assert_eq!(read["version"], "m");
        let again = ALIASES.decode(&ALIASES.encode(&read).unwrap()).unwrap();
        assert_eq!(again, read);
    }
}
