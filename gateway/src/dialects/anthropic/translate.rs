//! Translates Anthropic's requests: its content blocks become turns in OpenAI's form, which chat templates expect.

use muster_core::Error;
use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, GenerateRequest, Tool, ToolCall, ToolChoice, ToolChoiceMode,
    content_part, generate_request::Input, tool_choice,
};

use super::requests::{
    Choice, Content, Conversation, Custom, MaxTokens, MessageBody, OutputConfig, Role, Thinking, ToolBody,
    Turn, unsupported,
};
use crate::translate::{
    Asked,
    object::{self, Field, Kind, Object, quoted},
    output::ResponseFormat,
    read::{At, Fields as _, Read},
};

/// Fields for Anthropic's own platform. They are accepted and ignored.
const PLATFORM: [&str; 8] = [
    "service_tier",
    "inference_geo",
    "cache_control",
    "betas",
    "diagnostics",
    "speed",
    "user_profile_id",
    "workspace_id",
];
/// Fields for features that Muster does not have; they are refused.
const ELSEWHERE: [&str; 3] = ["container", "mcp_servers", "context_management"];

/// A request for a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MessageCall {
    pub(crate) asked: Asked,
    pub(crate) work: GenerateRequest,
    /// Answer with server-sent events instead of one body.
    pub(crate) stream: bool,
}

/// A request to count tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CountCall {
    pub(crate) asked: Asked,
    pub(crate) chat: Chat,
}

/// Reads a request for a message.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn messages(body: &[u8]) -> Result<MessageCall, Error> {
    let mut body = object(body)?;
    let request = MessageBody::take_from(&mut body)?;
    let stream = request.stream.unwrap_or_default();
    let (asked, mut chat) = conversation(request.conversation)?;
    let format = match request.output_config {
        Some(config) => output(config, &mut chat),
        None => request
            .output_format
            .map(|format| ResponseFormat::read(&format))
            .transpose()?,
    };
    let work = GenerateRequest {
        constraint: format.and_then(|ResponseFormat(constraint)| constraint),
        sampling: Some(request.sampling.0),
        max_tokens: request
            .max_tokens
            .and_then(|MaxTokens(most)| u32::try_from(most).ok()),
        stop: request.stop_sequences.unwrap_or_default().0,
        n: 1,
        stream,
        // A stream begins with the count of the prompt's tokens.
        return_progress: stream,
        input: Some(Input::Chat(chat)),
        extra_json: body.rest(),
        ..GenerateRequest::default()
    };
    Ok(MessageCall { asked, work, stream })
}

/// Reads a request to count tokens.
///
/// # Errors
/// As for [`messages`].
pub(crate) fn to_count(body: &[u8]) -> Result<CountCall, Error> {
    let (asked, chat) = conversation(Conversation::take_from(&mut object(body)?)?)?;
    Ok(CountCall { asked, chat })
}

/// Parses a body and drops the fields that are only for Anthropic's platform.
fn object(body: &[u8]) -> Result<Object<'_>, Error> {
    let mut body = Object::body(object::text(body)?)?;
    body.discard(&PLATFORM);
    for key in ELSEWHERE {
        if let Some(field) = body.take(key) {
            return Err(unsupported(&field, &format!("`{key}` is not known here")));
        }
    }
    Ok(body)
}

/// Reads the fields that make the prompt.
fn conversation(asked: Conversation<'_>) -> Result<(Asked, Chat), Error> {
    let whom = Asked {
        model: asked.model,
        user: asked
            .metadata
            .and_then(|metadata| metadata.user_id)
            .unwrap_or_default(),
        ..Asked::default()
    };
    let mut chat = Chat::default();
    if let Some(system) = asked.system {
        chat.messages.push(turn("system", content(system)?));
    }
    if asked.messages.is_empty() {
        return Err(object::invalid("messages", "must not be empty"));
    }
    for message in asked.messages {
        read(message, &mut chat.messages)?;
    }
    let tools = asked.tools.unwrap_or_default();
    chat.tools = tools.into_iter().map(tool).collect::<Result<_, _>>()?;
    if let Some(choice) = asked.tool_choice {
        self::choice(choice, &mut chat)?;
    }
    // Clients always send this field, so a template without thinking ignores it instead of failing.
    chat.enable_thinking = asked.thinking.map(|Thinking { r#type }| r#type.0 != "disabled");
    // A last turn of the assistant is the beginning of the answer.
    let last = chat.messages.last();
    chat.continue_final_message =
        last.is_some_and(|turn| turn.role == "assistant" && turn.tool_calls.is_empty());
    Ok((whom, chat))
}

/// Reads the form of the output, and how much the model reasons.
fn output(config: OutputConfig, chat: &mut Chat) -> Option<ResponseFormat> {
    if let Some(effort) = config.effort {
        chat.template_kwargs_json = format!("{{\"reasoning_effort\":{}}}", quoted(&effort));
    }
    config.format
}

fn turn(role: &str, parts: Vec<ContentPart>) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        parts,
        ..ChatMessage::default()
    }
}

