//! Conversions between wire types and the worker's own.

pub(crate) use muster_proto::convert::{span, span_from};

/// A count as the wire's type.
pub(crate) fn count(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
