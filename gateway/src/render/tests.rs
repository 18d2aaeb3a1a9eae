//! Recorded event sequences and what clients read of them (snapshots beside this file).

use bytes::BytesMut;
use muster_proto::{
    Code,
    v1::{
        ChoiceFinished, Delta, ErrorInfo, Event, FinishReason, Finished, PromptProgress, Timings,
        TokenLogprob, ToolCallDelta, TopLogprob, Usage, event::Kind,
    },
};
use proptest::prelude::*;

use super::{
    Collect, Head, Render, chat_body::ChatBody, chat_stream::ChatStream, completion_body::CompletionBody,
    completion_stream::CompletionStream,
};
use crate::translate::View;

fn head() -> Head {
    Head {
        id: "chatcmpl-1".into(),
        model: "tiny \"q\"".into(),
        created: 1_700_000_000,
    }
}

const PLAIN: View = View {
    stream: true,
    include_usage: false,
    logprobs: false,
    post_sampling: false,
    tokens: false,
    choices: 1,
};

fn event(kind: Kind) -> Event {
    Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

fn text(choice: u32, content: &str) -> Event {
    event(Kind::Delta(Delta {
        choice,
        content: content.into(),
        ..Delta::default()
    }))
}

fn end(choice: u32, reason: FinishReason) -> Event {
    event(Kind::ChoiceFinished(ChoiceFinished {
        choice,
        reason: reason.into(),
        ..ChoiceFinished::default()
    }))
}

fn done() -> Event {
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

fn logprob(token: i32, bytes: &[u8], logprob: f32, top: &[(&str, f32)]) -> TokenLogprob {
    let alternative = |(text, logprob): &(&str, f32)| TopLogprob {
        token: -1,
        bytes: bytes::Bytes::copy_from_slice(text.as_bytes()),
        logprob: *logprob,
    };
    TokenLogprob {
        token,
        bytes: bytes::Bytes::copy_from_slice(bytes),
        logprob,
        top: top.iter().map(alternative).collect(),
    }
}

fn call(index: u32, id: &str, name: &str, arguments: &str) -> Event {
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

fn shown(mut render: impl Render, events: Vec<Event>) -> String {
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

fn gathered(mut collect: impl Collect, events: Vec<Event>) -> serde_json::Value {
    let mut ended = false;
    for event in events {
        ended = collect.event(event).unwrap();
    }
    assert!(ended);
    serde_json::from_slice(&collect.finish()).unwrap()
}

fn reasoning_and_text() -> Vec<Event> {
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

fn two_choices() -> Vec<Event> {
    vec![
        text(0, "a"),
        text(1, "x"),
        end(1, FinishReason::Length),
        text(0, "b"),
        end(0, FinishReason::Stop),
        done(),
    ]
}

fn tools() -> Vec<Event> {
    vec![
        call(0, "call_1", "weather", ""),
        call(0, "", "", "{\"city\":"),
        call(0, "", "", "\"Rome\"}"),
        call(1, "call_2", "time", "{}"),
        end(0, FinishReason::ToolCalls),
        done(),
    ]
}

fn probabilities() -> Vec<Event> {
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

#[test]
fn chat_streams() {
    let usage = View {
        include_usage: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_reasoning",
        shown(ChatStream::new(&head(), usage), reasoning_and_text())
    );
    insta::assert_snapshot!(
        "chat_stream_two_choices",
        shown(ChatStream::new(&head(), PLAIN), two_choices())
    );
    insta::assert_snapshot!(
        "chat_stream_tools",
        shown(ChatStream::new(&head(), PLAIN), tools())
    );
    let logprobs = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_logprobs",
        shown(ChatStream::new(&head(), logprobs), probabilities())
    );
    let post = View {
        logprobs: true,
        post_sampling: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_post_sampling",
        shown(ChatStream::new(&head(), post), probabilities())
    );
}

#[test]
fn chat_streams_with_progress_extra_fields_and_nothing_to_say() {
    let progress = PromptProgress {
        total: 10,
        cached: 2,
        processed: 6,
        elapsed_ms: 1.5,
    };
    let extra = Event {
        extra_json: "{\"timings\": {\"predicted_n\": 1}}".into(),
        ..text(0, "a")
    };
    let broken = Event {
        extra_json: "{\"x\":\n1}".into(),
        ..text(0, "b")
    };
    let events = vec![
        event(Kind::Progress(progress)),
        extra,
        broken,
        end(0, FinishReason::Stop),
        done(),
    ];
    insta::assert_snapshot!(
        "chat_stream_progress",
        shown(ChatStream::new(&head(), PLAIN), events)
    );
    let silent = vec![end(0, FinishReason::Length), done()];
    insta::assert_snapshot!(
        "chat_stream_silent",
        shown(ChatStream::new(&head(), PLAIN), silent)
    );
}

#[test]
fn chat_streams_that_fail() {
    let error = Code::InsufficientMemory.error("too\nlarge");
    let error = ErrorInfo {
        details: [("wanted_bytes".to_owned(), "3".to_owned())].into(),
        ..error
    };
    let events = vec![
        text(0, "a"),
        end(0, FinishReason::Stop),
        event(Kind::Failed(error)),
    ];
    insta::assert_snapshot!(
        "chat_stream_failed",
        shown(ChatStream::new(&head(), PLAIN), events)
    );
}

#[test]
fn chat_bodies() {
    insta::assert_json_snapshot!(
        "chat_body_reasoning",
        gathered(ChatBody::new(head(), PLAIN), reasoning_and_text())
    );
    insta::assert_json_snapshot!(
        "chat_body_two_choices",
        gathered(ChatBody::new(head(), PLAIN), two_choices())
    );
    insta::assert_json_snapshot!("chat_body_tools", gathered(ChatBody::new(head(), PLAIN), tools()));
    let view = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    insta::assert_json_snapshot!(
        "chat_body_logprobs",
        gathered(ChatBody::new(head(), view), probabilities())
    );
}

#[test]
fn completion_streams() {
    let echo = vec!["one ".to_owned(), "two ".to_owned()];
    let view = View {
        include_usage: true,
        ..PLAIN
    };
    let stream = CompletionStream::new(&head(), view, Some(&echo));
    insta::assert_snapshot!("completion_stream_echo", shown(stream, two_choices()));
    let view = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    let stream = CompletionStream::new(&head(), view, Some(&echo[..1]));
    insta::assert_snapshot!("completion_stream_logprobs", shown(stream, probabilities()));
    let failing = vec![text(0, "a"), event(Kind::Failed(Code::WorkerLost.error("gone")))];
    insta::assert_snapshot!(
        "completion_stream_failed",
        shown(CompletionStream::new(&head(), PLAIN, None), failing)
    );
}

#[test]
fn completion_bodies() {
    let echo = vec!["one ".to_owned(), "two ".to_owned()];
    insta::assert_json_snapshot!(
        "completion_body_echo",
        gathered(CompletionBody::new(head(), PLAIN, Some(&echo)), two_choices())
    );
    let view = View {
        logprobs: true,
        ..PLAIN
    };
    insta::assert_json_snapshot!(
        "completion_body_logprobs",
        gathered(
            CompletionBody::new(head(), view, Some(&echo[..1])),
            probabilities()
        )
    );
}

proptest! {
    /// What is streamed adds up to what is gathered, whatever the text, and each frame is one line of JSON.
    #[test]
    fn streams_and_bodies_say_the_same(pieces in prop::collection::vec((0_u32..3, any::<String>()), 1..12)) {
        let mut events: Vec<_> = pieces.iter().map(|(choice, piece)| text(*choice, piece)).collect();
        events.extend((0..3).map(|choice| end(choice, FinishReason::Stop)));
        events.push(done());
        let body = gathered(ChatBody::new(head(), PLAIN), events.clone());
        let stream = shown(ChatStream::new(&head(), PLAIN), events);
        let mut streamed = [String::new(), String::new(), String::new()];
        for frame in stream.strip_suffix("\n\n").unwrap().split("\n\n") {
            let data = frame.strip_prefix("data: ").unwrap();
            prop_assert!(!data.contains(['\n', '\r']));
            if data == "[DONE]" {
                continue;
            }
            let chunk: serde_json::Value = serde_json::from_str(data).unwrap();
            let choice = &chunk["choices"][0];
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            streamed[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        }
        for (index, text) in streamed.iter().enumerate() {
            prop_assert_eq!(&body["choices"][index]["message"]["content"], text);
        }
    }
}
