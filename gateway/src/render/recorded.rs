//! Recorded sequences of events, and helpers for tests to check what a dialect renders.

use bytes::{Bytes, BytesMut};
use muster_proto::v1::{
    ChoiceFinished, Delta, Event, FinishReason, Finished, Timings, TokenLogprob, ToolCallDelta, TopLogprob,
    Usage, event::Kind,
};

use super::{Head, Render, answer::Answer};
use crate::translate::View;

/// The head of the answers of all recordings.
pub(crate) fn head() -> Head {
    Head {
        id: "chatcmpl-1".into(),
        model: "tiny \"q\"".into(),
        created: 1_700_000_000,
    }
}

pub(crate) const PLAIN: View = View {
    timed: false,
    verbose: false,
    stream: true,
    include_usage: false,
    logprobs: false,
    post_sampling: false,
    tokens: false,
    choices: 1,
};

pub(crate) fn event(kind: Kind) -> Event {
    Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

pub(crate) fn text(choice: u32, content: &str) -> Event {
    event(Kind::Delta(Delta {
        choice,
        content: content.into(),
        ..Delta::default()
    }))
}

pub(crate) fn end(choice: u32, reason: FinishReason) -> Event {
    event(Kind::ChoiceFinished(ChoiceFinished {
        choice,
        reason: reason.into(),
        ..ChoiceFinished::default()
    }))
}

pub(crate) fn done() -> Event {
    let usage = Usage {
        prompt_tokens: 11,
        cached_tokens: 4,
        completion_tokens: 3,
        reasoning_tokens: 1,
        draft_tokens: 6,
        draft_accepted_tokens: 2,
    };
    let timings = Timings {
        prompt_n: 7,
        prompt_ms: 3.5,
        predicted_n: 3,
        predicted_ms: 6.0,
        cache_n: 4,
        queue_ms: 0.5,
    };
    event(Kind::Finished(Finished {
        usage: Some(usage),
        timings: Some(timings),
        id_slot: None,
    }))
}

pub(crate) fn logprob(token: i32, bytes: &[u8], logprob: f32, top: &[(&str, f32)]) -> TokenLogprob {
    let alternative = |(text, logprob): &(&str, f32)| TopLogprob {
        token: -1,
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        logprob: *logprob,
    };
    TokenLogprob {
        token,
        bytes: Bytes::copy_from_slice(bytes),
        logprob,
        top: top.iter().map(alternative).collect(),
    }
}

pub(crate) fn call(index: u32, id: &str, name: &str, arguments: &str) -> Event {
    let call = ToolCallDelta {
        index,
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    event(Kind::Delta(Delta {
        tool_calls: vec![call],
        ..Delta::default()
    }))
}

pub(crate) fn shown(mut render: impl Render, events: Vec<Event>) -> String {
    let mut out = BytesMut::new();
    let count = events.len();
    for (index, event) in events.into_iter().enumerate() {
        let last = render.event(event, &mut out);
        assert_eq!(
            last,
            index + 1 == count,
            "event {index} ends the stream at the wrong place"
        );
    }
    String::from_utf8(out.to_vec()).unwrap()
}

/// The complete answer of these events.
pub(crate) fn gathered(events: Vec<Event>) -> Answer {
    let mut answer = Answer::default();
    let mut ended = false;
    for event in events {
        ended = answer.event(event).unwrap();
    }
    assert!(ended);
    answer
}

/// A body as JSON.
pub(crate) fn json(body: &Bytes) -> serde_json::Value {
    serde_json::from_slice(body).unwrap()
}

pub(crate) fn reasoning_and_text() -> Vec<Event> {
    vec![
        event(Kind::Delta(Delta {
            reasoning: "hm".into(),
            ..Delta::default()
        })),
        text(0, "Hel\"lo\"\n\u{1}ö"),
        event(Kind::Delta(Delta::default())),
        text(0, "!"),
        end(0, FinishReason::Stop),
        done(),
    ]
}

pub(crate) fn two_choices() -> Vec<Event> {
    vec![
        text(0, "a"),
        text(1, "x"),
        end(1, FinishReason::Length),
        text(0, "b"),
        end(0, FinishReason::Stop),
        done(),
    ]
}

pub(crate) fn tools() -> Vec<Event> {
    vec![
        call(0, "call_1", "weather", ""),
        call(0, "", "", "{\"city\":"),
        call(0, "", "", "\"Rome\"}"),
        call(1, "call_2", "time", "{}"),
        end(0, FinishReason::ToolCalls),
        done(),
    ]
}

pub(crate) fn probabilities() -> Vec<Event> {
    let delta = Delta {
        content: "Hé".into(),
        logprobs: vec![
            logprob(5, b"H", -0.25, &[("H", -0.25), ("I", f32::NEG_INFINITY)]),
            logprob(6, &[0xc3], -1.5, &[]),
            logprob(7, &[0xa9], -0.5, &[]),
        ],
        tokens: vec![5, 6, 7],
        ..Delta::default()
    };
    vec![event(Kind::Delta(delta)), end(0, FinishReason::Stop), done()]
}
