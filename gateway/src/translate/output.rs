//! What the output must look like, where it ends, and what is reported about it: parts shared by chat and completions.

use muster_core::{Code, Error};
use muster_proto::v1::{GenerateRequest, generate_request::Constraint};

use serde_json::value::RawValue;
use utoipa::openapi::{RefOr, Schema};

use super::{
    View,
    object::{self, Field, Kind, Object},
    read::{Read, Strings},
};

/// OpenAI's limit on choices per request.
const MAX_CHOICES: i64 = 128;

/// `stream` and `stream_options`.
pub(crate) fn view(body: &mut Object<'_>) -> Result<View, Error> {
    let mut view = View {
        choices: 1,
        ..View::default()
    };
    if let Some(field) = body.take("stream") {
        view.stream = field.bool()?;
    }
    if let Some(field) = body.take("stream_options") {
        let mut options = field.object()?;
        if let Some(field) = options.take("include_usage") {
            view.include_usage = field.bool()?;
        }
    }
    if let Some(field) = body.take("n") {
        view.choices = u32::try_from(field.integer(1, MAX_CHOICES)?).unwrap_or(1);
    }
    Ok(view)
}

/// llama.cpp's switches of a request (seed 004), into `work` and `view`.
pub(crate) fn switches(
    body: &mut Object<'_>,
    work: &mut GenerateRequest,
    view: &mut View,
) -> Result<(), Error> {
    let mut flag = |key: &str| body.take(key).map(|field| field.bool()).transpose();
    work.cache_prompt = flag("cache_prompt")?;
    work.post_sampling_probs = flag("post_sampling_probs")?.unwrap_or_default();
    work.return_tokens = flag("return_tokens")?.unwrap_or_default();
    work.return_progress = flag("return_progress")?.unwrap_or_default();
    if let Some(field) = body.take("id_slot") {
        work.id_slot = u32::try_from(field.i32(-1, i32::MAX)?).ok();
    }
    if let Some(field) = body.take("t_max_predict_ms") {
        work.max_predict_ms = u32::try_from(field.i32(-1, i32::MAX)?)
            .ok()
            .filter(|limit| *limit > 0);
    }
    if let Some(field) = body.take("n_indent") {
        work.min_indent = field.u32(0)?;
    }
    if let Some(field) = body.take("stop") {
        work.stop = stop(&field)?;
    }
    view.tokens = work.return_tokens;
    view.post_sampling = work.post_sampling_probs;
    work.n = view.choices;
    work.stream = view.stream;
    Ok(())
}

/// Strings that end the output, or one.
#[derive(Debug, Default)]
pub(crate) struct Stop(pub(crate) Vec<String>);

impl Read<'_> for Stop {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        stop(field).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        Strings::schema()
    }
}

pub(crate) fn stop(field: &Field<'_>) -> Result<Vec<String>, Error> {
    let stop = field.strings()?;
    if stop.iter().any(String::is_empty) {
        return Err(field.wrong("must not contain an empty string"));
    }
    Ok(stop)
}

/// `max_tokens`, `max_completion_tokens` (only one of them) and llama.cpp's `n_predict`; -1 = until the context is full.
pub(crate) fn max_tokens(body: &mut Object<'_>) -> Result<Option<u32>, Error> {
    let old = body.take("max_tokens");
    let new = body.take("max_completion_tokens");
    let native = body.take("n_predict");
    if let (Some(_), Some(field)) = (&old, &new) {
        return Err(field.wrong("and `max_tokens` exclude each other"));
    }
    new.or(old).or(native).map_or(Ok(None), |field| limit(&field))
}

/// The first limit there is among `keys`; -1 = until the context is full.
pub(crate) fn tokens_limit(body: &mut Object<'_>, keys: &[&str]) -> Result<Option<u32>, Error> {
    body.take_any(keys).map_or(Ok(None), |field| limit(&field))
}

fn limit(field: &Field<'_>) -> Result<Option<u32>, Error> {
    Ok(u32::try_from(field.i32(-1, i32::MAX)?).ok())
}

/// OpenAI's completions and vLLM's chats had `best_of`: more are generated than shown. Only where that changes nothing.
pub(crate) fn best_of(body: &mut Object<'_>, choices: u32) -> Result<(), Error> {
    match body.take("best_of") {
        Some(field) if ![1, i64::from(choices)].contains(&field.integer(1, i64::MAX)?) => {
            let error = Code::UnsupportedByRuntime.error("`best_of` must be 1 or equal to `n`");
            Err(error.with_param(field.path()))
        }
        Some(_) | None => Ok(()),
    }
}

