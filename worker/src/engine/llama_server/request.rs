//! Our requests as llama-server's JSON. What the server cannot do is refused here, never dropped.

use muster_core::{Code, Error};
use muster_proto::{
    limits::TOP_LOGPROBS,
    oai,
    parameters::SAMPLING,
    v1::{
        Chat, GenerateRequest, Infill, Prompt, PromptPiece, Sampling, content_part,
        generate_request::{Constraint, Input},
        logit_bias, prompt_piece,
    },
};
use prost::Message as _;
use serde_json::{Map, Value, json};

/// Requests of at least this many bytes report their progress even if the caller did not ask for it. llama-server notices only when it
/// sends something that nobody listens any more. With progress it sends after each batch; without, it reads a long prompt to its end for
/// nobody.
const LONG: usize = 512;

/// The form of the server's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI chat chunks.
    Chat,
    /// llama.cpp's own `/completion`.
    LlamaCpp,
}

/// A request in the server's form.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) path: &'static str,
    pub(super) body: Value,
    pub(super) dialect: Dialect,
    /// Its texts must be tokenized without special tokens first, since the server always adds those to text.
    pub(super) bare: bool,
}

/// The kinds of media that a model takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Media {
    pub(super) vision: bool,
    pub(super) audio: bool,
}

impl Media {
    /// Refuses media that the model does not take, in place of the server's own kind of error.
    ///
    /// # Errors
    /// `unsupported_by_runtime`, naming the message.
    pub(super) fn check(self, request: &GenerateRequest) -> Result<(), Error> {
        let chat = match &request.input {
            Some(Input::Chat(chat)) => chat,
            Some(Input::Prompt(prompt)) => return self.check_prompt(prompt),
            Some(Input::Infill(_)) | None => return Ok(()),
        };
        for (index, message) in chat.messages.iter().enumerate() {
            let refused = message.parts.iter().find_map(|part| match &part.kind {
                Some(content_part::Kind::ImageUrl(_)) if !self.vision => Some("images"),
                Some(content_part::Kind::InputAudio(_)) if !self.audio => Some("sound"),
                Some(
                    content_part::Kind::Text(_)
                    | content_part::Kind::ImageUrl(_)
                    | content_part::Kind::InputAudio(_)
                    | content_part::Kind::OtherJson(_),
                )
                | None => None,
            });
            if let Some(what) = refused {
                return Err(Code::UnsupportedByRuntime
                    .error(format!("this model takes no {what}"))
                    .with_param(format!("messages[{index}].content")));
            }
        }
        Ok(())
    }

    /// As [`check`](Self::check), for a plain prompt, in which a file may be an image or a sound: where neither is taken, llama.cpp's own answer is
    /// 400 too.
    ///
    /// # Errors
    /// `invalid_request`.
    pub(super) fn check_prompt(self, prompt: &Prompt) -> Result<(), Error> {
        if !has_media(prompt) {
            return Ok(());
        }
        let has_tokens = |piece: &PromptPiece| matches!(piece.kind, Some(prompt_piece::Kind::Tokens(_)));
        let why = if !self.vision && !self.audio {
            "this model takes no images or sounds"
        } else if prompt.pieces.iter().any(has_tokens) || prompt.add_special == Some(false) {
            "images and sounds go into text alone, which begins as the model's texts do"
        } else if prompt.pieces.last().is_some_and(is_media) {
            // llama.cpp's server aborts where it is to compute a vector of such an input, and answers 500 to others.
            "text must follow the last image or sound"
        } else {
            return Ok(());
        };
        Err(Code::InvalidRequest.error(why).with_param("prompt"))
    }
}

/// Refuses more alternatives per token than a request may ask for. The server's own limit is the vocabulary.
fn check_alternatives(request: &GenerateRequest) -> Result<(), Error> {
    if request.top_logprobs <= TOP_LOGPROBS {
        return Ok(());
    }
    let message = format!("no more than {TOP_LOGPROBS} alternatives of a token are told");
    Err(Code::InvalidRequest.error(message).with_param("n_probs"))
}

/// vLLM's options that llama.cpp's server does not have.
const VLLMS: [&str; 6] = [
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "structured_outputs",
    "min_tokens",
];

/// Whether an option's value asks for anything.
fn asks(value: &Value) -> bool {
    !value.is_null() && value.as_f64() != Some(0.0)
}

