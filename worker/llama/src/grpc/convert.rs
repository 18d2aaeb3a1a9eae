//! Wire requests to the engine's own types; everything that could hurt llama.cpp is refused here (see [`crate::guard`]).

use muster_core::{Code, Error};
use muster_proto::{
    oai,
    parameters::{Kind, SAMPLING},
    v1::{
        Chat, ContentPart, GenerateRequest, Prompt, PromptPiece, Sampling, ToolChoiceMode, content_part,
        generate_request, logit_bias, prompt_piece, tool_choice,
    },
};
use serde_json::{Value, value::RawValue};

use crate::{
    chat::ChatSpec,
    draft::Guessing,
    engine::Shift,
    ffi::NativeError,
    guard::{self, Refusal},
    limits::{Defaults, Limits},
    model::{Model, Token},
    sampler::SamplerSpec,
};

/// Names of samplers beside their own that llama.cpp takes.
const SAMPLERS: [&str; 3] = ["temp", "typ", "nucleus"];

/// Options of llama.cpp and vLLM that this engine does not have; refused, never ignored.
const UNSUPPORTED: [&str; 15] = [
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "structured_outputs",
    "min_tokens",
    "image_data",
    "n_cache_reuse",
    "multimodal_data",
    // A chat's own come from its template.
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
    "reasoning_budget_start_tag",
    "reasoning_budget_end_tag",
    "reasoning_budget_end_tags",
];

/// Longest text whose tokens are biased.
const BIAS_TEXT: usize = 1024;

pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Error {
    Code::InvalidRequest.error(message).with_param(param)
}

pub(crate) fn unsupported(param: &str, message: impl Into<String>) -> Error {
    Code::UnsupportedByRuntime.error(message).with_param(param)
}

pub(crate) fn refusal(refusal: Refusal) -> Error {
    invalid(refusal.param, refusal.message)
}

/// What llama.cpp said, with the field that it was about.
pub(crate) fn native(param: &'static str) -> impl Fn(NativeError) -> Error {
    move |error| match error {
        NativeError::Invalid(message) => invalid(param, message),
        NativeError::Failed(message) => Code::RuntimeError.error(message),
        NativeError::DeadEnd => invalid(param, error.to_string()),
    }
}

/// Refuses a text that is longer than all tokens there is room for could spell, before it is read.
pub(crate) fn check_text(bytes: usize, most: usize, room: usize, param: &str) -> Result<(), Error> {
    if bytes <= most {
        return Ok(());
    }
    // Nobody counted: so many tokens at least.
    let longest = (most / room.max(1)).max(1);
    let tokens = bytes.div_ceil(longest).max(room + 1);
    Err(overflow(tokens, room, param).with_detail("prompt_bytes", bytes))
}

/// The error for a prompt or an input that is too long, in llama.cpp's words, which its clients look for.
pub(crate) fn overflow(tokens: usize, room: usize, param: &str) -> Error {
    Code::ContextLengthExceeded
        .error(format!(
            "request ({tokens} tokens) exceeds the available context size ({room} tokens), try increasing it"
        ))
        .with_param(param)
        .with_detail("prompt_tokens", tokens)
        .with_detail("context_length", room)
}

/// Bytes of text in a prompt.
pub(crate) fn text_bytes(prompt: &Prompt) -> usize {
    let text = |piece: &PromptPiece| match &piece.kind {
        Some(prompt_piece::Kind::Text(text)) => text.len(),
        Some(prompt_piece::Kind::Tokens(_) | prompt_piece::Kind::Media(_)) | None => 0,
    };
    prompt.pieces.iter().map(text).sum()
}

/// Bytes of text in a chat.
pub(crate) fn chat_bytes(chat: &Chat) -> usize {
    let text = |part: &ContentPart| match &part.kind {
        Some(content_part::Kind::Text(text)) => text.len(),
        Some(
            content_part::Kind::ImageUrl(_)
            | content_part::Kind::InputAudio(_)
            | content_part::Kind::OtherJson(_),
        )
        | None => 0,
    };
    let parts = chat.messages.iter().flat_map(|message| &message.parts);
    parts.map(text).sum()
}

