//! Quantities that only policy uses: shares of a device's memory, and moments in time.

use std::ops::Add;
use std::time::Duration;

use muster_core::Bytes;

/// A share of a device's total memory, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// A share of `share` thousandths, at most 1000.
    #[must_use]
    pub fn thousandths(share: u64) -> Self {
        Self(share.min(1000))
    }

    /// The share of `whole`, in bytes.
    #[must_use]
    pub const fn of(self, whole: Bytes) -> Bytes {
        // Divided before multiplied: the product may exceed 64 bits.
        Bytes::new(whole.get() / 1000 * self.0 + whole.get() % 1000 * self.0 / 1000)
    }
}

/// A point on the driver's monotonic clock. Policy never reads a clock; callers pass `now`.
///
/// The clock's zero lies ten years before the controller's start, so that uses before a restart keep their order (LRU).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The clock's zero.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// The controller's start.
    pub const START: Self = Self(Duration::from_secs(10 * 365 * 24 * 60 * 60));

    /// The moment `since` after the controller's start.
    #[must_use]
    pub const fn after_start(since: Duration) -> Self {
        Self(Self::START.0.saturating_add(since))
    }

    /// Time since the controller's start; zero for an earlier moment.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.since(Self::START)
    }

    /// Time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `age` before this one, at the earliest the clock's zero.
    #[must_use]
    pub const fn ago(self, age: Duration) -> Self {
        Self(self.0.saturating_sub(age))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span))
    }
}
