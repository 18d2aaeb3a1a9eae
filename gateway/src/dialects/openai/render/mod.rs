//! Renders OpenAI's answers.

pub(crate) mod chat;
mod chunk;
pub(crate) mod completion;
pub(crate) mod embedding;
pub(crate) mod rerank;
pub(crate) mod response;
#[cfg(test)]
mod tests;

use bytes::BytesMut;
use muster_proto::v1::FinishReason;

use crate::render::{
    Head,
    answer::Answer,
    json::{extra, member, raw, value},
    reason, usage,
};

/// The build that answers, as OpenAI's `system_fingerprint`.
const FINGERPRINT: &str = concat!("muster-", env!("CARGO_PKG_VERSION"));

/// Writes `{"id":…,"object":…,"created":…,"model":…,"system_fingerprint":…`, left open.
fn open(out: &mut BytesMut, head: &Head, object: &str) {
    raw(out, "{\"id\":");
    value(out, &head.id);
    member(out, "object", object);
    member(out, "created", &head.created);
    member(out, "model", &head.model);
    member(out, "system_fingerprint", FINGERPRINT);
}

/// Writes the fields after the choices of a body, and closes it.
fn close(out: &mut BytesMut, answer: &Answer) {
    raw(out, ",\"usage\":");
    usage::usage(out, &answer.usage());
    usage::timings(out, &answer.finished);
    extra(out, &answer.extra);
    raw(out, "}");
}

/// OpenAI's word for the reason a choice ended.
fn finish_reason(number: i32) -> &'static str {
    match reason(number) {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Stop | FinishReason::Unspecified => "stop",
    }
}
