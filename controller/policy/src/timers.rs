//! Alarms: when to examine something again although no event arrives. One queue for everything that is due by time.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::Moment;
use crate::fleet::{Fleet, Phase};
use muster_core::{InstanceId, ModelId, WorkerId};

/// What becomes due by time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// Settling must end.
    Settle,
    /// The load queue must be planned again.
    Queue,
    /// An instance needs a command, or the outcome of one has been unknown for too long.
    Instance(InstanceId),
    /// A model may have been idle for too long or have too many replicas. Never later than that moment.
    Idle(ModelId),
    /// A model may load a replica that it lacks.
    Refill(ModelId),
    /// A worker that shut down in order can be forgotten.
    Leaver(WorkerId),
}

/// Things that are due, each at one moment.
#[derive(Debug)]
pub(crate) struct Timers<K> {
    due: BTreeSet<(Moment, K)>,
    moments: BTreeMap<K, Moment>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self {
            due: BTreeSet::new(),
            moments: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Clone> Timers<K> {
    pub(crate) fn get(&self, key: &K) -> Option<Moment> {
        self.moments.get(key).copied()
    }

    /// Sets when `key` is due, in place of an earlier setting; none = never.
    pub(crate) fn set(&mut self, key: &K, at: Option<Moment>) {
        let before = self.get(key);
        if before == at {
            return;
        }
        if let Some(before) = before {
            self.due.remove(&(before, key.clone()));
            self.moments.remove(key);
        }
        if let Some(at) = at {
            self.moments.insert(key.clone(), at);
            self.due.insert((at, key.clone()));
        }
    }

    /// Sets when `key` is due unless it is due earlier: whoever handles that alarm sets the next one.
    pub(crate) fn no_later(&mut self, key: &K, at: Moment) {
        if self.get(key).is_none_or(|before| before > at) {
            self.set(key, Some(at));
        }
    }

    /// Takes out one that is due.
    pub(crate) fn pop_due(&mut self, now: Moment) -> Option<K> {
        let (at, key) = self.due.first()?;
        if *at > now {
            return None;
        }
        let key = key.clone();
        self.set(&key, None);
        Some(key)
    }

    pub(crate) fn next(&self) -> Option<Moment> {
        self.due.first().map(|(at, _)| *at)
    }
}

impl Fleet {
    /// Handles everything that is due.
    pub(crate) fn ring(&mut self) {
        while let Some(alarm) = self.timers.pop_due(self.now) {
            let settled = self.phase == Phase::Running;
            match alarm {
                Alarm::Settle => {
                    if let Phase::Settling { time_is_up, .. } = &mut self.phase {
                        *time_is_up = true;
                    }
                }
                Alarm::Queue => self.replan = true,
                Alarm::Instance(id) => drop(self.attention.insert(id)),
                // All models are examined when the fleet has settled.
                Alarm::Idle(_) | Alarm::Refill(_) if !settled => {}
                Alarm::Idle(id) => self.unload_needless(&id),
                Alarm::Refill(id) => self.refill(&id),
                Alarm::Leaver(id) => self.forget_leaver(&id),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_has_one_moment_and_they_come_in_order() {
        let at = |ms| Moment::after_start(Duration::from_millis(ms));
        let mut timers = Timers::default();
        timers.set(&"late", Some(at(30)));
        timers.set(&"moved", Some(at(10)));
        timers.set(&"moved", Some(at(20)));
        timers.set(&"gone", Some(at(5)));
        timers.set(&"gone", None);
        timers.no_later(&"late", at(40));
        assert_eq!(timers.next(), Some(at(20)));
        assert_eq!(timers.pop_due(at(19)), None);
        assert_eq!(timers.pop_due(at(50)), Some("moved"));
        timers.no_later(&"late", at(25));
        assert_eq!(timers.next(), Some(at(25)));
        assert_eq!(timers.pop_due(at(50)), Some("late"));
        assert_eq!(timers.pop_due(at(50)), None);
    }
}
