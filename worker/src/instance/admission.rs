//! The bounded queue in front of one engine: only the worker queues (PROTOCOL.md 17), and it queues fairly.
//!
//! ```text
//!   push ──► one line per key ──next: the key that has had least──► running (≤ target) ──finished──► …
//!              ▲  (≤ limit in all)                                    │
//!              └──────────── put_back: the engine had no room ────────┘
//! ```
//!
//! Weighted fair queueing in two levels ([`Turns`]): keys take turns, and within a key's turns its users do. Each request that starts
//! advances its key and its user by 1 / weight, so a key has one share of the engine, however many users it names. While only one key waits
//! it gets everything: no place stays empty while a request waits. Within a user, the higher priority goes first, then the older request.
//! Each step of priority also doubles a request's weight, so urgent work costs its key less of its share but never starves another key.
//!
//! No crate is used, because none has turns in two levels, gives a refused request its place back, and limits a key's share of a filling
//! queue.
//!
//! Invariants: at most `limit` requests wait and at most `target` run. Once half of the queue is taken, a key has at most `max(1, limit /
//! active keys)` places, and once half of those are taken, each of its users at most `max(1, that / active users)`. A request that the
//! engine had no room for goes before all others. A waiting key is passed over at most as often as the weights of the others allow. Memory
//! is limited by what waits, not by the number of keys ever seen.
//!
//! Architecture invariant: knows no time, no engine and no session; what waits is opaque.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use super::turns::{Taken, Turns};

/// Number of priority steps up and down; values beyond count as the limit.
const PRIORITIES: i32 = 4;
/// Virtual time of a request with priority 0.
const SHARE: u64 = 1 << 20;

/// Virtual time that a request costs its key.
fn cost(priority: i32) -> u64 {
    let steps = priority.clamp(-PRIORITIES, PRIORITIES);
    if steps < 0 {
        SHARE << steps.unsigned_abs()
    } else {
        SHARE >> steps.unsigned_abs()
    }
}

/// The key, user and priority of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The caller; requests without a key share one.
    pub(crate) key: Arc<str>,
    /// The user as the key names it; requests without a user share one.
    pub(crate) user: Arc<str>,
    /// Higher goes first; 0 is normal.
    pub(crate) priority: i32,
}

/// Sort key in a user's line: higher priority first, then the older request.
type Place = (std::cmp::Reverse<i32>, u64);

/// The waiting requests of a user.
type Line<T> = BTreeMap<Place, T>;

/// The waiting requests of a key.
#[derive(Debug)]
struct Owner<T> {
    users: Turns<Line<T>>,
    waiting: usize,
}

impl<T> Default for Owner<T> {
    fn default() -> Self {
        Self {
            users: Turns::default(),
            waiting: 0,
        }
    }
}

impl<T> Owner<T> {
    fn next(&mut self) -> Option<Taken<T>> {
        let taken = self.users.next(|line| {
            let ((std::cmp::Reverse(priority), _), item) = line.pop_first()?;
            Some(Taken {
                item,
                cost: cost(priority),
                emptied: line.is_empty(),
            })
        })?;
        self.waiting -= 1;
        Some(Taken {
            emptied: self.waiting == 0,
            ..taken
        })
    }

    fn remove(&mut self, wanted: &impl Fn(&T) -> bool) -> Option<T> {
        let (user, item, emptied) = self.users.lines_mut().find_map(|(user, line)| {
            let found = line.iter().find(|(_, item)| wanted(item));
            let place = found.map(|(place, _)| *place)?;
            let item = line.remove(&place)?;
            Some((Arc::clone(user), item, line.is_empty()))
        })?;
        if emptied {
            self.users.leave(&user);
        }
        self.waiting -= 1;
        Some(item)
    }
}

/// The waiting requests, and the number of running ones.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    keys: Turns<Owner<T>>,
    /// Requests that the engine had no room for, oldest first.
    returned: VecDeque<T>,
    queued: usize,
    /// Number of the last request that came.
    serial: u64,
    limit: usize,
    target: usize,
    running: usize,
    /// The engine had no room: nothing starts until that may have changed.
    blocked: bool,
}

