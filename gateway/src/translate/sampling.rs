//! The sampling parameters of `muster_proto::parameters`, read in the same way in every dialect (seed 004, `POST /completion`).
//!
//! On OpenAI's routes OpenAI's fields have OpenAI's ranges; llama.cpp's have the ranges for which its samplers are defined.

use muster_core::Error;
use muster_proto::{
    parameters::{Kind as Takes, SAMPLING, Value},
    v1::{LogitBias, Sampling, logit_bias},
};

use utoipa::openapi::{RefOr, Schema, schema::Type};

use super::{
    object::{Field, Kind, Object},
    parameters,
    read::{Fields, Read, Shape, one_of, plain},
};

const MAX: f64 = f32::MAX as f64;
const MIN: f64 = f32::MIN as f64;

/// Which ranges apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ranges {
    OpenAi,
    /// The ranges for which the samplers are defined.
    LlamaCpp,
}

/// The sampling parameters of a body, with OpenAI's ranges.
#[derive(Debug)]
pub(crate) struct Samplers(pub(crate) Sampling);

impl Fields<'_> for Samplers {
    fn take_from(object: &mut Object<'_>) -> Result<Self, Error> {
        read(object, Ranges::OpenAi).map(Self)
    }

    fn describe(shape: &mut Shape) {
        describe(shape, Ranges::OpenAi);
    }
}

/// The sampling parameters of llama.cpp's own routes, which know none of OpenAI's ranges.
#[derive(Debug)]
pub(crate) struct LlamaCppSamplers(pub(crate) Sampling);

impl Fields<'_> for LlamaCppSamplers {
    fn take_from(object: &mut Object<'_>) -> Result<Self, Error> {
        read(object, Ranges::LlamaCpp).map(Self)
    }

    fn describe(shape: &mut Shape) {
        describe(shape, Ranges::LlamaCpp);
    }
}

fn describe(shape: &mut Shape, ranges: Ranges) {
    parameters::describe(shape, ranges);
    shape.field::<Option<Biases>>(
        "logit_bias",
        "Bias by token id or text: an object, or a list of pairs.",
    );
}

fn read(body: &mut Object<'_>, ranges: Ranges) -> Result<Sampling, Error> {
    let mut sampling = Sampling::default();
    for parameter in SAMPLING.iter() {
        let mut field = body.take(parameter.name);
        for alias in parameter.aliases {
            let other = body.take(alias);
            field = field.or(other);
        }
        if let Some(field) = field {
            (parameter.set)(&mut sampling, value(&field, parameter.kind, ranges)?);
        }
    }
    // 0 and negative numbers both mean all tokens.
    sampling.top_k = sampling.top_k.map(|k| k.max(0));
    if let Some(Biases(biases)) = Option::find(body, &["logit_bias"])? {
        sampling.logit_bias = biases;
    }
    Ok(sampling)
}

fn value(field: &Field<'_>, takes: Takes, ranges: Ranges) -> Result<Value, Error> {
    let value = match (takes, ranges) {
        (Takes::Float { range, .. }, Ranges::LlamaCpp)
        | (Takes::Float { openai: range, .. }, Ranges::OpenAi) => {
            Value::Float(field.float(range.0, range.1)?)
        }
        (Takes::Int { range }, _) => Value::Int(field.integer(range.0, range.1)?),
        (Takes::Bool, _) => Value::Bool(field.bool()?),
        (Takes::Words { words, .. }, _) => Value::Words(listed(field, words)?),
    };
    takes.check(&value).map_err(|wrong| field.wrong(wrong))?;
    Ok(value)
}

/// llama.cpp's letters for its samplers.
const LETTERS: [(char, &str); 11] = [
    ('d', "dry"),
    ('k', "top_k"),
    ('y', "typ_p"),
    ('p', "top_p"),
    ('s', "top_n_sigma"),
    ('m', "min_p"),
    ('t', "temperature"),
    ('x', "xtc"),
    ('i', "infill"),
    ('e', "penalties"),
    ('a', "adaptive_p"),
];

/// Reads a list of texts. Where only certain words are allowed, which are samplers, one text that is none of them has a letter for each.
fn listed(field: &Field<'_>, words: &[&str]) -> Result<Vec<String>, Error> {
    let list = field.strings()?;
    let letters = field.kind() == Kind::String && !words.is_empty();
    let [text] = list.as_slice() else { return Ok(list) };
    if !letters || words.contains(&text.as_str()) {
        return Ok(list);
    }
    let name = |letter| {
        let found = LETTERS.into_iter().find(|(known, _)| *known == letter);
        found.map(|(_, name)| name.to_owned())
    };
    let named: Option<Vec<String>> = text.chars().map(name).collect();
    named.ok_or_else(|| field.wrong("must be a list of samplers, or their letters in llama.cpp"))
}

struct Biases(Vec<LogitBias>);

