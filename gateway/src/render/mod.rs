//! From typed events to what clients of a dialect read: pure functions over the event stream.
//!
//! A [`Render`] turns events into server-sent events, a [`Collect`] into one body. Both write text straight into a buffer: a pre-rendered prefix
//! and suffix around JSON-escaped content costs half of building JSON per chunk (DESIGN.md, Life cycle).
//!
//! Rules of both dialects: the role comes with the first delta; no frame is empty; a stream that began ends with `[DONE]` or with one `error`
//! event, never silently.
//!
//! Architecture invariant: this module knows no connection, no fleet and no clock.

pub(crate) mod chat_body;
pub(crate) mod chat_stream;
pub(crate) mod completion_body;
pub(crate) mod completion_stream;
pub(crate) mod error;
mod json;
mod logprobs;
#[cfg(test)]
mod tests;
mod usage;

use bytes::{Bytes, BytesMut};
use muster_proto::v1::{ErrorInfo, Event, FinishReason};

/// What all chunks of an answer have in common.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    /// `chatcmpl-…` or `cmpl-…`.
    pub(crate) id: String,
    /// The model, as the client named it.
    pub(crate) model: String,
    /// Unix time in seconds.
    pub(crate) created: u64,
}

impl Head {
    /// Writes `{"id":…,"object":…,"created":…,"model":…`, left open.
    fn write(&self, out: &mut BytesMut, object: &str) {
        json::raw(out, "{\"id\":");
        json::value(out, &self.id);
        json::member(out, "object", object);
        json::member(out, "created", &self.created);
        json::member(out, "model", &self.model);
    }
}

/// Shows events as they come.
pub(crate) trait Render {
    /// Writes what an event shows; true if it was the last one.
    fn event(&mut self, event: Event, out: &mut BytesMut) -> bool;

    /// Writes the end of a stream that failed.
    fn fail(&mut self, error: &ErrorInfo, out: &mut BytesMut);
}

/// Gathers events into one body.
pub(crate) trait Collect {
    /// Takes an event; true if it was the last one, an error otherwise ends it.
    ///
    /// # Errors
    /// The request failed.
    fn event(&mut self, event: Event) -> Result<bool, ErrorInfo>;

    /// The body.
    fn finish(self) -> Bytes;
}

/// OpenAI's word for why a choice ended.
fn finish_reason(reason: i32) -> &'static str {
    match FinishReason::try_from(reason).unwrap_or_default() {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Stop | FinishReason::Unspecified => "stop",
    }
}

const DONE: &str = "data: [DONE]\n\n";
