//! Wire types to and from what the rest of the worker uses.

pub(crate) use muster_proto::convert::{span, span_from};

/// A count for the wire.
pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
