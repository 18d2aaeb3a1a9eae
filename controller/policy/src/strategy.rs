//! The order in which idle instances are evicted (I9).

use crate::api::Moment;
use crate::state::Instance;

/// What keeping an instance is worth, by the strategy: the least worth goes first. Comparable within one fleet only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth(u64);

impl Worth {
    /// Nothing: no eviction is cheaper.
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn lru(instance: &Instance) -> Self {
        Self(u64::try_from(instance.usage.last_used.since(Moment::ZERO).as_nanos()).unwrap_or(u64::MAX))
    }
}
