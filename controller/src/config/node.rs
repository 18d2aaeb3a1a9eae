//! The merged configuration: a tree whose leaves know the file they came from.
//!
//! Files are merged key by key, and later files override. A table and a plain value under the same key replace each other.

use std::{path::PathBuf, sync::Arc};

/// A value of the merged configuration.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// The file it came from; for a table the first file that has it.
    pub(super) file: Arc<PathBuf>,
    /// Table or plain value.
    pub(super) kind: Kind,
}

/// A table or a plain value.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// The keys in the order of their first appearance.
    Table(Vec<(String, Node)>),
    /// A plain value; arrays are never merged.
    Leaf(toml::Value),
}

impl Node {
    /// An empty table.
    pub(super) fn empty() -> Self {
        Self {
            file: Arc::default(),
            kind: Kind::Table(Vec::new()),
        }
    }

    /// The tree of one file.
    pub(super) fn parsed(table: toml::Table, file: &Arc<PathBuf>) -> Self {
        let entries = table
            .into_iter()
            .map(|(key, value)| (key, Self::value(value, file)))
            .collect();
        Self {
            file: Arc::clone(file),
            kind: Kind::Table(entries),
        }
    }

    fn value(value: toml::Value, file: &Arc<PathBuf>) -> Self {
        if let toml::Value::Table(table) = value {
            return Self::parsed(table, file);
        }
        Self {
            file: Arc::clone(file),
            kind: Kind::Leaf(value),
        }
    }

    /// Removes a value.
    pub(super) fn remove(&mut self, path: &[String]) {
        let Kind::Table(entries) = &mut self.kind else {
            return;
        };
        match path {
            [] => {}
            [key] => entries.retain(|(known, _)| known != key),
            [key, rest @ ..] => {
                if let Some((_, node)) = entries.iter_mut().find(|(known, _)| known == key) {
                    node.remove(rest);
                }
            }
        }
    }

    /// Overrides this tree with `later`.
    pub(super) fn merge(&mut self, later: Self) {
        match (&mut self.kind, later) {
            (
                Kind::Table(mine),
                Self {
                    kind: Kind::Table(theirs),
                    ..
                },
            ) => {
                for (key, node) in theirs {
                    match mine.iter_mut().find(|(known, _)| *known == key) {
                        Some((_, known)) => known.merge(node),
                        None => mine.push((key, node)),
                    }
                }
            }
            (_, later) => *self = later,
        }
    }
}
