//! Reading of Ollama's requests.

use muster_proto::v1::generate_request::Constraint;

use super::*;

fn chat(fields: &str) -> Result<GenerationCall, Error> {
    super::chat(format!("{{\"model\": \"m\", {fields}}}").as_bytes())
}

fn generate(fields: &str) -> Result<GenerationCall, Error> {
    super::generate(format!("{{\"model\": \"m\", {fields}}}").as_bytes())
}

fn of(wanted: GenerationCall) -> Input {
    wanted.work.unwrap().input.unwrap()
}

#[test]
fn chats_stream_unless_told_not_to_and_options_are_read() {
    let wanted = chat(
        r#""messages": [{"role": "user", "content": "hi", "images": ["iVBOR"]}], "keep_alive": "5m", "think": "low",
           "format": {"type": "object"}, "options": {"num_predict": 5, "temperature": 0, "stop": ["x"], "num_ctx": 4096}"#,
    )
    .unwrap();
    assert!(wanted.stream);
    let work = wanted.work.clone().unwrap();
    assert_eq!((work.max_tokens, work.stop.len()), (Some(5), 1));
    assert_eq!(work.sampling.unwrap().temperature, Some(0.0));
    assert_eq!(
        work.constraint,
        Some(Constraint::JsonSchema(r#"{"type": "object"}"#.into()))
    );
    let Input::Chat(chat) = of(wanted) else {
        panic!("not a chat")
    };
    assert_eq!(chat.messages[0].parts.len(), 2);
    assert_eq!(chat.enable_thinking, Some(true));
    assert!(!super::chat(br#"{"model": "m", "stream": false}"#).unwrap().stream);
}

#[test]
fn nothing_said_only_loads() {
    assert_eq!(chat(r#""messages": []"#).unwrap().work, None);
    assert_eq!(generate(r#""prompt": """#).unwrap().work, None);
    for (keep_alive, unload) in [
        ("0", true),
        ("0.0", true),
        (r#""0""#, true),
        (r#""0s""#, true),
        (r#""0h0m""#, true),
        ("10", false),
        ("-1", false),
        (r#""0.5s""#, false),
        (r#""5m""#, false),
        ("null", false),
    ] {
        let wanted = generate(&format!("\"keep_alive\": {keep_alive}")).unwrap();
        assert_eq!((wanted.work, wanted.unload), (None, unload), "{keep_alive}");
    }
}

#[test]
fn generation_goes_through_the_template_unless_raw() {
    let Input::Chat(chat) = of(generate(r#""prompt": "a", "system": "s""#).unwrap()) else {
        panic!("not a chat")
    };
    assert_eq!(chat.messages.len(), 2);
    assert!(matches!(
        of(generate(r#""prompt": "a", "raw": true"#).unwrap()),
        Input::Prompt(_)
    ));
    assert!(matches!(
        of(generate(r#""prompt": "a", "suffix": "z""#).unwrap()),
        Input::Infill(_)
    ));
}

#[test]
fn calls_have_their_arguments_as_objects() {
    let wanted = chat(
        r#""messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
           {"role": "tool", "tool_name": "f", "content": "4"}]"#,
    );
    let Input::Chat(chat) = of(wanted.unwrap()) else {
        panic!("not a chat")
    };
    assert_eq!(chat.messages[0].tool_calls[0].arguments, r#"{"a": 1}"#);
    assert_eq!(chat.messages[1].name, "f");
}

#[test]
fn faults_are_refused_by_name() {
    let hi = r#""messages": [{"role": "user", "content": "a"}]"#;
    for (fields, param) in [
        (r#""messages": [{"role": "king"}]"#.to_owned(), "messages[0].role"),
        (format!("{hi}, \"stream\": 1"), "stream"),
        (format!("{hi}, \"format\": \"xml\""), "format"),
        (format!("{hi}, \"think\": \"hard\""), "think"),
        (
            format!("{hi}, \"options\": {{\"temperature\": \"hot\"}}"),
            "options.temperature",
        ),
    ] {
        assert_eq!(
            chat(&fields).unwrap_err().param.unwrap_or_default(),
            param,
            "{fields}"
        );
    }
    assert_eq!(
        embed(br#"{"model": "m"}"#).unwrap_err().param.unwrap_or_default(),
        "input"
    );
    assert_eq!(
        embeddings(br#"{"model": "m", "prompt": ["a", "b"]}"#)
            .unwrap_err()
            .param
            .as_deref(),
        Some("prompt")
    );
}
