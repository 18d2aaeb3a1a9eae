//! A chat completion as one body.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use muster_proto::v1::{Delta, ErrorInfo, Event, Finished, event::Kind};

use super::{
    Collect, Head, finish_reason,
    json::{extra, list, member, number, raw, value},
    logprobs, usage,
};
use crate::translate::View;

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

#[derive(Debug, Default)]
struct Choice {
    content: String,
    reasoning: String,
    calls: BTreeMap<u32, Call>,
    /// Rendered entries, separated by commas.
    logprobs: BytesMut,
    tokens: Vec<i32>,
    reason: i32,
}

/// Gathers one answer.
#[derive(Debug)]
pub(crate) struct ChatBody {
    head: Head,
    view: View,
    choices: BTreeMap<u32, Choice>,
    finished: Finished,
    extra: String,
}

impl ChatBody {
    pub(crate) fn new(head: Head, view: View) -> Self {
        Self {
            head,
            view,
            choices: BTreeMap::new(),
            finished: Finished::default(),
            extra: String::new(),
        }
    }

    fn delta(&mut self, delta: Delta) {
        let choice = self.choices.entry(delta.choice).or_default();
        choice.content.push_str(&delta.content);
        choice.reasoning.push_str(&delta.reasoning);
        choice.tokens.extend(delta.tokens);
        for piece in delta.tool_calls {
            let call = choice.calls.entry(piece.index).or_default();
            call.id.push_str(&piece.id);
            call.name.push_str(&piece.name);
            call.arguments.push_str(&piece.arguments);
        }
        if self.view.logprobs && !delta.logprobs.is_empty() {
            if !choice.logprobs.is_empty() {
                raw(&mut choice.logprobs, ",");
            }
            logprobs::chat(&mut choice.logprobs, &delta.logprobs, self.view.post_sampling);
        }
    }

    fn choice(&self, out: &mut BytesMut, index: u32, choice: &Choice) {
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
            let calls: Vec<_> = choice.calls.values().collect();
            list(out, &calls, |out, call| {
                raw(out, "{\"id\":");
                value(out, &call.id);
                raw(out, ",\"type\":\"function\",\"function\":{\"name\":");
                value(out, &call.name);
                member(out, "arguments", &call.arguments);
                raw(out, "}}");
            });
        }
        raw(out, "}");
        if self.view.logprobs {
            raw(out, ",\"logprobs\":{\"content\":[");
            out.extend_from_slice(&choice.logprobs);
            raw(out, "]}");
        } else {
            raw(out, ",\"logprobs\":null");
        }
        if self.view.tokens {
            member(out, "tokens", &choice.tokens);
        }
        member(out, "finish_reason", finish_reason(choice.reason));
        raw(out, "}");
    }
}

impl Collect for ChatBody {
    fn event(&mut self, event: Event) -> Result<bool, ErrorInfo> {
        match event.kind {
            Some(Kind::Delta(delta)) => self.delta(delta),
            Some(Kind::ChoiceFinished(end)) => {
                self.choices.entry(end.choice).or_default().reason = end.reason
            }
            Some(Kind::Finished(finished)) => {
                self.finished = finished;
                self.extra = event.extra_json;
                return Ok(true);
            }
            Some(Kind::Failed(error)) => return Err(error),
            Some(Kind::Admitted(_) | Kind::Progress(_) | Kind::Embedded(_) | Kind::Reranked(_)) | None => {}
        }
        Ok(false)
    }

    fn finish(self) -> Bytes {
        let mut out = BytesMut::with_capacity(512);
        self.head.write(&mut out, "chat.completion");
        raw(&mut out, ",\"choices\":");
        let choices: Vec<_> = self.choices.iter().collect();
        list(&mut out, &choices, |out, (index, choice)| {
            self.choice(out, **index, choice)
        });
        raw(&mut out, ",\"usage\":");
        usage::usage(&mut out, &self.finished.usage.unwrap_or_default());
        usage::timings(&mut out, &self.finished);
        extra(&mut out, &self.extra);
        raw(&mut out, "}");
        out.freeze()
    }
}
