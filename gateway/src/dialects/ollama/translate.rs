//! Ollama's requests, read.

use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, EmbedRequest, ErrorInfo, GenerateRequest, Infill, Prompt, PromptPiece,
    ToolCall, content_part,
    generate_request::{Constraint, Input},
    prompt_piece,
};

use crate::translate::{
    Common, model,
    object::{self, Field, Kind, Object},
    output::{schema, stop},
    prompt::prompts,
    sampling::sampling,
    tools::tools,
};

/// Inputs in one request for vectors.
const MAX_INPUTS: usize = 2048;

/// A request for an answer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GenerationCall {
    pub(crate) common: Common,
    /// The model as the client named it.
    pub(crate) name: String,
    /// Nothing if the model is only to be loaded, or unloaded.
    pub(crate) work: Option<GenerateRequest>,
    /// Which of the two: `keep_alive` is 0.
    pub(crate) unload: bool,
    /// Lines as they come; the default.
    pub(crate) stream: bool,
}

/// A request for vectors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmbeddingCall {
    pub(crate) common: Common,
    pub(crate) work: EmbedRequest,
}

/// Reads `POST /api/chat`.
///
/// # Errors
/// `invalid_json`, or `invalid_request` naming the field.
pub(crate) fn chat(body: &[u8]) -> Result<GenerationCall, ErrorInfo> {
    let mut body = Object::body(object::text(body)?)?;
    let (common, stream) = begin(&mut body)?;
    let messages = match body.take("messages") {
        Some(field) => field.list()?.iter().map(message).collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    let empty = messages.is_empty();
    let continues = messages
        .last()
        .is_some_and(|turn| turn.role == "assistant" && turn.tool_calls.is_empty());
    let mut chat = Chat {
        messages,
        tools: tools(&mut body)?,
        continue_final_message: continues,
        ..Chat::default()
    };
    think(&mut body, &mut chat)?;
    end(body, common, stream, (!empty).then_some(Input::Chat(chat)))
}

/// Reads `POST /api/generate`: through the model's template, unless `raw`.
///
/// # Errors
/// As for [`chat`].
pub(crate) fn generate(body: &[u8]) -> Result<GenerationCall, ErrorInfo> {
    let mut body = Object::body(object::text(body)?)?;
    let (common, stream) = begin(&mut body)?;
    let mut string = |key: &str| body.take(key).map_or(Ok(String::new()), |field| field.string());
    let (prompt, suffix, system) = (string("prompt")?, string("suffix")?, string("system")?);
    let template = string("template")?;
    let raw = body
        .take("raw")
        .map(|field| field.bool())
        .transpose()?
        .unwrap_or_default();
    let images = match body.take("images") {
        Some(field) => images(&field)?,
        None => Vec::new(),
    };
    let input = if !suffix.is_empty() {
        Some(Input::Infill(Infill {
            prefix: prompt,
            suffix,
            ..Infill::default()
        }))
    } else if prompt.is_empty() && images.is_empty() {
        None
    } else if raw {
        let text = PromptPiece {
            kind: Some(prompt_piece::Kind::Text(prompt)),
        };
        Some(Input::Prompt(Prompt {
            pieces: vec![text],
            add_special: None,
        }))
    } else {
        let mut messages = Vec::new();
        if !system.is_empty() {
            messages.push(turn("system", vec![text(system)]));
        }
        messages.push(turn("user", [text(prompt)].into_iter().chain(images).collect()));
        let mut chat = Chat {
            messages,
            template,
            ..Chat::default()
        };
        think(&mut body, &mut chat)?;
        Some(Input::Chat(chat))
    };
    end(body, common, stream, input)
}

/// Reads `POST /api/embed`.
///
/// # Errors
/// As for [`chat`].
pub(crate) fn embed(body: &[u8]) -> Result<EmbeddingCall, ErrorInfo> {
    vectors(body, "input", MAX_INPUTS)
}

/// Reads `POST /api/embeddings`, the older form with one `prompt`.
///
/// # Errors
/// As for [`chat`].
pub(crate) fn embeddings(body: &[u8]) -> Result<EmbeddingCall, ErrorInfo> {
    vectors(body, "prompt", 1)
}

fn vectors(body: &[u8], key: &str, most: usize) -> Result<EmbeddingCall, ErrorInfo> {
    let mut body = Object::body(object::text(body)?)?;
    let common = Common {
        model: model(&mut body)?,
        ..Common::default()
    };
    let work = EmbedRequest {
        inputs: prompts(&body.need(key)?, most)?,
        normalize: None,
        dimensions: body
            .take("dimensions")
            .map(|field| field.u32(0))
            .transpose()?
            .unwrap_or_default(),
    };
    Ok(EmbeddingCall { common, work })
}

fn begin(body: &mut Object<'_>) -> Result<(Common, bool), ErrorInfo> {
    let common = Common {
        model: model(body)?,
        ..Common::default()
    };
    let stream = body.take("stream").map(|field| field.bool()).transpose()?;
    Ok((common, stream.unwrap_or(true)))
}

/// What chats and generation have in common.
fn end(
    mut body: Object<'_>,
    common: Common,
    stream: bool,
    input: Option<Input>,
) -> Result<GenerationCall, ErrorInfo> {
    let mut work = GenerateRequest {
        constraint: body.take("format").map_or(Ok(None), |field| format(&field))?,
        n: 1,
        stream,
        ..GenerateRequest::default()
    };
    if let Some(field) = body.take("options") {
        options(&mut field.object()?, &mut work)?;
    }
    let unload = body.take("keep_alive").is_some_and(|field| is_zero(&field));
    let name = common.model.clone();
    let work = input.map(|input| GenerateRequest {
        input: Some(input),
        ..work
    });
    Ok(GenerationCall {
        common,
        name,
        work,
        unload,
        stream,
    })
}

/// A number of seconds, or a duration in Go's words: `0`, `"0"`, `"0s"`, `"0m0s"`.
fn is_zero(keep_alive: &Field<'_>) -> bool {
    match keep_alive.kind() {
        Kind::Number => keep_alive.json().parse() == Ok(0.0),
        Kind::String => keep_alive.string().is_ok_and(|text| {
            let digits = text.bytes().filter(u8::is_ascii_digit);
            text.starts_with('0') && digits.into_iter().all(|digit| digit == b'0')
        }),
        Kind::Null | Kind::Bool | Kind::Array | Kind::Object => false,
    }
}

/// Options of the request; those of the load are left out.
fn options(options: &mut Object<'_>, work: &mut GenerateRequest) -> Result<(), ErrorInfo> {
    if let Some(field) = options.take("num_predict") {
        // -1 and -2: as far as the context goes.
        work.max_tokens = u32::try_from(field.i32(-2, i32::MAX)?).ok();
    }
    if let Some(field) = options.take("stop") {
        work.stop = stop(&field)?;
    }
    work.sampling = Some(sampling(options)?);
    Ok(())
}

/// `"json"`, or a schema; an empty string is no format.
fn format(field: &Field<'_>) -> Result<Option<Constraint>, ErrorInfo> {
    if field.kind() != Kind::String {
        return Ok(Some(Constraint::JsonSchema(schema(field)?)));
    }
    match field.string()?.as_str() {
        "" => Ok(None),
        "json" => Ok(Some(Constraint::JsonObject(true))),
        _ => Err(field.wrong("must be `json` or a JSON schema")),
    }
}

/// A switch, or how hard.
fn think(body: &mut Object<'_>, chat: &mut Chat) -> Result<(), ErrorInfo> {
    let Some(field) = body.take("think") else {
        return Ok(());
    };
    if field.kind() == Kind::Bool {
        chat.enable_thinking = Some(field.bool()?);
        return Ok(());
    }
    let effort = field.string()?;
    if !["low", "medium", "high"].contains(&effort.as_str()) {
        return Err(field.wrong("must be a boolean, `low`, `medium` or `high`"));
    }
    chat.enable_thinking = Some(true);
    chat.template_kwargs_json = format!("{{\"reasoning_effort\":\"{effort}\"}}");
    Ok(())
}

fn text(text: String) -> ContentPart {
    ContentPart {
        kind: Some(content_part::Kind::Text(text)),
    }
}

fn turn(role: &str, parts: Vec<ContentPart>) -> ChatMessage {
    ChatMessage {
        role: role.to_owned(),
        parts,
        ..ChatMessage::default()
    }
}

/// Base64 of files, whose kind their first bytes tell.
fn images(field: &Field<'_>) -> Result<Vec<ContentPart>, ErrorInfo> {
    let image = |data: String| {
        let media = match data.as_bytes() {
            [b'/', b'9', b'j', b'/', ..] => "image/jpeg",
            [b'R', b'0', b'l', b'G', ..] => "image/gif",
            [b'U', b'k', b'l', b'G', ..] => "image/webp",
            _ => "image/png",
        };
        ContentPart {
            kind: Some(content_part::Kind::ImageUrl(format!(
                "data:{media};base64,{data}"
            ))),
        }
    };
    Ok(field.strings()?.into_iter().map(image).collect())
}

fn message(field: &Field<'_>) -> Result<ChatMessage, ErrorInfo> {
    let mut message = field.object()?;
    let role = message.need("role")?;
    let name = role.string()?;
    if !["system", "user", "assistant", "tool"].contains(&name.as_str()) {
        return Err(role.wrong("must be `system`, `user`, `assistant` or `tool`"));
    }
    let mut string = |key: &str| {
        message
            .take(key)
            .map_or(Ok(String::new()), |field| field.string())
    };
    let said = string("content")?;
    let mut turn = turn(&name, Vec::new());
    turn.reasoning_content = string("thinking")?;
    turn.tool_call_id = string("tool_call_id")?;
    turn.name = string("tool_name")?;
    if !said.is_empty() || name != "assistant" {
        turn.parts.push(text(said));
    }
    if let Some(field) = message.take("images") {
        turn.parts.extend(images(&field)?);
    }
    if let Some(field) = message.take("tool_calls") {
        turn.tool_calls = field.list()?.iter().map(call).collect::<Result<_, _>>()?;
    }
    Ok(turn)
}

fn call(field: &Field<'_>) -> Result<ToolCall, ErrorInfo> {
    let mut call = field.object()?;
    let id = call
        .take("id")
        .map_or(Ok(String::new()), |field| field.string())?;
    let mut function = call.need("function")?.object()?;
    let arguments = match function.take("arguments") {
        Some(field) if field.kind() == Kind::String => field.string()?,
        Some(field) if field.kind() == Kind::Object => field.json(),
        Some(field) => return Err(field.want("an object")),
        None => "{}".to_owned(),
    };
    Ok(ToolCall {
        id,
        name: function.need("name")?.string()?,
        arguments,
    })
}

#[cfg(test)]
mod tests;
