//! Quantities that only policy counts in: shares of a device, and moments.

use std::ops::Add;
use std::time::Duration;

use muster_core::Bytes;

/// A share of a device's whole memory, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u64);

impl Share {
    /// So many thousandths, all of it at most.
    #[must_use]
    pub fn thousandths(share: u64) -> Self {
        Self(share.min(1000))
    }

    /// What that is of so much.
    #[must_use]
    pub const fn of(self, whole: Bytes) -> Bytes {
        // In two steps: the product of both may be more than a number holds.
        Bytes::new(whole.get() / 1000 * self.0 + whole.get() % 1000 * self.0 / 1000)
    }
}

/// A point on the driver's monotonic clock. Policy never reads a clock; `now` is always handed in.
///
/// The clock's zero lies long before the controller's start, so that what happened before a restart keeps its order (LRU).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The clock's zero, before everything.
    pub const ZERO: Self = Self(Duration::ZERO);
    /// The start of the controller: ages of up to ten years can be told apart.
    pub const START: Self = Self(Duration::from_secs(10 * 365 * 24 * 60 * 60));

    /// So long after the start.
    #[must_use]
    pub const fn after_start(since: Duration) -> Self {
        Self(Self::START.0.saturating_add(since))
    }

    /// Time since the start; nothing for what was before.
    #[must_use]
    pub const fn since_start(self) -> Duration {
        self.since(Self::START)
    }

    /// Time since `earlier`, or nothing if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The moment `age` ago, before the start too; the clock's zero for what is older still.
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