/// Text and token ids, tokenized; special tokens are added before a beginning text as the vocabulary says.
pub(crate) fn prompt(
    model: &Model,
    prompt: &Prompt,
    param: &'static str,
    add_special: bool,
    parse_special: bool,
) -> Result<Vec<Token>, Error> {
    let mut tokens = Vec::new();
    for (index, piece) in prompt.pieces.iter().enumerate() {
        match &piece.kind {
            None => {}
            Some(prompt_piece::Kind::Text(text)) => {
                let special = add_special && index == 0;
                tokens.append(
                    &mut model
                        .tokenize(text, special, parse_special)
                        .map_err(native(param))?,
                );
            }
            Some(prompt_piece::Kind::Media(_)) => {
                return Err(invalid(param, "no images or sounds are taken here"));
            }
            Some(prompt_piece::Kind::Tokens(ids)) => {
                check_tokens(model, &ids.ids, param)?;
                tokens.extend_from_slice(&ids.ids);
            }
        }
    }
    Ok(tokens)
}

pub(crate) fn check_tokens(model: &Model, tokens: &[Token], param: &'static str) -> Result<(), Error> {
    match model.foreign_token(tokens) {
        Some(token) => Err(invalid(param, format!("token {token} is outside the vocabulary"))),
        None => Ok(()),
    }
}

/// Fields we don't model: what is known is used, what can't be done is refused.
pub(crate) fn extra(request: &GenerateRequest) -> Result<serde_json::Map<String, Value>, Error> {
    if request.extra_json.is_empty() {
        return Ok(serde_json::Map::new());
    }
    let Value::Object(map) = guard::json("extra_json", &request.extra_json).map_err(refusal)? else {
        return Err(invalid("extra_json", "`extra_json` is not an object"));
    };
    for key in UNSUPPORTED {
        let asked = match map.get(key) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::Bool(true) | Value::String(_) | Value::Object(_)) => true,
        };
        if asked {
            return Err(unsupported(
                key,
                format!("`{key}` is not supported by this runtime"),
            ));
        }
    }
    Ok(map)
}

/// How tokens are guessed ahead: as many as pay unless a request says how many it wants (llama.cpp's `speculative.n_max`, 0 = none).
///
/// # Errors
/// `invalid_request`: a key's value, or a key of `speculative.…` that nobody knows.
pub(crate) fn guessing(extra: &serde_json::Map<String, Value>) -> Result<Guessing, Error> {
    const KEYS: [&str; 4] = [N_MAX, N_MIN, "speculative.p_min", "speculative.types"];
    let unknown = |key: &&String| key.starts_with("speculative.") && !KEYS.contains(&key.as_str());
    if let Some(key) = extra.keys().find(unknown) {
        return Err(unsupported(
            key,
            format!("`{key}` is not supported by this runtime"),
        ));
    }
    let count = |key| match extra.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let count = value
                .as_i64()
                .and_then(|count| usize::try_from(count.max(0)).ok());
            count
                .map(Some)
                .ok_or_else(|| invalid(key, format!("`{key}` is not a whole number")))
        }
    };
    let least = count(N_MIN)?.unwrap_or(0).max(1);
    Ok(match count(N_MAX)? {
        None => Guessing::Paying,
        Some(0) => Guessing::Off,
        Some(most) => Guessing::Always { least, most },
    })
}

/// What is left out of a text that outgrows the context, where the model is so configured: all but the first `n_keep` tokens (below 0 = the prompt, of `prompt`
/// tokens) and the last half, or `n_discard` tokens after those. With a token that begins every text (`begins`) that stays too, as in llama.cpp.
///
/// # Errors
/// `invalid_request`: a value is no whole number.
pub(crate) fn shift(
    limits: &Limits,
    extra: &serde_json::Map<String, Value>,
    (prompt, begins): (usize, bool),
) -> Result<Option<Shift>, Error> {
    let number = |key| match extra.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_i64().map(Some);
            number.ok_or_else(|| invalid(key, format!("`{key}` is not a whole number")))
        }
    };
    let (keep, discard) = (number("n_keep")?, number("n_discard")?);
    Ok(limits.shift.map(|by_itself| {
        let keep =
            usize::try_from(keep.unwrap_or(by_itself)).map_or(prompt, |keep| keep + usize::from(begins));
        let discard = discard.and_then(|discard| usize::try_from(discard).ok());
        Shift {
            keep,
            discard: discard.unwrap_or(0),
        }
    }))
}

