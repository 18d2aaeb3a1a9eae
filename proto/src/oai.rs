//! Typed chats as OpenAI's JSON, for engines that read that: llama.cpp's `common` and foreign servers.

use serde_json::{Map, Value, json};

use crate::v1::{
    Chat, ChatMessage, ContentPart, Tool, ToolCall, ToolChoice, ToolChoiceMode, content_part, tool_choice,
};

/// `messages` as OpenAI's JSON array.
#[must_use]
pub fn messages(chat: &Chat) -> Value {
    chat.messages.iter().map(|one| message(one, None)).collect()
}

/// `messages` as llama.cpp's `common` reads them: `marker` stands for each image.
#[must_use]
pub fn messages_with(chat: &Chat, marker: &str) -> Value {
    let messages = chat.messages.iter();
    messages.map(|one| message(one, Some(marker))).collect()
}

/// `tools` as OpenAI's JSON array.
#[must_use]
pub fn tools(chat: &Chat) -> Value {
    chat.tools.iter().map(tool).collect()
}

/// `tool_choice` as OpenAI's JSON; `None` if the request did not set it.
#[must_use]
pub fn tool_choice(choice: &ToolChoice) -> Option<Value> {
    match choice.kind.as_ref()? {
        tool_choice::Kind::Function(name) => Some(json!({"type": "function", "function": {"name": name}})),
        tool_choice::Kind::Mode(mode) => match ToolChoiceMode::try_from(*mode).ok()? {
            ToolChoiceMode::Unspecified => None,
            ToolChoiceMode::Auto => Some("auto".into()),
            ToolChoiceMode::None => Some("none".into()),
            ToolChoiceMode::Required => Some("required".into()),
        },
    }
}

fn message(message: &ChatMessage, marker: Option<&str>) -> Value {
    let mut map = object(&message.extra_json);
    map.insert("role".into(), message.role.clone().into());
    map.insert("content".into(), content(&message.parts, marker));
    let mut text = |key: &str, value: &str| {
        if !value.is_empty() {
            map.insert(key.into(), value.into());
        }
    };
    text("tool_call_id", &message.tool_call_id);
    text("name", &message.name);
    text("reasoning_content", &message.reasoning_content);
    if !message.tool_calls.is_empty() {
        map.insert(
            "tool_calls".into(),
            message.tool_calls.iter().map(tool_call).collect(),
        );
    }
    Value::Object(map)
}

fn content(parts: &[ContentPart], marker: Option<&str>) -> Value {
    match parts {
        [] => Value::Null,
        [
            ContentPart {
                kind: Some(content_part::Kind::Text(text)),
            },
        ] => text.clone().into(),
        parts => parts
            .iter()
            .filter_map(|part| part.kind.as_ref())
            .map(|kind| part(kind, marker))
            .collect(),
    }
}

fn part(kind: &content_part::Kind, marker: Option<&str>) -> Value {
    match kind {
        content_part::Kind::Text(text) => json!({"type": "text", "text": text}),
        content_part::Kind::ImageUrl(url) => marker.map_or_else(
            || json!({"type": "image_url", "image_url": {"url": url}}),
            |marker| json!({"type": "media_marker", "text": marker}),
        ),
        content_part::Kind::InputAudio(audio) => {
            json!({"type": "input_audio", "input_audio": {"data": audio.data, "format": audio.format}})
        }
        content_part::Kind::OtherJson(text) => serde_json::from_str(text).unwrap_or(Value::Null),
    }
}

fn tool_call(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

fn tool(tool: &Tool) -> Value {
    let mut function = Map::new();
    function.insert("name".into(), tool.name.clone().into());
    if !tool.description.is_empty() {
        function.insert("description".into(), tool.description.clone().into());
    }
    let parameters =
        serde_json::from_str(&tool.parameters_json).unwrap_or_else(|_| json!({"type": "object"}));
    function.insert("parameters".into(), parameters);
    if let Some(strict) = tool.strict {
        function.insert("strict".into(), strict.into());
    }
    json!({"type": "function", "function": function})
}

/// The JSON object in an `extra_json` field; empty if the field is empty.
#[must_use]
pub fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> ContentPart {
        ContentPart {
            kind: Some(content_part::Kind::Text(text.into())),
        }
    }

    #[test]
    fn one_text_part_is_a_string_and_none_is_null() {
        let chat = Chat {
            messages: vec![
                ChatMessage {
                    role: "user".into(),
                    parts: vec![text("hi")],
                    ..Default::default()
                },
                ChatMessage {
                    role: "assistant".into(),
                    tool_calls: vec![ToolCall {
                        id: "1".into(),
                        name: "f".into(),
                        arguments: "{}".into(),
                    }],
                    extra_json: r#"{"x":1}"#.into(),
                    ..Default::default()
                },
            ],
            ..Default::default()
        };
        assert_eq!(
            messages(&chat),
            json!([
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": null, "x": 1,
                 "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            ])
        );
    }

    #[test]
    fn several_parts_stay_parts() {
        let image = ContentPart {
            kind: Some(content_part::Kind::ImageUrl("data:x".into())),
        };
        let parts = [text("see"), image];
        assert_eq!(
            content(&parts, None),
            json!([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:x"}}])
        );
        assert_eq!(
            content(&parts, Some("<here>")),
            json!([{"type": "text", "text": "see"}, {"type": "media_marker", "text": "<here>"}])
        );
    }

    #[test]
    fn a_named_tool_choice_is_an_object() {
        let choice = ToolChoice {
            kind: Some(tool_choice::Kind::Function("f".into())),
        };
        assert_eq!(
            tool_choice(&choice),
            Some(json!({"type": "function", "function": {"name": "f"}}))
        );
    }
}
