use super::*;

fn events(dialect: Dialect, request: &GenerateRequest, chunks: &[&str]) -> (Vec<Event>, Result<(), Error>) {
    let mut reply = Reply::new(dialect, request);
    let mut events = Vec::new();
    for chunk in chunks {
        if let Err(error) = reply.read(chunk.as_bytes(), &mut events) {
            return (events, Err(error));
        }
    }
    let end = reply.end(&mut events);
    (events, end)
}

fn ends(events: &[Event]) -> Vec<ChoiceFinished> {
    let end = |event: &Event| match &event.kind {
        Some(event::Kind::ChoiceFinished(end)) => Some(end.clone()),
        _ => None,
    };
    events.iter().filter_map(end).collect()
}

fn finished(events: &[Event]) -> Finished {
    match events.last().and_then(|event| event.kind.clone()) {
        Some(event::Kind::Finished(finished)) => finished,
        other => panic!("not finished: {other:?}"),
    }
}

#[test]
fn a_chat_with_two_choices_pairs_ends_with_their_usage() {
    let request = GenerateRequest {
        n: 2,
        ..Default::default()
    };
    let (events, end) = events(
        Dialect::Chat,
        &request,
        &[
            r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"role":"assistant","content":null}}]}"#,
            r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"content":"a"}}]}"#,
            r#"{"choices":[{"index":1,"finish_reason":null,"delta":{"reasoning_content":"b"}}]}"#,
            r#"{"choices":[{"index":1,"finish_reason":"length","delta":{}}]}"#,
            r#"{"choices":[],"usage":{"completion_tokens":3,"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":4}},"timings":{"prompt_n":1,"predicted_n":3,"predicted_ms":2.0}}"#,
            r#"{"choices":[{"index":0,"finish_reason":"tool_calls","delta":{}}]}"#,
            r#"{"choices":[],"usage":{"completion_tokens":7,"prompt_tokens":5},"timings":{"predicted_n":7,"predicted_ms":4.0}}"#,
            "[DONE]",
        ],
    );
    end.unwrap();
    let ends = ends(&events);
    assert_eq!(
        (ends[0].choice, ends[0].reason(), ends[0].generated),
        (1, FinishReason::Length, 3)
    );
    assert_eq!(
        (ends[1].choice, ends[1].reason(), ends[1].generated),
        (0, FinishReason::ToolCalls, 7)
    );
    let finished = finished(&events);
    let usage = finished.usage.unwrap();
    assert_eq!(
        (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        (5, 10, 4)
    );
    assert_eq!((finished.timings.unwrap().predicted_n, events.len()), (10, 5));
}

#[test]
fn tool_calls_come_in_pieces() {
    let chunk = r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"tool_calls":[{"index":1,"id":"c","type":"function","function":{"name":"f","arguments":"{"}}]}}]}"#;
    let (events, _) = events(Dialect::Chat, &GenerateRequest::default(), &[chunk]);
    let Some(event::Kind::Delta(delta)) = &events[0].kind else {
        panic!("no delta")
    };
    let want = ToolCallDelta {
        index: 1,
        id: "c".into(),
        name: "f".into(),
        arguments: "{".into(),
    };
    assert_eq!(delta.tool_calls, [want]);
}

