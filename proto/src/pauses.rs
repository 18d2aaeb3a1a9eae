//! Pauses between attempts. The crate `backon` computes them; this type makes them endless and lets them start again.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};

/// Endless pauses between attempts: from the shortest, doubled up to the longest, each with a random part of up to its own length, so that many
/// processes which lost the same one do not come back at the same moment.
#[derive(Debug)]
pub struct Pauses {
    shortest: Duration,
    longest: Duration,
    backoff: ExponentialBackoff,
}

impl Pauses {
    /// From the shortest to the longest, random parts aside.
    #[must_use]
    pub fn new((shortest, longest): (Duration, Duration)) -> Self {
        let backoff = ExponentialBuilder::default()
            .with_min_delay(shortest)
            .with_max_delay(longest)
            .with_jitter()
            .without_max_times()
            .build();
        Self {
            shortest,
            longest,
            backoff,
        }
    }

    /// How long to wait now.
    pub fn take(&mut self) -> Duration {
        self.backoff.next().unwrap_or(self.longest)
    }

    /// Waits that long.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.take()).await;
    }

    /// Starts again with the shortest.
    pub fn reset(&mut self) {
        *self = Self::new((self.shortest, self.longest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: the pauses were the same in every process, because backon's random numbers have a fixed seed without its feature `std`.
    #[test]
    fn pauses_grow_to_their_bound_and_differ_from_one_another() {
        let (first, last) = (Duration::from_millis(20), Duration::from_secs(1));
        let some = || {
            let mut pauses = Pauses::new((first, last));
            (0..16).map(|_| pauses.take()).collect::<Vec<_>>()
        };
        let (one, other) = (some(), some());
        assert_ne!(one, other);
        assert!(one[0] >= first && one[0] <= 2 * first, "{one:?}");
        assert!(one[15] >= last && one[15] <= 2 * last, "{one:?}");
    }

    #[test]
    fn they_begin_anew_and_never_end() {
        let (first, last) = (Duration::from_millis(1), Duration::from_millis(8));
        let mut pauses = Pauses::new((first, last));
        assert!((0..10_000).all(|_| pauses.take() <= 2 * last));
        pauses.reset();
        assert!(pauses.take() <= 2 * first);
    }
}
