//! The merged configuration: a tree whose leaves remember the file they came from.
//!
//! Files are merged key by key, later files win; a table and a plain value under one key replace each other.

use std::{path::PathBuf, sync::Arc};

/// One value of the merged configuration.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// The file that gave it (for a table: the first one that has it).
    pub(super) file: Arc<PathBuf>,
    /// What it is.
    pub(super) kind: Kind,
}

/// A table or anything else.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    /// Keys in the order in which they first appeared.
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

    /// A parsed file.
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

    /// Takes a value away, wherever it came from.
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

    /// Lays `later` over this tree.
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