/// Translates a request. `marker` stands for media in its prompt; `context` replaces llama.cpp's `-1` (the whole context), which current servers refuse.
///
/// # Errors
/// `unsupported_by_runtime` or `invalid_request`, naming the parameter.
pub(super) fn generate(request: &GenerateRequest, context: u32, marker: &str) -> Result<Wire, Error> {
    check_alternatives(request)?;
    let mut body = oai::object(&request.extra_json);
    // llama.cpp's server would ignore them.
    let ignored = VLLMS.iter().find(|key| body.get(**key).is_some_and(asks));
    if let Some(key) = ignored {
        return Err(unsupported(key));
    }
    if let Some(sampling) = &request.sampling {
        sampling_fields(sampling.clone(), context, &mut body);
    }
    common_fields(request, &mut body);
    let (path, dialect, bare) = match &request.input {
        Some(Input::Chat(chat)) => {
            chat_fields(request, chat, &mut body)?;
            ("/v1/chat/completions", Dialect::Chat, false)
        }
        Some(Input::Prompt(prompt)) => {
            completion_fields(request, &mut body)?;
            body.insert("prompt".into(), input_value(prompt, marker));
            (
                "/completion",
                Dialect::LlamaCpp,
                prompt.add_special == Some(false),
            )
        }
        Some(Input::Infill(infill)) => {
            completion_fields(request, &mut body)?;
            infill_fields(infill, &mut body);
            ("/infill", Dialect::LlamaCpp, false)
        }
        None => {
            return Err(Code::InvalidRequest
                .error("no input was given")
                .with_param("prompt"));
        }
    };
    Ok(Wire {
        path,
        body: Value::Object(body),
        dialect,
        bare,
    })
}

fn has_media(prompt: &Prompt) -> bool {
    prompt.pieces.iter().any(is_media)
}

fn is_media(piece: &PromptPiece) -> bool {
    matches!(piece.kind, Some(prompt_piece::Kind::Media(_)))
}

/// A prompt as input: as [`prompt_value`], or an object with files, at whose places `marker` stands.
pub(super) fn input_value(prompt: &Prompt, marker: &str) -> Value {
    if !has_media(prompt) {
        return prompt_value(prompt);
    }
    let (mut text, mut files) = (String::new(), Vec::new());
    for PromptPiece { kind } in &prompt.pieces {
        match kind {
            Some(prompt_piece::Kind::Text(piece)) => text.push_str(piece),
            Some(prompt_piece::Kind::Media(file)) => {
                text.push_str(marker);
                files.push(file.as_str());
            }
            // Refused before (`Media::check_prompt`).
            Some(prompt_piece::Kind::Tokens(_)) | None => {}
        }
    }
    json!({"prompt_string": text, "multimodal_data": files})
}

/// A prompt without media in llama.cpp's form: a string, an array of tokens, or a mixed array.
pub(super) fn prompt_value(prompt: &Prompt) -> Value {
    let mut parts: Vec<Value> = Vec::new();
    for PromptPiece { kind } in &prompt.pieces {
        match (kind, parts.last_mut()) {
            // Two strings in an array would count as two prompts.
            (Some(prompt_piece::Kind::Text(text)), Some(Value::String(last))) => last.push_str(text),
            (Some(prompt_piece::Kind::Text(text)), Some(_) | None) => parts.push(text.clone().into()),
            (Some(prompt_piece::Kind::Tokens(tokens)), _) => {
                parts.extend(tokens.ids.iter().map(|id| Value::from(*id)))
            }
            (Some(prompt_piece::Kind::Media(_)) | None, _) => {}
        }
    }
    match parts.as_slice() {
        [] => "".into(),
        [Value::String(text)] => text.clone().into(),
        _ => parts.into(),
    }
}

