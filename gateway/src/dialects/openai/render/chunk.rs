//! What chunks of chats and of completions have in common: everything around a choice.

use bytes::BytesMut;
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, Delta, Finished, PromptProgress};

use super::VERBOSE;
use crate::{
    render::{
        Head, error,
        json::{extra, member, raw},
        native::Native,
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
    timed: bool,
    verbose: Option<Native>,
}

impl Chunks {
    pub(super) fn new(head: &Head, object: &str, view: View, verbose: Option<Native>) -> Self {
        let mut prefix = BytesMut::with_capacity(160);
        raw(&mut prefix, "data: ");
        super::open(&mut prefix, head, object);
        raw(&mut prefix, ",\"choices\":[");
        Self {
            prefix,
            include_usage: view.include_usage,
            timed: view.timed,
            verbose,
        }
    }

    /// Begins a chunk, up to its choice.
    pub(super) fn open(&self, out: &mut BytesMut) {
        out.extend_from_slice(&self.prefix);
    }

    /// Ends the choices of a chunk that shows new output, and writes the times that it came with (llama.cpp's `timings_per_token`).
    pub(super) fn close_delta(&self, out: &mut BytesMut, delta: &Delta) {
        self.close(out);
        usage::timed(out, delta.timings.as_ref());
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

    /// Writes what stands beside the end of a stream's last choice, and ends the chunk.
    pub(super) fn last(&self, out: &mut BytesMut, end: &ChoiceFinished, last: Option<&Finished>) {
        if let Some(finished) = last {
            usage::timings(out, finished);
            if let Some(verbose) = &self.verbose {
                // The text was shown before, and nobody looked for line breaks.
                member(out, VERBOSE, &verbose.ended(end.choice, false, end, finished));
            }
        }
        Self::end(out, "");
    }

    /// Ends a chunk.
    pub(super) fn end(out: &mut BytesMut, json: &str) {
        extra(out, json);
        raw(out, "}\n\n");
    }

    /// Writes llama.cpp's `prompt_progress` and ends the chunk.
    pub(super) fn progress(&self, out: &mut BytesMut, progress: &PromptProgress) {
        usage::progress(out, progress, self.timed);
        Self::end(out, "");
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
