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

use crate::{
    render::{
        Head,
        answer::Answer,
        json::{extra, member, raw, value},
        native::Native,
        reason, usage,
    },
    translate::View,
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

/// llama.cpp's name of what its own route shows.
const VERBOSE: &str = "__verbose";

/// Writes the fields after the choices of a body, and closes it. `verbose`: the first choice as llama.cpp's own route shows it.
fn close(out: &mut BytesMut, view: View, answer: &Answer, verbose: Option<&Native>) {
    raw(out, ",\"usage\":");
    usage::usage(out, &answer.usage());
    usage::timings(out, &answer.finished);
    if let (Some(verbose), Some(first)) = (verbose, answer.choices.values().next()) {
        member(out, VERBOSE, &verbose.whole(view, 0, first, &answer.finished));
    }
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
