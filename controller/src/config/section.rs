//! Typed reading of a table. All problems are collected; a key that nobody read is a problem too.

use std::{cell::RefCell, collections::BTreeSet, fmt, path::PathBuf, sync::Arc, time::Duration};

use jiff::SignedDuration;

use super::node::{Kind, Node};

/// A problem in a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    pub file: PathBuf,
    /// The dotted key; empty if the problem is about the whole file.
    pub key: String,
    /// The problem in words.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.file.display())?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// The problems found so far.
pub(super) type Problems = RefCell<Vec<Problem>>;

/// A table that is being read.
#[derive(Debug)]
pub(super) struct Section<'a> {
    path: String,
    file: &'a Arc<PathBuf>,
    entries: &'a [(String, Node)],
    asked: RefCell<BTreeSet<&'static str>>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    /// Reads `node` as a table. Anything else is a problem and reads as an empty table.
    pub(super) fn new(node: &'a Node, path: String, problems: &'a Problems) -> Self {
        let entries: &[(String, Node)] = match &node.kind {
            Kind::Table(entries) => entries,
            Kind::Leaf(value) => {
                problems.borrow_mut().push(Problem {
                    file: node.file.as_ref().clone(),
                    key: path.clone(),
                    message: format!("want a table, got {}", describe(value)),
                });
                &[]
            }
        };
        Self {
            path,
            file: &node.file,
            entries,
            asked: RefCell::default(),
            problems,
        }
    }

    /// The file that defined this table first.
    pub(super) fn file(&self) -> &'a Arc<PathBuf> {
        self.file
    }

    /// The file that has `key`, or that of this table.
    pub(super) fn file_of(&self, key: &str) -> &'a Arc<PathBuf> {
        self.entry(key).map_or(self.file, |node| &node.file)
    }

    /// Whether the table has `key`.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entry(key).is_some()
    }

    /// Records a problem with `key`; an empty key means the table itself.
    pub(super) fn problem(&self, key: &str, message: impl Into<String>) {
        let full = match (self.path.is_empty(), key.is_empty()) {
            (true, _) => key.to_owned(),
            (false, true) => self.path.clone(),
            (false, false) => format!("{}.{}", self.path, quoted(key)),
        };
        self.problems.borrow_mut().push(Problem {
            file: self.file_of(key).as_ref().clone(),
            key: full,
            message: message.into(),
        });
    }

    /// The table below `key`.
    pub(super) fn section(&self, key: &'static str) -> Option<Section<'a>> {
        let node = self.node(key)?;
        Some(Section::new(node, self.path_of(key), self.problems))
    }

    /// All entries as tables with their keys, for tables whose keys are names.
    pub(super) fn sections(&self) -> Vec<(&'a str, Section<'a>)> {
        self.entries
            .iter()
            .map(|(key, node)| (key.as_str(), Section::new(node, self.path_of(key), self.problems)))
            .collect()
    }

    pub(super) fn string(&self, key: &'static str) -> Option<&'a str> {
        let value = self.leaf(key)?;
        value.as_str().or_else(|| self.wrong(key, "a string", value))
    }

    /// The index in `words` of the value, which must be one of them.
    pub(super) fn word(&self, key: &'static str, words: &[&str]) -> Option<usize> {
        let text = self.string(key)?;
        let found = words.iter().position(|word| *word == text);
        if found.is_none() {
            self.problem(key, format!("want one of {}, got `{text}`", words.join(", ")));
        }
        found
    }

    pub(super) fn boolean(&self, key: &'static str) -> Option<bool> {
        let value = self.leaf(key)?;
        value
            .as_bool()
            .or_else(|| self.wrong(key, "true or false", value))
    }

    /// An integer of at least `min` that fits `T`.
    pub(super) fn integer<T: TryFrom<i64>>(&self, key: &'static str, min: i64) -> Option<T> {
        let value = self.leaf(key)?;
        let number = value
            .as_integer()
            .or_else(|| self.wrong(key, "an integer", value))?;
        let fitting = T::try_from(number).ok().filter(|_| number >= min);
        if fitting.is_none() {
            self.problem(key, format!("{number} is out of range: want at least {min}"));
        }
        fitting
    }

    /// A duration with its unit: `"250ms"`, `"10m"`, `"1h 30m"`.
    pub(super) fn duration(&self, key: &'static str) -> Option<Duration> {
        let value = self.leaf(key)?;
        let text = value
            .as_str()
            .or_else(|| self.wrong(key, "a duration such as \"10m\"", value))?;
        let span = text.parse::<SignedDuration>().map(Duration::try_from);
        if let Ok(Ok(span)) = span {
            return Some(span);
        }
        self.problem(key, format!("want a duration such as \"10m\", got `{text}`"));
        None
    }

    /// An array of strings.
    pub(super) fn strings(&self, key: &'static str) -> Option<Vec<String>> {
        let value = self.leaf(key)?;
        let texts = value.as_array().and_then(|items| {
            items
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect()
        });
        texts.or_else(|| self.wrong(key, "an array of strings", value))
    }

    /// A plain value; a table is a problem.
    pub(super) fn leaf(&self, key: &'static str) -> Option<&'a toml::Value> {
        match &self.node(key)?.kind {
            Kind::Leaf(value) => Some(value),
            Kind::Table(_) => {
                self.problem(key, "want a value, got a table");
                None
            }
        }
    }

    /// Records that a value has the wrong type.
    pub(super) fn wrong<T>(&self, key: &str, wanted: &str, got: &toml::Value) -> Option<T> {
        self.problem(key, format!("want {wanted}, got {}", describe(got)));
        None
    }

    /// Records every key that nobody read as a problem.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for (key, _) in self
            .entries
            .iter()
            .filter(|(key, _)| !asked.contains(key.as_str()))
        {
            self.problem(key, "unknown key");
        }
    }

    fn node(&self, key: &'static str) -> Option<&'a Node> {
        self.asked.borrow_mut().insert(key);
        self.entry(key)
    }

    fn entry(&self, key: &str) -> Option<&'a Node> {
        self.entries
            .iter()
            .find(|(known, _)| known == key)
            .map(|(_, node)| node)
    }

    fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            quoted(key)
        } else {
            format!("{}.{}", self.path, quoted(key))
        }
    }
}

/// A key in TOML's notation.
fn quoted(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !key.is_empty() && key.chars().all(bare) {
        key.to_owned()
    } else {
        format!("\"{key}\"")
    }
}

fn describe(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => format!("the string `{text}`"),
        toml::Value::Integer(number) => format!("the integer {number}"),
        toml::Value::Float(number) => format!("the number {number}"),
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Datetime(at) => format!("the date {at}"),
        toml::Value::Array(_) => "an array".to_owned(),
        toml::Value::Table(_) => "a table".to_owned(),
    }
}
