//! Request parameters, one row each, made at build time from the options of their fields (`muster/v1/options.proto`).
//!
//! Readers of requests, the OpenAPI document, the echo of values in force, llama.cpp's flags, `llama-server`'s JSON and the embedded engine
//! use these rows. So adding a parameter of llama.cpp's takes two changes: its field, and the line in `worker/llama/shim/sampler.cpp` that
//! says where llama.cpp stores it.

use serde_json::Map;

use crate::v1;

include!(concat!(env!("OUT_DIR"), "/parameters.rs"));

/// A parameter: a field of the message `M`.
#[derive(Debug)]
pub struct Parameter<M: 'static> {
    /// llama.cpp's name for it, used in requests, echoes and engines.
    pub name: &'static str,
    /// Other names for it in requests.
    pub aliases: &'static [&'static str],
    /// One sentence for people.
    pub about: &'static str,
    /// The type and range of its value.
    pub kind: Kind,
    /// llama.cpp's value where neither the request nor the model sets one.
    pub default: Default,
    /// Whether -1 means the whole context.
    pub whole_context: bool,
    /// llama.cpp's flags that set it for all requests of a model.
    pub flags: &'static [&'static str],
    /// Its value in a message; none if it is not set.
    pub get: fn(&M) -> Option<Value>,
    /// Sets it in a message. A value of another type unsets it.
    pub set: fn(&mut M, Value),
}

/// The type and range of a value. Ranges include both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A number.
    Float {
        /// The range for which samplers are defined.
        range: (f64, f64),
        /// The range on OpenAI's routes.
        openai: (f64, f64),
        /// Whether the range excludes its lower end.
        above: bool,
    },
    /// A whole number.
    Int {
        /// The range for which samplers are defined.
        range: (i64, i64),
    },
    /// A switch.
    Bool,
    /// A list of texts.
    Words {
        /// The allowed entries; empty = any.
        words: &'static [&'static str],
        /// Largest number of entries.
        most: usize,
    },
}

/// A default value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Default {
    /// A number.
    Float(f32),
    /// A whole number.
    Int(i64),
    /// A switch.
    Bool(bool),
    /// A list of texts.
    Words(&'static [&'static str]),
}

/// A value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Float(f32),
    /// A whole number.
    Int(i64),
    /// A switch.
    Bool(bool),
    /// A list of texts.
    Words(Vec<String>),
}

impl From<Default> for Value {
    fn from(default: Default) -> Self {
        match default {
            Default::Float(number) => Self::Float(number),
            Default::Int(number) => Self::Int(number),
            Default::Bool(switch) => Self::Bool(switch),
            Default::Words(list) => Self::Words(list.iter().map(|word| (*word).to_owned()).collect()),
        }
    }
}

impl From<Value> for serde_json::Value {
    fn from(value: Value) -> Self {
        match value {
            Value::Float(number) => number.into(),
            Value::Int(number) => number.into(),
            Value::Bool(switch) => switch.into(),
            Value::Words(list) => list.into(),
        }
    }
}

impl Value {
    fn float(self) -> Option<f32> {
        match self {
            Self::Float(number) => Some(number),
            Self::Int(_) | Self::Bool(_) | Self::Words(_) => None,
        }
    }

    fn int<T: TryFrom<i64>>(self) -> Option<T> {
        match self {
            Self::Int(number) => T::try_from(number).ok(),
            Self::Float(_) | Self::Bool(_) | Self::Words(_) => None,
        }
    }

    fn bool(self) -> Option<bool> {
        match self {
            Self::Bool(switch) => Some(switch),
            Self::Float(_) | Self::Int(_) | Self::Words(_) => None,
        }
    }

    fn words(self) -> Option<Vec<String>> {
        match self {
            Self::Words(list) => Some(list),
            Self::Float(_) | Self::Int(_) | Self::Bool(_) => None,
        }
    }
}