/// Writes the fields of a chat that `/v1/chat/completions` and `/apply-template` share.
///
/// # Errors
/// `unsupported_by_runtime` for a template in the request, `invalid_request` for kwargs that are no object.
pub(super) fn conversation(chat: &Chat, body: &mut Map<String, Value>) -> Result<(), Error> {
    if !chat.template.is_empty() {
        return Err(unsupported("chat_template"));
    }
    body.insert("messages".into(), oai::messages(chat));
    if !chat.tools.is_empty() {
        body.insert("tools".into(), oai::tools(chat));
    }
    if let Some(choice) = chat.tool_choice.as_ref().and_then(oai::tool_choice) {
        body.insert("tool_choice".into(), choice);
    }
    some(body, "parallel_tool_calls", chat.parallel_tool_calls);
    let mut kwargs = oai::object(&chat.template_kwargs_json);
    some(&mut kwargs, "enable_thinking", chat.enable_thinking);
    if !kwargs.is_empty() {
        body.insert("chat_template_kwargs".into(), kwargs.into());
    }
    some(body, "add_generation_prompt", chat.add_generation_prompt);
    if chat.continue_final_message {
        body.insert("continue_final_message".into(), true.into());
        body.insert("add_generation_prompt".into(), false.into());
    }
    Ok(())
}

fn chat_fields(request: &GenerateRequest, chat: &Chat, body: &mut Map<String, Value>) -> Result<(), Error> {
    if request.return_tokens {
        return Err(unsupported("return_tokens"));
    }
    conversation(chat, body)?;
    body.insert("stream_options".into(), json!({"include_usage": true}));
    if wants_logprobs(request) {
        body.insert("logprobs".into(), true.into());
        body.insert("top_logprobs".into(), request.top_logprobs.max(1).into());
    }
    if request.return_prompt || request.return_sampling {
        body.insert("verbose".into(), true.into());
    }
    if !request.reasoning_format.is_empty() {
        body.insert("reasoning_format".into(), request.reasoning_format.clone().into());
    }
    match &request.constraint {
        Some(Constraint::JsonObject(true)) => {
            body.insert("response_format".into(), json!({"type": "json_object"}));
        }
        Some(Constraint::JsonSchema(schema)) => {
            let schema = json!({"type": "json_schema", "json_schema": {"schema": parse_schema(schema)?}});
            body.insert("response_format".into(), schema);
        }
        Some(Constraint::Grammar(grammar)) => {
            body.insert("grammar".into(), grammar.clone().into());
        }
        Some(Constraint::JsonObject(false)) | None => {}
    }
    Ok(())
}

fn completion_fields(request: &GenerateRequest, body: &mut Map<String, Value>) -> Result<(), Error> {
    if wants_logprobs(request) {
        body.insert("n_probs".into(), request.top_logprobs.max(1).into());
    }
    body.insert("return_tokens".into(), request.return_tokens.into());
    match &request.constraint {
        Some(Constraint::JsonObject(true)) => {
            body.insert("json_schema".into(), json!({}));
        }
        Some(Constraint::JsonSchema(schema)) => {
            body.insert("json_schema".into(), parse_schema(schema)?);
        }
        Some(Constraint::Grammar(grammar)) => {
            body.insert("grammar".into(), grammar.clone().into());
        }
        Some(Constraint::JsonObject(false)) | None => {}
    }
    Ok(())
}

fn infill_fields(infill: &Infill, body: &mut Map<String, Value>) {
    body.insert("input_prefix".into(), infill.prefix.clone().into());
    body.insert("input_suffix".into(), infill.suffix.clone().into());
    if let Some(middle) = &infill.middle {
        body.insert("prompt".into(), prompt_value(middle));
    }
    let extra = infill
        .extra
        .iter()
        .map(|file| json!({"filename": file.filename, "text": file.text}));
    body.insert("input_extra".into(), extra.collect());
}

fn common_fields(request: &GenerateRequest, body: &mut Map<String, Value>) {
    body.insert("stream".into(), true.into());
    body.insert("timings_per_token".into(), request.timings_per_token.into());
    some(body, "n_predict", request.max_tokens);
    if !request.stop.is_empty() {
        body.insert("stop".into(), request.stop.clone().into());
    }
    if request.n > 1 {
        body.insert("n".into(), request.n.into());
    }
    if request.post_sampling_probs {
        body.insert("post_sampling_probs".into(), true.into());
    }
    if request.return_progress || request.encoded_len() >= LONG {
        body.insert("return_progress".into(), true.into());
    }
    some(body, "cache_prompt", request.cache_prompt);
    some(body, "id_slot", request.id_slot);
    some(body, "t_max_predict_ms", request.max_predict_ms);
    if request.min_indent > 0 {
        body.insert("n_indent".into(), request.min_indent.into());
    }
}