const N_MAX: &str = "speculative.n_max";
const N_MIN: &str = "speculative.n_min";

/// The sampler of the first choice.
pub(crate) fn sampling(
    model: &Model,
    limits: &Limits,
    mut sampling: Sampling,
    extra: &serde_json::Map<String, Value>,
) -> Result<SamplerSpec, Error> {
    // −1 means the context; a ring of absurd length would only cost memory
    SAMPLING.within(&mut sampling, u32::try_from(limits.context).unwrap_or(u32::MAX));
    sampling.seed = match sampling.seed {
        Some(below) if below < 0 => Some(RANDOM_SEED),
        Some(given) => Some(seed(given)),
        None => model.info().sampling.seed,
    };
    let biases = std::mem::take(&mut sampling.logit_bias);
    let mut spec = SamplerSpec {
        sampling,
        reasoning_budget: limits.defaults.thinking_budget.unwrap_or(-1),
        reasoning_budget_message: limits.defaults.budget_message.clone(),
        ..SamplerSpec::default()
    };
    for bias in &biases {
        let tokens = match &bias.target {
            None => continue,
            Some(logit_bias::Target::Token(token)) => vec![*token],
            Some(logit_bias::Target::Text(text)) if text.len() > BIAS_TEXT => {
                let message = format!("a biased text is longer than {BIAS_TEXT} bytes");
                return Err(invalid("logit_bias", message));
            }
            Some(logit_bias::Target::Text(text)) => {
                model.tokenize(text, false, false).map_err(native("logit_bias"))?
            }
        };
        for token in tokens {
            if bias.never {
                spec.never.push(token);
            } else {
                spec.logit_bias.push((token, bias.bias));
            }
        }
    }
    for key in ["reasoning_budget_tokens", "thinking_budget_tokens"] {
        // −1 leaves it to the model's own, as in llama.cpp
        if let Some(budget) = extra
            .get(key)
            .and_then(Value::as_i64)
            .filter(|budget| *budget >= 0)
        {
            spec.reasoning_budget = i32::try_from(budget).unwrap_or(i32::MAX);
        }
    }
    if let Some(message) = extra.get("reasoning_budget_message").and_then(Value::as_str) {
        spec.reasoning_budget_message = message.to_owned();
    }
    guard::sampling(&spec, model.info().n_vocab).map_err(refusal)?;
    check_samplers(model, &spec.sampling.samplers)?;
    Ok(spec)
}

/// The seed that llama.cpp takes for a random one.
pub(crate) const RANDOM_SEED: i64 = 0xffff_ffff;

/// A seed as llama.cpp has them: 32 bits.
pub(crate) const fn seed(any: i64) -> i64 {
    any & 0xffff_ffff
}

/// Whether a name is one of llama.cpp's samplers, in whichever way it may be written.
fn is_sampler(plain: &str) -> bool {
    let row = SAMPLING.find("samplers");
    let known = match row.map(|row| row.kind) {
        Some(Kind::Words { words, .. }) => words,
        Some(Kind::Float { .. } | Kind::Int { .. } | Kind::Bool) | None => &[],
    };
    SAMPLERS.contains(&plain) || known.iter().any(|known| known.replace('_', "") == plain)
}

fn check_samplers(model: &Model, names: &[String]) -> Result<(), Error> {
    for name in names {
        let plain: String = name
            .chars()
            .filter(|c| *c != '_' && *c != '-')
            .flat_map(char::to_lowercase)
            .collect();
        if !is_sampler(&plain) {
            return Err(invalid("samplers", format!("there is no sampler `{name}`")));
        }
        if plain == "infill" && model.info().fim_mid < 0 {
            // llama.cpp asserts on the end-of-turn token it falls back to
            return Err(unsupported("samplers", "the model has no tokens for infill"));
        }
    }
    Ok(())
}

