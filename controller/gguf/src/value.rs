//! Metadata: the key-value part of a header.
//!
//! Values that a catalogue or an estimate can use are kept. Of token lists, scores and merges only the length is kept.

use std::{
    collections::BTreeMap,
    io::{Read, Seek},
};

use crate::{Error, input::Input};

/// Longest key (GGUF specification).
const KEY_LIMIT: u64 = 65_535;
/// Longest text that is kept; chat templates have less than 100 KiB.
const TEXT_LIMIT: u64 = 4 * 1024 * 1024;
/// Longest list of numbers that is kept. Lists per layer are no longer than models are deep (llama.cpp: 512).
const LIST_LIMIT: u64 = 4096;
/// Largest size in bytes of everything kept of one header.
const KEPT_LIMIT: u64 = 64 * 1024 * 1024;
/// Size in bytes of the smallest entry: length of the key, type, one byte.
const SMALLEST: u64 = 8 + 4 + 1;
/// Smallest size in bytes of an element of a list of texts.
const SMALLEST_TEXT: u64 = 8;

/// A metadata value, in one of the few forms that readers need.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A non-negative integer of any width.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    /// A floating-point number.
    Float(f64),
    /// A boolean.
    Flag(bool),
    /// Text; invalid UTF-8 is replaced.
    Text(String),
    /// A short list of integers or booleans; negative numbers become 0.
    List(Vec<u64>),
    /// The length of a long value, or of a list of texts or floats, whose contents are not kept.
    Long(u64),
}

/// The metadata of a header, by key.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata(BTreeMap<String, Value>);

/// Types of values, with their numbers in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Text,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn of(number: u32, key: &str) -> Result<Self, Error> {
        const ALL: [Kind; 13] = [
            Kind::U8,
            Kind::I8,
            Kind::U16,
            Kind::I16,
            Kind::U32,
            Kind::I32,
            Kind::F32,
            Kind::Bool,
            Kind::Text,
            Kind::Array,
            Kind::U64,
            Kind::I64,
            Kind::F64,
        ];
        usize::try_from(number)
            .ok()
            .and_then(|place| ALL.get(place))
            .copied()
            .ok_or_else(|| Error::ValueType {
                key: key.to_owned(),
                kind: number,
            })
    }

    /// Smallest size of a value in bytes.
    const fn size(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Text | Self::Array => 8,
        }
    }
}

impl Metadata {
    /// Reads `count` entries.
    pub(crate) fn read<R: Read + Seek>(input: &mut Input<R>, count: u64) -> Result<Self, Error> {
        input.room_for("metadata", count, SMALLEST)?;
        let mut metadata = Self::default();
        let begin = input.at();
        let mut skipped = 0;
        for _ in 0..count {
            let key = text(input, "a key", KEY_LIMIT)?;
            let key = String::from_utf8(key).map_err(|_| Error::NotText("a key"))?;
            let kind = Kind::of(input.u32("a value's type")?, &key)?;
            let before = input.at();
            let value = value(input, kind, &key)?;
            if let Value::Long(_) = value {
                skipped += input.at() - before;
            }
            let kept = input.at() - begin - skipped;
            if kept > KEPT_LIMIT {
                return Err(Error::Absurd {
                    what: "bytes of metadata",
                    value: kept,
                    limit: KEPT_LIMIT,
                });
            }
            if metadata.0.contains_key(&key) {
                return Err(Error::Twice {
                    what: "the key",
                    name: key,
                });
            }
            metadata.0.insert(key, value);
        }
        Ok(metadata)
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// All keys with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of a key if it is a non-negative integer.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Unsigned(value) => Some(*value),
            Value::Negative(_)
            | Value::Float(_)
            | Value::Flag(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Long(_) => None,
        }
    }

    /// The value of a key if it is text.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Text(value) => Some(value),
            Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Float(_)
            | Value::Flag(_)
            | Value::List(_)
            | Value::Long(_) => None,
        }
    }

    /// The value of a key if it is a boolean.
    #[must_use]
    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Flag(value) => Some(*value),
            Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Float(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Long(_) => None,
        }
    }

    /// The value of a key if it is a short list of numbers.
    #[must_use]
    pub fn list(&self, key: &str) -> Option<&[u64]> {
        match self.get(key)? {
            Value::List(values) => Some(values),
            Value::Unsigned(_)
            | Value::Negative(_)
            | Value::Float(_)
            | Value::Flag(_)
            | Value::Text(_)
            | Value::Long(_) => None,
        }
    }

    /// The number of elements of a list of any kind.
    #[must_use]
    pub fn length(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::List(values) => Some(values.len() as u64),
            Value::Long(length) => Some(*length),
            Value::Unsigned(_) | Value::Negative(_) | Value::Float(_) | Value::Flag(_) | Value::Text(_) => {
                None
            }
        }
    }

    /// A number for each of `layers` layers: a list, or one number for all (llama.cpp's `get_key_or_arr`).
    #[must_use]
    pub fn per_layer(&self, key: &str, layers: usize) -> Option<Vec<u64>> {
        if let Some(one) = self.number(key) {
            return Some(vec![one; layers]);
        }
        let list = self.list(key)?;
        (list.len() >= layers).then(|| list.iter().take(layers).copied().collect())
    }
}

