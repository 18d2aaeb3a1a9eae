//! `POST /v1/chat/completions` (OpenAI; seeds 000 and 004).

use muster_core::{Code, Error};
use muster_proto::v1::{Chat, GenerateRequest, generate_request::Input};

use super::{ChatCall, common, messages::messages};
use crate::translate::{
    Common, View,
    object::{self, Field, Kind, Object, quoted},
    output::{best_of, constraint, max_tokens, switches, view},
    sampling::sampling,
    tools::{tool_choice, tools},
};

const REASONING_FORMATS: [&str; 4] = ["none", "auto", "deepseek", "deepseek-legacy"];
const MAX_TOP_LOGPROBS: i64 = 20;

/// Reads a chat request.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn chat(body: &[u8]) -> Result<ChatCall, Error> {
    let mut body = Object::body(object::text(body)?)?;
    let mut common = common(&mut body)?;
    let mut view = view(&mut body)?;
    refuse_audio(&mut body)?;
    best_of(&mut body, view.choices)?;
    let messages = messages(&mut body)?;
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
    template(&mut body, &mut chat, &mut common)?;
    let mut work = GenerateRequest {
        sampling: Some(sampling(&mut body)?),
        constraint: constraint(&mut body)?,
        max_tokens: max_tokens(&mut body)?,
        reasoning_format: reasoning_format(&mut body)?,
        input: Some(Input::Chat(chat)),
        ..GenerateRequest::default()
    };
    logprobs(&mut body, &mut work, &mut view)?;
    switches(&mut body, &mut work, &mut view)?;
    work.extra_json = body.rest();
    Ok(ChatCall { common, view, work })
}

/// Text in, text out: what asks for sound back, or for a search, is refused instead of ignored.
fn refuse_audio(body: &mut Object<'_>) -> Result<(), Error> {
    if let Some(field) = body.take("modalities")
        && field.strings()?.iter().any(|modality| modality != "text")
    {
        return Err(unsupported(&field, "`modalities` other than text"));
    }
    for key in ["audio", "web_search_options"] {
        if let Some(field) = body.take(key) {
            return Err(unsupported(&field, &format!("`{key}`")));
        }
    }
    Ok(())
}

fn unsupported(field: &Field<'_>, what: &str) -> Error {
    let error = Code::UnsupportedByRuntime.error(format!("no runtime here can do {what}"));
    error.with_param(field.path())
}

/// Everything that goes to the chat template.
pub(crate) fn template(body: &mut Object<'_>, chat: &mut Chat, common: &mut Common) -> Result<(), Error> {
    if let Some(field) = body.take("chat_template") {
        chat.template = field.string()?;
    }
    if let Some(field) = body.take("continue_final_message") {
        chat.continue_final_message = field.bool()?;
    }
    chat.enable_thinking = body
        .take("enable_thinking")
        .map(|field| field.bool())
        .transpose()?;
    let effort = body.take("reasoning_effort");
    let effort = effort.map(|field| field.string()).transpose()?;
    if effort.as_deref() == Some("none") {
        chat.enable_thinking = chat.enable_thinking.or(Some(false));
    }
    if let Some(field) = body.take("chat_template_kwargs") {
        let thinking = field.object()?.take("enable_thinking");
        if let Some(field) = thinking.filter(|field| field.kind() == Kind::Bool) {
            chat.enable_thinking = chat.enable_thinking.or(Some(field.bool()?));
        }
        chat.template_kwargs_json = field.json();
    }
    if let Some(effort) = effort {
        chat.template_kwargs_json = with_effort(&chat.template_kwargs_json, &effort)?;
    }
    if let Some(field) = body.take("thinking")
        && let Some(enabled) = thinking(&field)?
    {
        chat.enable_thinking = Some(enabled);
        common.thinking = true;
    }
    Ok(())
}

/// Adds `reasoning_effort` to the template's arguments unless they have one: templates that know it (gpt-oss) read it there.
fn with_effort(kwargs: &str, effort: &str) -> Result<String, Error> {
    let mine = format!("{{\"reasoning_effort\":{}}}", quoted(effort));
    if kwargs.is_empty() {
        return Ok(mine);
    }
    let mut object = Object::body(kwargs)?;
    if object.take("reasoning_effort").is_some() {
        return Ok(kwargs.to_owned());
    }
    match object.rest() {
        rest if rest.is_empty() => Ok(mine),
        rest => Ok(format!("{},{}", &mine[..mine.len() - 1], &rest[1..])),
    }
}

/// Seed 001's `thinking`: `default`, `enabled` or `disabled`; also Anthropic-style `{"type": …}`, which some clients send.
fn thinking(field: &Field<'_>) -> Result<Option<bool>, Error> {
    let field = match field.kind() {
        Kind::Object => field.object()?.need("type")?,
        Kind::Null | Kind::Bool | Kind::Number | Kind::String | Kind::Array => field.clone(),
    };
    match field.string()?.as_str() {
        "default" => Ok(None),
        "enabled" => Ok(Some(true)),
        "disabled" => Ok(Some(false)),
        _ => Err(field.wrong("must be `default`, `enabled` or `disabled`")),
    }
}

fn reasoning_format(body: &mut Object<'_>) -> Result<String, Error> {
    let Some(field) = body.take("reasoning_format") else {
        return Ok(String::new());
    };
    let format = field.string()?;
    if REASONING_FORMATS.contains(&format.as_str()) {
        return Ok(format);
    }
    Err(field.wrong("must be `none`, `auto`, `deepseek` or `deepseek-legacy`"))
}

