//! `POST /v1/responses` (OpenAI's Responses; the subset of seed 000; `messages` and `thinking` of seed 001).
//!
//! Nothing is stored: what refers to an earlier response is refused.

use muster_core::{Code, Error};
use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, GenerateRequest, InputAudio, ToolCall, content_part,
    generate_request::{Constraint, Input},
};

use super::{chat::template, common, messages::messages};
use crate::translate::{
    Common, View,
    object::{self, Field, Kind, Object},
    output::{best_of, response_format, switches, tokens_limit},
    sampling::sampling,
    tools::{tool_choice, tools},
};

/// Features of OpenAI's platform that need a store or workers of theirs.
const ELSEWHERE: [&str; 3] = ["previous_response_id", "conversation", "prompt"];
/// Fields shown again in the response, in OpenAI's order, with what stands there if the request has none.
const SHOWN: [(&str, &str); 13] = [
    ("instructions", "null"),
    ("max_output_tokens", "null"),
    ("max_tool_calls", "null"),
    ("metadata", "{}"),
    ("parallel_tool_calls", "true"),
    ("reasoning", "{\"effort\":null,\"summary\":null}"),
    // What the model's own settings make of it is not known here.
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
    pub(crate) common: Common,
    pub(crate) view: View,
    pub(crate) work: GenerateRequest,
    pub(crate) echo: Echo,
}

/// What a response shows of its request: members of a JSON object, each after a comma.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Echo(pub(crate) String);

/// Reads a request for a response.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn responses(body: &[u8]) -> Result<ResponseCall, Error> {
    let mut body = Object::body(object::text(body)?)?;
    let echo = echo(&body);
    for key in ELSEWHERE {
        if let Some(field) = body.take(key) {
            return Err(unsupported(&field, "nothing is stored here to refer to"));
        }
    }
    if let Some(field) = body.take("background")
        && field.bool()?
    {
        return Err(unsupported(
            &field,
            "responses are not made in the background here",
        ));
    }
    let mut common = common(&mut body)?;
    let mut view = View {
        choices: 1,
        stream: body
            .take("stream")
            .map(|field| field.bool())
            .transpose()?
            .unwrap_or_default(),
        ..View::default()
    };
    let messages = conversation(&mut body)?;
    let tools = tools(&mut body)?;
    let mut chat = Chat {
        messages,
        tool_choice: tool_choice(&mut body, &tools)?,
        tools,
        parallel_tool_calls: body
            .take("parallel_tool_calls")
            .map(|field| field.bool())
            .transpose()?,
        ..Chat::default()
    };
    if let Some(field) = body.take("reasoning")
        && let Some(effort) = field.object()?.take("effort")
    {
        body.put("reasoning_effort", &effort);
    }
    template(&mut body, &mut chat, &mut common)?;
    let mut work = GenerateRequest {
        sampling: Some(sampling(&mut body)?),
        constraint: constraint(&mut body)?,
        max_tokens: tokens_limit(&mut body, &["max_output_tokens", "max_tokens", "n_predict"])?,
        input: Some(Input::Chat(chat)),
        ..GenerateRequest::default()
    };
    if let Some(field) = body.take("top_logprobs") {
        work.top_logprobs = u32::try_from(field.integer(0, 20)?).unwrap_or_default();
        work.logprobs = work.top_logprobs > 0;
    }
    if let Some(field) = body.take("include") {
        work.logprobs |= include(&field)?;
    }
    view.logprobs = work.logprobs;
    limits(&mut body)?;
    switches(&mut body, &mut work, &mut view)?;
    body.discard(&["stream_options"]);
    work.extra_json = body.rest();
    Ok(ResponseCall {
        common,
        view,
        work,
        echo,
    })
}

fn unsupported(field: &Field<'_>, why: &str) -> Error {
    let message = format!("`{}` cannot be honoured: {why}", field.path());
    Code::UnsupportedByRuntime.error(message).with_param(field.path())
}

/// What else is to be in the answer; true if that is the probabilities of its tokens.
fn include(field: &Field<'_>) -> Result<bool, Error> {
    let mut logprobs = false;
    for wanted in field.list()? {
        match wanted.string()?.as_str() {
            "message.output_text.logprobs" => logprobs = true,
            // Nothing is encrypted: reasoning stands in the answer, and is read back from there.
            "reasoning.encrypted_content" => {}
            _ => return Err(unsupported(&wanted, "there is no such thing to include here")),
        }
    }
    Ok(logprobs)
}

/// Fields that bound or shape the answer in ways of OpenAI's own.
fn limits(body: &mut Object<'_>) -> Result<(), Error> {
    // It counts calls of built-in tools, and there are none: any limit is kept.
    if let Some(field) = body.take("max_tool_calls") {
        field.u32(0)?;
    }
    if let Some(field) = body.take("truncation") {
        match field.string()?.as_str() {
            "disabled" => {}
            "auto" => return Err(unsupported(&field, "no turns are dropped here, leave some out")),
            _ => return Err(field.wrong("must be `disabled` or `auto`")),
        }
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

/// `text.format`, in which the schema stands beside its name.
fn constraint(body: &mut Object<'_>) -> Result<Option<Constraint>, Error> {
    let Some(field) = body.take("text") else {
        return Ok(None);
    };
    match field.object()?.take("format") {
        Some(format) => response_format(&format),
        None => Ok(None),
    }
}

/// `instructions`, then `input` (text or items) or seed 001's `messages`.
fn conversation(body: &mut Object<'_>) -> Result<Vec<ChatMessage>, Error> {
    let mut turns = Turns::default();
    if let Some(field) = body.take("instructions") {
        turns.say("system", vec![text(field.string()?)]);
    }
    if body.peek("input").is_none() && body.peek("messages").is_some() {
        turns.list.extend(messages(body)?);
        return Ok(turns.list);
    }
    let input = body.need("input")?;
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

/// Items become turns: what one assistant turn thought, said and called stands apart as items.
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

    /// The assistant turn that is still open to more: the last turn, if it is one.
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
                // Text after text or after calls is a turn of its own.
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
        // Reasoning begins a turn.
        self.say("assistant", Vec::new());
        if let Some(turn) = self.list.last_mut() {
            turn.reasoning_content = thought;
        }
        Ok(())
    }
}

/// Text, or parts of it and other media.
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
        // TranslateGemma's shape (seed 001): its languages belong to the text.
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
