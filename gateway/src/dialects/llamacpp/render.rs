//! llama.cpp's own completion, for every runtime (seed 004).
//!
//! Streams end with an object whose `stop` is true; there is no `[DONE]` (gateway/README.md, llama.cpp's routes).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, Delta, Finished, PromptProgress};
use serde_json::{Map, Value};

use crate::{
    render::{
        answer::Answer,
        json::{member, raw, value},
        logprobs,
        native::Native,
        stream::{Frames, Stream},
        usage,
    },
    translate::View,
};

/// How the answer is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CompletionForm {
    pub(super) native: Native,
    /// Several answers are shown: of several prompts, or of several choices.
    pub(super) many: bool,
    /// The stream shows how much of the prompt is read.
    pub(super) progress: bool,
    /// `response_fields`; none = all.
    pub(super) fields: Option<Vec<String>>,
}

impl CompletionForm {
    /// The fields of an object that shall be shown.
    fn shown(&self, object: Map<String, Value>) -> Value {
        match &self.fields {
            Some(fields) => selected(fields, &object.into()).into(),
            None => object.into(),
        }
    }
}

/// The whole answer: one object, or a list of them for several prompts or choices, each with figures of its own.
pub(super) fn body(form: &CompletionForm, view: View, answers: &[Answer]) -> Value {
    let choices = answers.iter().flat_map(|answer| {
        answer
            .choices
            .values()
            .map(move |choice| (choice, &answer.finished))
    });
    let objects = (0..)
        .zip(choices)
        .map(|(index, (choice, finished))| form.shown(form.native.whole(view, index, choice, finished)));
    let mut objects: Vec<Value> = objects.collect();
    if !form.many && objects.len() == 1 {
        return objects.remove(0);
    }
    objects.into()
}

/// `response_fields`: those that are there; what stands deeper comes to the top under its whole path, as llama.cpp names it (seed 004).
fn selected(fields: &[String], object: &Value) -> Map<String, Value> {
    let find = |field: &String| {
        let found = field.split('/').try_fold(object, |value, key| value.get(key))?;
        Some((field.clone(), found.clone()))
    };
    fields.iter().filter_map(find).collect()
}

/// The objects of a stream.
#[derive(Debug)]
pub(crate) struct Events {
    form: CompletionForm,
    view: View,
    /// Whether a choice's output had a line break, and how many tokens it has.
    seen: Vec<(bool, u32)>,
    /// Tokens of the prompt; 0 until the engine has told.
    evaluated: u32,
}

/// The answer as it comes.
pub(crate) fn stream(form: CompletionForm, view: View) -> Stream<Events> {
    let seen = vec![(false, 0); form.native.prompts.len().max(1)];
    let events = Events {
        form,
        view,
        seen,
        evaluated: 0,
    };
    Stream::new(events, view.tokens)
}

fn event(out: &mut BytesMut, object: &Value) {
    raw(out, "data: ");
    value(out, object);
    raw(out, "\n\n");
}

impl Frames for Events {
    fn delta(&mut self, delta: &Delta, _first: bool, _extra: &str, out: &mut BytesMut) {
        // A plain prompt's output is not split; the common case copies nothing.
        let content = match delta.reasoning.as_str() {
            "" => Cow::Borrowed(delta.content.as_str()),
            reasoning => Cow::Owned([reasoning, &delta.content].concat()),
        };
        let mut predicted = delta.generated;
        if let Some((line, generated)) = self.seen.get_mut(delta.choice as usize) {
            *line |= content.contains('\n');
            *generated = delta.generated.max(*generated);
            predicted = *generated;
        }
        raw(out, "data: {\"index\":");
        value(out, &delta.choice);
        member(out, "content", &content);
        member(out, "tokens", &delta.tokens);
        raw(out, ",\"stop\":false,\"id_slot\":-1");
        member(out, "tokens_predicted", &predicted);
        if self.evaluated > 0 {
            member(out, "tokens_evaluated", &self.evaluated);
        }
        if self.view.logprobs {
            raw(out, ",\"completion_probabilities\":[");
            logprobs::chat(out, &delta.logprobs, self.view.post_sampling);
            raw(out, "]");
        }
        usage::timed(out, delta.timings.as_ref());
        raw(out, "}\n\n");
    }

    fn progress(&mut self, progress: &PromptProgress, _first: bool, out: &mut BytesMut) {
        raw(
            out,
            "data: {\"index\":0,\"content\":\"\",\"tokens\":[],\"stop\":false,\"id_slot\":-1,\"tokens_predicted\":0",
        );
        member(out, "tokens_evaluated", &progress.total);
        usage::progress(out, progress, self.view.timed);
        raw(out, "}\n\n");
    }

    fn note(&mut self, progress: &PromptProgress) {
        self.evaluated = progress.total;
    }

    fn shows_progress(&self) -> bool {
        self.form.progress
    }

    fn end(&mut self, end: &ChoiceFinished, _first: bool, finished: Option<&Finished>, out: &mut BytesMut) {
        let line = self.seen.get(end.choice as usize).is_some_and(|(line, _)| *line);
        let finished = finished.copied().unwrap_or_default();
        let object = self.form.native.ended(end.choice, line, end, &finished);
        let object = self.form.shown(object);
        event(out, &object);
    }

    /// The last choice's end was the last object.
    fn finish(&mut self, _finished: &Finished, _extra: &str, _out: &mut BytesMut) {}

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        raw(out, "data: ");
        super::error::FORM.write(out, error);
        raw(out, "\n\n");
    }
}

/// A body's bytes.
pub(super) fn bytes(object: &Value) -> Bytes {
    let mut out = BytesMut::new();
    value(&mut out, object);
    out.freeze()
}

#[cfg(test)]
mod tests;
