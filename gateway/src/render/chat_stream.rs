//! Chat completions as server-sent `chat.completion.chunk` objects.

use bytes::BytesMut;
use muster_proto::v1::{
    ChoiceFinished, Delta, ErrorInfo, Event, Finished, PromptProgress, ToolCallDelta, event::Kind,
};

use super::{
    DONE, Head, Render, error, finish_reason,
    json::{extra, list, member, number, raw, value},
    logprobs, usage,
};
use crate::translate::View;

/// One stream's state.
#[derive(Debug)]
pub(crate) struct ChatStream {
    /// Up to and including `"choices":[`.
    prefix: BytesMut,
    view: View,
    /// Choices that have shown their role.
    begun: Vec<bool>,
    /// A choice's end is held back until what follows: the last one also shows the timings.
    ended: Option<ChoiceFinished>,
}

impl ChatStream {
    pub(crate) fn new(head: &Head, view: View) -> Self {
        let mut prefix = BytesMut::with_capacity(160);
        raw(&mut prefix, "data: ");
        head.write(&mut prefix, "chat.completion.chunk");
        raw(&mut prefix, ",\"choices\":[");
        Self {
            prefix,
            view,
            begun: Vec::new(),
            ended: None,
        }
    }

    /// Whether this is a choice's first frame; remembers it.
    fn first(&mut self, choice: u32) -> bool {
        let index = choice as usize;
        if self.begun.len() <= index {
            self.begun.resize(index + 1, false);
        }
        !std::mem::replace(&mut self.begun[index], true)
    }

    fn open(&self, out: &mut BytesMut, choice: u32) {
        out.extend_from_slice(&self.prefix);
        raw(out, "{\"index\":");
        number(out, choice);
        raw(out, ",\"delta\":{");
    }

    /// Ends `choices`, and shows the place of the usage as OpenAI does.
    fn close(&self, out: &mut BytesMut) {
        raw(
            out,
            if self.view.include_usage {
                "}],\"usage\":null"
            } else {
                "}]"
            },
        );
    }

    fn delta(&mut self, delta: &Delta, json: &str, out: &mut BytesMut) {
        let silent = delta.content.is_empty() && delta.reasoning.is_empty() && delta.tool_calls.is_empty();
        let tokens = self.view.tokens && !delta.tokens.is_empty();
        if silent && delta.logprobs.is_empty() && !tokens {
            return;
        }
        self.flush(out, None);
        let first = self.first(delta.choice);
        self.open(out, delta.choice);
        let mut comma = first;
        if first {
            raw(out, "\"role\":\"assistant\"");
        }
        let mut key = |out: &mut BytesMut, text: &str| {
            raw(
                out,
                if std::mem::replace(&mut comma, true) {
                    ","
                } else {
                    ""
                },
            );
            raw(out, text);
        };
        if !delta.reasoning.is_empty() {
            key(out, "\"reasoning_content\":");
            value(out, &delta.reasoning);
        }
        if !delta.content.is_empty() || silent {
            key(out, "\"content\":");
            value(out, &delta.content);
        } else if first {
            key(out, "\"content\":null");
        }
        if !delta.tool_calls.is_empty() {
            key(out, "\"tool_calls\":");
            list(out, &delta.tool_calls, tool_call);
        }
        raw(out, "}");
        if self.view.logprobs && !delta.logprobs.is_empty() {
            raw(out, ",\"logprobs\":{\"content\":[");
            logprobs::chat(out, &delta.logprobs, self.view.post_sampling);
            raw(out, "]}");
        }
        if tokens {
            member(out, "tokens", &delta.tokens);
        }
        raw(out, ",\"finish_reason\":null");
        self.close(out);
        extra(out, json);
        raw(out, "}\n\n");
    }

    /// llama.cpp's `prompt_progress`, only if asked for.
    fn progress(&mut self, progress: &PromptProgress, out: &mut BytesMut) {
        let first = self.first(0);
        self.open(out, 0);
        raw(
            out,
            if first {
                "\"role\":\"assistant\",\"content\":null}"
            } else {
                "}"
            },
        );
        raw(out, ",\"finish_reason\":null");
        self.close(out);
        raw(out, ",\"prompt_progress\":{\"total\":");
        value(out, &progress.total);
        member(out, "cache", &progress.cached);
        member(out, "processed", &progress.processed);
        member(out, "time_ms", &progress.elapsed_ms);
        raw(out, "}}\n\n");
    }

    /// Shows the end of a choice that was held back.
    fn flush(&mut self, out: &mut BytesMut, finished: Option<&Finished>) {
        let Some(end) = self.ended.take() else { return };
        let first = self.first(end.choice);
        self.open(out, end.choice);
        raw(
            out,
            if first {
                "\"role\":\"assistant\",\"content\":\"\"}"
            } else {
                "}"
            },
        );
        member(out, "finish_reason", finish_reason(end.reason));
        self.close(out);
        if let Some(finished) = finished {
            usage::timings(out, finished);
        }
        raw(out, "}\n\n");
    }

    fn finish(&mut self, finished: &Finished, json: &str, out: &mut BytesMut) {
        self.flush(out, Some(finished));
        if self.view.include_usage {
            out.extend_from_slice(&self.prefix);
            raw(out, "],\"usage\":");
            usage::usage(out, &finished.usage.unwrap_or_default());
            usage::timings(out, finished);
            extra(out, json);
            raw(out, "}\n\n");
        }
        raw(out, DONE);
    }
}

fn tool_call(out: &mut BytesMut, call: &ToolCallDelta) {
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

impl Render for ChatStream {
    fn event(&mut self, event: Event, out: &mut BytesMut) -> bool {
        match event.kind {
            Some(Kind::Delta(delta)) => self.delta(&delta, &event.extra_json, out),
            Some(Kind::Progress(progress)) => self.progress(&progress, out),
            Some(Kind::ChoiceFinished(end)) => {
                self.flush(out, None);
                self.ended = Some(end);
            }
            Some(Kind::Finished(finished)) => {
                self.finish(&finished, &event.extra_json, out);
                return true;
            }
            Some(Kind::Failed(error)) => {
                self.fail(&error, out);
                return true;
            }
            Some(Kind::Admitted(_) | Kind::Embedded(_) | Kind::Reranked(_)) | None => {}
        }
        false
    }

    fn fail(&mut self, error: &ErrorInfo, out: &mut BytesMut) {
        self.flush(out, None);
        error::event(out, error);
    }
}