fn part(kind: content_part::Kind) -> ContentPart {
    ContentPart { kind: Some(kind) }
}

/// Translates a message into one or more turns. Results of tools become turns of their own, before the user's text.
fn read(message: Turn<'_>, turns: &mut Vec<ChatMessage>) -> Result<(), Error> {
    let Role(role) = message.role;
    let mut turn = turn(role, Vec::new());
    match message.content {
        Content::Text(text) => turn.parts.push(part(content_part::Kind::Text(text))),
        Content::Blocks(blocks) => {
            for block in blocks {
                self::block(&block, &mut turn, turns)?;
            }
        }
    }
    let only_results = turn.parts.is_empty() && turns.last().is_some_and(|last| last.role == "tool");
    if role == "assistant" || !only_results {
        turns.push(turn);
    }
    Ok(())
}

fn block(field: &Field<'_>, turn: &mut ChatMessage, turns: &mut Vec<ChatMessage>) -> Result<(), Error> {
    let mut block = field.object()?;
    let kind = block.need("type")?.string()?;
    match kind.as_str() {
        "tool_use" => turn.tool_calls.push(ToolCall {
            id: block.need("id")?.string()?,
            name: block.need("name")?.string()?,
            arguments: block.need("input")?.json(),
        }),
        "tool_result" => turns.push(ChatMessage {
            tool_call_id: block.need("tool_use_id")?.string()?,
            ..self::turn(
                "tool",
                Option::find(&mut block, &["content"])?.map_or(Ok(Vec::new()), content)?,
            )
        }),
        "thinking" => turn
            .reasoning_content
            .push_str(&block.need("thinking")?.string()?),
        // Only Anthropic can read it.
        "redacted_thinking" => {}
        _ => turn.parts.push(content_block(field, &kind, &mut block)?),
    }
    Ok(())
}

fn content(content: Content<'_>) -> Result<Vec<ContentPart>, Error> {
    let read = |field: &Field<'_>| {
        let mut block = field.object()?;
        let kind = block.need("type")?.string()?;
        content_block(field, &kind, &mut block)
    };
    match content {
        Content::Text(text) => Ok(vec![part(content_part::Kind::Text(text))]),
        Content::Blocks(blocks) => blocks.iter().map(read).collect(),
    }
}

fn content_block(field: &Field<'_>, kind: &str, block: &mut Object<'_>) -> Result<ContentPart, Error> {
    let unknown = || unsupported(field, &format!("blocks of type `{kind}` are not known here"));
    let kind = match kind {
        "text" => content_part::Kind::Text(block.need("text")?.string()?),
        "image" => {
            let mut source = block.need("source")?.object()?;
            match source.need("type")?.string()?.as_str() {
                "base64" => {
                    let media = source.need("media_type")?.string()?;
                    let data = source.need("data")?.string()?;
                    content_part::Kind::ImageUrl(format!("data:{media};base64,{data}"))
                }
                "url" => content_part::Kind::ImageUrl(source.need("url")?.string()?),
                _ => return Err(unknown()),
            }
        }
        "document" => {
            let mut source = block.need("source")?.object()?;
            match source.need("type")?.string()?.as_str() {
                "text" => content_part::Kind::Text(source.need("data")?.string()?),
                _ => return Err(unknown()),
            }
        }
        _ => return Err(unknown()),
    };
    Ok(part(kind))
}

fn tool(tool: ToolBody<'_>) -> Result<Tool, Error> {
    let ToolBody {
        r#type: None | Some(Custom),
        name,
        description,
        input_schema: schema,
        strict,
    } = tool;
    if schema.kind() != Kind::Object {
        return Err(schema.want("a JSON schema"));
    }
    Ok(Tool {
        name,
        description: description.unwrap_or_default(),
        parameters_json: schema.json(),
        strict,
    })
}

fn choice(choice: Choice<'_>, chat: &mut Chat) -> Result<(), Error> {
    let At { value, field: kind } = choice.r#type;
    let mode = |mode: ToolChoiceMode| tool_choice::Kind::Mode(mode.into());
    let chosen = match value.as_str() {
        "auto" => mode(ToolChoiceMode::Auto),
        "none" => mode(ToolChoiceMode::None),
        "any" if chat.tools.is_empty() => return Err(kind.wrong("asks for a call, but there are no `tools`")),
        "any" => mode(ToolChoiceMode::Required),
        "tool" => {
            let missing = || object::invalid("tool_choice.name", "is required");
            let name = choice.name.ok_or_else(missing)?;
            if !chat.tools.iter().any(|tool| tool.name == name.value) {
                return Err(name.field.wrong("names none of the `tools`"));
            }
            tool_choice::Kind::Function(name.value)
        }
        _ => return Err(kind.wrong("must be `auto`, `any`, `tool` or `none`")),
    };
    chat.tool_choice = Some(ToolChoice { kind: Some(chosen) });
    chat.parallel_tool_calls = choice.disable_parallel_tool_use.map(|one| !one);
    Ok(())
}

#[cfg(test)]
mod tests;
