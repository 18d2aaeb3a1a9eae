//! Completions as server-sent `text_completion` objects.

use bytes::BytesMut;
use muster_proto::v1::{ChoiceFinished, Delta, ErrorInfo, Event, Finished, PromptProgress, event::Kind};

use super::{
    DONE, Head, Render, error, finish_reason,
    json::{extra, member, number, raw, value},
    logprobs::Legacy,
    usage,
};
use crate::translate::View;

/// One stream's state.
#[derive(Debug)]
pub(crate) struct CompletionStream {
    /// Up to and including `"choices":[`.
    prefix: BytesMut,
    view: View,
    /// Text to show before each choice's output, until it was shown; characters shown so far.
    choices: Vec<(Option<String>, usize)>,
    /// As in chat streams: the last choice's end also shows the timings.
    ended: Option<ChoiceFinished>,
}

/// What comes before each choice's output: with `echo`, its prompt.
pub(super) fn echoes(echo: Option<&[String]>, per_prompt: u32) -> Vec<Option<String>> {
    let copies = |prompt: &String| std::iter::repeat_n(Some(prompt.clone()), per_prompt as usize);
    echo.unwrap_or_default().iter().flat_map(copies).collect()
}

impl CompletionStream {
    pub(crate) fn new(head: &Head, view: View, echo: Option<&[String]>) -> Self {
        let mut prefix = BytesMut::with_capacity(160);
        raw(&mut prefix, "data: ");
        head.write(&mut prefix, "text_completion");
        raw(&mut prefix, ",\"choices\":[");
        let choices = echoes(echo, view.choices)
            .into_iter()
            .map(|echo| (echo, 0))
            .collect();
        Self {
            prefix,
            view,
            choices,
            ended: None,
        }
    }

    fn choice(&mut self, choice: u32) -> &mut (Option<String>, usize) {
        let index = choice as usize;
        if self.choices.len() <= index {
            self.choices.resize(index + 1, (None, 0));
        }
        &mut self.choices[index]
    }

    /// Writes a frame up to its `finish_reason`, which is left to the caller.
    fn open(&mut self, out: &mut BytesMut, choice: u32, text: &str) {
        let (echo, offset) = self.choice(choice);
        let echo = echo.take();
        *offset += echo.as_ref().map_or(0, |echo| echo.chars().count());
        out.extend_from_slice(&self.prefix);
        raw(out, "{\"index\":");
        number(out, choice);
        raw(out, ",\"text\":");
        match echo {
            Some(echo) => value(out, &(echo + text)),
            None => value(out, text),
        }
    }

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
        let tokens = self.view.tokens && !delta.tokens.is_empty();
        if delta.content.is_empty() && delta.reasoning.is_empty() && delta.logprobs.is_empty() && !tokens {
            return;
        }
        self.flush(out, None);
        // A plain completion has no place for reasoning: it is text like any other.
        if delta.reasoning.is_empty() {
            self.open(out, delta.choice, &delta.content);
        } else {
            self.open(
                out,
                delta.choice,
                &format!("{}{}", delta.reasoning, delta.content),
            );
        }
        if self.view.logprobs && !delta.logprobs.is_empty() {
            let mut legacy = Legacy::default();
            let post_sampling = self.view.post_sampling;
            legacy.add(&delta.logprobs, post_sampling, &mut self.choice(delta.choice).1);
            raw(out, ",\"logprobs\":");
            legacy.write(out);
        } else {
            raw(out, ",\"logprobs\":null");
        }
        if tokens {
            member(out, "tokens", &delta.tokens);
        }
        raw(out, ",\"finish_reason\":null");
        self.close(out);
        extra(out, json);
        raw(out, "}\n\n");
    }

    fn progress(&mut self, progress: &PromptProgress, out: &mut BytesMut) {
        out.extend_from_slice(&self.prefix);
        raw(out, "],\"prompt_progress\":{\"total\":");
        value(out, &progress.total);
        member(out, "cache", &progress.cached);
        member(out, "processed", &progress.processed);
        member(out, "time_ms", &progress.elapsed_ms);
        raw(out, "}}\n\n");
    }

    fn flush(&mut self, out: &mut BytesMut, finished: Option<&Finished>) {
        let Some(end) = self.ended.take() else { return };
        self.open(out, end.choice, "");
        raw(out, ",\"logprobs\":null");
        member(out, "finish_reason", finish_reason(end.reason));
        self.close(out);
        if let Some(finished) = finished {
            usage::timings(out, finished);
        }
        raw(out, "}\n\n");
    }
}

impl Render for CompletionStream {
    fn event(&mut self, event: Event, out: &mut BytesMut) -> bool {
        match event.kind {
            Some(Kind::Delta(delta)) => self.delta(&delta, &event.extra_json, out),
            Some(Kind::Progress(progress)) => self.progress(&progress, out),
            Some(Kind::ChoiceFinished(end)) => {
                self.flush(out, None);
                self.ended = Some(end);
            }
            Some(Kind::Finished(finished)) => {
                self.flush(out, Some(&finished));
                if self.view.include_usage {
                    out.extend_from_slice(&self.prefix);
                    raw(out, "],\"usage\":");
                    usage::usage(out, &finished.usage.unwrap_or_default());
                    usage::timings(out, &finished);
                    extra(out, &event.extra_json);
                    raw(out, "}\n\n");
                }
                raw(out, DONE);
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
