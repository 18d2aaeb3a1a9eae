//! Wire types to and from what the rest of the worker uses.

use std::time::Duration;

/// A duration for the wire; what does not fit is as good as forever.
pub(crate) fn duration(value: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(value).unwrap_or(prost_types::Duration {
        seconds: i64::MAX,
        nanos: 0,
    })
}

/// A duration from the wire; a negative one is none at all.
pub(crate) fn std_duration(value: Option<prost_types::Duration>) -> Option<Duration> {
    value.and_then(|value| Duration::try_from(value).ok())
}

/// A count for the wire.
pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
