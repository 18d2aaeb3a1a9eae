//! Model files made on the spot.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

pub(crate) mod shapes;
pub(crate) mod writer;
