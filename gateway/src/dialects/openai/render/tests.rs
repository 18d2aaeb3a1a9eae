//! Recorded event sequences and what OpenAI's clients read of them (snapshots beside this file).

use muster_proto::{
    Code,
    v1::{ErrorInfo, Event, FinishReason, PromptProgress, event::Kind},
};
use proptest::prelude::*;

use super::{chat, completion, response};
use crate::{
    dialects::openai::translate::Echo,
    render::{
        Head,
        recorded::{
            PLAIN, done, end, event, gathered, head, json, probabilities, reasoning_and_text, shown, text,
            tools, two_choices,
        },
    },
    translate::View,
};

fn chat_body(view: View, events: Vec<Event>) -> serde_json::Value {
    json(&chat::body(&head(), view, &gathered(events)))
}

fn completion_body(view: View, echo: Option<&[String]>, events: Vec<Event>) -> serde_json::Value {
    json(&completion::body(&head(), view, echo, &gathered(events)))
}

#[test]
fn chat_streams() {
    let usage = View {
        include_usage: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_reasoning",
        shown(chat::stream(&head(), usage), reasoning_and_text())
    );
    insta::assert_snapshot!(
        "chat_stream_two_choices",
        shown(chat::stream(&head(), PLAIN), two_choices())
    );
    insta::assert_snapshot!("chat_stream_tools", shown(chat::stream(&head(), PLAIN), tools()));
    let logprobs = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_logprobs",
        shown(chat::stream(&head(), logprobs), probabilities())
    );
    let post = View {
        logprobs: true,
        post_sampling: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_post_sampling",
        shown(chat::stream(&head(), post), probabilities())
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
        shown(chat::stream(&head(), PLAIN), events)
    );
    let silent = vec![end(0, FinishReason::Length), done()];
    insta::assert_snapshot!("chat_stream_silent", shown(chat::stream(&head(), PLAIN), silent));
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
    insta::assert_snapshot!("chat_stream_failed", shown(chat::stream(&head(), PLAIN), events));
}

#[test]
fn chat_bodies() {
    insta::assert_json_snapshot!("chat_body_reasoning", chat_body(PLAIN, reasoning_and_text()));
    insta::assert_json_snapshot!("chat_body_two_choices", chat_body(PLAIN, two_choices()));
    insta::assert_json_snapshot!("chat_body_tools", chat_body(PLAIN, tools()));
    let view = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    insta::assert_json_snapshot!("chat_body_logprobs", chat_body(view, probabilities()));
}

#[test]
fn completion_streams() {
    let echo = vec!["one ".to_owned(), "two ".to_owned()];
    let view = View {
        include_usage: true,
        ..PLAIN
    };
    let stream = completion::stream(&head(), view, Some(echo.clone()));
    insta::assert_snapshot!("completion_stream_echo", shown(stream, two_choices()));
    let view = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    let stream = completion::stream(&head(), view, Some(echo[..1].to_vec()));
    insta::assert_snapshot!("completion_stream_logprobs", shown(stream, probabilities()));
    let failing = vec![text(0, "a"), event(Kind::Failed(Code::WorkerLost.error("gone")))];
    insta::assert_snapshot!(
        "completion_stream_failed",
        shown(completion::stream(&head(), PLAIN, None), failing)
    );
}

#[test]
fn completion_bodies() {
    let echo = vec!["one ".to_owned(), "two ".to_owned()];
    insta::assert_json_snapshot!(
        "completion_body_echo",
        completion_body(PLAIN, Some(&echo), two_choices())
    );
    let view = View {
        logprobs: true,
        ..PLAIN
    };
    insta::assert_json_snapshot!(
        "completion_body_logprobs",
        completion_body(view, Some(&echo[..1]), probabilities())
    );
}

proptest! {
    /// What is streamed adds up to what is gathered, whatever the text, and each frame is one line of JSON.
    #[test]
    fn streams_and_bodies_say_the_same(pieces in prop::collection::vec((0_u32..3, any::<String>()), 1..12)) {
        let mut events: Vec<_> = pieces.iter().map(|(choice, piece)| text(*choice, piece)).collect();
        events.extend((0..3).map(|choice| end(choice, FinishReason::Stop)));
        events.push(done());
        let body = chat_body(PLAIN, events.clone());
        let stream = shown(chat::stream(&head(), PLAIN), events);
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

fn response(events: Vec<Event>) -> serde_json::Value {
    let head = Head {
        id: "resp_1".into(),
        ..head()
    };
    json(&response::body(
        head,
        Echo(",\"tools\":[]".into()),
        gathered(events),
    ))
}

fn response_stream(events: Vec<Event>) -> String {
    let head = Head {
        id: "resp_1".into(),
        ..head()
    };
    shown(
        response::stream(head, Echo(",\"tools\":[]".into()), PLAIN),
        events,
    )
}

#[test]
fn responses_stream() {
    insta::assert_snapshot!("response_stream_reasoning", response_stream(reasoning_and_text()));
    insta::assert_snapshot!("response_stream_tools", response_stream(tools()));
    insta::assert_snapshot!(
        "response_stream_silent",
        response_stream(vec![end(0, FinishReason::Length), done()])
    );
    let failing = vec![text(0, "a"), event(Kind::Failed(Code::WorkerLost.error("gone")))];
    insta::assert_snapshot!("response_stream_failed", response_stream(failing));
}

#[test]
fn response_bodies() {
    insta::assert_json_snapshot!("response_body_reasoning", response(reasoning_and_text()));
    insta::assert_json_snapshot!("response_body_tools", response(tools()));
}
