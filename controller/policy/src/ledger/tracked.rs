//! A map that records which of its entries may have changed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

/// Reads go to the map inside; every write records the key in `changed`.
#[derive(Debug)]
pub(crate) struct Tracked<K, V> {
    map: BTreeMap<K, V>,
    changed: BTreeSet<K>,
}

impl<K: Ord + Clone, V> Tracked<K, V> {
    pub(crate) fn new() -> Self {
        Self {
            map: BTreeMap::new(),
            changed: BTreeSet::new(),
        }
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let found = self.map.get_mut(key)?;
        mark(&mut self.changed, key);
        Some(found)
    }

    pub(crate) fn get_or_insert_with(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        mark(&mut self.changed, &key);
        self.map.entry(key).or_insert_with(make)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        mark(&mut self.changed, &key);
        self.map.insert(key, value)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        mark(&mut self.changed, key);
        self.map.remove(key)
    }

    /// Keys written to or removed since the last call.
    pub(crate) fn take_changed(&mut self) -> BTreeSet<K> {
        std::mem::take(&mut self.changed)
    }

    pub(crate) fn unchanged(&self) -> bool {
        self.changed.is_empty()
    }
}

fn mark<K: Ord + Clone>(changed: &mut BTreeSet<K>, key: &K) {
    if !changed.contains(key) {
        changed.insert(key.clone());
    }
}

impl<K, V> Deref for Tracked<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}