fn sampling_fields(mut sampling: Sampling, context: u32, body: &mut Map<String, Value>) {
    SAMPLING.within(&mut sampling, context);
    let said = SAMPLING.said(&sampling);
    body.extend(said.map(|(name, value)| (name.to_owned(), value.into())));
    if !sampling.logit_bias.is_empty() {
        let biases = sampling.logit_bias.iter().filter_map(|bias| {
            let target = match bias.target.as_ref()? {
                logit_bias::Target::Token(token) => Value::from(*token),
                logit_bias::Target::Text(text) => text.clone().into(),
            };
            Some(json!([
                target,
                if bias.never {
                    Value::from(false)
                } else {
                    bias.bias.into()
                }
            ]))
        });
        body.insert("logit_bias".into(), biases.collect());
    }
}

/// Whether the request asks for probabilities.
pub(super) fn wants_logprobs(request: &GenerateRequest) -> bool {
    request.logprobs || request.top_logprobs > 0
}

fn parse_schema(schema: &str) -> Result<Value, Error> {
    let wrong = |error| {
        Code::InvalidRequest
            .error(format!("the schema is no JSON: {error}"))
            .with_param("json_schema")
    };
    serde_json::from_str(schema).map_err(wrong)
}

fn unsupported(param: &str) -> Error {
    Code::UnsupportedByRuntime
        .error(format!("llama_server cannot do `{param}` here"))
        .with_param(param)
}

