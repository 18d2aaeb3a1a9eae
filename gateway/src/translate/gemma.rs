//! TranslateGemma's structured requests (seed 001, TranslateGemma Request Notes): one turn with the codes of both languages. The model's
//! template wants the languages' names. The codes are fields of the body, or of the one content part as in the model's own request form.
//!
//! ```text
//!  source_lang_code   de          ─► "German", "de"
//!                     none, auto, mixed ─► a source the template knows, and a line that asks for the language of each segment
//!  target_lang_code   en          ─► "English", "en"       must be there
//! ```

use muster_core::{Code, Error};
use muster_proto::v1::{
    Chat, ChatMessage, ContentPart, ModelSummary, content_part, generate_request::Input, start::Work,
};
use serde_json::{Map, Value};

use super::languages;

/// The `prompt_format` of these models.
const FORMAT: &str = "translategemma_template";
const SOURCE: &str = "source_lang_code";
const TARGET: &str = "target_lang_code";
/// Language code for a source that is not named: the template needs one that it knows.
const FALLBACK: &str = "en";
const MIXED: &str =
    "The text may hold several languages. Detect the language of each segment and translate all of them.";

/// Whether a model takes only a single turn.
pub(crate) fn is_single_turn(prompt_format: &str) -> bool {
    prompt_format == FORMAT
}

/// The request in the form that the model needs; none if it needs no change.
///
/// # Errors
/// `invalid_request`: a language is missing or unknown, or there is more than one turn.
pub(crate) fn structured(summary: &ModelSummary, work: &Work) -> Result<Option<Work>, Error> {
    let Work::Generate(work) = work else {
        return Ok(None);
    };
    let Some(Input::Chat(chat)) = work
        .input
        .as_ref()
        .filter(|_| is_single_turn(&summary.prompt_format))
    else {
        return Ok(None);
    };
    let mut asked: Map<String, Value> = serde_json::from_str(&work.extra_json).unwrap_or_default();
    let (message, text) = turn(&summary.id, chat, &mut asked)?;
    let source = asked.remove(SOURCE).filter(|code| !code.is_null());
    let source = source.map(|code| language(SOURCE, &code)).transpose()?.flatten();
    let target = asked.remove(TARGET).filter(|code| !code.is_null());
    let target = target.ok_or_else(|| wrong(TARGET, "is required"))?;
    let target = language(TARGET, &target)?.ok_or_else(|| wrong(TARGET, "must name one language"))?;
    let text = match &source {
        Some(_) => text,
        None => format!("{MIXED}\n\n{text}"),
    };
    let source = source
        .or_else(|| known(FALLBACK))
        .ok_or_else(|| wrong(SOURCE, "is required"))?;
    let mut arguments: Map<String, Value> =
        serde_json::from_str(&chat.template_kwargs_json).unwrap_or_default();
    for (key, value) in [
        ("source_lang", source.name.to_owned()),
        (SOURCE, source.code),
        ("target_lang", target.name.to_owned()),
        (TARGET, target.code),
    ] {
        arguments.insert(key.to_owned(), value.into());
    }
    let part = ContentPart {
        kind: Some(content_part::Kind::Text(text)),
    };
    let chat = Chat {
        messages: vec![ChatMessage {
            parts: vec![part],
            ..message.clone()
        }],
        template_kwargs_json: Value::Object(arguments).to_string(),
        ..chat.clone()
    };
    let mut work = work.clone();
    work.input = Some(Input::Chat(chat));
    work.extra_json = if asked.is_empty() {
        String::new()
    } else {
        Value::Object(asked).to_string()
    };
    Ok(Some(Work::Generate(work)))
}

/// The only message and its text. Languages in its part override those in the body.
fn turn<'a>(
    model: &str,
    chat: &'a Chat,
    asked: &mut Map<String, Value>,
) -> Result<(&'a ChatMessage, String), Error> {
    let one = || {
        wrong(
            "messages",
            &format!("must be one text of the user: {model} takes a single turn"),
        )
    };
    let [message] = chat.messages.as_slice() else {
        return Err(one());
    };
    let [part] = message.parts.as_slice() else {
        return Err(one());
    };
    if message.role != "user" {
        return Err(one());
    }
    match &part.kind {
        Some(content_part::Kind::Text(text)) => Ok((message, text.clone())),
        Some(content_part::Kind::OtherJson(json)) => {
            let mut part: Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
            for key in [SOURCE, TARGET] {
                asked.extend(part.remove(key).map(|code| (key.to_owned(), code)));
            }
            let text = part.get("text").and_then(Value::as_str).ok_or_else(one)?;
            Ok((message, text.to_owned()))
        }
        Some(content_part::Kind::ImageUrl(_) | content_part::Kind::InputAudio(_)) | None => Err(one()),
    }
}

struct Language {
    code: String,
    name: &'static str,
}

