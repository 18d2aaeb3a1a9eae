//! The state machine of a stream, shared by all dialects.
//!
//! ```text
//!  choice:  (none) ─ first delta, progress or end ─► begun ─ ChoiceFinished ─► its end is held back ─ what follows ─► shown
//! ```
//!
//! A choice's end is held back until what follows, because the last one also shows the timings.

use bytes::BytesMut;
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, Delta, Event, Finished, PromptProgress, event::Kind};

use super::Render;

/// How a dialect writes the events of a stream. `first` marks the first frame of a choice.
pub(crate) trait Frames {
    /// Writes new output. At least one of its fields is not empty.
    fn delta(&mut self, delta: &Delta, first: bool, extra: &str, out: &mut BytesMut);

    /// Learns how much of the prompt is read; nothing is shown of it.
    fn note(&mut self, _progress: &PromptProgress) {}

    /// Writes how much of the prompt was read, in dialects that have a field for it.
    fn progress(&mut self, _progress: &PromptProgress, _first: bool, _out: &mut BytesMut) {}

    /// Whether [`progress`](Self::progress) writes anything.
    fn shows_progress(&self) -> bool {
        false
    }

    /// Writes the end of a choice. `last` is set if only the end of the stream follows.
    fn end(&mut self, end: &ChoiceFinished, first: bool, last: Option<&Finished>, out: &mut BytesMut);

    /// Writes the end of a successful stream.
    fn finish(&mut self, finished: &Finished, extra: &str, out: &mut BytesMut);

    /// Writes the end of a failed stream.
    fn fail(&mut self, error: &Error, out: &mut BytesMut);
}

/// The state of one stream.
#[derive(Debug)]
pub(crate) struct Stream<F> {
    frames: F,
    /// Token ids were requested, so a delta with only ids is not empty.
    tokens: bool,
    /// For each choice, whether it has shown anything.
    begun: Vec<bool>,
    ended: Option<ChoiceFinished>,
}

impl<F: Frames> Stream<F> {
    pub(crate) fn new(frames: F, tokens: bool) -> Self {
        Self {
            frames,
            tokens,
            begun: Vec::new(),
            ended: None,
        }
    }

    /// Whether this is the first frame of a choice; from now on it is not.
    fn first(&mut self, choice: u32) -> bool {
        let index = choice as usize;
        if self.begun.len() <= index {
            self.begun.resize(index + 1, false);
        }
        !std::mem::replace(&mut self.begun[index], true)
    }

    fn delta(&mut self, delta: &Delta, extra: &str, out: &mut BytesMut) {
        let silent = delta.content.is_empty()
            && delta.reasoning.is_empty()
            && delta.tool_calls.is_empty()
            && delta.logprobs.is_empty()
            && (!self.tokens || delta.tokens.is_empty());
        if silent {
            return;
        }
        self.flush(None, out);
        let first = self.first(delta.choice);
        self.frames.delta(delta, first, extra, out);
    }

    /// Writes the end of a choice that was held back.
    fn flush(&mut self, last: Option<&Finished>, out: &mut BytesMut) {
        if let Some(end) = self.ended.take() {
            let first = self.first(end.choice);
            self.frames.end(&end, first, last, out);
        }
    }
}

impl<F: Frames> Render for Stream<F> {
    fn event(&mut self, event: Event, out: &mut BytesMut) -> bool {
        match event.kind {
            Some(Kind::Delta(delta)) => self.delta(&delta, &event.extra_json, out),
            Some(Kind::Progress(progress)) => {
                self.frames.note(&progress);
                if self.frames.shows_progress() {
                    let first = self.first(0);
                    self.frames.progress(&progress, first, out);
                }
            }
            Some(Kind::ChoiceFinished(end)) => {
                self.flush(None, out);
                self.ended = Some(end);
            }
            Some(Kind::Finished(finished)) => {
                self.flush(Some(&finished), out);
                self.frames.finish(&finished, &event.extra_json, out);
                return true;
            }
            Some(Kind::Failed(error)) => {
                self.flush(None, out);
                self.frames.fail(&error.into(), out);
                return true;
            }
            Some(Kind::Admitted(_) | Kind::Embedded(_) | Kind::Reranked(_)) | None => {}
        }
        false
    }
}
