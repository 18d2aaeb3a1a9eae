//! What chunks of chats and of completions have in common: everything around a choice.

use bytes::BytesMut;
use muster_core::Error;
use muster_proto::v1::{Finished, PromptProgress};

use crate::{
    render::{
        Head, error,
        json::{extra, member, raw, value},
        usage,
    },
    translate::View,
};

const DONE: &str = "data: [DONE]\n\n";

/// Everything around the choices of a stream's chunks.
#[derive(Debug)]
pub(super) struct Chunks {
    /// The beginning of a chunk, up to and including `"choices":[`.
    prefix: BytesMut,
    include_usage: bool,
}

impl Chunks {
    pub(super) fn new(head: &Head, object: &str, view: View) -> Self {
        let mut prefix = BytesMut::with_capacity(160);
        raw(&mut prefix, "data: ");
        super::open(&mut prefix, head, object);
        raw(&mut prefix, ",\"choices\":[");
        Self {
            prefix,
            include_usage: view.include_usage,
        }
    }

    /// Begins a chunk, up to its choice.
    pub(super) fn open(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.prefix);
    }

    /// Ends the choices of a chunk. With `include_usage` it writes `"usage":null`, as OpenAI does.
    pub(super) fn close(&self, out: &mut BytesMut) {
        raw(
            out,
            if self.include_usage {
                "],\"usage\":null"
            } else {
                "]"
            },
        );
    }

    /// Ends a chunk.
    pub(super) fn end(out: &mut BytesMut, json: &str) {
        extra(out, json);
        raw(out, "}\n\n");
    }

    /// Writes llama.cpp's `prompt_progress` and ends the chunk.
    pub(super) fn progress(out: &mut BytesMut, progress: &PromptProgress) {
        raw(out, ",\"prompt_progress\":{\"total\":");
        value(out, &progress.total);
        member(out, "cache", &progress.cached);
        member(out, "processed", &progress.processed);
        member(out, "time_ms", &progress.elapsed_ms);
        raw(out, "}}\n\n");
    }

    /// Writes the last chunks of a stream that succeeded.
    pub(super) fn finish(&self, out: &mut BytesMut, finished: &Finished, json: &str) {
        if self.include_usage {
            self.open(out);
            raw(out, "],\"usage\":");
            usage::usage(out, &finished.usage.unwrap_or_default());
            usage::timings(out, finished);
            Self::end(out, json);
        }
        raw(out, DONE);
    }

    /// Writes the error event that ends a failed stream.
    pub(super) fn fail(out: &mut BytesMut, error: &Error) {
        raw(out, "event: error\ndata: ");
        error::OPENAI.write(out, error);
        raw(out, "\n\n");
    }
}
