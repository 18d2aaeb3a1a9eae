//! `POST /v1/responses` (OpenAI's Responses; the subset of seed 000; `messages` and `thinking` of seed 001).
//!
//! Nothing is stored, so references to an earlier response are refused.

use muster_core::Error;
use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, GenerateRequest, InputAudio, ToolCall, content_part,
    generate_request::Input,
};

use super::{
    super::requests::{Include, ResponseBody, ResponsePrompt, Truncation, unsupported},
    PLATFORM, asked,
    chat::conversation,
    messages::Messages,
};
use crate::translate::{
    Asked, View,
    object::{self, Field, Kind, Object},
    output::{ResponseFormat, best_of, limit, switches},
    read::{Fields as _, Int, Uint},
};

/// Fields for features that Muster does not have (a store, tools of OpenAI's); they are refused.
const ELSEWHERE: [&str; 3] = ["previous_response_id", "conversation", "prompt"];
/// Fields that the response repeats, in OpenAI's order, each with its value if the request does not have it.
const SHOWN: [(&str, &str); 13] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", "{\"effort\":null,\"summary\":null}"),
    // The model's own setting is not known here.
    ("temperature", "null"),
    ("text", "{\"format\":{\"type\":\"text\"}}"),
    ("tool_choice", "\"auto\""),
    ("tools", "[]"),
    ("top_p", "null"),
    ("truncation", "\"disabled\""),
    ("user", "null"),
];

/// A request for a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResponseCall {
    pub(crate) asked: Asked,
    pub(crate) view: View,
    pub(crate) work: GenerateRequest,
    pub(crate) echo: Echo,
}

/// The part of the response that repeats the request: members of a JSON object, each after a comma.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Echo(pub(crate) String);

/// Reads a request for a response.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn responses(body: &[u8]) -> Result<ResponseCall, Error> {
    let mut body = Object::body(object::text(body)?)?;
    let echo = echo(&body);
    refuse(&mut body)?;
    body.discard(&PLATFORM);
    let request = ResponseBody::take_from(&mut body)?;
    // It limits calls of built-in tools. There are none, so any limit holds.
    let (None | Some(Uint(_)), None | Some(Truncation)) = (request.max_tool_calls, request.truncation);
    let (asked, chat) = response_prompt(request.prompt)?;
    let mut view = View {
        choices: 1,
        stream: request.stream.unwrap_or_default(),
        ..View::default()
    };
    let format = request.text.and_then(|text| text.format);
    let top = request.top_logprobs.map_or(0, |Int(top)| top.unsigned_abs());
    let mut work = GenerateRequest {
        sampling: Some(request.sampling.0),
        constraint: format.and_then(|ResponseFormat(constraint)| constraint),
        max_tokens: request.max_output_tokens.and_then(limit),
        input: Some(Input::Chat(chat)),
        top_logprobs: top,
        logprobs: top > 0 || request.include.is_some_and(|Include(logprobs)| logprobs),
        ..GenerateRequest::default()
    };
    view.logprobs = work.logprobs;
    switches(request.switches, &mut work, &mut view);
    body.discard(&["stream_options"]);
    work.extra_json = body.rest();
    Ok(ResponseCall {
        asked,
        view,
        work,
        echo,
    })
}

/// Reads what makes a response's prompt.
///
/// # Errors
/// `invalid_request` naming the field.
pub(in crate::dialects::openai) fn response_prompt(
    request: ResponsePrompt<'_>,
) -> Result<(Asked, Chat), Error> {
    let turns = turns(request.instructions, request.input, request.messages)?;
    let mut template = request.template;
    let effort = request.reasoning.and_then(|reasoning| reasoning.effort);
    template.reasoning_effort = template.reasoning_effort.or(effort);
    let mut asked = asked(request.asking);
    let chat;
    (chat, asked.thinking) = conversation(Messages(turns), request.tools, template)?;
    Ok((asked, chat))
}

/// Refuses what needs a store, or several answers.
fn refuse(body: &mut Object<'_>) -> Result<(), Error> {
    for key in ELSEWHERE {
        if let Some(field) = body.take(key) {
            return Err(unsupported(&field, "nothing is stored here to refer to"));
        }
    }
    if let Some(field) = body.take("background")
        && field.bool()?
    {
        let why = "responses are not made in the background here";
        return Err(unsupported(&field, why));
    }
    if let Some(field) = body.take("n")
        && field.u32(1)? != 1
    {
        return Err(unsupported(&field, "a response is one answer"));
    }
    best_of(body, 1)?;
    match body.take("response_format") {
        Some(field) => Err(field.wrong("stands under `text.format` here")),
        None => Ok(()),
    }
}

fn echo(body: &Object<'_>) -> Echo {
    let mut text = String::new();
    for (key, absent) in SHOWN {
        let json = body.peek(key).map(|field| field.json());
        text.push_str(&format!(",\"{key}\":{}", json.as_deref().unwrap_or(absent)));
    }
    Echo(text)
}

