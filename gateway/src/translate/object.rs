//! A reader of JSON objects that names the field at fault.
//!
//! [`Object`] borrows from the request body. Each field stays raw text until somebody [`take`](Object::take)s it with a type; fields that
//! nobody took are passed on unchanged as `extra_json`. Raw text keeps the order of keys in schemas and the exact digits of numbers, which
//! matter to engines. `null` means absent, as in OpenAI's API. It is not serde's derive, which would name the first error by line and
//! column, copy unknown fields, and lose order and digits.

use std::{borrow::Cow, fmt};

use muster_core::{Code, Error};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// Deepest nesting of arrays and objects accepted in a request.
pub(crate) const MAX_DEPTH: usize = 100;

/// An error about one field of the request.
pub(crate) fn invalid(param: &str, message: impl fmt::Display) -> Error {
    let error = Code::InvalidRequest.error(format!("`{param}` {message}"));
    error.with_param(param)
}

/// Checks that `body` is UTF-8 and not nested deeper than [`MAX_DEPTH`], before a parser recurses into it.
pub(crate) fn text(body: &[u8]) -> Result<&str, Error> {
    let text = std::str::from_utf8(body).map_err(|_| malformed("the body is not UTF-8"))?;
    let (mut depth, mut quoted, mut escaped) = (0_usize, false, false);
    for byte in text.bytes() {
        if quoted {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => quoted = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => quoted = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(malformed(format!(
                "the body is nested deeper than {MAX_DEPTH} levels"
            )));
        }
    }
    Ok(text)
}

fn malformed(message: impl Into<String>) -> Error {
    Code::InvalidJson.error(message)
}

/// The fields of a JSON object that were not taken yet, in their order.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    path: String,
    fields: Vec<(Cow<'a, str>, &'a RawValue)>,
}

struct Pairs<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A key; borrowed if it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Pairs<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut pairs = Vec::with_capacity(16);
                while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    pairs.push((key, value));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

impl<'a> Object<'a> {
    /// Parses the whole request body.
    pub(crate) fn body(text: &'a str) -> Result<Self, Error> {
        // Check the syntax of the whole body first, so that a wrong type deep inside is not reported as malformed JSON.
        let raw: &RawValue = serde_json::from_str(text)
            .map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
        if kind(raw) != Kind::Object {
            let message = format!("the body must be a JSON object, not {}", kind(raw));
            return Err(Code::InvalidRequest.error(message));
        }
        Self::parse(String::new(), raw)
    }

    fn parse(path: String, raw: &'a RawValue) -> Result<Self, Error> {
        match serde_json::from_str::<Pairs<'a>>(raw.get()) {
            Ok(Pairs(fields)) => Ok(Self { path, fields }),
            Err(error) => Err(malformed(format!("`{path}` is not an object: {error}"))),
        }
    }

    /// The path of a field of this object, for messages.
    pub(crate) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Takes a field; `None` if it is absent or null. Of duplicates the last one counts.
    pub(crate) fn take(&mut self, key: &str) -> Option<Field<'a>> {
        self.remove(key).filter(|field| field.kind() != Kind::Null)
    }

    /// As [`Self::take`], but returns a null field.
    pub(crate) fn remove(&mut self, key: &str) -> Option<Field<'a>> {
        let mut found = None;
        self.fields.retain(|(name, value)| {
            let hit = name == key;
            if hit {
                found = Some(*value);
            }
            !hit
        });
        found.map(|raw| Field {
            path: self.path_of(key),
            raw,
        })
    }

    /// Returns a field without taking it; `None` if it is absent or null.
    pub(crate) fn peek(&self, key: &str) -> Option<Field<'a>> {
        let (_, raw) = self.fields.iter().rfind(|(name, _)| name == key)?;
        (kind(raw) != Kind::Null).then(|| Field {
            path: self.path_of(key),
            raw,
        })
    }

    /// Takes the first field that is present among `keys`: a name and its synonyms.
    pub(crate) fn take_any(&mut self, keys: &[&str]) -> Option<Field<'a>> {
        let mut found = None;
        for key in keys {
            let field = self.take(key);
            found = found.or(field);
        }
        found
    }

    /// Takes a required field.
    pub(crate) fn need(&mut self, key: &str) -> Result<Field<'a>, Error> {
        self.take(key)
            .ok_or_else(|| invalid(&self.path_of(key), "is required"))
    }

    /// Drops fields that engines do not need.
    pub(crate) fn discard(&mut self, keys: &[&str]) {
        self.fields.retain(|(name, _)| !keys.contains(&name.as_ref()));
    }

    /// The name of the first field that was not taken, null or not.
    pub(crate) fn first(&self) -> Option<&str> {
        self.fields.first().map(|(key, _)| key.as_ref())
    }

    /// The names of the fields that were not taken.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(key, _)| key.as_ref())
    }

    /// The fields that were not taken, as the text of a JSON object; empty if there are none.
    pub(crate) fn rest(self) -> String {
        if self.fields.is_empty() {
            return String::new();
        }
        let mut text = String::from("{");
        for (key, value) in self.fields {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&quoted(&key));
            text.push(':');
            text.push_str(value.get());
        }
        text.push('}');
        text
    }
}

/// A JSON string literal.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The type of a JSON value, told by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Null,
    Bool,
    Number,
    String,
    Array,
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Bool => "a boolean",
            Self::Number => "a number",
            Self::String => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        })
    }
}

