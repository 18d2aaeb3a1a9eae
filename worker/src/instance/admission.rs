//! The bounded queue in front of one engine: only the worker queues (PROTOCOL.md 17).
//!
//! ```text
//!   push  ──► queue (≤ limit, first come first served) ──next──► running (≤ target) ──finished──► …
//!               ▲                                                    │
//!               └───────────── put_back: the engine had no room ─────┘
//! ```
//!
//! Invariants: never more than `limit` wait and never more than `target` run; once half the queue is taken, one fairness key holds at most
//! `max(1, limit / active keys)` places; what the engine had no room for keeps its place at the head.
//!
//! Architecture invariant: knows no time, no engine and no session; what waits is opaque.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// Places for requests that wait, and a count of those that run.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    waiting: VecDeque<(Arc<str>, T)>,
    places: HashMap<Arc<str>, usize>,
    limit: usize,
    target: usize,
    running: usize,
    /// The engine had no room; nothing starts until something changes there.
    blocked: bool,
}

impl<T> Admission<T> {
    /// At most `target` run (at least one) and at most `limit` wait.
    pub(crate) fn new(target: usize, limit: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            places: HashMap::new(),
            limit,
            target: target.max(1),
            running: 0,
            blocked: false,
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running
    }

    pub(crate) fn queued(&self) -> usize {
        self.waiting.len()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// How many would be before a request of this key that came now: 0 means that [`Self::next`] gives it out at once,
    /// `None` that the queue is full or that this key has its fair share of it.
    pub(crate) fn place(&self, key: &Arc<str>) -> Option<usize> {
        if !self.blocked && self.running < self.target && self.waiting.is_empty() {
            return Some(0);
        }
        self.has_place(key).then(|| self.waiting.len() + 1)
    }

    /// Takes a request that [`Self::place`] has a place for.
    pub(crate) fn push(&mut self, key: &Arc<str>, item: T) {
        *self.places.entry(Arc::clone(key)).or_default() += 1;
        self.waiting.push_back((Arc::clone(key), item));
    }

    fn has_place(&self, key: &Arc<str>) -> bool {
        let queued = self.waiting.len();
        if queued >= self.limit {
            return false;
        }
        if queued * 2 < self.limit {
            return true;
        }
        let own = self.places.get(key).copied();
        let active = self.places.len() + usize::from(own.is_none());
        own.unwrap_or(0) < (self.limit / active).max(1)
    }

    /// The next request to start, which then counts as running.
    pub(crate) fn next(&mut self) -> Option<T> {
        if self.blocked || self.running >= self.target {
            return None;
        }
        let (key, item) = self.waiting.pop_front()?;
        self.leave(&key);
        self.running += 1;
        Some(item)
    }

    /// The engine had no room for a request that [`Self::next`] gave out: it waits at the head again, and nothing starts until
    /// [`Self::finished`] or [`Self::unblock`]. It had been admitted, so no limit applies.
    pub(crate) fn put_back(&mut self, key: &Arc<str>, item: T) {
        self.running = self.running.saturating_sub(1);
        self.blocked = true;
        *self.places.entry(Arc::clone(key)).or_default() += 1;
        self.waiting.push_front((Arc::clone(key), item));
    }

    /// A running request ended.
    pub(crate) fn finished(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.blocked = false;
    }

    /// The engine may have room again.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Takes the first waiting request that `wanted` picks out of the queue.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let index = self.waiting.iter().position(|(_, item)| wanted(item))?;
        let (key, item) = self.waiting.remove(index)?;
        self.leave(&key);
        Some(item)
    }

    /// The first waiting request that `wanted` picks.
    pub(crate) fn find_mut(&mut self, wanted: impl Fn(&T) -> bool) -> Option<&mut T> {
        self.waiting
            .iter_mut()
            .map(|(_, item)| item)
            .find(|item| wanted(item))
    }

