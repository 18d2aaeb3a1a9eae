//! llama.cpp's completions, from events to bytes.

use muster_proto::v1::{Event, Sampling, StopKind, Timings, Usage, event::Kind};

use serde_json::json;

use super::*;
use crate::{
    dialects::llamacpp::translate::{CompletionCall, completion},
    render::{Render as _, answer::Choice, native::Answerer, settings::generation_settings},
    translate::object::{self, Object},
    web::engine::ModelQuery,
};

fn read(text: &str) -> Result<CompletionCall, Error> {
    let body = Object::body(object::text(text.as_bytes()).unwrap()).unwrap();
    let mut call = completion(body, ModelQuery::default())?;
    call.form.native.answered_by(Answerer {
        model: "m".to_owned(),
        ..Answerer::default()
    });
    Ok(call)
}

/// Nothing is shifted, but what was asked for is shown, and engines get it.
#[test]
fn what_is_to_be_kept_is_shown_as_it_was_asked_for() {
    for (field, kept) in [("", 0), (r#", "n_keep": 7"#, 7), (r#", "n_keep": -1"#, -1)] {
        let call = read(&format!(r#"{{"prompt": "a"{field}}}"#)).unwrap();
        let shown = generation_settings(&call.work[0], &Sampling::default());
        assert_eq!(shown["n_keep"], kept, "{field}");
        assert_eq!(call.work[0].extra_json.contains("n_keep"), kept != 0);
    }
}

fn events() -> Vec<Event> {
    let event = |kind| Event {
        kind: Some(kind),
        extra_json: String::new(),
    };
    let delta = |content: &str, generated, token| {
        event(Kind::Delta(Delta {
            content: content.into(),
            tokens: vec![token],
            generated,
            ..Delta::default()
        }))
    };
    let end = ChoiceFinished {
        stop: StopKind::Word.into(),
        stopping_word: "END".into(),
        generated: 2,
        sampling: Some(Box::new(Sampling {
            temperature: Some(0.5),
            min_p: Some(0.25),
            ..Sampling::default()
        })),
        ..ChoiceFinished::default()
    };
    let finished = Finished {
        usage: Some(Usage {
            prompt_tokens: 5,
            cached_tokens: 3,
            completion_tokens: 2,
            ..Usage::default()
        }),
        timings: Some(Timings {
            predicted_n: 2,
            predicted_ms: 4.0,
            ..Timings::default()
        }),
        id_slot: Some(1),
    };
    vec![
        delta("a\n", 1, 7),
        delta("b", 2, 8),
        event(Kind::ChoiceFinished(end)),
        event(Kind::Finished(finished)),
    ]
}

#[test]
fn seed_004_fields_of_a_completion() {
    let call = read(r#"{"prompt": "p", "n_predict": 8, "temperature": 0.5, "return_tokens": true}"#).unwrap();
    let mut answer = Answer::default();
    for event in events() {
        answer.event(event).unwrap();
    }
    let object = body(&call.form, call.view, &[answer]);
    for (key, value) in [
        ("content", json!("a\nb")),
        ("tokens", json!([7, 8])),
        ("stop", json!(true)),
        ("model", json!("m")),
        ("prompt", json!("p")),
        ("stop_type", json!("word")),
        ("stopping_word", json!("END")),
        ("tokens_predicted", json!(2)),
        ("tokens_evaluated", json!(5)),
        ("tokens_cached", json!(3)),
        ("truncated", json!(false)),
        ("id_slot", json!(1)),
        ("has_new_line", json!(true)),
    ] {
        assert_eq!(object[key], value, "{key}");
    }
    assert_eq!(object["timings"]["predicted_per_second"], 250.0);
    assert_eq!(object["generation_settings"]["n_predict"], 8);
    assert_eq!(object["generation_settings"]["temperature"], 0.5);
    // As the engine says; where it says nothing, as llama.cpp does by itself.
    assert_eq!(object["generation_settings"]["min_p"], 0.25);
    assert_eq!(object["generation_settings"]["top_k"], 40);
    assert_eq!(object["generation_settings"]["model"], "m");
}

#[test]
fn seed_004_timings_per_token_are_in_each_event() {
    let call = read(r#"{"prompt": "p", "stream": true, "timings_per_token": true}"#).unwrap();
    assert!(call.work[0].timings_per_token);
    let mut stream = stream(call.form, call.view);
    let mut out = BytesMut::new();
    let delta = Delta {
        content: "a".into(),
        timings: Some(Timings {
            prompt_n: 4,
            prompt_ms: 2.0,
            predicted_n: 1,
            ..Timings::default()
        }),
        ..Delta::default()
    };
    let event = Event {
        kind: Some(Kind::Delta(delta)),
        extra_json: String::new(),
    };
    stream.event(event, &mut out);
    let text = std::str::from_utf8(&out).unwrap();
    let object: Value = serde_json::from_str(text.trim_end().strip_prefix("data: ").unwrap()).unwrap();
    assert_eq!(object["timings"]["prompt_per_second"], 2000.0);
    assert_eq!(object["timings"]["predicted_n"], 1);
}

/// What comes while the prompt is read has the times up to then, as llama.cpp's does.
#[test]
fn progress_is_timed_with_timings_per_token_only() {
    for (asked, times) in [("true", json!(2)), ("false", Value::Null)] {
        let text = format!(
            r#"{{"prompt": "p", "stream": true, "return_progress": true, "timings_per_token": {asked}}}"#
        );
        let call = read(&text).unwrap();
        let mut stream = stream(call.form, call.view);
        let mut out = BytesMut::new();
        let progress = PromptProgress {
            total: 10,
            cached: 4,
            processed: 6,
            elapsed_ms: 1.0,
        };
        let event = Event {
            kind: Some(Kind::Progress(progress)),
            extra_json: String::new(),
        };
        stream.event(event, &mut out);
        let text = std::str::from_utf8(&out).unwrap();
        let object: Value = serde_json::from_str(text.trim_end().strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(
            object["prompt_progress"],
            json!({"total": 10, "cache": 4, "processed": 6, "time_ms": 1.0})
        );
        assert_eq!(object["timings"]["prompt_n"], times);
    }
}

#[test]
fn several_choices_of_each_prompt_are_numbered_through() {
    let call = read(r#"{"prompt": ["a", "b"], "n_cmpl": 2, "n": 3}"#).unwrap();
    assert_eq!((call.work.len(), call.work[0].n), (2, 2));
    let answer = || Answer {
        choices: [(0, Choice::default()), (1, Choice::default())].into(),
        ..Answer::default()
    };
    let list = body(&call.form, call.view, &[answer(), answer()]);
    let shown = |key: &str| {
        let objects = list.as_array().unwrap().iter();
        objects.map(|object| object[key].clone()).collect::<Vec<_>>()
    };
    assert_eq!(shown("index"), [0, 1, 2, 3]);
    assert_eq!(shown("prompt"), ["a", "a", "b", "b"]);
    let alone = read(r#"{"prompt": "a", "n": 2}"#).unwrap();
    assert!(body(&alone.form, alone.view, &[answer()]).is_array());
}

#[test]
fn seed_004_response_fields_are_picked_and_unnested() {
    let call = read(
        r#"{"prompt": "p", "n_predict": 8, "response_fields": ["content", "generation_settings/n_predict", "nothing"]}"#,
    );
    let call = call.unwrap();
    let mut answer = Answer::default();
    for event in events() {
        answer.event(event).unwrap();
    }
    assert_eq!(
        body(&call.form, call.view, &[answer]),
        json!({"content": "a\nb", "generation_settings/n_predict": 8})
    );
}

#[test]
fn a_stream_ends_with_stop_and_without_done() {
    let call = read(r#"{"prompt": "p", "stream": true}"#).unwrap();
    assert!(call.work[0].return_tokens);
    let mut stream = stream(call.form, call.view);
    let mut out = BytesMut::new();
    let ends: Vec<bool> = events()
        .into_iter()
        .map(|event| stream.event(event, &mut out))
        .collect();
    assert_eq!(ends, [false, false, false, true]);
    let text = std::str::from_utf8(&out).unwrap();
    let objects: Vec<Value> = text
        .split_terminator("\n\n")
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    assert_eq!(objects.len(), 3);
    assert_eq!(
        (&objects[0]["content"], &objects[0]["tokens"]),
        (&json!("a\n"), &json!([7]))
    );
    assert_eq!(objects[1]["stop"], false);
    assert_eq!(
        (&objects[2]["stop"], &objects[2]["content"]),
        (&json!(true), &json!(""))
    );
    assert_eq!(objects[2]["tokens_evaluated"], 5);
}

#[test]
fn seed_004_several_prompts_are_several_answers_with_their_own_figures() {
    let call = read(r#"{"prompt": ["a", [1, 2]]}"#).unwrap();
    assert_eq!(call.work.len(), 2);
    let answer = |prompt: &str, prompt_tokens| {
        let choice = Choice {
            tokens: vec![7],
            end: ChoiceFinished {
                prompt: prompt.into(),
                ..ChoiceFinished::default()
            },
            ..Choice::default()
        };
        let usage = Usage {
            prompt_tokens,
            ..Usage::default()
        };
        Answer {
            choices: [(0, choice)].into(),
            finished: Finished {
                usage: Some(usage),
                ..Finished::default()
            },
            ..Answer::default()
        }
    };
    let list = body(&call.form, call.view, &[answer("<s>a", 2), answer("", 3)]);
    assert_eq!(list.as_array().unwrap().len(), 2);
    for (key, one, other) in [
        ("index", json!(0), json!(1)),
        ("prompt", json!("<s>a"), json!([1, 2])),
        ("tokens_evaluated", json!(2), json!(3)),
        // Nobody asked for them.
        ("tokens", json!([]), json!([])),
    ] {
        assert_eq!((&list[0][key], &list[1][key]), (&one, &other), "{key}");
    }
}
