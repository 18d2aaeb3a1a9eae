//! The turns of a conversation, in OpenAI's form.

use muster_core::Error;
use muster_proto::v1::{ChatMessage, ContentPart, InputAudio, ToolCall, content_part};

use crate::translate::object::{self, Field, Kind, Object};

const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Takes `messages` out of `body`.
pub(crate) fn messages(body: &mut Object<'_>) -> Result<Vec<ChatMessage>, Error> {
    let field = body.need("messages")?;
    let list = field.list()?;
    if list.is_empty() {
        return Err(field.wrong("must not be empty"));
    }
    list.iter().map(message).collect()
}

fn message(field: &Field<'_>) -> Result<ChatMessage, Error> {
    let mut message = field.object()?;
    let role = message.need("role")?;
    let name = role.string()?;
    if !ROLES.contains(&name.as_str()) {
        return Err(role.wrong("must be `system`, `developer`, `user`, `assistant` or `tool`"));
    }
    let parts = match message.take("content") {
        Some(field) => content(&field)?,
        None => Vec::new(),
    };
    let tool_calls = match message.take("tool_calls") {
        Some(field) => field
            .list()?
            .iter()
            .map(tool_call)
            .collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    if parts.is_empty() && tool_calls.is_empty() && name != "assistant" && name != "tool" {
        return Err(object::invalid(&message.path_of("content"), "is required"));
    }
    let mut text = |key: &str| match message.take(key) {
        Some(field) => field.string(),
        None => Ok(String::new()),
    };
    Ok(ChatMessage {
        tool_call_id: text("tool_call_id")?,
        name: text("name")?,
        reasoning_content: text("reasoning_content")?,
        role: name,
        parts,
        tool_calls,
        extra_json: message.rest(),
    })
}

fn content(field: &Field<'_>) -> Result<Vec<ContentPart>, Error> {
    match field.kind() {
        Kind::String => Ok(vec![ContentPart {
            kind: Some(content_part::Kind::Text(field.string()?)),
        }]),
        Kind::Array => field.list()?.iter().map(part).collect(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
            Err(field.want("a string or an array of content parts"))
        }
    }
}

fn part(field: &Field<'_>) -> Result<ContentPart, Error> {
    if field.kind() == Kind::String {
        return Ok(ContentPart {
            kind: Some(content_part::Kind::Text(field.string()?)),
        });
    }
    let mut part = field.object()?;
    let kind = match part.need("type")?.string()?.as_str() {
        // TranslateGemma's shape (seed 001): its languages belong to the text.
        "text" if part.peek("target_lang_code").is_some() => content_part::Kind::OtherJson(field.json()),
        "text" => content_part::Kind::Text(part.need("text")?.string()?),
        "image_url" => content_part::Kind::ImageUrl(image_url(&part.need("image_url")?)?),
        "input_audio" => {
            let mut audio = part.need("input_audio")?.object()?;
            let data = audio.need("data")?.string()?;
            let format = audio.need("format")?.string()?;
            content_part::Kind::InputAudio(InputAudio { data, format })
        }
        _ => content_part::Kind::OtherJson(field.json()),
    };
    Ok(ContentPart { kind: Some(kind) })
}

/// OpenAI's `{"url": …}`, or the address itself.
fn image_url(field: &Field<'_>) -> Result<String, Error> {
    match field.kind() {
        Kind::String => field.string(),
        Kind::Object => field.object()?.need("url")?.string(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::Array => Err(field.want("an object with `url`")),
    }
}

fn tool_call(field: &Field<'_>) -> Result<ToolCall, Error> {
    let mut call = field.object()?;
    let id = match call.take("id") {
        Some(field) => field.string()?,
        None => String::new(),
    };
    let mut function = call.need("function")?.object()?;
    let name = function.need("name")?.string()?;
    let arguments = match function.take("arguments") {
        // Some clients send the arguments as an object instead of JSON text.
        Some(field) if field.kind() == Kind::Object => field.json(),
        Some(field) => field.string()?,
        None => String::new(),
    };
    Ok(ToolCall { id, name, arguments })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ChatMessage>, Error> {
        let text = format!("{{\"messages\": {text}}}");
        messages(&mut Object::body(&text).unwrap())
    }

    #[test]
    fn parts_and_calls_are_read() {
        let list = read(
            r#"[{"role": "user", "content": [{"type": "text", "text": "see"},
                 {"type": "image_url", "image_url": {"url": "data:x"}},
                 {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
                 {"type": "video_url", "video_url": {"url": "v"}}]},
                {"role": "assistant", "content": null, "reasoning_content": "hm", "mood": 1,
                 "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "c", "content": "4"}]"#,
        )
        .unwrap();
        assert_eq!(list[0].parts.len(), 4);
        assert!(matches!(
            list[0].parts[3].kind,
            Some(content_part::Kind::OtherJson(_))
        ));
        assert_eq!(
            (list[1].extra_json.as_str(), list[1].reasoning_content.as_str()),
            (r#"{"mood":1}"#, "hm")
        );
        assert_eq!(list[1].tool_calls[0].name, "f");
        assert_eq!(list[2].tool_call_id, "c");
    }

    #[test]
    fn faults_are_named() {
        let param = |text| read(text).unwrap_err().param.unwrap_or_default();
        assert_eq!(param("[]"), "messages");
        assert_eq!(
            param(r#"[{"role": "user", "content": 3}]"#),
            "messages[0].content"
        );
        assert_eq!(param(r#"[{"role": "king", "content": "x"}]"#), "messages[0].role");
        assert_eq!(param(r#"[{"content": "x"}]"#), "messages[0].role");
        assert_eq!(param(r#"[{"role": "user"}]"#), "messages[0].content");
        assert_eq!(
            param(r#"[{"role": "user", "content": [{"type": "text"}]}]"#),
            "messages[0].content[0].text"
        );
        assert_eq!(param("[3]"), "messages[0]");
    }
}