/// The language with this code; none if the code stands for any language.
fn language(key: &str, code: &Value) -> Result<Option<Language>, Error> {
    match code.as_str() {
        None => Err(wrong(key, "must be a string")),
        Some("" | "auto" | "mixed") => Ok(None),
        Some(code) => match known(code) {
            Some(language) => Ok(Some(language)),
            None => Err(wrong(key, &format!("names no language that is known: `{code}`"))),
        },
    }
}

fn known(code: &str) -> Option<Language> {
    languages::name(code).map(|name| Language {
        code: code.replace('_', "-"),
        name,
    })
}

fn wrong(key: &str, why: &str) -> Error {
    Code::InvalidRequest
        .error(format!("`{key}` {why}"))
        .with_param(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialects::openai::translate;

    fn summary(prompt_format: &str) -> ModelSummary {
        ModelSummary {
            id: "t".into(),
            prompt_format: prompt_format.into(),
            ..ModelSummary::default()
        }
    }

    fn work(body: &Value) -> Work {
        let mut body = body.clone();
        body["model"] = "t".into();
        let call = if body.get("input").is_some() {
            translate::responses(body.to_string().as_bytes()).unwrap().work
        } else {
            translate::chat(body.to_string().as_bytes()).unwrap().work
        };
        Work::Generate(call)
    }

    /// The arguments for the template, and the text.
    fn shaped(body: &Value) -> Result<(Value, String, String), Error> {
        let shaped = structured(&summary(FORMAT), &work(body))?.expect("it is a conversation");
        let Work::Generate(shaped) = shaped else {
            panic!("it generates")
        };
        let Some(Input::Chat(chat)) = shaped.input else {
            panic!("it is a conversation")
        };
        let arguments = serde_json::from_str(&chat.template_kwargs_json).unwrap();
        match &chat.messages[0].parts[0].kind {
            Some(content_part::Kind::Text(text)) => Ok((arguments, text.clone(), shaped.extra_json)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn seed_001_a_known_source_is_named_to_the_template() {
        let arguments = serde_json::json!({
            "source_lang_code": "de-AT", "source_lang": "German", "target_lang_code": "en", "target_lang": "English",
        });
        let in_body = serde_json::json!({"input": "Grüß Gott", "source_lang_code": "de_AT", "target_lang_code": "en", "x": 1});
        let (said, text, rest) = shaped(&in_body).unwrap();
        assert_eq!(
            (&said, text.as_str(), rest.as_str()),
            (&arguments, "Grüß Gott", r#"{"x":1}"#)
        );
        let part = serde_json::json!({"type": "text", "source_lang_code": "de-AT", "target_lang_code": "en", "text": "Grüß Gott"});
        let in_part = serde_json::json!({"messages": [{"role": "user", "content": [part]}]});
        let (said, text, _) = shaped(&in_part).unwrap();
        assert_eq!((&said, text.as_str()), (&arguments, "Grüß Gott"));
    }

    #[test]
    fn seed_001_a_mixed_source_is_detected_per_segment() {
        for source in [Value::Null, "auto".into(), "mixed".into()] {
            let body = serde_json::json!({"input": "Hallo, bonjour", "source_lang_code": source, "target_lang_code": "en"});
            let (said, text, _) = shaped(&body).unwrap();
            assert_eq!(
                said["source_lang_code"], "en",
                "a valid one, whatever the text is"
            );
            assert!(
                text.starts_with(MIXED) && text.ends_with("\n\nHallo, bonjour"),
                "{text}"
            );
        }
    }

    #[test]
    fn seed_001_translategemma_takes_one_turn_and_a_target() {
        let param = |body: Value| shaped(&body).unwrap_err().param.unwrap_or_default();
        let user = serde_json::json!({"role": "user", "content": "a"});
        let turns = serde_json::json!([user, {"role": "assistant", "content": "b"}, user]);
        assert_eq!(
            param(serde_json::json!({"messages": turns, "target_lang_code": "en"})),
            "messages"
        );
        let system = serde_json::json!([{"role": "system", "content": "a"}]);
        assert_eq!(
            param(serde_json::json!({"messages": system, "target_lang_code": "en"})),
            "messages"
        );
        assert_eq!(param(serde_json::json!({"input": "a"})), TARGET);
        assert_eq!(
            param(serde_json::json!({"input": "a", "target_lang_code": "auto"})),
            TARGET
        );
        assert_eq!(
            param(serde_json::json!({"input": "a", "target_lang_code": "tlh"})),
            TARGET
        );
        let body = serde_json::json!({"input": "a", "source_lang_code": 3, "target_lang_code": "en"});
        assert_eq!(param(body), SOURCE);
    }

    #[test]
    fn other_models_are_left_alone() {
        let body = serde_json::json!({"input": "a"});
        assert_eq!(
            structured(&summary("qwen3_template"), &work(&body)).unwrap(),
            None
        );
    }
}
