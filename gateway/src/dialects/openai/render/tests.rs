//! Recorded event sequences and what OpenAI's clients read of them (snapshots beside this file).

use muster_core::{Code, Error};
use muster_proto::v1::{Delta, Event, FinishReason, PromptProgress, Timings, event::Kind};
use proptest::prelude::*;
use serde_json::Value;

use super::{chat, completion, response};
use crate::{
    dialects::openai::translate::Echo,
    render::{
        Head,
        recorded::{
            PLAIN, done, end, event, gathered, head, json, logprob, probabilities, reasoning_and_text, shown,
            text, tools, two_choices,
        },
    },
    translate::View,
};

fn chat_body(view: View, events: Vec<Event>) -> Value {
    json(&chat::body(&head(), view, &gathered(events), None))
}

fn completion_body(view: View, echo: Option<&[String]>, events: Vec<Event>) -> Value {
    json(&completion::body(&head(), view, echo, &gathered(events), None))
}

#[test]
fn chat_streams() {
    let usage = View {
        include_usage: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_reasoning",
        shown(chat::stream(&head(), usage, None), reasoning_and_text())
    );
    insta::assert_snapshot!(
        "chat_stream_two_choices",
        shown(chat::stream(&head(), PLAIN, None), two_choices())
    );
    insta::assert_snapshot!(
        "chat_stream_tools",
        shown(chat::stream(&head(), PLAIN, None), tools())
    );
    let logprobs = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_logprobs",
        shown(chat::stream(&head(), logprobs, None), probabilities())
    );
    let post = View {
        logprobs: true,
        post_sampling: true,
        ..PLAIN
    };
    insta::assert_snapshot!(
        "chat_stream_post_sampling",
        shown(chat::stream(&head(), post, None), probabilities())
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
        shown(chat::stream(&head(), PLAIN, None), events)
    );
    let silent = vec![end(0, FinishReason::Length), done()];
    insta::assert_snapshot!(
        "chat_stream_silent",
        shown(chat::stream(&head(), PLAIN, None), silent)
    );
}

#[test]
fn chat_streams_that_fail() {
    let error = Code::InsufficientMemory.error("too\nlarge");
    let error = Error {
        details: [("wanted_bytes".to_owned(), "3".to_owned())].into(),
        ..error
    };
    let events = vec![
        text(0, "a"),
        end(0, FinishReason::Stop),
        event(Kind::Failed(error.into())),
    ];
    insta::assert_snapshot!(
        "chat_stream_failed",
        shown(chat::stream(&head(), PLAIN, None), events)
    );
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
    let stream = completion::stream(&head(), view, Some(echo.clone()), None);
    insta::assert_snapshot!("completion_stream_echo", shown(stream, two_choices()));
    let view = View {
        logprobs: true,
        tokens: true,
        ..PLAIN
    };
    let stream = completion::stream(&head(), view, Some(echo[..1].to_vec()), None);
    insta::assert_snapshot!("completion_stream_logprobs", shown(stream, probabilities()));
    let failing = vec![
        text(0, "a"),
        event(Kind::Failed(Code::WorkerLost.error("gone").into())),
    ];
    insta::assert_snapshot!(
        "completion_stream_failed",
        shown(completion::stream(&head(), PLAIN, None, None), failing)
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
        let stream = shown(chat::stream(&head(), PLAIN, None), events);
        let mut streamed = [String::new(), String::new(), String::new()];
        for frame in stream.strip_suffix("\n\n").unwrap().split("\n\n") {
            let data = frame.strip_prefix("data: ").unwrap();
            prop_assert!(!data.contains(['\n', '\r']));
            if data == "[DONE]" {
                continue;
            }
            let chunk: Value = serde_json::from_str(data).unwrap();
            let choice = &chunk["choices"][0];
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            streamed[index].push_str(choice["delta"]["content"].as_str().unwrap_or_default());
        }
        for (index, text) in streamed.iter().enumerate() {
            prop_assert_eq!(&body["choices"][index]["message"]["content"], text);
        }
    }
}

fn response(view: View, events: Vec<Event>) -> Value {
    let head = Head {
        id: "resp_1".into(),
        ..head()
    };
    json(&response::body(
        head,
        Echo(",\"tools\":[]".into()),
        view,
        || 1_700_000_009,
        gathered(events),
    ))
}

fn response_stream(view: View, events: Vec<Event>) -> String {
    let head = Head {
        id: "resp_1".into(),
        ..head()
    };
    shown(
        response::stream(head, Echo(",\"tools\":[]".into()), view, || 1_700_000_009),
        events,
    )
}

