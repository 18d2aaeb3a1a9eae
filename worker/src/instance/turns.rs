//! Weighted fair queueing by virtual time among keys (Bennett & Zhang's WF²Q+, with requests for packets).
//!
//! ```text
//!            wait                    next: least due, which moves on by its cost
//!   unknown ─────► waiting ────────────────────────────────────┐
//!      ▲              ▲  └──── still waits ◄────────────────────┤
//!      │ now ≥ due    │ wait                                    │ nothing left
//!      └──────────── ahead (has had more than its share) ◄──────┘
//! ```
//!
//! `now` is the virtual time that a key which always waited would have reached. Each turn advances it by the turn's cost, divided by the
//! number of keys that share the time. So a new key begins at `now` and nobody can save up turns; even an endless row of new keys passes a
//! waiting key over only as often as there are keys.
//!
//! Invariants: a key is known while it waits or is ahead of `now`, and no longer; every operation is O(log n) in the number of known keys.
//!
//! Architecture invariant: knows neither what waits nor what a cost means; a key's own line may be another [`Turns`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// The virtual time at which a key's next request is due, and a ticket that keeps equal ones in their order.
type Due = (u64, u64);

#[derive(Debug)]
struct Known<L> {
    turn: Due,
    waits: bool,
    line: L,
}

/// Keys that take turns, each with a line of its own.
#[derive(Debug)]
pub(super) struct Turns<L> {
    known: HashMap<Arc<str>, Known<L>>,
    waiting: BTreeMap<Due, Arc<str>>,
    /// Keys that do not wait and have had more than their share.
    ahead: BTreeMap<Due, Arc<str>>,
    now: u64,
    tickets: u64,
}

impl<L> Default for Turns<L> {
    fn default() -> Self {
        Self {
            known: HashMap::new(),
            waiting: BTreeMap::new(),
            ahead: BTreeMap::new(),
            now: 0,
            tickets: 0,
        }
    }
}

/// An item taken from a line.
#[derive(Debug)]
pub(super) struct Taken<T> {
    pub(super) item: T,
    /// Virtual time that it costs the line's key.
    pub(super) cost: u64,
    /// Whether the line is empty now.
    pub(super) emptied: bool,
}

impl<L> Turns<L> {
    /// Number of keys that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The line of a known key.
    pub(super) fn line(&self, key: &str) -> Option<&L> {
        self.known.get(key).map(|known| &known.line)
    }

    /// All lines with waiting items, in no order.
    pub(super) fn lines_mut(&mut self) -> impl Iterator<Item = (&Arc<str>, &mut L)> {
        let waiting = self.known.iter_mut().filter(|(_, known)| known.waits);
        waiting.map(|(key, known)| (key, &mut known.line))
    }

    /// All lines with waiting items, in no order. No key is known any more.
    pub(super) fn into_lines(self) -> impl Iterator<Item = L> {
        self.known.into_values().map(|known| known.line)
    }

    /// The next turn: `take` takes an item from the line whose turn it is. `None` if no key waits or nothing was taken.
    pub(super) fn next<T>(&mut self, take: impl FnOnce(&mut L) -> Option<Taken<T>>) -> Option<Taken<T>> {
        let (turn, key) = self.waiting.first_key_value()?;
        let (turn, key) = (*turn, Arc::clone(key));
        let taken = take(&mut self.known.get_mut(&key)?.line)?;
        let sharing = u64::try_from(self.waiting.len()).unwrap_or(u64::MAX);
        self.now = self.now.saturating_add(taken.cost / sharing).max(turn.0);
        self.go_on(&key, turn.0.saturating_add(taken.cost), !taken.emptied);
        Some(taken)
    }

    /// Records that a key's line was emptied out of turn.
    pub(super) fn leave(&mut self, key: &Arc<str>) {
        if let Some(known) = self.known.get(key) {
            self.go_on(key, known.turn.0, false);
        }
    }

    /// Moves a key that waited to its new place.
    fn go_on(&mut self, key: &Arc<str>, due: u64, waits: bool) {
        self.tickets += 1;
        let Some(known) = self.known.get_mut(key).filter(|known| known.waits) else {
            return;
        };
        self.waiting.remove(&known.turn);
        (known.turn, known.waits) = ((due, self.tickets), waits);
        let lot = if waits { &mut self.waiting } else { &mut self.ahead };
        lot.insert(known.turn, Arc::clone(key));
        self.forget();
    }

    /// Forgets keys that do not wait and are not ahead of the others.
    fn forget(&mut self) {
        while let Some(first) = self.ahead.first_entry() {
            if first.key().0 > self.now {
                return;
            }
            self.known.remove(&first.remove());
        }
    }
}

impl<L: Default> Turns<L> {
    /// The line of a key, which waits from now on.
    pub(super) fn wait(&mut self, key: &Arc<str>) -> &mut L {
        let now = self.now;
        let known = self.known.entry(Arc::clone(key)).or_insert_with(|| Known {
            turn: (now, 0),
            waits: false,
            line: L::default(),
        });
        if !known.waits {
            self.ahead.remove(&known.turn);
            self.tickets += 1;
            (known.turn, known.waits) = ((known.turn.0.max(self.now), self.tickets), true);
            self.waiting.insert(known.turn, Arc::clone(key));
        }
        &mut known.line
    }
}

#[cfg(test)]
impl<L> Turns<L> {
    /// Number of known keys, including those that do not wait.
    pub(super) fn known(&self) -> usize {
        assert_eq!(self.known.len(), self.waiting.len() + self.ahead.len());
        self.known.len()
    }
}
