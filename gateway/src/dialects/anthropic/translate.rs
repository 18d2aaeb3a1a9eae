//! Messages requests, read: Anthropic's blocks become turns in OpenAI's terms, which is what chat templates know.

use muster_proto::{
    Code, ErrorExt as _,
    v1::{
        Chat, ChatMessage, ContentPart, ErrorInfo, GenerateRequest, Tool, ToolCall, ToolChoice,
        ToolChoiceMode, content_part,
        generate_request::{Constraint, Input},
        tool_choice,
    },
};

use crate::translate::{
    Common, model,
    object::{self, Field, Kind, Object, quoted},
    output::{response_format, stop, tokens_limit},
    sampling::sampling,
};

/// Fields that concern Anthropic's platform; accepted and dropped.
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
/// Fields that need what is not here.
const ELSEWHERE: [&str; 3] = ["container", "mcp_servers", "context_management"];

/// A request for a message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MessageCall {
    pub(crate) common: Common,
    pub(crate) work: GenerateRequest,
    /// Server-sent events instead of one body.
    pub(crate) stream: bool,
}

/// A request to count tokens.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CountCall {
    pub(crate) common: Common,
    pub(crate) chat: Chat,
}

/// Reads a request for a message.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn messages(body: &[u8]) -> Result<MessageCall, ErrorInfo> {
    let mut body = Object::body(object::text(body)?)?;
    let stream = body.take("stream").map(|field| field.bool()).transpose()?;
    let max_tokens = match body.peek("max_tokens") {
        Some(field) if field.integer(0, i64::MAX)? == 0 => return Err(field.wrong("must be at least 1")),
        Some(_) => tokens_limit(&mut body, &["max_tokens"])?,
        None => None,
    };
    let (common, mut chat) = conversation(&mut body)?;
    let constraint = output(&mut body, &mut chat)?;
    let mut work = GenerateRequest {
        constraint,
        sampling: Some(sampling(&mut body)?),
        max_tokens,
        stop: body
            .take("stop_sequences")
            .map_or(Ok(Vec::new()), |field| stop(&field))?,
        n: 1,
        stream: stream.unwrap_or_default(),
        input: Some(Input::Chat(chat)),
        ..GenerateRequest::default()
    };
    work.extra_json = body.rest();
    Ok(MessageCall {
        common,
        work,
        stream: stream.unwrap_or_default(),
    })
}

/// Reads a request to count tokens.
///
/// # Errors
/// As for [`messages`].
pub(crate) fn to_count(body: &[u8]) -> Result<CountCall, ErrorInfo> {
    let mut body = Object::body(object::text(body)?)?;
    let (common, chat) = conversation(&mut body)?;
    Ok(CountCall { common, chat })
}

/// What the prompt is made of.
fn conversation(body: &mut Object<'_>) -> Result<(Common, Chat), ErrorInfo> {
    let mut common = Common {
        model: model(body)?,
        ..Common::default()
    };
    body.discard(&PLATFORM);
    for key in ELSEWHERE {
        if let Some(field) = body.take(key) {
            return Err(unsupported(&field, &format!("`{key}` is not known here")));
        }
    }
    if let Some(field) = body.take("metadata")
        && let Some(user) = field.object()?.take("user_id")
    {
        common.user = user.string()?;
    }
    let mut chat = Chat::default();
    if let Some(field) = body.take("system") {
        let parts = content(&field)?;
        chat.messages.push(turn("system", parts));
    }
    let field = body.need("messages")?;
    let list = field.list()?;
    if list.is_empty() {
        return Err(field.wrong("must not be empty"));
    }
    for message in list {
        read(&message, &mut chat.messages)?;
    }
    if let Some(field) = body.take("tools") {
        chat.tools = field.list()?.iter().map(tool).collect::<Result<_, _>>()?;
    }
    if let Some(field) = body.take("tool_choice") {
        choice(&field, &mut chat)?;
    }
    if let Some(field) = body.take("thinking") {
        // A template that cannot think answers without: that is no fault of this request, whose clients always send the field.
        chat.enable_thinking = thinking(&field)?;
    }
    // A last turn of the assistant is the beginning of its answer.
    let last = chat.messages.last();
    chat.continue_final_message =
        last.is_some_and(|turn| turn.role == "assistant" && turn.tool_calls.is_empty());
    Ok((common, chat))
}

/// `output_config`: the form of the output, and how hard to try.
fn output(body: &mut Object<'_>, chat: &mut Chat) -> Result<Option<Constraint>, ErrorInfo> {
    let mut config = match body.take("output_config") {
        Some(field) => field.object()?,
        None => {
            return body
                .take("output_format")
                .map_or(Ok(None), |format| response_format(&format));
        }
    };
    if let Some(effort) = config.take("effort") {
        chat.template_kwargs_json = format!("{{\"reasoning_effort\":{}}}", quoted(&effort.string()?));
    }
    config
        .take("format")
        .map_or(Ok(None), |format| response_format(&format))
}