impl<T> Admission<T> {
    /// At most `target` requests run (at least one) and at most `limit` wait.
    pub(crate) fn new(target: usize, limit: usize) -> Self {
        Self {
            keys: Turns::default(),
            returned: VecDeque::new(),
            queued: 0,
            serial: 0,
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
        self.queued
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.running == 0 && self.queued == 0
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Number of requests that may be before a request of this rank that came now. 0 means that [`Self::next`] returns it at once; `None`
    /// that the queue is full, or that this key or user has its fair share of it.
    pub(crate) fn place(&self, rank: &Rank) -> Option<usize> {
        if !self.blocked && self.running < self.target && self.queued == 0 {
            return Some(0);
        }
        self.has_place(rank).then(|| self.queued + 1)
    }

    /// Adds a request that [`Self::place`] has a place for.
    pub(crate) fn push(&mut self, rank: &Rank, item: T) {
        self.serial += 1;
        let place = (std::cmp::Reverse(rank.priority), self.serial);
        let owner = self.keys.wait(&rank.key);
        owner.users.wait(&rank.user).insert(place, item);
        owner.waiting += 1;
        self.queued += 1;
    }

    fn has_place(&self, rank: &Rank) -> bool {
        if self.queued >= self.limit {
            return false;
        }
        if self.queued * 2 < self.limit {
            return true;
        }
        let owner = self.keys.line(&rank.key).filter(|owner| owner.waiting > 0);
        let Some(owner) = owner else {
            return true;
        };
        let share = (self.limit / self.keys.waiting()).max(1);
        if owner.waiting * 2 < share {
            return true;
        }
        let own = owner.users.line(&rank.user).map_or(0, BTreeMap::len);
        let users = owner.users.waiting() + usize::from(own == 0);
        owner.waiting < share && own < (share / users).max(1)
    }

    /// The next request to start. It then counts as running.
    pub(crate) fn next(&mut self) -> Option<T> {
        if self.blocked || self.running >= self.target {
            return None;
        }
        let item = match self.returned.pop_front() {
            Some(item) => item,
            None => self.keys.next(Owner::next)?.item,
        };
        self.queued -= 1;
        self.running += 1;
        Some(item)
    }

    /// Takes back a request from [`Self::next`] that the engine had no room for. It goes before all others, and nothing starts until
    /// [`Self::finished`] or [`Self::unblock`]. It was admitted, so no limit applies, and its key has paid for it.
    pub(crate) fn put_back(&mut self, item: T) {
        self.running = self.running.saturating_sub(1);
        self.blocked = true;
        self.returned.push_front(item);
        self.queued += 1;
    }

    /// Counts a running request as ended.
    pub(crate) fn finished(&mut self) {
        self.running = self.running.saturating_sub(1);
        self.blocked = false;
    }

    /// Allows starts again: the engine may have room.
    pub(crate) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// Removes the waiting request that `wanted` selects.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let item = match self.returned.iter().position(&wanted) {
            Some(index) => self.returned.remove(index),
            None => self.remove_from_line(&wanted),
        }?;
        self.queued -= 1;
        Some(item)
    }

    fn remove_from_line(&mut self, wanted: &impl Fn(&T) -> bool) -> Option<T> {
        let (key, item, emptied) = self.keys.lines_mut().find_map(|(key, owner)| {
            let item = owner.remove(wanted)?;
            Some((Arc::clone(key), item, owner.waiting == 0))
        })?;
        if emptied {
            self.keys.leave(&key);
        }
        Some(item)
    }

    /// The waiting request that `wanted` selects.
    pub(crate) fn find_mut(&mut self, wanted: impl Fn(&T) -> bool) -> Option<&mut T> {
        let users = self
            .keys
            .lines_mut()
            .flat_map(|(_, owner)| owner.users.lines_mut());
        let lines = users.flat_map(|(_, line)| line.values_mut());
        self.returned.iter_mut().chain(lines).find(|item| wanted(item))
    }

    /// Removes all waiting requests.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.queued = 0;
        let returned = std::mem::take(&mut self.returned).into_iter();
        let owners = std::mem::take(&mut self.keys).into_lines();
        let lines = owners.flat_map(|owner| owner.users.into_lines());
        returned.chain(lines.flat_map(BTreeMap::into_values))
    }
}

#[cfg(test)]
mod tests;
