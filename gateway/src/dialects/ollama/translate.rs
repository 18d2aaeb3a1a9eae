//! Reads Ollama's requests.

use muster_core::Error;
use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, EmbedRequest, GenerateRequest, Infill, Prompt, PromptPiece, ToolCall,
    content_part, generate_request::Input, prompt_piece,
};

use super::{
    requests::{
        Call, ChatBody, EmbedBody, EmbeddingsBody, Format, GenerateBody, Generation, Options, Role, Turn,
    },
    wants::Wants,
};
use crate::translate::{
    Asked, ModelName,
    object::{Field, Kind},
    prompt::prompts,
    read::{Fields as _, Int, Strings, Uint},
};

/// Largest number of inputs in one request for embeddings.
const MAX_INPUTS: usize = 2048;

/// A request to generate, to load or to unload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GenerationCall {
    pub(crate) asked: Asked,
    /// The model as the client named it.
    pub(crate) name: String,
    /// What to generate; none if the model is only to be loaded or unloaded.
    pub(crate) work: Option<GenerateRequest>,
    /// Unload the model (`keep_alive` is 0) instead of loading it, if there is no work.
    pub(crate) unload: bool,
    /// Answer with lines as they are generated; the default.
    pub(crate) stream: bool,
    /// What it wants of the model's load.
    pub(crate) wants: Wants,
}

/// A request for embeddings.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EmbeddingCall {
    pub(crate) asked: Asked,
    pub(crate) work: EmbedRequest,
    /// What it wants of the model's load.
    pub(crate) wants: Wants,
    /// Inputs that are too long are cut.
    pub(crate) truncate: bool,
}

/// Reads `POST /api/chat`.
///
/// # Errors
/// `invalid_json`, or `invalid_request` naming the field.
pub(crate) fn chat(body: &[u8]) -> Result<GenerationCall, Error> {
    let request = ChatBody::body(body)?;
    let messages = request.messages.unwrap_or_default();
    let messages = messages.into_iter().map(message);
    let messages = messages.collect::<Result<Vec<_>, _>>()?;
    let empty = messages.is_empty();
    let continues = messages
        .last()
        .is_some_and(|turn| turn.role == "assistant" && turn.tool_calls.is_empty());
    let mut chat = Chat {
        messages,
        tools: request.tools.0,
        continue_final_message: continues,
        ..Chat::default()
    };
    think(request.common.think.as_ref(), &mut chat)?;
    Ok(call(request.common, (!empty).then_some(Input::Chat(chat))))
}

/// Reads `POST /api/generate`. The prompt goes through the model's template unless `raw` is set.
///
/// # Errors
/// As for [`chat`].
pub(crate) fn generate(body: &[u8]) -> Result<GenerationCall, Error> {
    let request = GenerateBody::body(body)?;
    let prompt = request.prompt.unwrap_or_default();
    let suffix = request.suffix.unwrap_or_default();
    let system = request.system.unwrap_or_default();
    let images = images(request.images);
    let input = if !suffix.is_empty() {
        Some(Input::Infill(Infill {
            prefix: prompt,
            suffix,
            ..Infill::default()
        }))
    } else if prompt.is_empty() && images.is_empty() {
        None
    } else if request.raw == Some(true) {
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
            template: request.template.unwrap_or_default(),
            ..Chat::default()
        };
        think(request.common.think.as_ref(), &mut chat)?;
        Some(Input::Chat(chat))
    };
    Ok(call(request.common, input))
}

/// Reads `POST /api/embed`.
///
/// # Errors
/// As for [`chat`].
pub(crate) fn embed(body: &[u8]) -> Result<EmbeddingCall, Error> {
    let EmbedBody {
        model,
        input,
        dimensions,
        truncate,
        options,
    } = EmbedBody::body(body)?;
    let call = vectors(model, prompts(&input, MAX_INPUTS)?, dimensions, options);
    Ok(EmbeddingCall {
        truncate: truncate.unwrap_or(true),
        ..call
    })
}

