//! Token probabilities: the form of chat completions and the older one of completions.

use std::borrow::Cow;

use bytes::BytesMut;
use muster_proto::v1::{TokenLogprob, TopLogprob};
use serde_json::{Map, Value};

use super::json::{list, member, raw, value};

/// OpenAI's stand-in for minus infinity.
const IMPOSSIBLE: f32 = -9999.0;

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// Writes the entries of `logprobs.content`, separated by commas. With `post_sampling`, probabilities under llama.cpp's names (seed 004).
pub(crate) fn chat(out: &mut BytesMut, tokens: &[TokenLogprob], post_sampling: bool) {
    for (index, token) in tokens.iter().enumerate() {
        if index > 0 {
            raw(out, ",");
        }
        entry(out, token.token, &token.bytes, token.logprob, post_sampling);
        raw(
            out,
            if post_sampling {
                ",\"top_probs\":"
            } else {
                ",\"top_logprobs\":"
            },
        );
        list(out, &token.top, |out, top| {
            entry(out, top.token, &top.bytes, top.logprob, post_sampling);
            raw(out, "}");
        });
        raw(out, "}");
    }
}

/// Writes one token's object, left open.
fn entry(out: &mut BytesMut, id: i32, bytes: &[u8], logprob: f32, post_sampling: bool) {
    raw(out, "{\"token\":");
    value(out, &*text(bytes));
    if post_sampling {
        member(out, "prob", &logprob);
    } else {
        member(out, "logprob", &finite(logprob));
    }
    member(out, "bytes", bytes);
    if id >= 0 {
        member(out, "id", &id);
    }
}

/// The older form, gathered over a choice: parallel lists.
#[derive(Debug, Default)]
pub(crate) struct Legacy {
    tokens: Vec<String>,
    logprobs: Vec<f32>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

impl Legacy {
    /// Adds tokens; `offset` counts the characters before them and moves on.
    pub(crate) fn add(&mut self, tokens: &[TokenLogprob], post_sampling: bool, offset: &mut usize) {
        let log = |value: f32| finite(if post_sampling { value.ln() } else { value });
        for token in tokens {
            let text = text(&token.bytes).into_owned();
            self.offsets.push(*offset);
            *offset += text.chars().count();
            self.tokens.push(text);
            self.logprobs.push(log(token.logprob));
            self.top.push(top(&token.top, log));
        }
    }

    /// Writes the object.
    pub(crate) fn write(&self, out: &mut BytesMut) {
        raw(out, "{\"tokens\":");
        value(out, &self.tokens);
        member(out, "token_logprobs", &self.logprobs);
        member(out, "top_logprobs", &self.top);
        member(out, "text_offset", &self.offsets);
        raw(out, "}");
    }
}

fn top(top: &[TopLogprob], log: impl Fn(f32) -> f32) -> Value {
    if top.is_empty() {
        return Value::Null;
    }
    let entry = |top: &TopLogprob| (text(&top.bytes).into_owned(), Value::from(log(top.logprob)));
    Value::Object(top.iter().map(entry).collect::<Map<_, _>>())
}
