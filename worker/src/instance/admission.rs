//! The bounded queue in front of one engine: only the worker queues (PROTOCOL.md 17), and it queues fairly.
//!
//! ```text
//!   push ──► one line per key ──next: the key that has had least──► running (≤ target) ──finished──► …
//!              ▲  (≤ limit in all)                                    │
//!              └──────────── put_back: the engine had no room ────────┘
//! ```
//!
//! Weighted fair queueing: every key has a virtual time, which each request of its that starts moves on by 1 / weight; the next request is of the
//! key whose time is least. A key that had nothing waiting begins at the time of now, so nobody saves up. While only one key waits it gets
//! everything: no place stays empty while anything waits. Within a key the higher priority goes first, then who came first; a step up in
//! priority also doubles a request's weight, so urgent work costs its key less of its share, but never starves another key.
//!
//! Invariants: never more than `limit` wait and never more than `target` run; once half the queue is taken, one fairness key holds at most
//! `max(1, limit / active keys)` places; what the engine had no room for goes before all others; a waiting key is passed over at most as often
//! as the weights of the others allow.
//!
//! Architecture invariant: knows no time, no engine and no session; what waits is opaque.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

/// Steps of priority that count, up and down; what is beyond is taken for the outermost.
const PRIORITIES: i32 = 4;
/// Virtual time of one request of priority 0.
const SHARE: u64 = 1 << 20;

/// What a request costs its key, in virtual time.
fn cost(priority: i32) -> u64 {
    let steps = priority.clamp(-PRIORITIES, PRIORITIES);
    if steps < 0 {
        SHARE << steps.unsigned_abs()
    } else {
        SHARE >> steps.unsigned_abs()
    }
}

/// Whose request it is, and how urgent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rank {
    /// Who asks; requests without a name share one.
    pub(crate) key: Arc<str>,
    /// Higher goes first; 0 is normal.
    pub(crate) priority: i32,
}

/// Place in a key's line: urgent ones first, then as they came.
type Place = (std::cmp::Reverse<i32>, u64);

/// What waits of one key.
#[derive(Debug)]
struct Line<T> {
    waiting: BTreeMap<Place, T>,
    /// Virtual time of its next request.
    due: u64,
}