#[test]
fn responses_stream() {
    insta::assert_snapshot!(
        "response_stream_reasoning",
        response_stream(PLAIN, reasoning_and_text())
    );
    insta::assert_snapshot!("response_stream_tools", response_stream(PLAIN, tools()));
    insta::assert_snapshot!(
        "response_stream_silent",
        response_stream(PLAIN, vec![end(0, FinishReason::Length), done()])
    );
    let failing = vec![
        text(0, "a"),
        event(Kind::Failed(Code::WorkerLost.error("gone").into())),
    ];
    insta::assert_snapshot!("response_stream_failed", response_stream(PLAIN, failing));
}

/// llama.cpp's `return_progress` and `timings_per_token`, where its own server shows them.
#[test]
fn responses_stream_with_progress_and_times() {
    let progress = |processed| {
        event(Kind::Progress(PromptProgress {
            total: 10,
            cached: 2,
            processed,
            elapsed_ms: 1.5,
        }))
    };
    let delta = Delta {
        content: "a".into(),
        timings: Some(Timings {
            predicted_n: 1,
            ..Timings::default()
        }),
        ..Delta::default()
    };
    let view = View { timed: true, ..PLAIN };
    let events = vec![
        progress(2),
        progress(10),
        event(Kind::Delta(delta)),
        end(0, FinishReason::Stop),
        done(),
    ];
    insta::assert_snapshot!("response_stream_timed", response_stream(view, events));
}

#[test]
fn response_bodies() {
    insta::assert_json_snapshot!("response_body_reasoning", response(PLAIN, reasoning_and_text()));
    insta::assert_json_snapshot!("response_body_tools", response(PLAIN, tools()));
}

/// The last item is what was cut; what came before it is complete.
#[test]
fn a_response_that_was_cut_has_an_incomplete_item() {
    let events = || {
        let mut events = reasoning_and_text();
        events.truncate(4);
        events.extend([end(0, FinishReason::Length), done()]);
        events
    };
    let body = response(PLAIN, events());
    assert_eq!(
        (&body["status"], &body["completed_at"]),
        (&"incomplete".into(), &Value::Null)
    );
    let statuses: Vec<_> = body["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| &item["status"])
        .collect();
    assert_eq!(statuses, ["completed", "incomplete"]);
    let stream = response_stream(PLAIN, events());
    let last = stream.rsplit("data: ").next().unwrap();
    let last: Value = serde_json::from_str(last.trim()).unwrap();
    assert_eq!(last["response"]["output"], body["output"]);
    let done = stream.split("event: response.output_item.done\ndata: ").skip(1);
    let done: Vec<Value> = done
        .map(|event| serde_json::from_str(event.lines().next().unwrap()).unwrap())
        .collect();
    assert_eq!(done[1]["item"], body["output"][1]);
    // Whole ones end later than they began.
    assert_eq!(
        response(PLAIN, reasoning_and_text())["completed_at"],
        1_700_000_009
    );
}

/// Probabilities once were in the deltas only.
#[test]
fn probabilities_of_a_response_are_wherever_its_text_is() {
    let view = View {
        logprobs: true,
        ..PLAIN
    };
    let mut events = probabilities();
    let thought = event(Kind::Delta(Delta {
        reasoning: "hm".into(),
        logprobs: vec![logprob(4, b"hm", -2.0, &[])],
        ..Delta::default()
    }));
    events.insert(0, thought);
    let body = response(view, events.clone());
    let figures = &body["output"][1]["content"][0]["logprobs"];
    let tokens: Vec<_> = figures
        .as_array()
        .unwrap()
        .iter()
        .map(|figure| &figure["id"])
        .collect();
    assert_eq!(tokens, [5, 6, 7], "{body}");
    let stream = response_stream(view, events.clone());
    for event in stream
        .split("\n\n")
        .filter_map(|event| event.split_once("data: "))
    {
        let event: Value = serde_json::from_str(event.1).unwrap();
        let shown = match event["type"].as_str().unwrap() {
            "response.output_text.delta" | "response.output_text.done" => &event["logprobs"],
            "response.content_part.done" if event["part"]["type"] == "output_text" => {
                &event["part"]["logprobs"]
            }
            "response.completed" => &event["response"]["output"][1]["content"][0]["logprobs"],
            _ => continue,
        };
        assert_eq!(shown, figures, "{event}");
    }
    // Not unless it was asked for.
    assert_eq!(
        response(PLAIN, events)["output"][1]["content"][0]["logprobs"],
        serde_json::json!([])
    );
}
