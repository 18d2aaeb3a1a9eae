//! What a caller may change about a running request: cancel it, or grant events. The session, the loop and the parse thread share it
//! without locks.
//!
//! One credit pays for one `delta` or `progress` event (PROTOCOL.md 18). A sequence is decoded only if it can pay one credit for the event
//! that the token may cause; the credit is returned if no event follows.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The state of one request that its caller controls.
#[derive(Debug)]
pub(crate) struct Control {
    cancelled: AtomicBool,
    credit: AtomicI64,
}

impl Control {
    /// The state of a new request that may send `credit` events.
    pub(crate) fn new(credit: u32) -> Self {
        Self {
            cancelled: AtomicBool::new(false),
            credit: AtomicI64::new(i64::from(credit)),
        }
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Allows more events.
    pub(crate) fn grant(&self, events: u32) {
        self.credit.fetch_add(i64::from(events), Ordering::SeqCst);
    }

    /// Events allowed now.
    pub(crate) fn credit(&self) -> i64 {
        self.credit.load(Ordering::SeqCst)
    }

    /// Takes the credit for events that are sent or may be sent.
    pub(crate) fn pay(&self, events: u32) {
        self.credit.fetch_sub(i64::from(events), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_is_paid_and_granted() {
        let control = Control::new(2);
        control.pay(2);
        assert_eq!(control.credit(), 0);
        control.grant(3);
        assert_eq!(control.credit(), 3);
        assert!(!control.is_cancelled());
        control.cancel();
        assert!(control.is_cancelled());
    }
}