/// OpenAI's `logprobs` and `top_logprobs`, llama.cpp's `n_probs`.
fn logprobs(body: &mut Object<'_>, work: &mut GenerateRequest, view: &mut View) -> Result<(), Error> {
    let wanted = body.take("logprobs").map(|field| field.bool()).transpose()?;
    if let Some(field) = body.take("top_logprobs") {
        let top = field.integer(0, MAX_TOP_LOGPROBS)?;
        if top > 0 && wanted != Some(true) {
            return Err(field.wrong("needs `logprobs` to be true"));
        }
        work.top_logprobs = u32::try_from(top).unwrap_or_default();
    }
    if let Some(field) = body.take("n_probs") {
        work.top_logprobs = work.top_logprobs.max(field.u32(0)?);
    }
    work.logprobs = wanted.unwrap_or(work.top_logprobs > 0);
    view.logprobs = work.logprobs;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Result<ChatCall, Error> {
        let messages = r#""model": "m", "messages": [{"role": "user", "content": "hi"}]"#;
        chat(format!("{{{messages}{fields}}}").as_bytes())
    }

    fn of(call: &ChatCall) -> &Chat {
        match call.work.input.as_ref().unwrap() {
            Input::Chat(chat) => chat,
            Input::Prompt(_) | Input::Infill(_) => panic!("not a chat"),
        }
    }

    #[test]
    fn every_openai_field_is_accepted() {
        let call = read(
            r#", "stream": true, "stream_options": {"include_usage": true}, "n": 2, "seed": 7, "stop": "x",
              "logprobs": true, "top_logprobs": 3, "max_completion_tokens": 9, "temperature": 0.5, "top_p": 1,
              "presence_penalty": 1, "frequency_penalty": -1, "logit_bias": {"1": 2}, "user": "u",
              "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "parallel_tool_calls": false,
              "reasoning_effort": "low", "response_format": {"type": "text"}, "modalities": ["text"],
              "prediction": null, "verbosity": "low", "prompt_cache_key": "k", "safety_identifier": "s""#,
        )
        .unwrap();
        assert_eq!(
            call.common,
            Common {
                model: "m".into(),
                user: "u".into(),
                thinking: false
            }
        );
        assert!(call.view.stream && call.view.include_usage && call.view.logprobs);
        assert_eq!(
            (call.work.n, call.work.max_tokens, call.work.top_logprobs),
            (2, Some(9), 3)
        );
        assert_eq!(call.work.extra_json, "");
        assert_eq!(of(&call).template_kwargs_json, r#"{"reasoning_effort":"low"}"#);
    }

    #[test]
    fn unknown_fields_pass_through_untouched() {
        let call = read(r#", "timings_per_token": true, "lora": [{"id": 0, "scale": 0.50}]"#).unwrap();
        assert_eq!(
            call.work.extra_json,
            r#"{"timings_per_token":true,"lora":[{"id": 0, "scale": 0.50}]}"#
        );
    }

    #[test]
    fn thinking_is_switched_in_each_dialect() {
        let thinking = |fields| of(&read(fields).unwrap()).enable_thinking;
        assert_eq!(thinking(""), None);
        assert_eq!(thinking(r#", "thinking": "default""#), None);
        assert_eq!(thinking(r#", "thinking": "disabled""#), Some(false));
        assert_eq!(thinking(r#", "enable_thinking": true"#), Some(true));
        assert_eq!(
            thinking(r#", "chat_template_kwargs": {"enable_thinking": false}"#),
            Some(false)
        );
        assert_eq!(thinking(r#", "reasoning_effort": "none""#), Some(false));
        assert!(read(r#", "thinking": "enabled""#).unwrap().common.thinking);
        assert_eq!(
            read(r#", "thinking": "maybe""#)
                .unwrap_err()
                .param
                .unwrap_or_default(),
            "thinking"
        );
    }

    #[test]
    fn effort_joins_the_templates_arguments() {
        assert_eq!(
            with_effort(r#"{"a": 1}"#, "low").unwrap(),
            r#"{"reasoning_effort":"low","a":1}"#
        );
        let own = r#"{"reasoning_effort": "high"}"#;
        assert_eq!(with_effort(own, "low").unwrap(), own);
    }

    #[test]
    fn faults_are_refused_by_name() {
        for (fields, param) in [
            (r#", "temperature": "hot""#, "temperature"),
            (r#", "stream": 1"#, "stream"),
            (
                r#", "stream_options": {"include_usage": 1}"#,
                "stream_options.include_usage",
            ),
            (r#", "n": 0"#, "n"),
            (r#", "top_logprobs": 3"#, "top_logprobs"),
            (r#", "top_logprobs": 21, "logprobs": true"#, "top_logprobs"),
            (r#", "stop": [1]"#, "stop[0]"),
            (r#", "best_of": 3"#, "best_of"),
            (r#", "modalities": ["audio"]"#, "modalities"),
            (r#", "reasoning_format": "x""#, "reasoning_format"),
        ] {
            assert_eq!(
                read(fields).unwrap_err().param.unwrap_or_default(),
                param,
                "{fields}"
            );
        }
        assert_eq!(
            chat(br#"{"messages": []}"#)
                .unwrap_err()
                .param
                .unwrap_or_default(),
            "model"
        );
        assert_eq!(
            chat(br#"{"model": "m"}"#).unwrap_err().param.unwrap_or_default(),
            "messages"
        );
        assert_eq!(chat(b"{").unwrap_err().code, Code::InvalidJson);
    }
}
