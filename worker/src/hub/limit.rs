//! How fast downloads may be: one limit for all of a worker's.
//!
//! Ours, not `governor`'s: that refuses what is larger than its burst, and a chunk that came is as large as it is.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

/// A limit on bytes per second; cheap to clone, and one for all clones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limit(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    bytes_per_second: u64,
    /// When all that was taken so far may have come.
    paid_until: Mutex<Option<Instant>>,
}

impl Limit {
    /// None, or 0 = as fast as it comes.
    pub(crate) fn new(bytes_per_second: Option<u64>) -> Self {
        let limit = bytes_per_second.filter(|limit| *limit > 0);
        Self(limit.map(|bytes_per_second| {
            Arc::new(Inner {
                bytes_per_second,
                paid_until: Mutex::new(None),
            })
        }))
    }

    /// Waits until so many bytes that came are allowed.
    pub(super) async fn took(&self, bytes: u64) {
        if let Some(inner) = &self.0 {
            sleep_until(inner.pay(bytes, Instant::now())).await;
        }
    }
}

impl Inner {
    /// When bytes that came `now` are paid for: time that was not used is not saved up.
    fn pay(&self, bytes: u64, now: Instant) -> Instant {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let price = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        // Held for a sum.
        let mut paid = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let until = paid.map_or(now, |until| until.max(now)) + price;
        *paid = Some(until);
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_who_take_share_what_there_is_and_nothing_is_saved_up() {
        let limit = Limit::new(Some(1000));
        let inner = limit.0.unwrap();
        let start = Instant::now();
        assert_eq!(inner.pay(500, start) - start, Duration::from_millis(500));
        assert_eq!(inner.pay(500, start) - start, Duration::from_secs(1));
        let later = start + Duration::from_secs(60);
        assert_eq!(inner.pay(1000, later) - later, Duration::from_secs(1));
    }

    #[test]
    fn none_and_nought_are_no_limit() {
        assert!(Limit::new(None).0.is_none() && Limit::new(Some(0)).0.is_none());
    }
}