/// Places for requests that wait, and a count of those that run.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    /// Keys with something waiting, or with more than their share behind them.
    lines: HashMap<Arc<str>, Line<T>>,
    /// What the engine had no room for, the oldest first.
    returned: VecDeque<(Rank, T)>,
    queued: usize,
    /// Virtual time of the last request that started.
    now: u64,
    /// Number of the last request that came.
    serial: u64,
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
            lines: HashMap::new(),
            returned: VecDeque::new(),
            queued: 0,
            now: 0,
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

    /// How many may be before a request of this rank that came now: 0 means that [`Self::next`] gives it out at once,
    /// `None` that the queue is full or that this key has its fair share of it.
    pub(crate) fn place(&self, rank: &Rank) -> Option<usize> {
        if !self.blocked && self.running < self.target && self.queued == 0 {
            return Some(0);
        }
        self.has_place(&rank.key).then(|| self.queued + 1)
    }

    /// Takes a request that [`Self::place`] has a place for.
    pub(crate) fn push(&mut self, rank: &Rank, item: T) {
        self.serial += 1;
        let place = (std::cmp::Reverse(rank.priority), self.serial);
        let now = self.now;
        let line = self.lines.entry(Arc::clone(&rank.key)).or_insert_with(|| Line {
            waiting: BTreeMap::new(),
            due: now,
        });
        if line.waiting.is_empty() {
            line.due = line.due.max(now);
        }
        line.waiting.insert(place, item);
        self.queued += 1;
    }

    fn has_place(&self, key: &Arc<str>) -> bool {
        if self.queued >= self.limit {
            return false;
        }
        if self.queued * 2 < self.limit {
            return true;
        }
        let own = self.lines.get(key).map_or(0, |line| line.waiting.len());
        let active = self
            .lines
            .values()
            .filter(|line| !line.waiting.is_empty())
            .count();
        let active = active + usize::from(own == 0);
        own < (self.limit / active).max(1)
    }

    /// The next request to start, which then counts as running.
    pub(crate) fn next(&mut self) -> Option<T> {
        if self.blocked || self.running >= self.target {
            return None;
        }
        let item = match self.returned.pop_front() {
            Some((_, item)) => item,
            None => self.next_in_line()?,
        };
        self.queued -= 1;
        self.running += 1;
        Some(item)
    }

    fn next_in_line(&mut self) -> Option<T> {
        let now = self.now;
        // whoever waits nowhere and is not ahead of the others need not be remembered
        self.lines
            .retain(|_, line| !line.waiting.is_empty() || line.due > now);
        let line = self
            .lines
            .values_mut()
            .filter_map(|line| {
                line.waiting
                    .first_key_value()
                    .map(|(place, _)| *place)
                    .map(|place| (line.due, place.1, line))
            })
            .min_by_key(|(due, serial, _)| (*due, *serial));
        let (due, _, line) = line?;
        let ((std::cmp::Reverse(priority), _), item) = line.waiting.pop_first()?;
        line.due = due.saturating_add(cost(priority));
        self.now = now.max(due);
        Some(item)
    }

    /// The engine had no room for a request that [`Self::next`] gave out: it goes before all others, and nothing starts until
    /// [`Self::finished`] or [`Self::unblock`]. It had been admitted, so no limit applies, and its key has paid for it.
    pub(crate) fn put_back(&mut self, rank: &Rank, item: T) {
        self.running = self.running.saturating_sub(1);
        self.blocked = true;
        self.returned.push_front((rank.clone(), item));
        self.queued += 1;
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

    /// Takes the waiting request that `wanted` picks out of the queue.
    pub(crate) fn remove(&mut self, wanted: impl Fn(&T) -> bool) -> Option<T> {
        let item = match self.returned.iter().position(|(_, item)| wanted(item)) {
            Some(index) => self.returned.remove(index).map(|(_, item)| item),
            None => self.lines.values_mut().find_map(|line| {
                let place = line
                    .waiting
                    .iter()
                    .find(|(_, item)| wanted(item))
                    .map(|(place, _)| *place)?;
                line.waiting.remove(&place)
            }),
        }?;
        self.queued -= 1;
        Some(item)
    }

    /// The waiting request that `wanted` picks.
    pub(crate) fn find_mut(&mut self, wanted: impl Fn(&T) -> bool) -> Option<&mut T> {
        let returned = self.returned.iter_mut().map(|(_, item)| item);
        let lines = self.lines.values_mut().flat_map(|line| line.waiting.values_mut());
        returned.chain(lines).find(|item| wanted(item))
    }

    /// Empties the queue.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = T> {
        self.queued = 0;
        let returned = std::mem::take(&mut self.returned)
            .into_iter()
            .map(|(_, item)| item);
        let lines = std::mem::take(&mut self.lines).into_values();
        returned.chain(lines.flat_map(|line| line.waiting.into_values()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rank(name: &str, priority: i32) -> Rank {
        Rank {
            key: Arc::from(name),
            priority,
        }
    }

    fn offer<T>(queue: &mut Admission<T>, name: &str, item: T) -> Option<usize> {
        offer_at(queue, name, 0, item)
    }

    fn offer_at<T>(queue: &mut Admission<T>, name: &str, priority: i32, item: T) -> Option<usize> {
        let rank = rank(name, priority);
        let place = queue.place(&rank)?;
        queue.push(&rank, item);
        Some(place)
    }

    /// Starts and ends whatever waits, one after the other.
    fn order<T>(queue: &mut Admission<T>) -> Vec<T> {
        std::iter::from_fn(|| {
            let item = queue.next()?;
            queue.finished();
            Some(item)
        })
        .collect()
    }

    #[test]
    fn a_crowd_of_one_key_does_not_delay_another() {
        let mut queue = Admission::new(1, 100);
        for item in 0..20 {
            offer(&mut queue, "crowd", ("crowd", item)).unwrap();
        }
        for item in 0..3 {
            offer(&mut queue, "one", ("one", item)).unwrap();
        }
        let order = order(&mut queue);
        assert_eq!(
            order[..6],
            [
                ("crowd", 0),
                ("one", 0),
                ("crowd", 1),
                ("one", 1),
                ("crowd", 2),
                ("one", 2)
            ],
            "keys take turns, each in its own order"
        );
        assert_eq!(order.len(), 23, "and alone a key gets everything");
    }

    #[test]
    fn nobody_saves_up_while_away() {
        let mut queue = Admission::new(1, 100);
        for item in 0..10 {
            offer(&mut queue, "a", ("a", item)).unwrap();
        }
        for _ in 0..8 {
            queue.next().unwrap();
            queue.finished();
        }
        for item in 0..4 {
            offer(&mut queue, "late", ("late", item)).unwrap();
        }
        let order = order(&mut queue);
        let before_a_is_done = order.iter().take_while(|item| **item != ("a", 9)).count();
        assert!(before_a_is_done <= 4, "{order:?}");
    }

    #[test]
    fn urgent_work_goes_first_within_its_key_and_weighs_more_between_keys() {
        let mut queue = Admission::new(1, 100);
        offer(&mut queue, "a", "a normal").unwrap();
        offer_at(&mut queue, "a", 2, "a urgent").unwrap();
        offer_at(&mut queue, "a", -1, "a later").unwrap();
        assert_eq!(order(&mut queue), ["a urgent", "a normal", "a later"]);

        for _ in 0..40 {
            offer_at(&mut queue, "urgent", 1, "urgent").unwrap();
            offer(&mut queue, "normal", "normal").unwrap();
        }
        let first: Vec<_> = order(&mut queue).into_iter().take(30).collect();
        let urgent = first.iter().filter(|item| **item == "urgent").count();
        assert!((19..=21).contains(&urgent), "twice the weight: {urgent} of 30");
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
        let one = rank("", 0);
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
        Offer(u8, i32),
        Next,
        Finish,
        PutBack,
        Unblock,
        RemoveFirst,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0u8..4, -6i32..6).prop_map(|(key, priority)| Step::Offer(key, priority)),
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
            let mut running: Vec<(Rank, u64)> = Vec::new();
            let (mut accepted, mut ended, mut serial) = (0usize, 0usize, 0u64);
            for step in steps {
                match step {
                    Step::Offer(name, priority) => {
                        serial += 1;
                        let rank = rank(&name.to_string(), priority);
                        if queue.place(&rank).is_some() {
                            queue.push(&rank, (rank.clone(), serial));
                            accepted += 1;
                        }
                    }
                    Step::Next => {
                        let could = !queue.is_blocked() && queue.running() < target && queue.queued() > 0;
                        let next = queue.next();
                        prop_assert_eq!(next.is_some(), could, "no place stays empty while anything waits");
                        running.extend(next);
                    }
                    Step::Finish => if running.pop().is_some() { queue.finished(); ended += 1; },
                    Step::PutBack => if let Some((rank, item)) = running.pop() {
                        queue.put_back(&rank.clone(), (rank, item));
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
                let places: usize = queue.lines.values().map(|line| line.waiting.len()).sum();
                prop_assert_eq!(places + queue.returned.len(), queue.queued());
            }
        }

        /// Between keys that always have something waiting, what each has got differs by no more than a request of each, by weight.
        #[test]
        fn shares_follow_the_weights(priorities in prop::collection::vec(-2i32..3, 2..5), picks in 20usize..200) {
            let mut queue = Admission::new(1, usize::MAX);
            for (key, priority) in priorities.iter().enumerate() {
                for _ in 0..picks {
                    queue.push(&rank(&key.to_string(), *priority), key);
                }
            }
            let mut got = vec![0u64; priorities.len()];
            for _ in 0..picks {
                got[queue.next().unwrap()] += 1;
                queue.finished();
            }
            let time = |key: usize| got[key] * cost(priorities[key]);
            for (one, priority) in priorities.iter().enumerate() {
                for (other, theirs) in priorities.iter().enumerate() {
                    // virtual times of keys that always wait are never further apart than one request of either
                    let apart = time(one).abs_diff(time(other));
                    prop_assert!(apart <= cost(*priority) + cost(*theirs), "{got:?} {priorities:?}");
                }
            }
        }
    }
}
