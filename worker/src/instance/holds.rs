//! Holds: what keeps a just-loaded instance until the requests that asked for it have arrived (PROTOCOL.md 9).
//!
//! A hold is released by the controller. The TTL is the backstop: it runs only while the controller's session and all gateways are gone,
//! and starts anew each time they leave.
//!
//! Architecture invariant: reads no clock; `now` is an argument.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_proto::id::EnsureId;

/// TTL of a hold that names none.
const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// The holds on one instance.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    ttls: BTreeMap<EnsureId, Duration>,
    /// Since when nobody is there who could release them.
    orphaned: Option<Instant>,
}

impl Holds {
    /// Places a hold; placing it again changes its TTL.
    pub(crate) fn place(&mut self, id: EnsureId, ttl: Option<Duration>) {
        self.ttls.insert(id, ttl.unwrap_or(DEFAULT_TTL));
    }

    /// Removes a hold; an unknown one is gone already.
    pub(crate) fn release(&mut self, id: &str) -> bool {
        self.ttls.remove(id).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ttls.is_empty()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.ttls.keys().map(String::from).collect()
    }

    /// Somebody is there (`watched`) or nobody, from `now` on.
    pub(crate) fn set_watched(&mut self, watched: bool, now: Instant) {
        self.orphaned = if watched {
            None
        } else {
            self.orphaned.or(Some(now))
        };
    }

    /// Drops what has run out; true if anything did.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let Some(since) = self.orphaned else { return false };
        let age = now.saturating_duration_since(since);
        let before = self.ttls.len();
        self.ttls.retain(|_, ttl| *ttl > age);
        self.ttls.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_stays_while_somebody_is_there_and_runs_out_afterwards() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut holds = Holds::default();
        holds.place("a".into(), Some(2 * second));
        holds.place("b".into(), None);
        assert!(!holds.expire(start + 100 * second));
        holds.set_watched(false, start);
        assert!(!holds.expire(start + second));
        // Back again: the clock starts anew.
        holds.set_watched(true, start + second);
        holds.set_watched(false, start + 2 * second);
        holds.set_watched(false, start + 3 * second);
        assert!(!holds.expire(start + 3 * second));
        assert!(holds.expire(start + 4 * second));
        assert_eq!(holds.ids(), ["b"]);
        assert!(holds.release("b"));
        assert!(!holds.release("b"));
        assert!(holds.is_empty());
    }
}