fn text<R: Read + Seek>(input: &mut Input<R>, what: &'static str, limit: u64) -> Result<Vec<u8>, Error> {
    let length = input.u64(what)?;
    if length > limit {
        return Err(Error::Absurd {
            what,
            value: length,
            limit,
        });
    }
    input.bytes(what, length)
}

fn value<R: Read + Seek>(input: &mut Input<R>, kind: Kind, key: &str) -> Result<Value, Error> {
    match kind {
        Kind::Text => {
            let length = input.u64("a text")?;
            if length > TEXT_LIMIT {
                input.skip("a text", length)?;
                return Ok(Value::Long(length));
            }
            let bytes = input.bytes("a text", length)?;
            Ok(Value::Text(String::from_utf8(bytes).unwrap_or_else(|error| {
                String::from_utf8_lossy(error.as_bytes()).into_owned()
            })))
        }
        Kind::Array => array(input, key),
        Kind::U8
        | Kind::I8
        | Kind::U16
        | Kind::I16
        | Kind::U32
        | Kind::I32
        | Kind::F32
        | Kind::Bool
        | Kind::U64
        | Kind::I64
        | Kind::F64 => scalar(input, kind),
    }
}

fn scalar<R: Read + Seek>(input: &mut Input<R>, kind: Kind) -> Result<Value, Error> {
    const WHAT: &str = "a value";
    let signed = |value: i64| u64::try_from(value).map_or(Value::Negative(value), Value::Unsigned);
    Ok(match kind {
        Kind::U8 => Value::Unsigned(u8::from_le_bytes(input.array(WHAT)?).into()),
        Kind::I8 => signed(i8::from_le_bytes(input.array(WHAT)?).into()),
        Kind::U16 => Value::Unsigned(u16::from_le_bytes(input.array(WHAT)?).into()),
        Kind::I16 => signed(i16::from_le_bytes(input.array(WHAT)?).into()),
        Kind::U32 => Value::Unsigned(input.u32(WHAT)?.into()),
        Kind::I32 => signed(i32::from_le_bytes(input.array(WHAT)?).into()),
        Kind::F32 => Value::Float(f32::from_le_bytes(input.array(WHAT)?).into()),
        Kind::Bool => Value::Flag(input.array::<1>(WHAT)? != [0]),
        Kind::U64 | Kind::Text | Kind::Array => Value::Unsigned(input.u64(WHAT)?),
        Kind::I64 => signed(i64::from_le_bytes(input.array(WHAT)?)),
        Kind::F64 => Value::Float(f64::from_le_bytes(input.array(WHAT)?)),
    })
}

fn array<R: Read + Seek>(input: &mut Input<R>, key: &str) -> Result<Value, Error> {
    let number = input.u32("an array's type")?;
    let kind = Kind::of(number, key)?;
    let count = input.u64("an array's length")?;
    match kind {
        // llama.cpp knows no arrays of arrays either. Refusing them here keeps this reader from recursing.
        Kind::Array => Err(Error::ValueType {
            key: key.to_owned(),
            kind: number,
        }),
        Kind::Text => {
            input.room_for("an array of texts", count, SMALLEST_TEXT)?;
            for _ in 0..count {
                let length = input.u64("a text")?;
                input.skip("a text", length)?;
            }
            Ok(Value::Long(count))
        }
        Kind::F32 | Kind::F64 => skip_array(input, kind, count),
        Kind::U8
        | Kind::I8
        | Kind::U16
        | Kind::I16
        | Kind::U32
        | Kind::I32
        | Kind::Bool
        | Kind::U64
        | Kind::I64 => {
            if count > LIST_LIMIT {
                return skip_array(input, kind, count);
            }
            let mut list = Vec::new();
            for _ in 0..count {
                list.push(match scalar(input, kind)? {
                    Value::Unsigned(value) => value,
                    Value::Flag(flag) => flag.into(),
                    Value::Negative(_)
                    | Value::Float(_)
                    | Value::Text(_)
                    | Value::List(_)
                    | Value::Long(_) => 0,
                });
            }
            Ok(Value::List(list))
        }
    }
}

fn skip_array<R: Read + Seek>(input: &mut Input<R>, kind: Kind, count: u64) -> Result<Value, Error> {
    let bytes = input.room_for("an array", count, kind.size())?;
    input.skip("an array", bytes)?;
    Ok(Value::Long(count))
}
