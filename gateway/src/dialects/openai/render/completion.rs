//! Renders completions: one body, or server-sent `text_completion` objects.
//!
//! A plain completion has no field for reasoning, so reasoning is shown as text.

use bytes::{Bytes, BytesMut};
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, Delta, Finished, PromptProgress};

use super::{chunk::Chunks, close, open};
use crate::{
    render::{
        Head,
        answer::{Answer, Choice},
        json::{list, member, number, raw, value},
        logprobs,
        native::Native,
        stream::{Frames, Stream},
        usage,
    },
    translate::View,
};

/// OpenAI's word for the reason a choice ended. A plain completion never calls tools.
fn finish_reason(number: i32) -> &'static str {
    match super::finish_reason(number) {
        "tool_calls" => "stop",
        word => word,
    }
}

/// The text before a choice's output: with `echo` its prompt, else nothing.
fn echo(echo: Option<&[String]>, view: View, choice: u32) -> &str {
    let prompt = choice / view.choices.max(1);
    echo.and_then(|prompts| prompts.get(prompt as usize))
        .map_or("", String::as_str)
}

/// Renders a complete answer. `prompts` are shown before the output.
pub(crate) fn body(
    head: &Head,
    view: View,
    prompts: Option<&[String]>,
    answer: &Answer,
    verbose: Option<&Native>,
) -> Bytes {
    let mut out = BytesMut::with_capacity(512);
    open(&mut out, head, "text_completion");
    raw(&mut out, ",\"choices\":");
    list(&mut out, &answer.choices, |out, (index, one)| {
        choice(out, view, *index, echo(prompts, view, *index), one);
    });
    close(&mut out, view, answer, verbose);
    out.freeze()
}

fn choice(out: &mut BytesMut, view: View, index: u32, echo: &str, choice: &Choice) {
    raw(out, "{\"index\":");
    number(out, index);
    raw(out, ",\"text\":");
    value(out, &[echo, &choice.reasoning, &choice.content].concat());
    raw(out, ",\"logprobs\":");
    if view.logprobs {
        let mut offset = echo.chars().count();
        logprobs::legacy(out, &choice.logprobs, view.post_sampling, &mut offset);
    } else {
        raw(out, "null");
    }
    if view.tokens {
        member(out, "tokens", &choice.tokens);
    }
    member(out, "finish_reason", finish_reason(choice.end.reason));
    raw(out, "}");
}

/// The state of a streamed completion.
#[derive(Debug)]
pub(crate) struct Completion {
    chunks: Chunks,
    view: View,
    prompts: Option<Vec<String>>,
    /// Number of characters shown so far for each choice; [`None`] until its prompt was echoed.
    offsets: Vec<Option<usize>>,
}

/// Renders an answer as a stream. `prompts` are shown before the output.
pub(crate) fn stream(
    head: &Head,
    view: View,
    prompts: Option<Vec<String>>,
    verbose: Option<Native>,
) -> Stream<Completion> {
    let frames = Completion {
        chunks: Chunks::new(head, "text_completion", view, verbose),
        view,
        prompts,
        offsets: Vec::new(),
    };
    Stream::new(frames, view.tokens)
}

impl Completion {
    /// The number of characters shown for a choice, and whether its prompt still has to be echoed.
    fn offset(&mut self, choice: u32) -> (&mut usize, bool) {
        let index = choice as usize;
        if self.offsets.len() <= index {
            self.offsets.resize(index + 1, None);
        }
        let fresh = self.offsets[index].is_none();
        let prompt = echo(self.prompts.as_deref(), self.view, choice);
        let offset = self.offsets[index].get_or_insert_with(|| prompt.chars().count());
        (offset, fresh)
    }

    /// Writes a chunk up to its `logprobs`, which the caller writes.
    fn open(&mut self, out: &mut BytesMut, choice: u32, text: &str) {
        self.chunks.open(out);
        raw(out, "{\"index\":");
        number(out, choice);
        raw(out, ",\"text\":");
        match self.offset(choice) {
            (0, _) | (_, false) => value(out, text),
            (_, true) => {
                let prompt = echo(self.prompts.as_deref(), self.view, choice);
                value(out, &[prompt, text].concat());
            }
        }
    }
}

impl Frames for Completion {
    fn delta(&mut self, delta: &Delta, _first: bool, extra: &str, out: &mut BytesMut) {
        if delta.reasoning.is_empty() {
            self.open(out, delta.choice, &delta.content);
        } else {
            let text = [delta.reasoning.as_str(), &delta.content].concat();
            self.open(out, delta.choice, &text);
        }
        if self.view.logprobs && !delta.logprobs.is_empty() {
            let post_sampling = self.view.post_sampling;
            raw(out, ",\"logprobs\":");
            logprobs::legacy(out, &delta.logprobs, post_sampling, self.offset(delta.choice).0);
        } else {
            raw(out, ",\"logprobs\":null");
        }
        if self.view.tokens && !delta.tokens.is_empty() {
            member(out, "tokens", &delta.tokens);
        }
        raw(out, ",\"finish_reason\":null}");
        self.chunks.close_delta(out, delta);
        Chunks::end(out, extra);
    }

    fn progress(&mut self, progress: &PromptProgress, _first: bool, out: &mut BytesMut) {
        self.chunks.open(out);
        raw(
            out,
            "{\"index\":0,\"text\":\"\",\"logprobs\":null,\"finish_reason\":null}",
        );
        self.chunks.close(out);
        self.chunks.progress(out, progress);
    }

    fn shows_progress(&self) -> bool {
        true
    }

    fn end(&mut self, end: &ChoiceFinished, _first: bool, last: Option<&Finished>, out: &mut BytesMut) {
        self.open(out, end.choice, "");
        raw(out, ",\"logprobs\":null");
        member(out, "finish_reason", finish_reason(end.reason));
        raw(out, "}");
        self.chunks.close(out);
        // As llama.cpp does, also where no chunk of its own was asked for.
        if let Some(finished) = last.filter(|_| !self.view.include_usage) {
            raw(out, ",\"usage\":");
            usage::usage(out, &finished.usage.unwrap_or_default());
        }
        self.chunks.last(out, end, last);
    }

    fn finish(&mut self, finished: &Finished, extra: &str, out: &mut BytesMut) {
        self.chunks.finish(out, finished, extra);
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        Chunks::fail(out, error);
    }
}
