//! A completion as one body.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use muster_proto::v1::{Delta, ErrorInfo, Event, Finished, event::Kind};

use super::{
    Collect, Head,
    completion_stream::echoes,
    finish_reason,
    json::{extra, list, member, number, raw, value},
    logprobs::Legacy,
    usage,
};
use crate::translate::View;

#[derive(Debug, Default)]
struct Choice {
    text: String,
    logprobs: Legacy,
    offset: usize,
    tokens: Vec<i32>,
    reason: i32,
}

/// Gathers one answer.
#[derive(Debug)]
pub(crate) struct CompletionBody {
    head: Head,
    view: View,
    choices: BTreeMap<u32, Choice>,
    finished: Finished,
    extra: String,
}

impl CompletionBody {
    pub(crate) fn new(head: Head, view: View, echo: Option<&[String]>) -> Self {
        let choice = |echo: Option<String>| {
            let text = echo.unwrap_or_default();
            Choice {
                offset: text.chars().count(),
                text,
                ..Choice::default()
            }
        };
        let choices = (0..)
            .zip(echoes(echo, view.choices).into_iter().map(choice))
            .collect();
        Self {
            head,
            view,
            choices,
            finished: Finished::default(),
            extra: String::new(),
        }
    }

    fn delta(&mut self, delta: Delta) {
        let choice = self.choices.entry(delta.choice).or_default();
        choice.text.push_str(&delta.reasoning);
        choice.text.push_str(&delta.content);
        choice.tokens.extend(delta.tokens);
        if self.view.logprobs {
            choice
                .logprobs
                .add(&delta.logprobs, self.view.post_sampling, &mut choice.offset);
        }
    }

    fn choice(&self, out: &mut BytesMut, index: u32, choice: &Choice) {
        raw(out, "{\"index\":");
        number(out, index);
        raw(out, ",\"text\":");
        value(out, &choice.text);
        raw(out, ",\"logprobs\":");
        if self.view.logprobs {
            choice.logprobs.write(out);
        } else {
            raw(out, "null");
        }
        if self.view.tokens {
            member(out, "tokens", &choice.tokens);
        }
        member(out, "finish_reason", finish_reason(choice.reason));
        raw(out, "}");
    }
}

impl Collect for CompletionBody {
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
        self.head.write(&mut out, "text_completion");
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
