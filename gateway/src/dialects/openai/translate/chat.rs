//! `POST /v1/chat/completions` (OpenAI; seeds 000 and 004).

use muster_core::{Code, Error};
use muster_proto::v1::{Chat, ChatMessage, GenerateRequest, generate_request::Input};

use super::{
    super::requests::{Arguments, ChatBody, ChatPrompt, ReasoningFormat, Template, Thinking},
    ChatCall, asked,
    messages::Messages,
    opened,
};
use crate::translate::{
    Asked,
    object::{self, Field, Kind, Object, quoted},
    output::{best_of, constraint, max_tokens, switches, view},
    read::{Fields as _, Int, Uint},
    tools::{ToolUse, Tools, tool_choice},
};

/// Reads a chat request.
///
/// # Errors
/// `invalid_json`, `invalid_request` naming the field, or `unsupported_by_runtime`.
pub(crate) fn chat(body: &[u8]) -> Result<ChatCall, Error> {
    let mut body = opened(body)?;
    refuse_audio(&mut body)?;
    let request = ChatBody::take_from(&mut body)?;
    let mut view = view(request.viewing);
    best_of(&mut body, view.choices)?;
    let (asked, chat) = chat_prompt(request.prompt)?;
    let format = request.reasoning_format;
    let mut work = GenerateRequest {
        sampling: Some(request.sampling.0),
        constraint: constraint(request.constraints)?,
        max_tokens: max_tokens(&request.limits),
        reasoning_format: format.map_or(String::new(), |ReasoningFormat(format)| format.to_owned()),
        input: Some(Input::Chat(chat)),
        ..GenerateRequest::default()
    };
    let top = request.top_logprobs.map_or(0, |Int(top)| top.unsigned_abs());
    if top > 0 && request.logprobs != Some(true) {
        return Err(object::invalid("top_logprobs", "needs `logprobs` to be true"));
    }
    work.top_logprobs = top.max(request.n_probs.map_or(0, |Uint(top)| top));
    work.logprobs = request.logprobs.unwrap_or(work.top_logprobs > 0);
    view.logprobs = work.logprobs;
    switches(request.switches, &mut work, &mut view);
    work.extra_json = body.rest();
    Ok(ChatCall { asked, view, work })
}

/// Refuses requests for audio output or a web search: an answer without them would be wrong.
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

/// Reads what makes a chat's prompt.
///
/// # Errors
/// `invalid_request` naming the field.
pub(in crate::dialects) fn chat_prompt(request: ChatPrompt<'_>) -> Result<(Asked, Chat), Error> {
    let mut asked = asked(request.asking);
    let chat;
    (chat, asked.thinking) = conversation(request.messages, request.tools, request.template)?;
    Ok((asked, chat))
}

/// Everything that goes to the chat template, and whether thinking was switched explicitly.
pub(super) fn conversation(
    messages: Messages,
    tools: ToolUse<'_>,
    asked: Template<'_>,
) -> Result<(Chat, bool), Error> {
    let Tools(known) = tools.tools;
    let mut chat = Chat {
        continue_final_message: continued(&messages.0, &asked)?,
        messages: messages.0,
        tool_choice: tool_choice(tools.tool_choice, &known)?,
        tools: known,
        parallel_tool_calls: tools.parallel_tool_calls,
        add_generation_prompt: asked.add_generation_prompt,
        ..Chat::default()
    };
    let mut switched = false;
    chat.template = asked.chat_template.unwrap_or_default();
    chat.enable_thinking = asked.enable_thinking;
    if asked.reasoning_effort.as_deref() == Some("none") {
        chat.enable_thinking = chat.enable_thinking.or(Some(false));
    }
    if let Some(Arguments(field)) = asked.chat_template_kwargs {
        let thinking = field.object()?.take("enable_thinking");
        if let Some(field) = thinking.filter(|field| field.kind() == Kind::Bool) {
            chat.enable_thinking = chat.enable_thinking.or(Some(field.bool()?));
        }
        chat.template_kwargs_json = field.json();
    }
    if let Some(effort) = asked.reasoning_effort {
        chat.template_kwargs_json = with_effort(&chat.template_kwargs_json, &effort)?;
    }
    if let Some(Thinking(Some(enabled))) = asked.thinking {
        chat.enable_thinking = Some(enabled);
        switched = true;
    }
    Ok((chat, switched))
}

/// Whether the last turn is to be continued: llama.cpp does so with an answer that ends a conversation.
fn continued(messages: &[ChatMessage], asked: &Template<'_>) -> Result<bool, Error> {
    let answer = |turn: &ChatMessage| turn.role == "assistant" && turn.tool_calls.is_empty();
    let answers = messages.iter().rev().take_while(|turn| answer(turn)).count();
    match asked.continue_final_message {
        Some(false) => return Ok(false),
        Some(true) if asked.add_generation_prompt == Some(true) => {
            let wrong = "excludes `add_generation_prompt`";
            return Err(object::invalid("continue_final_message", wrong));
        }
        Some(true) if answers == 0 => {
            let wrong = "needs an answer of the assistant as the last turn";
            return Err(object::invalid("continue_final_message", wrong));
        }
        Some(true) | None => {}
    }
    if answers > 1 {
        return Err(object::invalid(
            "messages",
            "must not end with several turns of the assistant",
        ));
    }
    Ok(answers == 1)
}

/// Adds `reasoning_effort` to the template's arguments unless they have it already: templates that know it (gpt-oss) read it there.
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
            call.asked,
            Asked {
                model: Some("m".into()),
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
        let call = read(r#", "n_cache_reuse": 8, "lora": [{"id": 0, "scale": 0.50}]"#).unwrap();
        assert_eq!(
            call.work.extra_json,
            r#"{"n_cache_reuse":8,"lora":[{"id": 0, "scale": 0.50}]}"#
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
        assert!(read(r#", "thinking": "enabled""#).unwrap().asked.thinking);
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
    fn an_answer_at_the_end_is_continued_as_llama_cpp_does() {
        let turns = |last: &str, fields: &str| {
            let body = format!(
                r#"{{"model": "m", "messages": [{{"role": "user", "content": "a"}}, {last}] {fields}}}"#
            );
            chat(body.as_bytes()).map(|call| of(&call).clone())
        };
        let answer = r#"{"role": "assistant", "content": "b"}"#;
        let question = r#"{"role": "user", "content": "c"}"#;
        assert!(turns(answer, "").unwrap().continue_final_message);
        assert!(!turns(question, "").unwrap().continue_final_message);
        assert!(
            !turns(answer, r#", "continue_final_message": false"#)
                .unwrap()
                .continue_final_message
        );
        let plain = turns(question, r#", "add_generation_prompt": false"#).unwrap();
        assert_eq!(plain.add_generation_prompt, Some(false));
        for (last, fields, param) in [
            (
                question.to_owned(),
                r#", "continue_final_message": true"#,
                "continue_final_message",
            ),
            (
                answer.to_owned(),
                r#", "continue_final_message": true, "add_generation_prompt": true"#,
                "continue_final_message",
            ),
            (format!("{answer}, {answer}"), "", "messages"),
        ] {
            assert_eq!(turns(&last, fields).unwrap_err().param.as_deref(), Some(param));
        }
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
            chat(br#"{"model": "m"}"#).unwrap_err().param.unwrap_or_default(),
            "messages"
        );
        assert_eq!(chat(b"{").unwrap_err().code, Code::InvalidJson);
    }
}