/// What the output must look like, as `(grammar, json_schema)`; one of them is empty.
pub(crate) fn constraint(request: &GenerateRequest) -> Result<(String, String), Error> {
    match &request.constraint {
        None => Ok((String::new(), String::new())),
        Some(generate_request::Constraint::Grammar(text)) => {
            guard::grammar(text).map_err(refusal)?;
            Ok((text.clone(), String::new()))
        }
        Some(generate_request::Constraint::JsonSchema(text)) => {
            guard::schema(text).map_err(refusal)?;
            let empty = text.trim().trim_matches(['{', '}']).trim().is_empty();
            Ok((
                String::new(),
                if empty { OBJECT.to_owned() } else { text.clone() },
            ))
        }
        Some(generate_request::Constraint::JsonObject(true)) => Ok((String::new(), OBJECT.to_owned())),
        Some(generate_request::Constraint::JsonObject(false)) => Ok((String::new(), String::new())),
    }
}

const OBJECT: &str = r#"{"type":"object"}"#;

/// A chat as llama.cpp's `common` wants it.
pub(crate) fn chat(
    model: &Model,
    chat: &Chat,
    marker: Option<&str>,
    constraint: (&str, &str),
    reasoning_format: &str,
    defaults: &Defaults,
    extra: &serde_json::Map<String, Value>,
) -> Result<ChatSpec, Error> {
    if chat.messages.is_empty() {
        return Err(invalid("messages", "there are no messages"));
    }
    if !chat.template.is_empty() {
        return Err(unsupported(
            "template",
            "a chat template per request is not supported by this runtime",
        ));
    }
    for message in &chat.messages {
        let readable = |part: &ContentPart| readable(part, marker.is_some());
        message.parts.iter().try_for_each(readable)?;
        if !message.extra_json.is_empty() {
            guard::json("messages", &message.extra_json).map_err(refusal)?;
        }
    }
    let (tools, tool_choice) = tools(chat)?;
    if !tools.is_empty() && tool_choice != "none" && !constraint.0.is_empty() {
        return Err(invalid("grammar", "a grammar can't be combined with tools"));
    }
    let reasoning_format = match reasoning_format {
        "" if !defaults.reasoning_format.is_empty() => defaults.reasoning_format.as_str(),
        "" => "deepseek",
        known @ ("none" | "auto" | "deepseek" | "deepseek-legacy") => known,
        other => {
            return Err(invalid(
                "reasoning_format",
                format!("there is no reasoning format `{other}`"),
            ));
        }
    };
    let (kwargs, thinking) = template_arguments(chat, defaults.thinking, extra)?;
    if thinking == Some(true) && chat.enable_thinking == Some(true) && !model.info().thinking {
        return Err(Code::ThinkingUnsupported
            .error("the model's template can't switch thinking")
            .with_param("enable_thinking"));
    }
    Ok(ChatSpec {
        messages: marker.map_or_else(|| oai::messages(chat), |marker| oai::messages_with(chat, marker)),
        tools,
        tool_choice,
        grammar: constraint.0.to_owned(),
        json_schema: constraint.1.to_owned(),
        reasoning_format: reasoning_format.to_owned(),
        enable_thinking: thinking.unwrap_or(true),
        parallel_tool_calls: chat.parallel_tool_calls,
        continue_final_message: chat.continue_final_message,
        add_generation_prompt: chat.add_generation_prompt.unwrap_or(true),
        kwargs,
    })
}

/// Refuses what is not read: sounds, and images where there is no projector.
fn readable(part: &ContentPart, images: bool) -> Result<(), Error> {
    match &part.kind {
        None | Some(content_part::Kind::Text(_)) => Ok(()),
        Some(content_part::Kind::ImageUrl(_)) if images => Ok(()),
        Some(content_part::Kind::ImageUrl(_)) => Err(unsupported("messages", "this model takes no images")),
        Some(content_part::Kind::InputAudio(_)) => {
            Err(unsupported("messages", "this runtime takes no audio"))
        }
        Some(content_part::Kind::OtherJson(_)) => {
            Err(unsupported("messages", "this runtime takes text and images only"))
        }
    }
}

