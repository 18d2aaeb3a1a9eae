//! Events that policy is still to hear: one input, bounded work.
//!
//! ```text
//!   input ─► round 1 ─► what follows: round 2 ─► … ─► nothing follows: done
//!                                       └ after ROUNDS: put off for a while ─► taken up again, between other inputs
//! ```
//!
//! Invariant: no chain of events and effects keeps the driver from its next input.

use std::time::Duration;

use tokio::time::Instant;

/// Largest number of rounds of follow-up events for one input. An effect that cannot be carried out causes an event, whose effects may
/// cause more; two or three rounds are normal, so more are a bug.
const ROUNDS: usize = 8;
/// How long the remaining events are postponed after that.
const PAUSE: Duration = Duration::from_secs(1);

/// The agenda; `E` is the type of events.
#[derive(Debug)]
pub(super) struct Agenda<E> {
    next: Vec<E>,
    rounds: usize,
    /// A round is being worked on: new events belong to the next.
    working: bool,
    put_off: Vec<E>,
    due: Option<Instant>,
}

impl<E> Default for Agenda<E> {
    fn default() -> Self {
        Self {
            next: Vec::new(),
            rounds: 0,
            working: false,
            put_off: Vec::new(),
            due: None,
        }
    }
}

/// What to do next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Round<E> {
    /// Handle these events in this order.
    Events(Vec<E>),
    /// Nothing is left to do.
    Done,
    /// One input caused too many rounds; this many events were postponed.
    PutOff(usize),
}

impl<E> Agenda<E> {
    /// Adds an event. Returns whether no round is being worked on; then the caller must work on the rounds.
    pub(super) fn add(&mut self, event: E) -> bool {
        self.next.push(event);
        !std::mem::replace(&mut self.working, true)
    }

    /// The next round.
    pub(super) fn round(&mut self, now: Instant) -> Round<E> {
        let events = std::mem::take(&mut self.next);
        if !events.is_empty() && self.rounds < ROUNDS {
            self.rounds += 1;
            return Round::Events(events);
        }
        self.rounds = 0;
        self.working = false;
        if events.is_empty() {
            return Round::Done;
        }
        let count = events.len();
        self.put_off.extend(events);
        self.due.get_or_insert(now + PAUSE);
        Round::PutOff(count)
    }

    /// When the postponed events are due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes the postponed events.
    pub(super) fn take_up(&mut self) -> Vec<E> {
        self.due = None;
        std::mem::take(&mut self.put_off)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_follows_without_end_is_put_off_and_others_have_their_turn() {
        let now = Instant::now();
        let mut agenda = Agenda::default();
        assert!(agenda.add("endless"));
        let mut work = 0;
        let put_off = loop {
            match agenda.round(now) {
                Round::Events(events) => {
                    for event in events {
                        work += 1;
                        assert!(!agenda.add(event), "a round is at work");
                    }
                }
                end @ (Round::Done | Round::PutOff(_)) => break end,
            }
        };
        assert_eq!((put_off, work), (Round::PutOff(1), ROUNDS));
        assert_eq!(agenda.due(), Some(now + PAUSE));

        assert!(agenda.add("another"), "it does not wait for the endless one");
        assert_eq!(agenda.round(now), Round::Events(vec!["another"]));
        assert_eq!(agenda.round(now), Round::Done);
        assert_eq!(agenda.take_up(), ["endless"]);
        assert_eq!(agenda.due(), None);
    }
}
