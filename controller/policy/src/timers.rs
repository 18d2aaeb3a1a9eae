//! When to look at something again though nothing happens: one queue for all that waits for the clock.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::Moment;
use crate::fleet::{Fleet, Phase};
use muster_core::{InstanceId, ModelId, WorkerId};

/// What the fleet waits for the clock with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alarm {
    /// Settling has taken its time.
    Settle,
    /// The load queue is to be decided anew.
    Queue,
    /// An instance needs a command, or nobody has explained what became of one.
    Instance(InstanceId),
    /// A model may have been idle for too long, or has copies too many; never later than it has.
    Idle(ModelId),
    /// A model may be loaded once more for what it lacks.
    Refill(ModelId),
    /// A worker that left in order is forgotten.
    Leaver(WorkerId),
}

/// One moment for each of a set of things.
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

    /// Sets the moment of one, in place of an earlier one; none = never.
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

    /// Sets the moment of one unless an earlier one is set: who looks then sees whether it is time.
    pub(crate) fn no_later(&mut self, key: &K, at: Moment) {
        if self.get(key).is_none_or(|before| before > at) {
            self.set(key, Some(at));
        }
    }

    /// Takes out one whose moment has come.
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
    /// Attends to all whose moment has come.
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
                // When the fleet has settled all models are looked at.
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
