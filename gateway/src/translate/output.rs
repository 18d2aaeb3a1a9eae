//! What the output must look like, where it ends, and what is reported about it. Chats and completions share these fields.

use muster_core::{Code, Error};
use muster_proto::v1::{GenerateRequest, generate_request::Constraint};

use serde_json::value::RawValue;
use utoipa::openapi::{RefOr, Schema};

use super::{
    View,
    object::{self, Field, Kind, Object},
    read::{At, Int, Read, Schemas, Strings, Uint, body},
};

body! {
    /// Fields that decide how the answer is shown.
    pub(crate) struct Viewing as Viewing {
        /// Answer with server-sent events instead of one body.
        stream: Option<bool>,
        /// Options of the stream.
        stream_options: Option<StreamOptions>,
        /// Number of choices per prompt, 1 to 128.
        n: Option<Int<1, 128>>,
    }

    /// Options of a stream.
    pub(crate) struct StreamOptions as StreamOptions {
        /// Send a last chunk with token counts.
        include_usage: Option<bool>,
    }

    /// llama.cpp's switches of a request (seed 004).
    pub(crate) struct Switches as Switches {
        /// Strings that end the output.
        stop: Option<Stop>,
        /// Reuse cached parts of the prompt (llama.cpp).
        cache_prompt: Option<bool>,
        /// Report probabilities after sampling instead of logarithms before it (llama.cpp).
        post_sampling_probs: Option<bool>,
        /// Report token ids (llama.cpp).
        return_tokens: Option<bool>,
        /// Report how much of the prompt was read (llama.cpp).
        return_progress: Option<bool>,
        /// Show the speed in each event of a stream (llama.cpp).
        timings_per_token: Option<bool>,
        /// Index of the slot to use; -1 = any (llama.cpp).
        id_slot: Option<Int<-1>>,
        /// Largest number of milliseconds to generate; 0 and -1 = no limit (llama.cpp).
        t_max_predict_ms: Option<Int<-1>>,
        /// Smallest number of spaces that a line must begin with (llama.cpp).
        n_indent: Option<Uint<0>>,
        /// Show beside the answer of a chat or completion, as `__verbose`, what llama.cpp's own route shows of it.
        verbose: Option<bool>,
    }

    /// Limits on the number of tokens.
    pub(crate) struct Limits as TokenLimits {
        /// Largest number of tokens to generate; -1 = until the context is full. `max_completion_tokens` counts before it.
        max_tokens: Option<Int<-1>>,
        /// Largest number of tokens to generate; -1 = until the context is full. It counts before `max_tokens`.
        max_completion_tokens: Option<Int<-1>>,
        /// The same as `max_tokens`, by llama.cpp's name.
        n_predict: Option<Int<-1>>,
    }

    /// A form that the output must have.
    pub(crate) struct Constraints as Constraints {
        /// A grammar that the output must follow (llama.cpp).
        grammar: Option<String>,
        /// A JSON schema that the output must follow (llama.cpp).
        json_schema: Option<JsonSchema>,
        /// A JSON schema that the output must follow, as an object or as text (vLLM).
        guided_json: Option<Guided>,
        /// Form of the output.
        response_format: Option<ResponseFormat>,
    }

    /// Form of the output.
    struct FormatBody<'a> as ResponseFormat {
        /// `text`, `json_object` or `json_schema`.
        r#type: At<'a, String>,
        /// The JSON schema, in llama.cpp's and Responses' place.
        schema: Option<Field<'a>>,
        /// An object with `name` and `schema`; only with `json_schema`.
        json_schema: Option<Field<'a>>,
    }
}

/// Reads `stream`, `stream_options` and `n`.
pub(crate) fn view(asked: Viewing) -> View {
    let options = asked.stream_options;
    View {
        stream: asked.stream.unwrap_or_default(),
        include_usage: options
            .and_then(|options| options.include_usage)
            .unwrap_or_default(),
        choices: asked.n.map_or(1, |Int(choices)| choices.unsigned_abs()),
        ..View::default()
    }
}

/// Copies llama.cpp's switches into `work` and `view`.
pub(crate) fn switches(asked: Switches, work: &mut GenerateRequest, view: &mut View) {
    work.cache_prompt = asked.cache_prompt;
    work.post_sampling_probs = asked.post_sampling_probs.unwrap_or_default();
    work.return_tokens = asked.return_tokens.unwrap_or_default();
    work.return_progress = asked.return_progress.unwrap_or_default();
    work.timings_per_token = asked.timings_per_token.unwrap_or_default();
    work.id_slot = asked.id_slot.and_then(limit);
    work.max_predict_ms = asked.t_max_predict_ms.and_then(limit).filter(|limit| *limit > 0);
    work.min_indent = asked.n_indent.map_or(0, |Uint(spaces)| spaces);
    work.stop = asked.stop.unwrap_or_default().0;
    view.verbose = asked.verbose.unwrap_or_default();
    work.return_prompt |= view.verbose;
    work.return_sampling |= view.verbose;
    view.tokens = work.return_tokens;
    view.timed = work.timings_per_token;
    view.post_sampling = work.post_sampling_probs;
    work.n = view.choices;
    work.stream = view.stream;
}

