//! What chunks of chats and completions have in common: everything around a choice.

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

/// The frame around a stream's choices.
#[derive(Debug)]
pub(super) struct Chunks {
    /// Up to and including `"choices":[`.
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

    /// Begins a frame, up to where its choice stands.
    pub(super) fn open(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.prefix);
    }

    /// Ends the choices of a frame, and shows the place of the usage as OpenAI does.
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

    /// Ends a frame.
    pub(super) fn end(out: &mut BytesMut, json: &str) {
        extra(out, json);
        raw(out, "}\n\n");
    }

    /// llama.cpp's `prompt_progress`, and the end of its frame.
    pub(super) fn progress(out: &mut BytesMut, progress: &PromptProgress) {
        raw(out, ",\"prompt_progress\":{\"total\":");
        value(out, &progress.total);
        member(out, "cache", &progress.cached);
        member(out, "processed", &progress.processed);
        member(out, "time_ms", &progress.elapsed_ms);
        raw(out, "}}\n\n");
    }

    /// The last frames of a stream that went well.
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

    /// The last frame of one that did not.
    pub(super) fn fail(out: &mut BytesMut, error: &Error) {
        raw(out, "event: error\ndata: ");
        error::OPENAI.write(out, error);
        raw(out, "\n\n");
    }
}