impl Kind {
    /// Checks that samplers are defined for a value.
    ///
    /// # Errors
    /// What the value must be; to be written after the parameter's name.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        match (*self, value) {
            (Self::Float { .. }, Value::Float(number)) if !number.is_finite() => {
                Err("is not a finite number".to_owned())
            }
            (Self::Float { range: (low, _), above: true, .. }, Value::Float(number))
                // Samplers divide by it.
                if f64::from(*number) <= low || number.is_subnormal() =>
            {
                Err(format!("must be greater than {low}"))
            }
            (Self::Float { range: (low, high), .. }, Value::Float(number))
                if !(low..=high).contains(&f64::from(*number)) =>
            {
                Err(format!("must be between {low} and {high}, not {number}"))
            }
            (Self::Int { range: (low, high) }, Value::Int(number)) if !(low..=high).contains(number) => {
                Err(format!("must be between {low} and {high}, not {number}"))
            }
            (Self::Words { most, .. }, Value::Words(list)) if list.len() > most => {
                Err(format!("must not have more than {most} entries"))
            }
            (Self::Float { .. } | Self::Int { .. } | Self::Bool | Self::Words { .. }, _) => Ok(()),
        }
    }

    /// Whether samplers are defined for the value in a word of a command line. The entries of a list are separated by semicolons.
    #[must_use]
    pub fn fits(&self, word: &str) -> bool {
        match self {
            Self::Float { .. } => word
                .parse()
                .is_ok_and(|number| self.check(&Value::Float(number)).is_ok()),
            Self::Int { .. } => word
                .parse()
                .is_ok_and(|number| self.check(&Value::Int(number)).is_ok()),
            Self::Bool => false,
            Self::Words { words, .. } => word
                .split(';')
                .all(|word| words.is_empty() || words.contains(&word)),
        }
    }

    /// The value that a word of a command line means; none if samplers are not [defined](Self::fits) for it. A switch has no word.
    #[must_use]
    pub fn parse(&self, word: &str) -> Option<Value> {
        let value = match self {
            Self::Float { .. } => Value::Float(word.parse().ok()?),
            Self::Int { .. } => Value::Int(word.parse().ok()?),
            Self::Bool => return None,
            Self::Words { .. } => Value::Words(word.split(';').map(str::to_owned).collect()),
        };
        self.fits(word).then_some(value)
    }

    /// Reads a value from an engine's JSON; none if it has another type.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, reason = "samplers compute in f32")]
    pub fn read(&self, json: &serde_json::Value) -> Option<Value> {
        match self {
            Self::Float { .. } => json.as_f64().map(|number| Value::Float(number as f32)),
            Self::Int { .. } => json.as_i64().map(Value::Int),
            Self::Bool => json.as_bool().map(Value::Bool),
            Self::Words { .. } => {
                let word = |word: &serde_json::Value| word.as_str().map(str::to_owned);
                json.as_array()?
                    .iter()
                    .map(word)
                    .collect::<Option<_>>()
                    .map(Value::Words)
            }
        }
    }
}

/// All parameters of a message in the order of its fields.
#[derive(Debug)]
pub struct Parameters<M: 'static>(&'static [Parameter<M>]);

impl<M> Parameters<M> {
    /// The rows.
    pub fn iter(&self) -> std::slice::Iter<'static, Parameter<M>> {
        self.0.iter()
    }

    /// The row with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Parameter<M>> {
        self.iter().find(|row| row.name == name)
    }

    /// The values that a message sets, with the parameters' names.
    pub fn said<'a>(&self, message: &'a M) -> impl Iterator<Item = (&'static str, Value)> + use<'a, M> {
        self.iter()
            .filter_map(|row| Some((row.name, (row.get)(message)?)))
    }

    /// Takes values from `base` that `message` does not set.
    pub fn fill(&self, message: &mut M, base: &M) {
        for row in self.iter() {
            if (row.get)(message).is_none()
                && let Some(value) = (row.get)(base)
            {
                (row.set)(message, value);
            }
        }
    }

    /// Replaces -1 and values beyond the context by the context's length, where that applies.
    pub fn within(&self, message: &mut M, context: u32) {
        for row in self.iter().filter(|row| row.whole_context) {
            if let Some(Value::Int(tokens)) = (row.get)(message) {
                let tokens = if tokens < 0 {
                    context.into()
                } else {
                    tokens.min(context.into())
                };
                (row.set)(message, Value::Int(tokens));
            }
        }
    }

    /// Finds the first value for which samplers are not defined.
    ///
    /// # Errors
    /// The parameter, and a sentence about it.
    pub fn check(&self, message: &M) -> Result<(), (&'static str, String)> {
        for row in self.iter() {
            if let Some(value) = (row.get)(message)
                && let Err(wrong) = row.kind.check(&value)
            {
                return Err((row.name, format!("`{}` {wrong}", row.name)));
            }
        }
        Ok(())
    }
}

impl<M: std::default::Default> Parameters<M> {
    /// Reads values that an engine shows under the parameters' names.
    #[must_use]
    pub fn read(&self, shown: &Map<String, serde_json::Value>) -> M {
        let mut message = M::default();
        for row in self.iter() {
            if let Some(value) = shown.get(row.name).and_then(|json| row.kind.read(json)) {
                (row.set)(&mut message, value);
            }
        }
        message
    }
}

#[cfg(test)]
mod tests;
