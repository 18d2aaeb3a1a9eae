//! llama.cpp's own completion, for every runtime (seed 004).
//!
//! Streams end with an object whose `stop` is true; there is no `[DONE]` (gateway/README.md, llama.cpp's routes).

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use muster_core::Error;
use muster_proto::v1::{
    ChoiceFinished, Delta, Finished, PromptProgress, StopKind, Timings, TokenLogprob, Usage,
};
use serde_json::{Map, Value, json};

use super::settings::put_sampling;
use crate::{
    render::{
        answer::{Answer, Choice},
        json::{member, raw, value},
        logprobs,
        stream::{Frames, Stream},
        usage,
    },
    translate::View,
};

/// How the answer is shown.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CompletionForm {
    pub(super) model: String,
    /// Several prompts were given, so several answers are shown.
    pub(super) many: bool,
    /// The stream shows how much of the prompt is read.
    pub(super) progress: bool,
    /// `response_fields`; none = all.
    pub(super) fields: Option<Vec<String>>,
    /// As asked for.
    pub(super) settings: Map<String, Value>,
    /// By prompt.
    pub(super) prompts: Vec<Value>,
}

impl CompletionForm {
    /// The model that answers, and its context, shown in `generation_settings` too.
    pub(super) fn answered_by(&mut self, model: &str, n_ctx: u32) {
        model.clone_into(&mut self.model);
        self.settings.insert("model".to_owned(), model.into());
        self.settings.insert("n_ctx".to_owned(), n_ctx.into());
    }

    /// What was in force for a choice.
    fn settings(&self, end: &ChoiceFinished) -> Map<String, Value> {
        let mut settings = self.settings.clone();
        if let Some(sampling) = &end.sampling {
            put_sampling(&mut settings, sampling);
        }
        settings
    }

    /// The prompt as the model saw it, or as it came if the engine did not say.
    fn prompt(&self, index: u32, end: &ChoiceFinished) -> Value {
        if !end.prompt.is_empty() {
            return end.prompt.as_str().into();
        }
        self.prompts.get(index as usize).cloned().unwrap_or_default()
    }
}

/// The whole answer: one object, or a list of them for several prompts, each with figures of its own.
pub(super) fn body(form: &CompletionForm, view: View, answers: &[Answer]) -> Value {
    let objects = (0..).zip(answers).flat_map(|(index, answer)| {
        let choices = answer.choices.values();
        choices.map(move |choice| whole(form, view, index, choice, &answer.finished))
    });
    let mut objects: Vec<Value> = objects.collect();
    if !form.many && objects.len() == 1 {
        return objects.remove(0);
    }
    objects.into()
}

fn whole(form: &CompletionForm, view: View, index: u32, choice: &Choice, finished: &Finished) -> Value {
    let mut object = last(form, &choice.end, finished);
    object.insert("index".into(), index.into());
    object.insert(
        "content".into(),
        [&*choice.reasoning, &*choice.content].concat().into(),
    );
    // Some engines tell them unasked.
    let tokens = if view.tokens {
        choice.tokens.as_slice()
    } else {
        &[]
    };
    object.insert("tokens".into(), tokens.into());
    object.insert("prompt".into(), form.prompt(index, &choice.end));
    object.insert("has_new_line".into(), choice.content.contains('\n').into());
    if view.logprobs {
        object.insert(
            "completion_probabilities".into(),
            probabilities(&choice.logprobs, view),
        );
    }
    match &form.fields {
        Some(fields) => Value::from(selected(fields, &object.into())),
        None => object.into(),
    }
}

/// What is known at the end of an answer.
fn last(form: &CompletionForm, end: &ChoiceFinished, finished: &Finished) -> Map<String, Value> {
    let tokens = finished.usage.unwrap_or_default();
    let kind = match StopKind::try_from(end.stop).unwrap_or_default() {
        StopKind::Eos => "eos",
        StopKind::Word => "word",
        StopKind::Limit => "limit",
        StopKind::Unspecified => "none",
    };
    let object = json!({
        "id_slot": finished.id_slot.map_or(-1, i64::from),
        "stop": true,
        "model": form.model,
        "tokens_predicted": end.generated,
        "tokens_evaluated": tokens.prompt_tokens,
        "generation_settings": form.settings(end),
        "truncated": end.truncated,
        "stop_type": kind,
        "stopping_word": end.stopping_word,
        "tokens_cached": tokens.cached_tokens,
        "timings": finished.timings.map(|timings| times(&timings, &tokens)),
    });
    serde_json::from_value(object).unwrap_or_default()
}

/// An engine's times in llama.cpp's form.
fn times(timings: &Timings, usage: &Usage) -> Value {
    let mut out = BytesMut::new();
    usage::times(&mut out, timings, usage);
    serde_json::from_slice(&out).unwrap_or_default()
}

fn probabilities(tokens: &[TokenLogprob], view: View) -> Value {
    let mut out = BytesMut::new();
    raw(&mut out, "[");
    logprobs::chat(&mut out, tokens, view.post_sampling);
    raw(&mut out, "]");
    serde_json::from_slice(&out).unwrap_or_default()
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
    /// Whether a choice's output had a line break, and how many tokens it has; by prompt.
    seen: Vec<(bool, u32)>,
    /// Tokens of the prompt; 0 until the engine has told.
    evaluated: u32,
}

/// The answer as it comes.
pub(crate) fn stream(form: CompletionForm, view: View) -> Stream<Events> {
    let seen = vec![(false, 0); form.prompts.len().max(1)];
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
        if let Some(timings) = &delta.timings {
            raw(out, ",\"timings\":");
            usage::times(out, timings, &Usage::default());
        }
        raw(out, "}\n\n");
    }

    fn progress(&mut self, progress: &PromptProgress, _first: bool, out: &mut BytesMut) {
        let object = json!({
            "index": 0,
            "content": "",
            "tokens": [],
            "stop": false,
            "id_slot": -1,
            "tokens_predicted": 0,
            "tokens_evaluated": progress.total,
            "prompt_progress": {
                "total": progress.total,
                "cache": progress.cached,
                "processed": progress.processed,
                "time_ms": progress.elapsed_ms,
            },
        });
        event(out, &object);
    }

    fn note(&mut self, progress: &PromptProgress) {
        self.evaluated = progress.total;
    }

    fn shows_progress(&self) -> bool {
        self.form.progress
    }

    fn end(&mut self, end: &ChoiceFinished, _first: bool, finished: Option<&Finished>, out: &mut BytesMut) {
        let mut object = last(&self.form, end, finished.unwrap_or(&Finished::default()));
        let line = self.seen.get(end.choice as usize).is_some_and(|(line, _)| *line);
        let prompt = self.form.prompt(end.choice, end);
        object.insert("index".into(), end.choice.into());
        object.insert("content".into(), "".into());
        object.insert("tokens".into(), json!([]));
        object.insert("prompt".into(), prompt);
        object.insert("has_new_line".into(), line.into());
        let object = match &self.form.fields {
            Some(fields) => Value::from(selected(fields, &object.into())),
            None => object.into(),
        };
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
