//! Reads the turns of a conversation in OpenAI's form.

use muster_core::Error;
use muster_proto::v1::{ChatMessage, ContentPart, InputAudio, ToolCall, content_part};
use utoipa::openapi::{Ref, RefOr, Schema};

use crate::translate::{
    object::{self, Field, Kind},
    read::{Fields as _, Read, Schemas, body, described, one_of, tagged, words},
};

body! {
    /// A turn of a chat.
    struct Turn<'a> as ChatTurn {
        /// `system`, `developer`, `user`, `assistant` or `tool`.
        role: Role,
        /// The text. An assistant's turn of only tool calls may omit it.
        content: Option<Content>,
        /// Reasoning; only in an assistant's turn.
        reasoning_content: Option<String>,
        /// Function calls; only in an assistant's turn.
        tool_calls: Option<Vec<Call<'a>>>,
        /// Id of the call that this turn answers; only in a tool's turn.
        tool_call_id: Option<String>,
        /// Name of the speaker.
        name: Option<String>,
    }

    /// A function call of an assistant's turn.
    struct Call<'a> as ChatTurnCall {
        /// Id of the call; the tool's answer names it.
        id: Option<String>,
        /// The function and its arguments.
        function: Called<'a>,
    }

    /// A function with its arguments.
    struct Called<'a> as ChatTurnFunction {
        /// Name of the function.
        name: String,
        /// The arguments, as JSON text or as an object.
        arguments: Option<Field<'a>>,
    }

    /// A text part.
    struct TextPart as ChatText {
        /// Text.
        text: String,
    }

    /// An image part.
    struct ImagePart as ChatImagePart {
        /// An image; only for models that take images.
        image_url: ImageUrl,
    }

    /// An image; only for models that take images.
    struct Image as ChatImage {
        /// The image as a `data:` URL.
        url: String,
    }

    /// An audio part.
    struct SoundPart as ChatSoundPart {
        /// Audio; only for models that take audio.
        input_audio: Sound,
    }

    /// Audio; only for models that take audio.
    struct Sound as ChatSound {
        /// The audio as base64.
        data: String,
        /// `wav` or `mp3`.
        format: String,
    }
}

words! {
    /// Who speaks in a turn.
    struct Role: "system", "developer", "user", "assistant", "tool", "function" =>
        "`system`, `developer`, `user`, `assistant` or `tool`"
}

/// The turns of a conversation, at least one.
#[derive(Debug)]
pub(crate) struct Messages(pub(crate) Vec<ChatMessage>);

impl Read<'_> for Messages {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let list = field.list()?;
        if list.is_empty() {
            return Err(field.wrong("must not be empty"));
        }
        Ok(Self(list.iter().map(message).collect::<Result<_, _>>()?))
    }

    fn schema() -> RefOr<Schema> {
        Vec::<Turn<'_>>::schema()
    }

    fn referred(out: &mut Schemas) {
        Turn::referred(out);
    }
}

fn message(field: &Field<'_>) -> Result<ChatMessage, Error> {
    let mut message = field.object()?;
    let turn = Turn::take_from(&mut message)?;
    let Role(role) = turn.role;
    let parts = turn.content.map_or(Vec::new(), |Content(parts)| parts);
    let calls = turn.tool_calls.unwrap_or_default();
    if parts.is_empty() && calls.is_empty() && role != "assistant" && role != "tool" {
        return Err(object::invalid(&message.path_of("content"), "is required"));
    }
    Ok(ChatMessage {
        tool_call_id: turn.tool_call_id.unwrap_or_default(),
        name: turn.name.unwrap_or_default(),
        reasoning_content: turn.reasoning_content.unwrap_or_default(),
        role: role.to_owned(),
        parts,
        tool_calls: calls.into_iter().map(tool_call).collect::<Result<_, _>>()?,
        extra_json: message.rest(),
    })
}

/// Text, or parts of text and other media.
#[derive(Debug)]
struct Content(Vec<ContentPart>);

impl Read<'_> for Content {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let parts = match field.kind() {
            Kind::String => vec![Part::read(field)?],
            Kind::Array => Vec::read(field)?,
            Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
                return Err(field.want("a string or an array of content parts"));
            }
        };
        Ok(Self(parts.into_iter().map(|Part(part)| part).collect()))
    }

    fn schema() -> RefOr<Schema> {
        one_of(vec![String::schema(), Vec::<Part>::schema()])
    }

    fn referred(out: &mut Schemas) {
        Part::referred(out);
    }
}

/// A part of a turn's content.
struct Part(ContentPart);

impl Read<'_> for Part {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let kind = if field.kind() == Kind::String {
            content_part::Kind::Text(field.string()?)
        } else {
            let mut part = field.object()?;
            match part.need("type")?.string()?.as_str() {
                // TranslateGemma's form (seed 001): the languages are part of the text.
                "text" if part.peek("target_lang_code").is_some() => {
                    content_part::Kind::OtherJson(field.json())
                }
                "text" => content_part::Kind::Text(TextPart::take_from(&mut part)?.text),
                "image_url" => content_part::Kind::ImageUrl(ImagePart::take_from(&mut part)?.image_url.0),
                "input_audio" => {
                    let Sound { data, format } = SoundPart::take_from(&mut part)?.input_audio;
                    content_part::Kind::InputAudio(InputAudio { data, format })
                }
                _ => content_part::Kind::OtherJson(field.json()),
            }
        };
        Ok(Self(ContentPart { kind: Some(kind) }))
    }

    fn schema() -> RefOr<Schema> {
        Ref::from_schema_name("ChatPart").into()
    }

    fn referred(out: &mut Schemas) {
        let parts = vec![
            tagged::<TextPart>("text", out),
            tagged::<ImagePart>("image_url", out),
            tagged::<SoundPart>("input_audio", out),
        ];
        let either = described(one_of(parts), "A part of a turn's content.");
        out.push(("ChatPart".to_owned(), either));
    }
}

/// OpenAI's `{"url": …}`, or the URL itself.
#[derive(Debug)]
struct ImageUrl(String);

impl Read<'_> for ImageUrl {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        match field.kind() {
            Kind::String => field.string().map(Self),
            Kind::Object => Ok(Self(Image::read(field)?.url)),
            Kind::Null | Kind::Bool | Kind::Number | Kind::Array => Err(field.want("an object with `url`")),
        }
    }

    fn schema() -> RefOr<Schema> {
        one_of(vec![Image::schema(), String::schema()])
    }

    fn referred(out: &mut Schemas) {
        Image::referred(out);
    }
}

fn tool_call(call: Call<'_>) -> Result<ToolCall, Error> {
    let arguments = match call.function.arguments {
        // Some clients send the arguments as an object instead of JSON text.
        Some(field) if field.kind() == Kind::Object => field.json(),
        Some(field) => field.string()?,
        None => String::new(),
    };
    Ok(ToolCall {
        id: call.id.unwrap_or_default(),
        name: call.function.name,
        arguments,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<ChatMessage>, Error> {
        let text = format!("{{\"messages\": {text}}}");
        let mut body = object::Object::body(&text).unwrap();
        Messages::find(&mut body, &["messages"]).map(|Messages(list)| list)
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
