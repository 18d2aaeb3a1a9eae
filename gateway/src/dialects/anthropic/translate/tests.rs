//! Reading of Anthropic's requests.

use muster_proto::v1::generate_request::Constraint;

use super::*;

fn read(fields: &str) -> Result<MessageCall, Error> {
    messages(format!("{{\"model\": \"m\", \"max_tokens\": 9, {fields}}}").as_bytes())
}

fn chat(fields: &str) -> Chat {
    match read(fields).unwrap().work.input.unwrap() {
        Input::Chat(chat) => chat,
        Input::Prompt(_) | Input::Infill(_) => panic!("not a chat"),
    }
}

#[test]
fn blocks_become_turns() {
    let chat = chat(
        r#""system": [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral"}}], "messages": [
          {"role": "user", "content": [{"type": "text", "text": "see"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]},
          {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "let me"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "4"},
            {"type": "text", "text": "and?"}]},
          {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "f", "input": {}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u"}]}]"#,
    );
    let roles: Vec<_> = chat.messages.iter().map(|turn| turn.role.as_str()).collect();
    assert_eq!(
        roles,
        ["system", "user", "assistant", "tool", "user", "assistant", "tool"]
    );
    assert_eq!(
        chat.messages[1].parts[1].kind,
        Some(content_part::Kind::ImageUrl("data:image/png;base64,AA".into()))
    );
    assert_eq!(chat.messages[2].reasoning_content, "hm");
    assert_eq!(chat.messages[2].tool_calls[0].arguments, r#"{"a": 1}"#);
    assert_eq!(chat.messages[3].tool_call_id, "t");
    assert!(!chat.continue_final_message);
}

#[test]
fn a_last_turn_of_the_assistant_is_continued() {
    let fields = r#""messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    assert!(chat(fields).continue_final_message);
}

#[test]
fn tools_and_limits_are_read() {
    let fields = r#""messages": [{"role": "user", "content": "a"}], "stop_sequences": ["x"], "top_k": 5,
        "metadata": {"user_id": "u"}, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": true}"#;
    let call = read(fields).unwrap();
    assert_eq!(
        (call.work.max_tokens, call.work.stop.as_slice()),
        (Some(9), &["x".to_owned()][..])
    );
    assert_eq!((call.asked.user.as_str(), call.asked.thinking), ("u", false));
    let chat = chat(fields);
    assert_eq!(
        (chat.tools[0].name.as_str(), chat.parallel_tool_calls),
        ("f", Some(false))
    );
    assert_eq!(chat.enable_thinking, Some(true));
}

#[test]
fn the_form_of_the_output_is_read() {
    let fields = r#""messages": [{"role": "user", "content": "a"}],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}"#;
    let constraint = read(fields).unwrap().work.constraint;
    assert_eq!(
        constraint,
        Some(Constraint::JsonSchema(r#"{"type": "object"}"#.into()))
    );
    assert_eq!(chat(fields).template_kwargs_json, r#"{"reasoning_effort":"low"}"#);
}

#[test]
fn faults_are_refused_by_name() {
    let hi = r#""messages": [{"role": "user", "content": "a"}]"#;
    for (fields, param) in [
        (r#""x": 1"#.to_owned(), "messages"),
        (r#""messages": []"#.into(), "messages"),
        (
            r#""messages": [{"role": "king", "content": "a"}]"#.into(),
            "messages[0].role",
        ),
        (r#""messages": [{"role": "user"}]"#.into(), "messages[0].content"),
        (
            r#""messages": [{"role": "user", "content": [{"type": "video"}]}]"#.into(),
            "messages[0].content[0]",
        ),
        (format!("{hi}, \"max_tokens\": 0"), "max_tokens"),
        (
            format!("{hi}, \"tools\": [{{\"type\": \"bash_20250124\", \"name\": \"bash\"}}]"),
            "tools[0].type",
        ),
        (
            format!("{hi}, \"tool_choice\": {{\"type\": \"any\"}}"),
            "tool_choice.type",
        ),
        (format!("{hi}, \"mcp_servers\": []"), "mcp_servers"),
        (
            format!("{hi}, \"thinking\": {{\"type\": \"x\"}}"),
            "thinking.type",
        ),
    ] {
        assert_eq!(
            read(&fields).unwrap_err().param.unwrap_or_default(),
            param,
            "{fields}"
        );
    }
}
