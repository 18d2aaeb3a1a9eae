//! Renders answers as Ollama's: one body, or a line of JSON per piece. Durations are in nanoseconds.
//!
//! A tool call is shown whole, because its arguments are an object: once the next call begins, or at the end.

use std::{
    fmt::Write as _,
    time::{Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use muster_core::{Code, Error};
use muster_proto::v1::{ChoiceFinished, Delta, FinishReason, Finished, Timings, TokenLogprob, Usage};
use prost_types::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::render::{
    answer::{Answer, Choice, FunctionCall},
    json::{self, list, member, raw, value},
    logprobs, reason,
    stream::{Frames, Stream},
};

/// The route that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Chat,
    Generate,
}

/// The moment when a request began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap(Instant);

impl Lap {
    /// Starts measuring now.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the start.
    pub(crate) fn nanos(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Durations of a request for embeddings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Laps {
    pub(crate) whole: Lap,
    /// Nanoseconds until the model was loaded; 0 if it was loaded already.
    pub(crate) load: u64,
}

/// Renders a complete answer. `load`: nanoseconds until the model was loaded. `probable`: show the probability of each token.
pub(crate) fn body(model: &str, kind: Kind, load: u64, probable: bool, answer: Answer) -> Bytes {
    let finished = answer.finished;
    let choice = answer.into_only();
    let mut out = BytesMut::with_capacity(512);
    open(&mut out, model);
    said(&mut out, kind, &choice);
    if probable {
        probabilities(&mut out, &choice.logprobs);
    }
    ended(&mut out, load, &choice.end, &finished);
    out.freeze()
}

/// Renders the answer to a request without a prompt. `done` is what was done: `load` or `unload`.
pub(crate) fn silent(model: &str, kind: Kind, done: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(192);
    open(&mut out, model);
    said(&mut out, kind, &Choice::default());
    raw(&mut out, ",\"done\":true");
    member(&mut out, "done_reason", done);
    raw(&mut out, "}");
    out.freeze()
}

/// Renders an answer as a stream; `load` and `probable` as in [`body`].
pub(crate) fn stream(model: String, kind: Kind, load: u64, probable: bool) -> Stream<Lines> {
    let lines = Lines {
        model,
        kind,
        load,
        probable,
        call: None,
        end: ChoiceFinished::default(),
    };
    Stream::new(lines, false)
}

/// Embeddings.
#[derive(Serialize, ToSchema)]
pub(super) struct OllamaEmbedAnswer<'a> {
    /// Name of the model as the client gave it.
    model: &'a str,
    /// The vectors, in the order of the inputs.
    #[schema(value_type = Vec<Vec<f64>>)]
    embeddings: Vec<&'a [f32]>,
    /// Nanoseconds for the whole request.
    total_duration: u64,
    /// Nanoseconds to load the model.
    load_duration: u64,
    /// Tokens of all inputs.
    prompt_eval_count: u32,
}

/// One embedding.
#[derive(Serialize, ToSchema)]
pub(super) struct OllamaEmbeddingsAnswer<'a> {
    /// The vector of the prompt.
    #[schema(value_type = Vec<f64>)]
    embedding: &'a [f32],
}

/// Renders the embeddings of `POST /api/embed`.
///
/// # Errors
/// The model gives one vector per token instead of one per input.
pub(crate) fn embed(model: &str, laps: Laps, answer: &Answer) -> Result<Bytes, Error> {
    let usage = answer.embedded.as_ref().and_then(|embedded| embedded.usage);
    Ok(json::body(&OllamaEmbedAnswer {
        model,
        embeddings: vectors(answer)?,
        total_duration: laps.whole.nanos(),
        load_duration: laps.load,
        prompt_eval_count: usage.unwrap_or_else(|| answer.usage()).prompt_tokens,
    }))
}

/// Renders the embedding of `POST /api/embeddings`.
///
/// # Errors
/// As for [`embed`].
pub(crate) fn embeddings(_model: &str, _laps: Laps, answer: &Answer) -> Result<Bytes, Error> {
    let embedding = vectors(answer)?.first().copied().unwrap_or_default();
    Ok(json::body(&OllamaEmbeddingsAnswer { embedding }))
}

fn vectors(answer: &Answer) -> Result<Vec<&[f32]>, Error> {
    let embeddings = answer
        .embedded
        .as_ref()
        .map_or(&[][..], |embedded| &embedded.embeddings);
    let only = embeddings
        .iter()
        .map(|embedding| match embedding.vectors.as_slice() {
            [vector] => Ok(vector.values.as_slice()),
            _ => {
                let message =
                    "this model has a vector for each token (pooling `none`), which has no place here";
                Err(Code::UnsupportedByRuntime.error(message))
            }
        });
    only.collect()
}

/// Writes `{"model":…,"created_at":…` and leaves the object open.
fn open(out: &mut BytesMut, model: &str) {
    raw(out, "{\"model\":");
    value(out, model);
    raw(out, ",\"created_at\":\"");
    // Writing to memory does not fail.
    let _ = write!(out, "{}", Timestamp::from(SystemTime::now()));
    raw(out, "\"");
}

fn said(out: &mut BytesMut, kind: Kind, choice: &Choice) {
    match kind {
        Kind::Chat => {
            raw(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
            value(out, &choice.content);
            if !choice.reasoning.is_empty() {
                member(out, "thinking", &choice.reasoning);
            }
            if !choice.calls.is_empty() {
                raw(out, ",\"tool_calls\":");
                list(out, choice.calls.values(), call);
            }
            raw(out, "}");
        }
        Kind::Generate => {
            member(out, "response", &choice.content);
            if !choice.reasoning.is_empty() {
                member(out, "thinking", &choice.reasoning);
            }
        }
    }
}

/// Writes `,"logprobs":[…]`.
fn probabilities(out: &mut BytesMut, tokens: &[TokenLogprob]) {
    raw(out, ",\"logprobs\":[");
    logprobs::chat(out, tokens, false);
    raw(out, "]");
}

fn call(out: &mut BytesMut, call: &FunctionCall) {
    raw(out, "{\"id\":");
    value(out, &call.id);
    raw(out, ",\"function\":{\"name\":");
    value(out, &call.name);
    raw(out, ",\"arguments\":");
    match serde_json::from_str::<&RawValue>(&call.arguments) {
        Ok(json) if json.get().starts_with('{') => raw(out, json.get()),
        Ok(_) | Err(_) => raw(out, "{}"),
    }
    raw(out, "}}");
}

fn ended(out: &mut BytesMut, load: u64, end: &ChoiceFinished, finished: &Finished) {
    let word = match reason(end.reason) {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Stop | FinishReason::ContentFilter | FinishReason::Unspecified => "stop",
    };
    raw(out, ",\"done\":true");
    member(out, "done_reason", word);
    let usage: Usage = finished.usage.unwrap_or_default();
    let timings: Timings = finished.timings.unwrap_or_default();
    let total = timings.queue_ms + timings.prompt_ms + timings.predicted_ms;
    member(out, "total_duration", &load.saturating_add(nanos(total)));
    member(out, "load_duration", &load);
    member(out, "prompt_eval_count", &usage.prompt_tokens);
    member(out, "prompt_eval_duration", &nanos(timings.prompt_ms));
    member(out, "eval_count", &usage.completion_tokens);
    member(out, "eval_duration", &nanos(timings.predicted_ms));
    raw(out, "}");
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a duration: not negative, and far from the limit"
)]
fn nanos(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

/// The state of a streamed answer.
#[derive(Debug)]
pub(crate) struct Lines {
    model: String,
    kind: Kind,
    load: u64,
    probable: bool,
    /// The tool call whose pieces are arriving, with its index.
    call: Option<(u32, FunctionCall)>,
    end: ChoiceFinished,
}

impl Lines {
    fn line(&self, out: &mut BytesMut, choice: &Choice) {
        open(out, &self.model);
        said(out, self.kind, choice);
        raw(out, ",\"done\":false}\n");
    }

    /// Writes the tool call that is complete.
    fn flush(&mut self, out: &mut BytesMut) {
        if let Some((index, call)) = self.call.take() {
            let choice = Choice {
                calls: [(index, call)].into(),
                ..Choice::default()
            };
            self.line(out, &choice);
        }
    }
}

impl Frames for Lines {
    fn delta(&mut self, delta: &Delta, _first: bool, _extra: &str, out: &mut BytesMut) {
        let probable = self.probable && !delta.logprobs.is_empty();
        if !delta.content.is_empty() || !delta.reasoning.is_empty() || probable {
            self.flush(out);
            open(out, &self.model);
            let thinking = |out: &mut BytesMut| {
                if !delta.reasoning.is_empty() {
                    member(out, "thinking", &delta.reasoning);
                }
            };
            match self.kind {
                Kind::Chat => {
                    raw(out, ",\"message\":{\"role\":\"assistant\",\"content\":");
                    value(out, &delta.content);
                    thinking(out);
                    raw(out, "}");
                }
                Kind::Generate => {
                    member(out, "response", &delta.content);
                    thinking(out);
                }
            }
            if probable {
                probabilities(out, &delta.logprobs);
            }
            raw(out, ",\"done\":false}\n");
        }
        for piece in &delta.tool_calls {
            if self.call.as_ref().is_some_and(|(index, _)| *index != piece.index) {
                self.flush(out);
            }
            let (_, call) = self
                .call
                .get_or_insert_with(|| (piece.index, FunctionCall::default()));
            call.id.push_str(&piece.id);
            call.name.push_str(&piece.name);
            call.arguments.push_str(&piece.arguments);
        }
    }

    fn end(&mut self, end: &ChoiceFinished, _first: bool, _last: Option<&Finished>, out: &mut BytesMut) {
        self.flush(out);
        self.end = end.clone();
    }

    fn finish(&mut self, finished: &Finished, _extra: &str, out: &mut BytesMut) {
        self.flush(out);
        open(out, &self.model);
        said(out, self.kind, &Choice::default());
        ended(out, self.load, &self.end, finished);
        raw(out, "\n");
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        super::error::FORM.write(out, error);
        raw(out, "\n");
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::{Event, event::Kind as Happened};

    use super::*;
    use crate::render::recorded::{done, end, event, gathered, reasoning_and_text, shown, text, tools};

    /// The text without its times.
    fn timeless(text: &str) -> String {
        let line = |line: &str| {
            let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
            if let Some(time) = line.get_mut("created_at") {
                assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
                *time = "T".into();
            }
            format!("{line}\n")
        };
        text.lines().map(line).collect()
    }

    fn streamed(kind: Kind, events: Vec<Event>) -> String {
        timeless(&shown(stream("m".into(), kind, 7, false), events))
    }

    #[test]
    fn lines_stream() {
        insta::assert_snapshot!("chat_lines_reasoning", streamed(Kind::Chat, reasoning_and_text()));
        insta::assert_snapshot!("chat_lines_tools", streamed(Kind::Chat, tools()));
        insta::assert_snapshot!("generate_lines", streamed(Kind::Generate, reasoning_and_text()));
        let silent = vec![end(0, FinishReason::Length), done()];
        insta::assert_snapshot!("chat_lines_silent", streamed(Kind::Chat, silent));
        let failing = vec![
            text(0, "a"),
            event(Happened::Failed(Code::WorkerLost.error("gone").into())),
        ];
        insta::assert_snapshot!("chat_lines_failed", streamed(Kind::Chat, failing));
    }

    #[test]
    fn probabilities_stand_beside_the_text() {
        use crate::render::recorded::probabilities;

        let shown = shown(stream("m".into(), Kind::Generate, 0, true), probabilities());
        let first: serde_json::Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
        assert!(first["logprobs"][0]["top_logprobs"].is_array(), "{first}");
        let whole = body("m", Kind::Chat, 0, true, gathered(probabilities()));
        let whole: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(whole["logprobs"][0]["token"], first["logprobs"][0]["token"]);
        let quiet = body("m", Kind::Chat, 0, false, gathered(probabilities()));
        assert!(!String::from_utf8_lossy(&quiet).contains("logprobs"));
    }

    #[test]
    fn bodies_are_whole() {
        let whole = |kind, events| {
            let body = body("m", kind, 7, false, gathered(events));
            timeless(std::str::from_utf8(&body).unwrap())
        };
        insta::assert_snapshot!("chat_whole_tools", whole(Kind::Chat, tools()));
        insta::assert_snapshot!("generate_whole", whole(Kind::Generate, reasoning_and_text()));
        let loaded = silent("m", Kind::Chat, "load");
        insta::assert_snapshot!("chat_loaded", timeless(std::str::from_utf8(&loaded).unwrap()));
    }
}