/// Reads `POST /api/embeddings`, the older form with one `prompt`.
///
/// # Errors
/// As for [`chat`].
pub(crate) fn embeddings(body: &[u8]) -> Result<EmbeddingCall, Error> {
    let EmbeddingsBody {
        model,
        prompt,
        dimensions,
        options,
    } = EmbeddingsBody::body(body)?;
    Ok(vectors(model, prompts(&prompt, 1)?, dimensions, options))
}

fn vectors(
    ModelName(model): ModelName,
    inputs: Vec<Prompt>,
    dimensions: Option<Uint<0>>,
    options: Option<Options>,
) -> EmbeddingCall {
    let asked = Asked {
        model: Some(model),
        ..Asked::default()
    };
    let work = EmbedRequest {
        inputs,
        normalize: None,
        dimensions: dimensions.map_or(0, |Uint(length)| length),
    };
    EmbeddingCall {
        asked,
        work,
        wants: options.map_or_else(Wants::default, |options| Wants::of(&options.load)),
        truncate: true,
    }
}

/// Reads the fields that chats and generation share.
fn call(asked: Generation<'_>, input: Option<Input>) -> GenerationCall {
    let ModelName(model) = asked.model;
    let stream = asked.stream.unwrap_or(true);
    let top = asked.top_logprobs.map_or(0, |Int(top)| top.unsigned_abs());
    let logprobs = asked.logprobs.unwrap_or_default();
    let mut work = GenerateRequest {
        logprobs,
        top_logprobs: if logprobs { top } else { 0 },
        constraint: asked.format.and_then(|Format(constraint)| constraint),
        n: 1,
        stream,
        ..GenerateRequest::default()
    };
    let mut wants = Wants::default();
    if let Some(options) = asked.options {
        wants = Wants::of(&options.load);
        // -1 and -2: until the context is full.
        work.max_tokens = options.num_predict.and_then(|Int(most)| u32::try_from(most).ok());
        work.stop = options.stop.unwrap_or_default().0;
        work.sampling = Some(options.sampling.0);
    }
    GenerationCall {
        asked: Asked {
            model: Some(model.clone()),
            ..Asked::default()
        },
        name: model,
        work: input.map(|input| GenerateRequest {
            input: Some(input),
            ..work
        }),
        unload: asked.keep_alive.is_some_and(|field| is_zero(&field)),
        stream,
        wants,
    }
}

/// Reads a duration: a number of seconds, or text in Go's form: `0`, `"0"`, `"0s"`, `"0m0s"`.
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

/// Reads `think`: a boolean, or how much to reason.
fn think(field: Option<&Field<'_>>, chat: &mut Chat) -> Result<(), Error> {
    let Some(field) = field else {
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

/// Reads base64 images. Their first bytes tell the format.
fn images(given: Option<Strings>) -> Vec<ContentPart> {
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
    given.unwrap_or_default().0.into_iter().map(image).collect()
}

fn message(given: Turn<'_>) -> Result<ChatMessage, Error> {
    let Role(role) = given.role;
    let said = given.content.unwrap_or_default();
    let mut parts = Vec::new();
    if !said.is_empty() || role != "assistant" {
        parts.push(text(said));
    }
    parts.extend(images(given.images));
    let calls = given.tool_calls.unwrap_or_default();
    Ok(ChatMessage {
        reasoning_content: given.thinking.unwrap_or_default(),
        tool_call_id: given.tool_call_id.unwrap_or_default(),
        name: given.tool_name.unwrap_or_default(),
        tool_calls: calls.into_iter().map(tool_call).collect::<Result<_, _>>()?,
        ..turn(role, parts)
    })
}

fn tool_call(given: Call<'_>) -> Result<ToolCall, Error> {
    let arguments = match given.function.arguments {
        Some(field) if field.kind() == Kind::String => field.string()?,
        Some(field) if field.kind() == Kind::Object => field.json(),
        Some(field) => return Err(field.want("an object")),
        None => "{}".to_owned(),
    };
    Ok(ToolCall {
        id: given.id.unwrap_or_default(),
        name: given.function.name,
        arguments,
    })
}

#[cfg(test)]
mod tests;
