//! Reading of responses.

use muster_proto::v1::generate_request::Constraint;

use super::*;

fn read(fields: &str) -> Result<ResponseCall, Error> {
    responses(format!("{{\"model\": \"m\", {fields}}}").as_bytes())
}

fn chat(fields: &str) -> Chat {
    match read(fields).unwrap().work.input.unwrap() {
        Input::Chat(chat) => chat,
        Input::Prompt(_) | Input::Infill(_) => panic!("not a chat"),
    }
}

fn turns(fields: &str) -> Vec<(String, String)> {
    let said = |turn: &ChatMessage| match turn.parts.first().and_then(|part| part.kind.as_ref()) {
        Some(content_part::Kind::Text(text)) => text.clone(),
        Some(other) => format!("{other:?}"),
        None => String::new(),
    };
    let chat = chat(fields);
    chat.messages
        .iter()
        .map(|turn| (turn.role.clone(), said(turn)))
        .collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter()
        .map(|(role, text)| ((*role).into(), (*text).into()))
        .collect()
}

/// Seed 000: input is a string or a list of dictionaries.
#[test]
fn input_is_text_or_turns() {
    assert_eq!(turns(r#""input": "hi""#), pairs(&[("user", "hi")]));
    assert_eq!(
        turns(r#""instructions": "be", "input": [{"role": "user", "content": "hi"}]"#),
        pairs(&[("system", "be"), ("user", "hi")])
    );
    assert_eq!(
        turns(r#""messages": [{"role": "user", "content": "hi"}]"#),
        pairs(&[("user", "hi")])
    );
}

#[test]
fn what_an_assistant_thought_and_called_is_one_turn() {
    let chat = chat(
        r#""input": [{"role": "user", "content": [{"type": "input_text", "text": "w?"}]},
           {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
           {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "see"}]},
           {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
           {"type": "function_call", "call_id": "d", "name": "g", "arguments": "{}"},
           {"type": "function_call_output", "call_id": "c", "output": "4"},
           {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "5"}]}]"#,
    );
    let roles: Vec<_> = chat.messages.iter().map(|turn| turn.role.as_str()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool"]);
    assert_eq!(chat.messages[1].reasoning_content, "hm");
    assert_eq!(chat.messages[1].tool_calls.len(), 2);
    assert_eq!(
        (
            chat.messages[3].tool_call_id.as_str(),
            chat.messages[3].parts.len()
        ),
        ("d", 1)
    );
}

#[test]
fn tools_stand_flat_and_schemas_in_text_format() {
    let fields = r#""input": "x", "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
        "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 7,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}"#;
    let call = read(fields).unwrap();
    assert_eq!(chat(fields).tools[0].name, "f");
    assert_eq!(call.work.max_tokens, Some(7));
    assert_eq!(
        call.work.constraint,
        Some(Constraint::JsonSchema(r#"{"type": "object"}"#.into()))
    );
    assert!(
        call.echo.0.contains(r#","max_output_tokens":7,"#),
        "{:?}",
        call.echo
    );
    assert!(call.echo.0.contains(r#","temperature":null,"#));
}

/// Seed 001: `thinking` is read; OpenAI's `reasoning.effort` goes to the template.
#[test]
fn thinking_and_effort_reach_the_template() {
    assert!(
        read(r#""input": "x", "thinking": "enabled""#)
            .unwrap()
            .asked
            .thinking
    );
    assert!(
        !read(r#""input": "x", "thinking": "default""#)
            .unwrap()
            .asked
            .thinking
    );
    let chat = chat(r#""input": "x", "reasoning": {"effort": "low"}"#);
    assert_eq!(chat.template_kwargs_json, r#"{"reasoning_effort":"low"}"#);
}

#[test]
fn probabilities_are_asked_for_in_two_ways() {
    let asked = |fields: &str| {
        let call = read(&format!(r#""input": "x", {fields}"#)).unwrap();
        (call.view.logprobs, call.work.logprobs, call.work.top_logprobs)
    };
    assert_eq!(asked(r#""top_logprobs": 2"#), (true, true, 2));
    assert_eq!(
        asked(r#""include": ["message.output_text.logprobs"]"#),
        (true, true, 0)
    );
    assert_eq!(
        asked(r#""include": ["reasoning.encrypted_content"]"#),
        (false, false, 0)
    );
    assert_eq!(
        asked(r#""max_tool_calls": 3, "n": 1, "truncation": "disabled""#),
        (false, false, 0)
    );
}

#[test]
fn faults_are_refused_by_name() {
    for (fields, param) in [
        (r#""x": 1"#, "input"),
        (r#""input": []"#, "input"),
        (r#""input": 3"#, "input"),
        (r#""input": [{"role": "king", "content": "x"}]"#, "input[0].role"),
        (r#""input": [{"type": "item_reference", "id": "x"}]"#, "input[0]"),
        (
            r#""input": "x", "previous_response_id": "r""#,
            "previous_response_id",
        ),
        (r#""input": "x", "background": true"#, "background"),
        (r#""input": "x", "n": 2"#, "n"),
        (r#""input": "x", "truncation": "auto""#, "truncation"),
        (r#""input": "x", "max_tool_calls": "few""#, "max_tool_calls"),
        (
            r#""input": "x", "response_format": {"type": "json_object"}"#,
            "response_format",
        ),
        (
            r#""input": "x", "include": ["file_search_call.results"]"#,
            "include[0]",
        ),
        (r#""input": "x", "thinking": "maybe""#, "thinking"),
        (
            r#""input": "x", "max_output_tokens": "many""#,
            "max_output_tokens",
        ),
    ] {
        assert_eq!(
            read(fields).unwrap_err().param.unwrap_or_default(),
            param,
            "{fields}"
        );
    }
}