/// `response_format`, `grammar`, `json_schema` and vLLM's `guided_json`: at most one constraint.
pub(crate) fn constraint(body: &mut Object<'_>) -> Result<Option<Constraint>, Error> {
    let mut found: Option<Constraint> = None;
    let mut set = |field: &Field<'_>, constraint: Constraint| match found.replace(constraint) {
        None => Ok(()),
        Some(_) => Err(field.wrong("cannot be combined with another constraint of the output")),
    };
    if let Some(field) = body.take("grammar") {
        let grammar = field.string()?;
        if !grammar.is_empty() {
            set(&field, Constraint::Grammar(grammar))?;
        }
    }
    if let Some(field) = body.take("json_schema") {
        set(&field, Constraint::JsonSchema(schema(&field)?))?;
    }
    if let Some(field) = body.take("guided_json") {
        set(&field, Constraint::JsonSchema(guided(&field)?))?;
    }
    if let Some(field) = body.take("response_format")
        && let Some(constraint) = response_format(&field)?
    {
        set(&field, constraint)?;
    }
    Ok(found)
}

/// OpenAI's `{"type": …}`, and llama.cpp's form with the schema directly in it (seed 004, chat completions).
pub(crate) fn response_format(field: &Field<'_>) -> Result<Option<Constraint>, Error> {
    let mut format = field.object()?;
    let kind = format.need("type")?;
    match kind.string()?.as_str() {
        "text" => Ok(None),
        "json_object" => Ok(Some(match format.take("schema") {
            Some(field) => Constraint::JsonSchema(schema(&field)?),
            None => Constraint::JsonObject(true),
        })),
        "json_schema" => {
            let field = match format.take("schema") {
                Some(field) => field,
                None => format.need("json_schema")?.object()?.need("schema")?,
            };
            Ok(Some(Constraint::JsonSchema(schema(&field)?)))
        }
        _ => Err(kind.wrong("must be `text`, `json_object` or `json_schema`")),
    }
}

/// A schema, or its text.
fn guided(field: &Field<'_>) -> Result<String, Error> {
    if field.kind() != Kind::String {
        return schema(field);
    }
    let text = field.string()?;
    let json = object::text(text.as_bytes()).ok();
    let json = json.and_then(|text| serde_json::from_str::<&RawValue>(text).ok());
    match json.map(RawValue::get) {
        Some(json) if json.starts_with(['{', 't', 'f']) => Ok(json.to_owned()),
        Some(_) | None => Err(field.want("a JSON schema")),
    }
}

pub(crate) fn schema(field: &Field<'_>) -> Result<String, Error> {
    match field.kind() {
        Kind::Object | Kind::Bool => Ok(field.json()),
        Kind::Null | Kind::Number | Kind::String | Kind::Array => Err(field.want("a JSON schema")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<Constraint>, Error> {
        constraint(&mut Object::body(text).unwrap())
    }

    #[test]
    fn schemas_keep_their_text_wherever_they_stand() {
        let schema = Some(Constraint::JsonSchema(r#"{"z":1,"a":2}"#.into()));
        for text in [
            r#"{"json_schema": {"z":1,"a":2}}"#,
            r#"{"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"z":1,"a":2}}}}"#,
            r#"{"response_format": {"type": "json_schema", "schema": {"z":1,"a":2}}}"#,
            r#"{"response_format": {"type": "json_object", "schema": {"z":1,"a":2}}}"#,
            r#"{"guided_json": {"z":1,"a":2}}"#,
            r#"{"guided_json": "{\"z\":1,\"a\":2}"}"#,
        ] {
            assert_eq!(read(text).unwrap(), schema, "{text}");
        }
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for text in ["3", "\"\"", "\"[1]\"", "\"{}, \\\"x\\\": {}\"", "[]"] {
            let error = read(&format!("{{\"guided_json\": {text}}}")).unwrap_err();
            assert_eq!(error.param.unwrap_or_default(), "guided_json", "{text}");
        }
    }

    #[test]
    fn two_constraints_are_refused() {
        let error =
            read(r#"{"grammar": "root ::= x", "response_format": {"type": "json_object"}}"#).unwrap_err();
        assert_eq!(error.param.unwrap_or_default(), "response_format");
        let error = read(r#"{"response_format": {"type": "json_schema", "json_schema": {}}}"#).unwrap_err();
        assert_eq!(
            error.param.unwrap_or_default(),
            "response_format.json_schema.schema"
        );
    }

    #[test]
    fn only_one_limit_may_be_given() {
        let read = |text: &str| max_tokens(&mut Object::body(text).unwrap());
        assert_eq!(read(r#"{"max_tokens": 5}"#).unwrap(), Some(5));
        assert_eq!(read(r#"{"max_completion_tokens": 0}"#).unwrap(), Some(0));
        assert_eq!(read(r#"{"n_predict": -1}"#).unwrap(), None);
        let error = read(r#"{"max_tokens": 5, "max_completion_tokens": 5}"#).unwrap_err();
        assert_eq!(error.param.unwrap_or_default(), "max_completion_tokens");
        assert_eq!(
            read(r#"{"max_tokens": -2}"#)
                .unwrap_err()
                .param
                .unwrap_or_default(),
            "max_tokens"
        );
    }
}