    /// Empties the queue.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.places.clear();
        std::mem::take(&mut self.waiting)
            .into_iter()
            .map(|(_, item)| item)
    }

    fn leave(&mut self, key: &Arc<str>) {
        if let Some(count) = self.places.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                self.places.remove(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    fn offer<T>(queue: &mut Admission<T>, name: &str, item: T) -> Option<usize> {
        let key = key(name);
        let place = queue.place(&key)?;
        queue.push(&key, item);
        Some(place)
    }

    #[test]
    fn runs_up_to_the_target_and_queues_up_to_the_limit() {
        let mut queue = Admission::new(2, 3);
        for item in 0..2 {
            assert_eq!(offer(&mut queue, "", item), Some(0));
            assert_eq!(queue.next(), Some(item));
        }
        for item in 2..5 {
            assert_eq!(offer(&mut queue, "", item), Some(item - 1));
            assert_eq!(queue.next(), None);
        }
        assert_eq!(offer(&mut queue, "", 9), None);
        queue.finished();
        assert_eq!(queue.next(), Some(2));
        assert_eq!((queue.running(), queue.queued()), (2, 2));
    }

    #[test]
    fn half_full_means_a_fair_share() {
        let mut queue = Admission::new(1, 8);
        offer(&mut queue, "a", 0).unwrap();
        queue.next();
        for item in 0..5 {
            offer(&mut queue, "a", item).unwrap();
        }
        // Alone, a key may have all; with a second one, half of it.
        offer(&mut queue, "b", 10).unwrap();
        assert!(offer(&mut queue, "a", 11).is_none());
        for item in 12..14 {
            offer(&mut queue, "b", item).unwrap();
        }
        assert_eq!(queue.queued(), 8);
        assert!(offer(&mut queue, "c", 15).is_none(), "full is full");
    }

    #[test]
    fn no_room_keeps_the_place_and_waits_for_a_change() {
        let mut queue = Admission::new(4, 4);
        let one = key("");
        offer(&mut queue, "", 1).unwrap();
        offer(&mut queue, "", 2).unwrap();
        assert_eq!(queue.next(), Some(1));
        assert_eq!(queue.next(), Some(2));
        queue.put_back(&one, 2);
        assert_eq!(offer(&mut queue, "", 3), Some(2));
        assert_eq!(queue.next(), None);
        queue.finished();
        assert_eq!(queue.next(), Some(2));
        assert_eq!(queue.next(), Some(3));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Offer(u8),
        Next,
        Finish,
        PutBack,
        Unblock,
        RemoveFirst,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0u8..4).prop_map(Step::Offer),
            3 => Just(Step::Next),
            2 => Just(Step::Finish),
            1 => Just(Step::PutBack),
            1 => Just(Step::Unblock),
            1 => Just(Step::RemoveFirst),
        ];
        prop::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_limits_hold(target in 1usize..4, limit in 0usize..8, steps in steps()) {
            let mut queue = Admission::new(target, limit);
            let mut running: Vec<(Arc<str>, u64)> = Vec::new();
            let (mut accepted, mut ended, mut serial) = (0usize, 0usize, 0u64);
            for step in steps {
                match step {
                    Step::Offer(name) => {
                        serial += 1;
                        let name = name.to_string();
                        accepted += usize::from(offer(&mut queue, &name, (key(&name), serial)).is_some());
                    }
                    Step::Next => running.extend(queue.next()),
                    Step::Finish => if running.pop().is_some() { queue.finished(); ended += 1; },
                    Step::PutBack => if let Some((name, item)) = running.pop() {
                        queue.put_back(&Arc::clone(&name), (name, item));
                    },
                    Step::Unblock => queue.unblock(),
                    Step::RemoveFirst => ended += usize::from(queue.remove(|_| true).is_some()),
                }
                prop_assert!(queue.running() <= target);
                prop_assert_eq!(queue.running(), running.len());
                // One more than the limit: a request that would start at once is in the queue until `next`;
                // and what was put back had been admitted.
                prop_assert!(queue.queued() <= limit + target);
                prop_assert_eq!(accepted, ended + queue.running() + queue.queued());
                let places: usize = queue.places.values().sum();
                prop_assert_eq!(places, queue.queued());
            }
        }
    }
}