/// Strings that end the output: a list or a single string.
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

/// The limit of tokens: the newest of OpenAI's names wins, as in its own API.
pub(crate) fn max_tokens(asked: &Limits) -> Option<u32> {
    let given = asked.max_completion_tokens.or(asked.max_tokens);
    given.or(asked.n_predict).and_then(limit)
}

/// The limit; -1 means none.
pub(crate) fn limit(Int(most): Int<-1>) -> Option<u32> {
    u32::try_from(most).ok()
}

/// Checks `best_of` (OpenAI's completions, vLLM's chats), which generates more choices than it shows. Accepted only where it has no effect.
pub(crate) fn best_of(body: &mut Object<'_>, choices: u32) -> Result<(), Error> {
    match body.take("best_of") {
        Some(field) if ![1, i64::from(choices)].contains(&field.integer(1, i64::MAX)?) => {
            let error = Code::UnsupportedByRuntime.error("`best_of` must be 1 or equal to `n`");
            Err(error.with_param(field.path()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The one constraint on the output, if any.
///
/// # Errors
/// There are two.
pub(crate) fn constraint(asked: Constraints) -> Result<Option<Constraint>, Error> {
    let grammar = asked.grammar.filter(|grammar| !grammar.is_empty());
    let schema = asked.json_schema.map(|JsonSchema(schema)| schema);
    let guided = asked.guided_json.map(|Guided(schema)| schema);
    let format = asked.response_format;
    let mut found = None;
    for (key, constraint) in [
        ("grammar", grammar.map(Constraint::Grammar)),
        ("json_schema", schema.map(Constraint::JsonSchema)),
        ("guided_json", guided.map(Constraint::JsonSchema)),
        (
            "response_format",
            format.and_then(|ResponseFormat(constraint)| constraint),
        ),
    ] {
        if found.is_some() && constraint.is_some() {
            let wrong = "cannot be combined with another constraint of the output";
            return Err(object::invalid(key, wrong));
        }
        found = found.or(constraint);
    }
    Ok(found)
}

/// Reads OpenAI's `{"type": …}` and llama.cpp's form, which has the schema directly in it (seed 004, chat completions).
#[derive(Debug)]
pub(crate) struct ResponseFormat(pub(crate) Option<Constraint>);

impl Read<'_> for ResponseFormat {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let format = FormatBody::read(field)?;
        let constraint = match format.r#type.value.as_str() {
            "text" => None,
            "json_object" => Some(match format.schema {
                Some(field) => Constraint::JsonSchema(schema(&field)?),
                None => Constraint::JsonObject(true),
            }),
            "json_schema" => {
                let missing = || object::invalid(&format!("{}.json_schema", field.path()), "is required");
                let field = match format.schema {
                    Some(field) => field,
                    None => format.json_schema.ok_or_else(missing)?.object()?.need("schema")?,
                };
                Some(Constraint::JsonSchema(schema(&field)?))
            }
            _ => {
                return Err(format
                    .r#type
                    .field
                    .wrong("must be `text`, `json_object` or `json_schema`"));
            }
        };
        Ok(Self(constraint))
    }

    fn schema() -> RefOr<Schema> {
        FormatBody::schema()
    }

    fn referred(out: &mut Schemas) {
        FormatBody::referred(out);
    }
}

/// The text of a JSON schema.
#[derive(Debug)]
pub(crate) struct JsonSchema(String);

impl Read<'_> for JsonSchema {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        schema(field).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        Field::schema()
    }
}

/// The text of a JSON schema that was given as an object or as text.
#[derive(Debug)]
pub(crate) struct Guided(String);

impl Read<'_> for Guided {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        guided(field).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        Field::schema()
    }
}

/// Reads a schema given as an object or as text.
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
    use crate::translate::read::Fields as _;

    fn read(text: &str) -> Result<Option<Constraint>, Error> {
        constraint(Constraints::body(text.as_bytes())?)
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
    fn the_newer_name_of_the_limit_wins() {
        let read = |text: &str| Limits::body(text.as_bytes()).map(|limits| max_tokens(&limits));
        assert_eq!(read(r#"{"max_tokens": 5}"#).unwrap(), Some(5));
        assert_eq!(read(r#"{"max_completion_tokens": 0}"#).unwrap(), Some(0));
        assert_eq!(read(r#"{"n_predict": -1}"#).unwrap(), None);
        let both = read(r#"{"max_tokens": 5, "max_completion_tokens": 6}"#).unwrap();
        assert_eq!(both, Some(6));
        assert_eq!(
            read(r#"{"max_tokens": -2}"#)
                .unwrap_err()
                .param
                .unwrap_or_default(),
            "max_tokens"
        );
    }
}
