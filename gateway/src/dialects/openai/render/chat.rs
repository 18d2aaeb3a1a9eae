//! Renders chat completions: one body, or server-sent `chat.completion.chunk` objects.

use bytes::{Bytes, BytesMut};
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, Delta, Finished, PromptProgress, ToolCallDelta};

use super::{chunk::Chunks, close, finish_reason, open};
use crate::{
    render::{
        Head,
        answer::{Answer, Choice, FunctionCall},
        json::{list, member, number, raw, value},
        logprobs,
        native::Native,
        stream::{Frames, Stream},
    },
    translate::View,
};

/// Renders a complete answer.
pub(crate) fn body(head: &Head, view: View, answer: &Answer, verbose: Option<&Native>) -> Bytes {
    let mut out = BytesMut::with_capacity(512);
    open(&mut out, head, "chat.completion");
    raw(&mut out, ",\"choices\":");
    list(&mut out, &answer.choices, |out, (index, one)| {
        choice(out, view, *index, one);
    });
    close(&mut out, view, answer, verbose);
    out.freeze()
}

fn choice(out: &mut BytesMut, view: View, index: u32, choice: &Choice) {
    raw(out, "{\"index\":");
    number(out, index);
    raw(out, ",\"message\":{\"role\":\"assistant\"");
    if !choice.reasoning.is_empty() {
        member(out, "reasoning_content", &choice.reasoning);
    }
    let silent = choice.content.is_empty() && !choice.calls.is_empty();
    member(out, "content", &Some(&choice.content).filter(|_| !silent));
    if !choice.calls.is_empty() {
        raw(out, ",\"tool_calls\":");
        list(out, choice.calls.values(), call);
    }
    raw(out, "}");
    if view.logprobs {
        raw(out, ",\"logprobs\":{\"content\":[");
        logprobs::chat(out, &choice.logprobs, view.post_sampling);
        raw(out, "]}");
    } else {
        raw(out, ",\"logprobs\":null");
    }
    if view.tokens {
        member(out, "tokens", &choice.tokens);
    }
    member(out, "finish_reason", finish_reason(choice.end.reason));
    raw(out, "}");
}

fn call(out: &mut BytesMut, call: &FunctionCall) {
    raw(out, "{\"id\":");
    value(out, &call.id);
    raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
    value(out, &call.name);
    member(out, "arguments", &call.arguments);
    raw(out, "}}");
}

/// The state of a streamed chat.
#[derive(Debug)]
pub(crate) struct Chat {
    chunks: Chunks,
    view: View,
}

/// Renders an answer as a stream.
pub(crate) fn stream(head: &Head, view: View, verbose: Option<Native>) -> Stream<Chat> {
    let chunks = Chunks::new(head, "chat.completion.chunk", view, verbose);
    Stream::new(Chat { chunks, view }, view.tokens)
}

impl Chat {
    fn open(&self, out: &mut BytesMut, choice: u32) {
        self.chunks.open(out);
        raw(out, "{\"index\":");
        number(out, choice);
        raw(out, ",\"delta\":{");
    }

    /// Writes a choice's first chunk, which names the role and has no text yet, as llama.cpp does.
    fn role(&self, out: &mut BytesMut, choice: u32) {
        self.silent(out, choice);
        Chunks::end(out, "");
    }

    /// Writes a chunk that names the role and has no text. The caller ends it.
    fn silent(&self, out: &mut BytesMut, choice: u32) {
        self.open(out, choice);
        raw(
            out,
            "\"role\":\"assistant\",\"content\":null},\"finish_reason\":null}",
        );
        self.chunks.close(out);
    }
}

impl Frames for Chat {
    fn delta(&mut self, delta: &Delta, first: bool, extra: &str, out: &mut BytesMut) {
        if first {
            self.role(out, delta.choice);
        }
        self.open(out, delta.choice);
        let mut comma = false;
        let mut key = |out: &mut BytesMut, text: &str| {
            let comma = std::mem::replace(&mut comma, true);
            raw(out, if comma { "," } else { "" });
            raw(out, text);
        };
        if !delta.reasoning.is_empty() {
            key(out, "\"reasoning_content\":");
            value(out, &delta.reasoning);
        }
        let silent = delta.content.is_empty() && delta.reasoning.is_empty() && delta.tool_calls.is_empty();
        if !delta.content.is_empty() || silent {
            key(out, "\"content\":");
            value(out, &delta.content);
        }
        if !delta.tool_calls.is_empty() {
            key(out, "\"tool_calls\":");
            list(out, &delta.tool_calls, piece);
        }
        raw(out, "}");
        if self.view.logprobs && !delta.logprobs.is_empty() {
            raw(out, ",\"logprobs\":{\"content\":[");
            logprobs::chat(out, &delta.logprobs, self.view.post_sampling);
            raw(out, "]}");
        }
        if self.view.tokens && !delta.tokens.is_empty() {
            member(out, "tokens", &delta.tokens);
        }
        raw(out, ",\"finish_reason\":null}");
        self.chunks.close_delta(out, delta);
        Chunks::end(out, extra);
    }

    fn progress(&mut self, progress: &PromptProgress, _first: bool, out: &mut BytesMut) {
        self.silent(out, 0);
        self.chunks.progress(out, progress);
    }

    fn shows_progress(&self) -> bool {
        true
    }

    fn end(&mut self, end: &ChoiceFinished, first: bool, last: Option<&Finished>, out: &mut BytesMut) {
        if first {
            self.role(out, end.choice);
        }
        self.open(out, end.choice);
        raw(out, "}");
        member(out, "finish_reason", finish_reason(end.reason));
        raw(out, "}");
        self.chunks.close(out);
        self.chunks.last(out, end, last);
    }

    fn finish(&mut self, finished: &Finished, extra: &str, out: &mut BytesMut) {
        self.chunks.finish(out, finished, extra);
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        Chunks::fail(out, error);
    }
}

fn piece(out: &mut BytesMut, call: &ToolCallDelta) {
    raw(out, "{\"index\":");
    number(out, call.index);
    if !call.id.is_empty() {
        member(out, "id", &call.id);
    }
    if !call.id.is_empty() || !call.name.is_empty() {
        member(out, "type", "function");
    }
    raw(out, ",\"function\":{");
    if !call.name.is_empty() {
        raw(out, "\"name\":");
        value(out, &call.name);
        raw(out, ",");
    }
    raw(out, "\"arguments\":");
    value(out, &call.arguments);
    raw(out, "}}");
}