fn some(body: &mut Map<String, Value>, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(key.into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::TokenIds;
    use muster_proto::v1::{ChatMessage, ContentPart};

    use super::*;

    fn text(text: &str) -> PromptPiece {
        PromptPiece {
            kind: Some(prompt_piece::Kind::Text(text.into())),
        }
    }

    fn tokens(ids: &[i32]) -> PromptPiece {
        PromptPiece {
            kind: Some(prompt_piece::Kind::Tokens(TokenIds { ids: ids.into() })),
        }
    }

    fn prompt(pieces: Vec<PromptPiece>) -> Prompt {
        Prompt {
            pieces,
            add_special: None,
        }
    }

    #[test]
    fn one_prompt_never_becomes_two() {
        assert_eq!(prompt_value(&prompt(vec![text("a"), text("b")])), json!("ab"));
        assert_eq!(
            prompt_value(&prompt(vec![text("a"), tokens(&[1, 2]), text("b")])),
            json!(["a", 1, 2, "b"])
        );
        assert_eq!(prompt_value(&prompt(vec![tokens(&[1])])), json!([1]));
    }

    #[test]
    fn no_more_alternatives_are_asked_for_than_anybody_may_hold() {
        let request = |top_logprobs| GenerateRequest {
            input: Some(Input::Prompt(prompt(vec![text("x")]))),
            top_logprobs,
            ..Default::default()
        };
        assert_eq!(
            generate(&request(TOP_LOGPROBS), 1, "").unwrap().body["n_probs"],
            TOP_LOGPROBS
        );
        let error = generate(&request(TOP_LOGPROBS + 1), 1, "").unwrap_err();
        assert_eq!(
            (error.code.as_str(), error.param.as_deref().unwrap_or_default()),
            ("invalid_request", "n_probs")
        );
    }

    #[test]
    fn unknown_parameters_travel_and_known_ones_win() {
        let request = GenerateRequest {
            input: Some(Input::Prompt(prompt(vec![text("x")]))),
            max_tokens: Some(3),
            extra_json: r#"{"backend_sampling":true,"n_predict":99}"#.into(),
            ..Default::default()
        };
        let wire = generate(&request, 100, "").unwrap();
        assert_eq!(wire.body["backend_sampling"], true);
        assert_eq!(wire.body["n_predict"], 3);
        assert_eq!((wire.path, wire.dialect), ("/completion", Dialect::LlamaCpp));
    }

    #[test]
    fn long_prompts_report_progress_so_that_a_cancel_is_seen_early() {
        let request = |length: usize| GenerateRequest {
            input: Some(Input::Prompt(prompt(vec![text(&"x".repeat(length))]))),
            ..Default::default()
        };
        let asked = |length| {
            generate(&request(length), 1, "")
                .unwrap()
                .body
                .get("return_progress")
                .cloned()
        };
        assert_eq!(asked(10), None);
        assert_eq!(asked(LONG), Some(true.into()));
    }

    #[test]
    fn the_whole_context_is_a_number_for_todays_server() {
        let sampling = Sampling {
            repeat_last_n: Some(-1),
            ..Default::default()
        };
        let input = Some(Input::Prompt(prompt(vec![text("x")])));
        let wire = generate(
            &GenerateRequest {
                sampling: Some(sampling),
                input,
                ..Default::default()
            },
            512,
            "",
        )
        .unwrap();
        assert_eq!(wire.body["repeat_last_n"], 512);
    }

    #[test]
    fn what_the_server_would_ignore_is_refused() {
        let ask = |extra: &str| {
            let request = GenerateRequest {
                extra_json: extra.into(),
                input: Some(Input::Prompt(Prompt::default())),
                ..Default::default()
            };
            generate(&request, 512, "")
                .err()
                .map(|error| (error.code, error.param))
        };
        for (extra, param) in [
            (r#"{"min_tokens":5}"#, "min_tokens"),
            (r#"{"guided_regex":"a+"}"#, "guided_regex"),
        ] {
            assert_eq!(
                ask(extra),
                Some((Code::UnsupportedByRuntime, Some(param.to_owned())))
            );
        }
        assert_eq!(ask(r#"{"min_tokens":0,"guided_json":null,"min_keep":2}"#), None);
    }

    #[test]
    fn thinking_is_a_template_argument_and_templates_per_request_are_refused() {
        let chat = Chat {
            enable_thinking: Some(false),
            template_kwargs_json: r#"{"a":1}"#.into(),
            ..Default::default()
        };
        let request = |chat| GenerateRequest {
            input: Some(Input::Chat(chat)),
            ..Default::default()
        };
        let wire = generate(&request(chat.clone()), 1, "").unwrap();
        assert_eq!(
            wire.body["chat_template_kwargs"],
            json!({"a": 1, "enable_thinking": false})
        );
        let error = generate(
            &request(Chat {
                template: "x".into(),
                ..chat
            }),
            1,
            "",
        )
        .unwrap_err();
        assert_eq!(error.code, Code::UnsupportedByRuntime);
    }

    #[test]
    fn an_image_for_a_model_without_eyes_is_refused_and_text_is_not() {
        let part = |kind| ContentPart { kind: Some(kind) };
        let chat = |parts| GenerateRequest {
            input: Some(Input::Chat(Chat {
                messages: vec![ChatMessage {
                    role: "user".into(),
                    parts,
                    ..Default::default()
                }],
                ..Default::default()
            })),
            ..Default::default()
        };
        let blind = Media {
            vision: false,
            audio: false,
        };
        let image = chat(vec![part(content_part::Kind::ImageUrl("data:x".into()))]);
        let error = blind.check(&image).unwrap_err();
        assert_eq!(
            (error.code, error.param.as_deref().unwrap_or_default()),
            (Code::UnsupportedByRuntime, "messages[0].content")
        );
        assert!(
            Media {
                vision: true,
                ..blind
            }
            .check(&image)
            .is_ok()
        );
        assert!(
            blind
                .check(&chat(vec![part(content_part::Kind::Text("x".into()))]))
                .is_ok()
        );
    }

    /// What a client writes is text, and the server's own mark stands for files alone.
    #[test]
    fn media_of_a_plain_prompt_stand_at_the_servers_mark() {
        let media = |data: &str| PromptPiece {
            kind: Some(prompt_piece::Kind::Media(data.into())),
        };
        let mixed = prompt(vec![
            text("a <__media__> "),
            media("AAAA"),
            text(" b "),
            media("BBBB"),
            text("!"),
        ]);
        assert_eq!(
            input_value(&mixed, "<mark>"),
            json!({"prompt_string": "a <__media__> <mark> b <mark>!", "multimodal_data": ["AAAA", "BBBB"]})
        );
        let (sees, blind) = (
            Media {
                vision: true,
                audio: false,
            },
            Media {
                vision: false,
                audio: false,
            },
        );
        assert!(sees.check_prompt(&mixed).is_ok() && blind.check_prompt(&prompt(vec![text("a")])).is_ok());
        let bare = Prompt {
            add_special: Some(false),
            ..mixed.clone()
        };
        let beside_tokens = prompt(vec![tokens(&[1]), media("AAAA"), text("!")]);
        let last = prompt(vec![text("a"), media("AAAA")]);
        for (who, refused) in [(blind, mixed), (sees, bare), (sees, beside_tokens), (sees, last)] {
            assert_eq!(who.check_prompt(&refused).unwrap_err().code, Code::InvalidRequest);
        }
    }
}