/// Tools with their schemas word for word (the order of keys is part of the prompt), and the choice. A named function leaves only that one.
fn tools(chat: &Chat) -> Result<(Vec<Box<RawValue>>, &'static str), Error> {
    let choice = chat.tool_choice.as_ref().and_then(|choice| choice.kind.as_ref());
    let named = match choice {
        Some(tool_choice::Kind::Function(name)) => Some(name.as_str()),
        Some(tool_choice::Kind::Mode(_)) | None => None,
    };
    let word = match choice {
        Some(tool_choice::Kind::Function(_)) => "required",
        Some(tool_choice::Kind::Mode(mode)) => match ToolChoiceMode::try_from(*mode) {
            Ok(ToolChoiceMode::None) => "none",
            Ok(ToolChoiceMode::Required) => "required",
            Ok(ToolChoiceMode::Auto) => "auto",
            Ok(ToolChoiceMode::Unspecified) | Err(_) => {
                return Err(invalid("tool_choice", "the tool choice is not known"));
            }
        },
        None => "auto",
    };
    let mut tools = Vec::with_capacity(chat.tools.len());
    for tool in chat
        .tools
        .iter()
        .filter(|tool| named.is_none_or(|name| tool.name == name))
    {
        let parameters = if tool.parameters_json.trim().is_empty() {
            r#"{"type":"object"}"#
        } else {
            &tool.parameters_json
        };
        guard::schema(parameters).map_err(|_| {
            invalid(
                "tools",
                format!("the parameters of tool `{}` are no usable schema", tool.name),
            )
        })?;
        let text = |text: &str| Value::from(text).to_string();
        let json = format!(
            r#"{{"type":"function","function":{{"name":{},"description":{},"parameters":{}}}}}"#,
            text(&tool.name),
            text(&tool.description),
            parameters
        );
        tools.push(RawValue::from_string(json).map_err(|error| invalid("tools", error.to_string()))?);
    }
    if let Some(name) = named.filter(|_| tools.is_empty()) {
        return Err(invalid("tool_choice", format!("there is no tool `{name}`")));
    }
    if word == "required" && tools.is_empty() {
        return Err(invalid(
            "tool_choice",
            "a tool call is required but there are no tools",
        ));
    }
    Ok((tools, word))
}

/// Template arguments and whether thinking is wanted.
fn template_arguments(
    chat: &Chat,
    default: Option<bool>,
    extra: &serde_json::Map<String, Value>,
) -> Result<(Box<RawValue>, Option<bool>), Error> {
    let mut kwargs = if chat.template_kwargs_json.is_empty() {
        serde_json::Map::new()
    } else {
        match guard::json("chat_template_kwargs", &chat.template_kwargs_json).map_err(refusal)? {
            Value::Object(map) => map,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(invalid(
                    "chat_template_kwargs",
                    "`chat_template_kwargs` is not an object",
                ));
            }
        }
    };
    let mut thinking = chat.enable_thinking;
    match kwargs.get("enable_thinking") {
        None => {}
        Some(Value::Bool(wish)) => thinking = thinking.or(Some(*wish)),
        Some(_) => {
            return Err(invalid(
                "chat_template_kwargs",
                "`enable_thinking` is not a boolean",
            ));
        }
    }
    match extra.get("reasoning_effort").and_then(Value::as_str) {
        Some("none") => thinking = Some(false),
        Some(effort) if !effort.is_empty() => {
            kwargs.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
        Some(_) | None => {}
    }
    let thinking = thinking.or(default);
    if let Some(thinking) = thinking {
        kwargs.insert("enable_thinking".to_owned(), thinking.into());
    }
    let raw = serde_json::value::to_raw_value(&kwargs)
        .map_err(|error| invalid("chat_template_kwargs", error.to_string()))?;
    Ok((raw, thinking))
}
