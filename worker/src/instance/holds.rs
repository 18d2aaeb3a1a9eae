//! Holds protect an instance that was just loaded until the requests that wanted it have arrived (PROTOCOL.md 9).
//!
//! The controller releases holds. Their time limit is a safeguard: it runs only while both the controller's session and the hold's gateway
//! are gone, and starts anew each time they leave. If a hold or a session names no gateway, the session of any gateway counts.
//!
//! Architecture invariant: reads no clock; `now` is an argument.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use muster_core::{GatewayId, HoldId, Missing};
use muster_proto::v1::Hold;

use super::actor::Surroundings;
use crate::convert;

/// Time limit of a hold that sets none.
const DEFAULT_TTL: Duration = Duration::from_secs(10);

/// The holds on an instance.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeMap<HoldId, Held>);

#[derive(Debug)]
struct Held {
    ttl: Duration,
    /// The gateway whose requests it waits for; none if unknown.
    gateway: Option<GatewayId>,
    /// Since when neither the controller nor the gateway is there.
    orphaned: Option<Instant>,
}

impl Holds {
    /// Places a hold. Placing it again changes its time limit.
    ///
    /// # Errors
    /// It has no id, so nobody could release it.
    pub(crate) fn place(&mut self, hold: Hold) -> Result<(), Missing> {
        let id = HoldId::new(hold.hold_id)?;
        let held = Held {
            ttl: convert::span_from(hold.ttl).unwrap_or(DEFAULT_TTL),
            gateway: GatewayId::new(hold.gateway_id).ok(),
            orphaned: None,
        };
        self.0.insert(id, held);
        Ok(())
    }

    /// Places the holds of a load.
    ///
    /// # Errors
    /// One has no id; those before it are placed.
    pub(crate) fn place_all(&mut self, holds: Vec<Hold>) -> Result<(), Missing> {
        holds.into_iter().try_for_each(|hold| self.place(hold))
    }

    /// Removes a hold. Returns false if it was not there.
    pub(crate) fn release(&mut self, id: &str) -> bool {
        self.0.remove(id).is_some()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn ids(&self) -> Vec<String> {
        self.0.keys().map(String::from).collect()
    }

    /// Records who is connected from `now` on.
    pub(crate) fn look_around(&mut self, around: &Surroundings, now: Instant) {
        for held in self.0.values_mut() {
            held.orphaned = if around.session.is_some() || around.gateways.has(&held.gateway) {
                None
            } else {
                held.orphaned.or(Some(now))
            };
        }
    }

    /// Drops holds whose time has run out. Returns whether there were any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|_, held| {
            held.orphaned
                .is_none_or(|since| now.saturating_duration_since(since) < held.ttl)
        });
        self.0.len() != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn hold(id: &str, gateway: &str, ttl: Option<Duration>) -> Hold {
        Hold {
            hold_id: id.to_owned(),
            ttl: ttl.map(convert::span),
            gateway_id: gateway.to_owned(),
        }
    }

    fn around(session: Option<u64>, gateways: &[&str]) -> Surroundings {
        let mut around = Surroundings {
            session,
            ..Surroundings::default()
        };
        for gateway in gateways {
            around.gateways.came(GatewayId::new(*gateway).ok());
        }
        around
    }

    #[test]
    fn a_hold_stays_while_somebody_is_there_and_runs_out_afterwards() {
        let start = Instant::now();
        let mut holds = Holds::default();
        holds.place(hold("a", "", Some(2 * SECOND))).unwrap();
        holds.place(hold("b", "", None)).unwrap();
        assert!(!holds.expire(start + 100 * SECOND));
        holds.look_around(&around(None, &[]), start);
        assert!(!holds.expire(start + SECOND));
        // Connected again: the time starts anew.
        holds.look_around(&around(Some(1), &[]), start + SECOND);
        holds.look_around(&around(None, &[]), start + 2 * SECOND);
        holds.look_around(&around(None, &[]), start + 3 * SECOND);
        assert!(!holds.expire(start + 3 * SECOND));
        assert!(holds.expire(start + 4 * SECOND));
        assert_eq!(holds.ids(), ["b"]);
        assert!(holds.release("b"));
        assert!(!holds.release("b"));
        assert!(holds.is_empty());
    }

    #[test]
    fn a_hold_waits_for_its_own_gateway() {
        let start = Instant::now();
        let mut holds = Holds::default();
        holds.place(hold("one", "gw-1", Some(SECOND))).unwrap();
        holds.place(hold("two", "gw-2", Some(SECOND))).unwrap();
        holds.place(hold("any", "", Some(SECOND))).unwrap();
        // The controller is gone, and so is the first gateway.
        holds.look_around(&around(None, &["gw-2"]), start);
        assert!(holds.expire(start + SECOND));
        assert_eq!(holds.ids(), ["any", "two"], "whose gateway is there stays");
        // A gateway without an id may be any gateway.
        holds.look_around(&around(None, &[""]), start + SECOND);
        assert!(!holds.expire(start + 9 * SECOND));
        holds.look_around(&around(None, &[]), start + 9 * SECOND);
        assert!(holds.expire(start + 10 * SECOND));
        assert!(holds.is_empty());
    }
}