#[test]
fn a_completion_keeps_what_we_do_not_model() {
    let (events, end) = events(
        Dialect::LlamaCpp,
        &GenerateRequest {
            return_progress: true,
            return_sampling: true,
            ..Default::default()
        },
        &[
            r#"{"index":0,"content":"","tokens":[0],"stop":false,"id_slot":-1,"prompt_progress":{"total":4,"cache":1,"processed":4,"time_ms":7}}"#,
            r#"{"index":0,"content":" x","tokens":[9],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":4}"#,
            r#"{"index":0,"content":"","tokens":[],"id_slot":3,"stop":true,"model":"m","tokens_predicted":1,"tokens_evaluated":4,"generation_settings":{"seed":1},"prompt":"p","has_new_line":false,"truncated":true,"stop_type":"word","stopping_word":"w","timings":{"cache_n":1,"prompt_n":3}}"#,
        ],
    );
    end.unwrap();
    assert!(matches!(
        events[0].kind,
        Some(event::Kind::Progress(PromptProgress {
            cached: 1,
            processed: 4,
            ..
        }))
    ));
    assert!(
        matches!(&events[1].kind, Some(event::Kind::Delta(delta)) if delta.tokens == [9] && delta.generated == 1)
    );
    let end = &ends(&events)[0];
    assert_eq!(
        (end.stop(), end.stopping_word.as_str(), end.truncated),
        (StopKind::Word, "w", true)
    );
    assert_eq!(end.sampling.as_ref().unwrap().seed, Some(1));
    assert_eq!(finished(&events).id_slot, Some(3));
    assert_eq!(
        events.last().unwrap().extra_json,
        r#"{"generation_settings":{"seed":1},"has_new_line":false}"#
    );
}

#[test]
fn progress_comes_only_if_asked_for() {
    let (events, _) = events(
        Dialect::LlamaCpp,
        &GenerateRequest::default(),
        &[
            r#"{"index":0,"content":"","tokens":[0],"stop":false,"id_slot":-1,"prompt_progress":{"total":4,"cache":1,"processed":4,"time_ms":7}}"#,
        ],
    );
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn logprobs_come_only_if_asked_for_and_as_many() {
    let chunk = r#"{"choices":[{"index":0,"finish_reason":null,"delta":{"content":"x"},"logprobs":{"content":[{"id":1,"token":"x","bytes":[120],"logprob":-1.5,"top_logprobs":[{"id":1,"bytes":[120],"logprob":-1.5},{"id":2,"bytes":[121],"logprob":-2}]}]}}]}"#;
    let logprobs = |request: &GenerateRequest| {
        let (events, _) = events(Dialect::Chat, request, &[chunk]);
        let Some(event::Kind::Delta(delta)) = events[0].kind.clone() else {
            panic!("no delta")
        };
        delta.logprobs
    };
    assert_eq!(logprobs(&GenerateRequest::default()), []);
    let one = logprobs(&GenerateRequest {
        top_logprobs: 1,
        ..Default::default()
    });
    assert_eq!((one[0].bytes.as_ref(), one[0].top.len()), (b"x".as_slice(), 1));
    assert!(
        logprobs(&GenerateRequest {
            logprobs: true,
            ..Default::default()
        })[0]
            .top
            .is_empty()
    );
}

#[test]
fn errors_in_the_stream_and_early_ends_are_errors() {
    let chunk = r#"{"error":{"code":500,"message":"boom","type":"server_error"}}"#;
    for dialect in [Dialect::Chat, Dialect::LlamaCpp] {
        let (_, end) = events(dialect, &GenerateRequest::default(), &[chunk]);
        assert_eq!(end.unwrap_err().code, Code::RuntimeError);
        let (_, end) = events(dialect, &GenerateRequest::default(), &[]);
        assert_eq!(end.unwrap_err().code, Code::RuntimeError);
    }
}

#[test]
fn reading_the_prompt_only_gives_no_text() {
    let (events, end) = events(
        Dialect::LlamaCpp,
        &GenerateRequest {
            max_tokens: Some(0),
            ..Default::default()
        },
        &[
            r#"{"index":0,"content":" x","tokens":[9],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":4}"#,
            r#"{"index":0,"content":"","id_slot":3,"stop":true,"tokens_predicted":1,"tokens_evaluated":4,"stop_type":"limit"}"#,
        ],
    );
    end.unwrap();
    assert_eq!(
        (
            events.len(),
            ends(&events)[0].generated,
            finished(&events).usage.unwrap().completion_tokens
        ),
        (2, 0, 0)
    );
}