/// Reads `instructions`, then `input` (text or items) or seed 001's `messages`.
fn turns(
    instructions: Option<String>,
    input: Option<Field<'_>>,
    messages: Option<Messages>,
) -> Result<Vec<ChatMessage>, Error> {
    let mut turns = Turns::default();
    if let Some(instructions) = instructions {
        turns.say("system", vec![text(instructions)]);
    }
    let input = match (input, messages) {
        (Some(input), None | Some(_)) => input,
        (None, Some(Messages(messages))) => {
            turns.list.extend(messages);
            return Ok(turns.list);
        }
        (None, None) => return Err(object::invalid("input", "is required")),
    };
    match input.kind() {
        Kind::String => turns.say("user", vec![text(input.string()?)]),
        Kind::Array => {
            let items = input.list()?;
            if items.is_empty() {
                return Err(input.wrong("must not be empty"));
            }
            items.iter().try_for_each(|item| turns.item(item))?;
        }
        Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
            return Err(input.want("a string or an array of items"));
        }
    }
    Ok(turns.list)
}

fn text(text: String) -> ContentPart {
    ContentPart {
        kind: Some(content_part::Kind::Text(text)),
    }
}

/// Turns, collected from items: one assistant turn may be several items (reasoning, text, calls).
#[derive(Debug, Default)]
struct Turns {
    list: Vec<ChatMessage>,
}

impl Turns {
    fn say(&mut self, role: &str, parts: Vec<ContentPart>) {
        self.list.push(ChatMessage {
            role: role.to_owned(),
            parts,
            ..ChatMessage::default()
        });
    }

    /// The assistant turn that the next item belongs to: the last turn if it is the assistant's, else a new one.
    fn assistant(&mut self) -> &mut ChatMessage {
        if self.list.last().is_none_or(|turn| turn.role != "assistant") {
            self.say("assistant", Vec::new());
        }
        let last = self.list.len() - 1;
        &mut self.list[last]
    }

    fn item(&mut self, field: &Field<'_>) -> Result<(), Error> {
        let mut item = field.object()?;
        let kind = match item.take("type") {
            Some(kind) => kind.string()?,
            None => "message".to_owned(),
        };
        match kind.as_str() {
            "message" => self.message(&mut item),
            "reasoning" => self.reasoning(&mut item),
            "function_call" => {
                let call = ToolCall {
                    id: item.need("call_id")?.string()?,
                    name: item.need("name")?.string()?,
                    arguments: item.need("arguments")?.string()?,
                };
                self.assistant().tool_calls.push(call);
                Ok(())
            }
            "function_call_output" => {
                let id = item.need("call_id")?.string()?;
                self.say("tool", content(&item.need("output")?)?);
                if let Some(turn) = self.list.last_mut() {
                    turn.tool_call_id = id;
                }
                Ok(())
            }
            _ => Err(unsupported(
                field,
                &format!("items of type `{kind}` are not known here"),
            )),
        }
    }

    fn message(&mut self, item: &mut Object<'_>) -> Result<(), Error> {
        let role = item.need("role")?;
        let parts = content(&item.need("content")?)?;
        match role.string()?.as_str() {
            "assistant" => {
                let turn = self.assistant();
                // More text after text or calls begins a turn of its own.
                if turn.parts.is_empty() && turn.tool_calls.is_empty() {
                    turn.parts = parts;
                } else {
                    self.say("assistant", parts);
                }
            }
            name @ ("user" | "system" | "developer") => self.say(name, parts),
            _ => return Err(role.wrong("must be `user`, `assistant`, `system` or `developer`")),
        }
        Ok(())
    }

    fn reasoning(&mut self, item: &mut Object<'_>) -> Result<(), Error> {
        let mut thought = String::new();
        for key in ["content", "summary"] {
            if let Some(field) = item.take(key)
                && thought.is_empty()
            {
                for part in field.list()? {
                    thought.push_str(&part.object()?.need("text")?.string()?);
                }
            }
        }
        // Reasoning begins a new turn.
        self.say("assistant", Vec::new());
        if let Some(turn) = self.list.last_mut() {
            turn.reasoning_content = thought;
        }
        Ok(())
    }
}

/// Reads text, or parts of text and other media.
fn content(field: &Field<'_>) -> Result<Vec<ContentPart>, Error> {
    match field.kind() {
        Kind::String => Ok(vec![text(field.string()?)]),
        Kind::Array => field.list()?.iter().map(part).collect(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
            Err(field.want("a string or an array of content parts"))
        }
    }
}

fn part(field: &Field<'_>) -> Result<ContentPart, Error> {
    if field.kind() == Kind::String {
        return Ok(text(field.string()?));
    }
    let mut part = field.object()?;
    let kind = part.need("type")?.string()?;
    let kind = match kind.as_str() {
        // TranslateGemma's form (seed 001): the languages are part of the text.
        "input_text" | "text" if part.peek("target_lang_code").is_some() => {
            content_part::Kind::OtherJson(field.json())
        }
        "input_text" | "output_text" | "text" => content_part::Kind::Text(part.need("text")?.string()?),
        "refusal" => content_part::Kind::Text(part.need("refusal")?.string()?),
        "input_image" | "image_url" => {
            let image = part.need("image_url")?;
            content_part::Kind::ImageUrl(match image.kind() {
                Kind::Object => image.object()?.need("url")?.string()?,
                Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Array => image.string()?,
            })
        }
        "input_audio" => {
            let mut audio = part.need("input_audio")?.object()?;
            let data = audio.need("data")?.string()?;
            let format = audio.need("format")?.string()?;
            content_part::Kind::InputAudio(InputAudio { data, format })
        }
        _ => {
            return Err(unsupported(
                field,
                &format!("parts of type `{kind}` are not known here"),
            ));
        }
    };
    Ok(ContentPart { kind: Some(kind) })
}

#[cfg(test)]
mod tests;
