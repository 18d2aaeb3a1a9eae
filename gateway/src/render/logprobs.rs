//! Writes token probabilities in the form of chat completions and in the older form of completions.

use std::borrow::Cow;

use bytes::BytesMut;
use muster_proto::v1::{TokenLogprob, TopLogprob};

use super::json::{list, member, raw, value};

/// OpenAI's number for minus infinity.
const IMPOSSIBLE: f32 = -9999.0;

fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// Writes the elements of `logprobs.content`, separated by commas. With `post_sampling`: probabilities instead of logarithms, under
/// llama.cpp's names (seed 004).
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

/// Writes one token's object and leaves it open.
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

/// Writes the older form: lists of the same length. `offset` is the number of characters before these tokens, and is moved past them.
pub(crate) fn legacy(out: &mut BytesMut, tokens: &[TokenLogprob], post_sampling: bool, offset: &mut usize) {
    let log = |value: f32| finite(if post_sampling { value.ln() } else { value });
    raw(out, "{\"tokens\":");
    list(out, tokens, |out, token| value(out, &*text(&token.bytes)));
    raw(out, ",\"token_logprobs\":");
    list(out, tokens, |out, token| value(out, &log(token.logprob)));
    raw(out, ",\"top_logprobs\":");
    list(out, tokens, |out, token| top(out, &token.top, log));
    raw(out, ",\"text_offset\":");
    list(out, tokens, |out, token| {
        value(out, offset);
        *offset += text(&token.bytes).chars().count();
    });
    raw(out, "}");
}

/// Writes the alternatives by their text. Parts of different characters can have the same text; then the most probable counts.
fn top(out: &mut BytesMut, top: &[TopLogprob], log: impl Fn(f32) -> f32) {
    if top.is_empty() {
        return raw(out, "null");
    }
    let is_first = |index: usize, one: &TopLogprob| {
        let mut before = top.iter().take(index);
        !before.any(|other| text(&other.bytes) == text(&one.bytes))
    };
    raw(out, "{");
    let kept = top
        .iter()
        .enumerate()
        .filter(|(index, one)| is_first(*index, one));
    for (count, (_, one)) in kept.enumerate() {
        if count > 0 {
            raw(out, ",");
        }
        value(out, &*text(&one.bytes));
        raw(out, ":");
        value(out, &log(one.logprob));
    }
    raw(out, "}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::recorded::logprob;

    /// Regression: two parts of characters have the same text, and a JSON object may have each key only once.
    #[test]
    fn alternatives_with_the_same_text_are_one() {
        let mut token = logprob(5, b"a", -0.25, &[("a", -0.25), ("?", -1.0), ("?", -2.0)]);
        for one in &mut token.top[1..] {
            one.bytes = bytes::Bytes::from_static(&[0xc3]);
        }
        let mut out = BytesMut::new();
        let mut offset = 4;
        legacy(&mut out, &[token], false, &mut offset);
        let shown: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(
            shown["top_logprobs"][0],
            serde_json::json!({"a": -0.25, "\u{fffd}": -1.0})
        );
        assert_eq!((&shown["text_offset"][0], offset), (&4.into(), 5));
    }
}