impl Read<'_> for Biases {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        biases(field).map(Self)
    }

    fn schema() -> RefOr<Schema> {
        one_of(vec![plain(Type::Object), Vec::<Field<'_>>::schema()])
    }
}

/// Reads OpenAI's `{"123": -1}` or llama.cpp's `[[123, -1], ["text", false]]`.
fn biases(field: &Field<'_>) -> Result<Vec<LogitBias>, Error> {
    match field.kind() {
        Kind::Object => {
            let entry = |(key, value): (String, Field<'_>)| bias(target(key), &value);
            field.entries()?.into_iter().map(entry).collect()
        }
        Kind::Array => field.list()?.iter().map(pair).collect(),
        Kind::Null | Kind::Bool | Kind::Number | Kind::String => {
            Err(field.want("an object or an array of pairs"))
        }
    }
}

/// A key that is a number names a token; any other key stands for all tokens of its text.
fn target(key: String) -> logit_bias::Target {
    match key.parse() {
        Ok(token) => logit_bias::Target::Token(token),
        Err(_) => logit_bias::Target::Text(key),
    }
}

fn pair(field: &Field<'_>) -> Result<LogitBias, Error> {
    let parts = field.list()?;
    let [who, value] = parts.as_slice() else {
        return Err(field.wrong("must be a pair of token and bias"));
    };
    let target = match who.kind() {
        Kind::String => logit_bias::Target::Text(who.string()?),
        Kind::Null | Kind::Bool | Kind::Number | Kind::Array | Kind::Object => {
            logit_bias::Target::Token(who.i32(0, i32::MAX)?)
        }
    };
    bias(target, value)
}

fn bias(target: logit_bias::Target, value: &Field<'_>) -> Result<LogitBias, Error> {
    let (bias, never) = match value.kind() {
        Kind::Bool if value.bool()? => return Err(value.wrong("must be a number or false")),
        Kind::Bool => (0.0, true),
        Kind::Null | Kind::Number | Kind::String | Kind::Array | Kind::Object => {
            (value.float(MIN, MAX)?, false)
        }
    };
    Ok(LogitBias {
        target: Some(target),
        bias,
        never,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Sampling, Error> {
        super::read(&mut Object::body(text).unwrap(), Ranges::OpenAi)
    }

    #[test]
    fn every_parameter_is_read_by_each_of_its_names() {
        for parameter in SAMPLING.iter() {
            for name in parameter.aliases.iter().chain([&parameter.name]) {
                let value = match parameter.kind {
                    Takes::Float { .. } => "0.5",
                    Takes::Int { .. } => "2",
                    Takes::Bool => "true",
                    Takes::Words { .. } => "[\"top_k\"]",
                };
                let mut body = format!("{{\"{name}\": {value}}}");
                let mut object = Object::body(&body).unwrap();
                let sampling = super::read(&mut object, Ranges::OpenAi).unwrap();
                assert!((parameter.get)(&sampling).is_some(), "{name}");
                assert_eq!(object.rest(), "", "{name}");
                body = format!("{{\"{name}\": {{}}}}");
                assert_eq!(read(&body).unwrap_err().param.unwrap_or_default(), *name);
            }
        }
    }

    #[test]
    fn a_penalty_that_would_be_divided_by_is_no_zero() {
        let error = read(r#"{"repeat_penalty": 0}"#).unwrap_err();
        assert_eq!(error.message, "`repeat_penalty` must be greater than 0");
        assert!(read(r#"{"repetition_penalty": 0.5}"#).is_ok());
    }

    #[test]
    fn both_shapes_of_logit_bias_are_read() {
        let openai = read(r#"{"logit_bias": {"12": -100, "word": false}}"#)
            .unwrap()
            .logit_bias;
        let native = read(r#"{"logit_bias": [[12, -100], ["word", false]]}"#)
            .unwrap()
            .logit_bias;
        assert_eq!(openai, native);
        assert_eq!(openai[0].target, Some(logit_bias::Target::Token(12)));
        assert!(openai[1].never);
        let error = read(r#"{"logit_bias": [[12]]}"#).unwrap_err();
        assert_eq!(error.param.unwrap_or_default(), "logit_bias[0]");
    }

    #[test]
    fn openai_fields_have_openai_ranges() {
        for (field, value) in [
            ("temperature", "2.1"),
            ("top_p", "1.5"),
            ("presence_penalty", "-3"),
            ("mirostat", "3"),
        ] {
            let error = read(&format!("{{\"{field}\": {value}}}")).unwrap_err();
            assert_eq!(error.param.unwrap_or_default(), field);
        }
        // llama.cpp's own routes have no such ranges (seed 004).
        let text = r#"{"temperature": 3, "presence_penalty": 3, "frequency_penalty": -4}"#;
        let native = |text| super::read(&mut Object::body(text).unwrap(), Ranges::LlamaCpp);
        let chosen = native(text).unwrap();
        assert_eq!(
            (chosen.temperature, chosen.presence_penalty),
            (Some(3.0), Some(3.0))
        );
        assert!(native(r#"{"top_p": 1.5}"#).is_err());
        assert_eq!(read(r#"{"temperature": -1}"#).unwrap().temperature, Some(-1.0));
        assert_eq!(read(r#"{"top_k": -1}"#).unwrap().top_k, Some(0));
    }

    #[test]
    fn samplers_may_be_llama_cpps_letters() {
        let samplers = |text: &str| read(&format!("{{\"samplers\": {text}}}")).map(|read| read.samplers);
        let named = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(samplers("\"kt\"").unwrap(), named(&["top_k", "temperature"]));
        assert_eq!(samplers("\"top_k\"").unwrap(), named(&["top_k"]));
        assert_eq!(samplers("[\"min_p\"]").unwrap(), named(&["min_p"]));
        assert_eq!(
            samplers("\"kz\"").unwrap_err().param.unwrap_or_default(),
            "samplers"
        );
    }

    #[test]
    fn an_empty_list_of_breakers_is_not_an_absent_one() {
        assert!(
            read(r#"{"dry_sequence_breakers": []}"#)
                .unwrap()
                .dry_sequence_breakers
                .is_some()
        );
        assert!(read("{}").unwrap().dry_sequence_breakers.is_none());
    }
}