fn kind(raw: &RawValue) -> Kind {
    match raw.get().as_bytes().first() {
        Some(b'n') | None => Kind::Null,
        Some(b't' | b'f') => Kind::Bool,
        Some(b'"') => Kind::String,
        Some(b'[') => Kind::Array,
        Some(b'{') => Kind::Object,
        Some(_) => Kind::Number,
    }
}

/// A value and its path.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    path: String,
    raw: &'a RawValue,
}

impl<'a> Field<'a> {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn kind(&self) -> Kind {
        kind(self.raw)
    }

    /// The value's JSON text, as the client wrote it.
    pub(crate) fn json(&self) -> String {
        self.raw.get().to_owned()
    }

    /// An error about this field; `message` follows its name.
    pub(crate) fn wrong(&self, message: impl fmt::Display) -> Error {
        invalid(&self.path, message)
    }

    /// An error about this field's type.
    pub(crate) fn want(&self, what: &str) -> Error {
        self.wrong(format_args!("must be {what}, not {}", self.kind()))
    }

    fn typed<T: DeserializeOwned>(&self, kind: Kind, what: &str) -> Result<T, Error> {
        if self.kind() != kind {
            return Err(self.want(what));
        }
        serde_json::from_str(self.raw.get()).map_err(|_| self.wrong(format_args!("must be {what}")))
    }

    pub(crate) fn string(&self) -> Result<String, Error> {
        self.typed(Kind::String, "a string")
    }

    pub(crate) fn bool(&self) -> Result<bool, Error> {
        self.typed(Kind::Bool, "a boolean")
    }

    /// A whole number between `low` and `high`, both included. `3.0` counts as whole.
    pub(crate) fn integer(&self, low: i64, high: i64) -> Result<i64, Error> {
        let number: serde_json::Number = self.typed(Kind::Number, "an integer")?;
        let value = match number.as_i64() {
            Some(value) => value,
            None => whole(number.as_f64()).ok_or_else(|| self.wrong("must be an integer"))?,
        };
        if (low..=high).contains(&value) {
            return Ok(value);
        }
        Err(self.wrong(format_args!("must be between {low} and {high}, not {value}")))
    }

    /// A whole number that fits a `u32`, at least `low`.
    pub(crate) fn u32(&self, low: u32) -> Result<u32, Error> {
        let value = self.integer(low.into(), u32::MAX.into())?;
        u32::try_from(value).map_err(|_| self.wrong("is too large"))
    }

    /// A whole number that fits an `i32`, between `low` and `high`, both included.
    pub(crate) fn i32(&self, low: i32, high: i32) -> Result<i32, Error> {
        let value = self.integer(low.into(), high.into())?;
        i32::try_from(value).map_err(|_| self.wrong("is too large"))
    }

    /// A number between `low` and `high`, both included.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "samplers compute in f32; the range was checked in f64"
    )]
    pub(crate) fn float(&self, low: f64, high: f64) -> Result<f32, Error> {
        let value: f64 = self.typed(Kind::Number, "a number")?;
        if value >= low && value <= high {
            return Ok(value as f32);
        }
        match (low > f64::from(f32::MIN), high < f64::from(f32::MAX)) {
            (true, true) => Err(self.wrong(format_args!("must be between {low} and {high}, not {value}"))),
            (true, false) => Err(self.wrong(format_args!("must be at least {low}, not {value}"))),
            (false, true) => Err(self.wrong(format_args!("must be at most {high}, not {value}"))),
            (false, false) => Err(self.wrong("is too large")),
        }
    }

    /// The elements of an array.
    pub(crate) fn list(&self) -> Result<Vec<Self>, Error> {
        if self.kind() != Kind::Array {
            return Err(self.want("an array"));
        }
        let raws: Vec<&'a RawValue> =
            serde_json::from_str(self.raw.get()).map_err(|_| self.wrong("must be an array"))?;
        let field = |(index, raw)| Field {
            path: format!("{}[{index}]", self.path),
            raw,
        };
        Ok(raws.into_iter().enumerate().map(field).collect())
    }

    /// The fields of an object.
    pub(crate) fn object(&self) -> Result<Object<'a>, Error> {
        if self.kind() != Kind::Object {
            return Err(self.want("an object"));
        }
        Object::parse(self.path.clone(), self.raw)
    }

    /// The fields of an object with their keys, in their order.
    pub(crate) fn entries(&self) -> Result<Vec<(String, Self)>, Error> {
        let object = self.object()?;
        let entry = |(key, raw): &(Cow<'a, str>, &'a RawValue)| {
            let field = Field {
                path: object.path_of(key),
                raw,
            };
            (key.clone().into_owned(), field)
        };
        Ok(object.fields.iter().map(entry).collect())
    }

    /// A list of strings; a single string is a list of one.
    pub(crate) fn strings(&self) -> Result<Vec<String>, Error> {
        match self.kind() {
            Kind::String => Ok(vec![self.string()?]),
            Kind::Array => self.list()?.iter().map(Self::string).collect(),
            Kind::Null | Kind::Bool | Kind::Number | Kind::Object => {
                Err(self.want("a string or an array of strings"))
            }
        }
    }
}

/// The number, if it is whole and a double holds it exactly.
#[allow(clippy::cast_possible_truncation, reason = "the range is checked")]
fn whole(value: Option<f64>) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    value
        .filter(|value| value.fract() == 0.0 && value.abs() <= EXACT)
        .map(|value| value as i64)
}

#[cfg(test)]
mod tests;