fn unsupported(field: &Field<'_>, why: &str) -> ErrorInfo {
    Code::UnsupportedByRuntime
        .error(format!("`{}` cannot be honoured: {why}", field.path()))
        .with_param(field.path())
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

/// One message becomes one turn, or several: results of tools are turns of their own, before what the user says beside them.
fn read(field: &Field<'_>, turns: &mut Vec<ChatMessage>) -> Result<(), ErrorInfo> {
    let mut message = field.object()?;
    let role = message.need("role")?;
    let name = role.string()?;
    if !["user", "assistant", "system"].contains(&name.as_str()) {
        return Err(role.wrong("must be `user` or `assistant`"));
    }
    let content = message.need("content")?;
    let mut turn = turn(&name, Vec::new());
    match content.kind() {
        Kind::String => turn.parts.push(part(content_part::Kind::Text(content.string()?))),
        Kind::Array => {
            for block in content.list()? {
                self::block(&block, &mut turn, turns)?;
            }
        }
        Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
            return Err(content.want("a string or an array of blocks"));
        }
    }
    let only_results = turn.parts.is_empty() && turns.last().is_some_and(|last| last.role == "tool");
    if name == "assistant" || !only_results {
        turns.push(turn);
    }
    Ok(())
}

fn block(field: &Field<'_>, turn: &mut ChatMessage, turns: &mut Vec<ChatMessage>) -> Result<(), ErrorInfo> {
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
                block
                    .take("content")
                    .map_or(Ok(Vec::new()), |field| content(&field))?,
            )
        }),
        "thinking" => turn
            .reasoning_content
            .push_str(&block.need("thinking")?.string()?),
        // Nobody but Anthropic can read it.
        "redacted_thinking" => {}
        _ => turn.parts.push(content_block(field, &kind, &mut block)?),
    }
    Ok(())
}

/// Text, or blocks of it and other media.
fn content(field: &Field<'_>) -> Result<Vec<ContentPart>, ErrorInfo> {
    if field.kind() == Kind::String {
        return Ok(vec![part(content_part::Kind::Text(field.string()?))]);
    }
    let read = |field: &Field<'_>| {
        let mut block = field.object()?;
        let kind = block.need("type")?.string()?;
        content_block(field, &kind, &mut block)
    };
    field.list()?.iter().map(read).collect()
}

fn content_block(field: &Field<'_>, kind: &str, block: &mut Object<'_>) -> Result<ContentPart, ErrorInfo> {
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

fn tool(field: &Field<'_>) -> Result<Tool, ErrorInfo> {
    let mut tool = field.object()?;
    if let Some(kind) = tool.take("type")
        && kind.string()? != "custom"
    {
        return Err(unsupported(
            &kind,
            "tools that run at Anthropic's are not known here",
        ));
    }
    let schema = tool.need("input_schema")?;
    if schema.kind() != Kind::Object {
        return Err(schema.want("a JSON schema"));
    }
    let description = tool.take("description").map(|field| field.string()).transpose()?;
    Ok(Tool {
        name: tool.need("name")?.string()?,
        description: description.unwrap_or_default(),
        parameters_json: schema.json(),
        strict: tool.take("strict").map(|field| field.bool()).transpose()?,
    })
}

fn choice(field: &Field<'_>, chat: &mut Chat) -> Result<(), ErrorInfo> {
    let mut choice = field.object()?;
    let kind = choice.need("type")?;
    let mode = |mode: ToolChoiceMode| tool_choice::Kind::Mode(mode.into());
    let chosen = match kind.string()?.as_str() {
        "auto" => mode(ToolChoiceMode::Auto),
        "none" => mode(ToolChoiceMode::None),
        "any" if chat.tools.is_empty() => return Err(kind.wrong("asks for a call, but there are no `tools`")),
        "any" => mode(ToolChoiceMode::Required),
        "tool" => {
            let name = choice.need("name")?;
            let text = name.string()?;
            if !chat.tools.iter().any(|tool| tool.name == text) {
                return Err(name.wrong("names none of the `tools`"));
            }
            tool_choice::Kind::Function(text)
        }
        _ => return Err(kind.wrong("must be `auto`, `any`, `tool` or `none`")),
    };
    chat.tool_choice = Some(ToolChoice { kind: Some(chosen) });
    if let Some(field) = choice.take("disable_parallel_tool_use") {
        chat.parallel_tool_calls = Some(!field.bool()?);
    }
    Ok(())
}

fn thinking(field: &Field<'_>) -> Result<Option<bool>, ErrorInfo> {
    let kind = field.object()?.need("type")?;
    match kind.string()?.as_str() {
        "enabled" | "adaptive" => Ok(Some(true)),
        "disabled" => Ok(Some(false)),
        _ => Err(kind.wrong("must be `enabled`, `adaptive` or `disabled`")),
    }
}

#[cfg(test)]
mod tests;
