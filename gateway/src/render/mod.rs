//! From typed events to what clients read: what all dialects share. Pure functions over the one event stream.
//!
//! ```text
//!  events ─┬─► Stream<F: Frames> ─► frames as they come        (which choice began, which end is held back)
//!          ├─► Stream<Blocks<B>> ─► blocks opened and closed   (Responses, Messages: text, reasoning, calls one after the other)
//!          └─► Answer            ─► gathered; a dialect writes its body from it
//! ```
//!
//! Dialects write text directly into a buffer: a pre-rendered prefix and suffix around JSON-escaped content cost half as much as building
//! JSON per chunk (proto/README.md, Life of a streaming chat). The state machines over events are here; a dialect only says what each step
//! looks like.
//!
//! Rules for all dialects: no frame is empty; a stream that began ends with its dialect's end or with one error, never silently.
//!
//! Architecture invariant: this module knows no connection, no fleet and no clock.

pub(crate) mod answer;
pub(crate) mod blocks;
pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod logprobs;
pub(crate) mod native;
#[cfg(test)]
pub(crate) mod recorded;
pub(crate) mod settings;
pub(crate) mod stream;
pub(crate) mod usage;

use bytes::BytesMut;
use muster_proto::v1::{Event, FinishReason};

/// What all chunks of an answer repeat.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// The answer's id with its dialect's prefix, for example `chatcmpl-…`.
    pub(crate) id: String,
    /// Name of the model as the client gave it.
    pub(crate) model: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
}

/// Renders events as they come.
pub(crate) trait Render {
    /// Writes an event. Returns whether it was the last one.
    fn event(&mut self, event: Event, out: &mut BytesMut) -> bool;
}

/// A finish reason from the wire. An unknown one is unspecified.
pub(crate) fn reason(reason: i32) -> FinishReason {
    FinishReason::try_from(reason).unwrap_or_default()
}
