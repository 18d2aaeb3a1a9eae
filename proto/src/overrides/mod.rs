//! Settings for one load (seed 001, `POST /v1/admin/models/{model_name}/load`): their keys, their values, and what they change. The checks
//! follow the seed's text, not `load_constraints`: the service accepts more than a user interface offers.
//!
//! A load may set numbers, enumerated words and names of checkpoints. Paths, addresses, keys, tools and logs come from the configuration
//! (proto/README.md, Trust). Every way to load uses these checks: the keys are a closed list, and flags are judged by the table of
//! [`crate::llamacpp`].
//!
//! ```text
//!  body ── schema ──► Draft ── values(runtime) ──► Overrides ── apply ──► ModelSettings
//!            422                  400 invalid_load_request
//! ```
//!
//! Architecture invariant: pure; knows no model's state and no fleet. A key with null is an override too: only its presence counts.

mod apply;
mod schema;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use table::{Holds, KEYS, Key, flag_key, flag_keys};

use muster_core::{Code, Error, runtime::Family};
use serde_json::{Map, Value};

/// The body of a load that has the right form. Its values can be checked only for a runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    replicas: Option<u32>,
    fields: Map<String, Value>,
}

impl Draft {
    /// Parses the body of a load on the admin API. An absent body is an empty one.
    ///
    /// # Errors
    /// `invalid_schema` (422): malformed JSON, no object, an unknown key, a wrong type, a null that is not allowed, 0 where a positive
    /// integer is required.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        schema::draft(body)
    }

    /// Whether it sets nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.replicas.is_none() && self.fields.is_empty()
    }

    /// Number of instances; none = as configured.
    #[must_use]
    pub const fn replicas(&self) -> Option<u32> {
        self.replicas
    }

    /// Checks the values for a runtime of this family.
    ///
    /// # Errors
    /// `invalid_load_request` (400): a key of another runtime, a value out of range, or keys that exclude each other.
    pub fn check(self, family: Family, replica_max: u32) -> Result<Overrides, Error> {
        if let Some(replicas) = self.replicas.filter(|replicas| *replicas > replica_max) {
            let message = format!("must be at most {replica_max} (`replica_max`), not {replicas}");
            return Err(refused("replicas", message));
        }
        values::check(family, self.fields)
    }
}

/// Settings for one load that the model's runtime has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(Map<String, Value>);

impl Overrides {
    /// Parses settings from a message (`LoadModelRequest.override_json`).
    ///
    /// # Errors
    /// As [`Draft::parse`] and [`Draft::check`], but always `invalid_load_request`.
    pub fn from_json(family: Family, json: &str) -> Result<Self, Error> {
        let draft = schema::wire(json).map_err(|error| Error {
            code: Code::InvalidLoadRequest,
            ..error
        })?;
        values::check(family, draft.fields)
    }

    /// Whether nothing is overridden.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As JSON text for a message; empty if nothing is overridden.
    #[must_use]
    pub fn to_json(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        Value::Object(self.0.clone()).to_string()
    }

    /// Checks that the settings of a load over its definition (`ModelSettings.load_override_json`) only have flags that requests may set.
    /// It is checked again before an engine's command line is made, so that no mistake on the way reads a file or runs a shell.
    ///
    /// # Errors
    /// `invalid_load_request`, naming the flag.
    pub fn check_again(load_override_json: &str) -> Result<(), Error> {
        values::flags(&schema::object(load_override_json.as_bytes())?).map(drop)
    }

    /// Merges the settings into a definition, and stores them in its `load_override_json`.
    ///
    /// # Errors
    /// `invalid_load_request`: `llamacpp_args` cannot be split into words.
    pub fn apply(&self, settings: &mut crate::v1::ModelSettings) -> Result<(), Error> {
        apply::apply(&self.0, settings)
    }
}

/// The error `invalid_load_request` about a key; `message` follows the key's name.
fn refused(key: &str, message: impl std::fmt::Display) -> Error {
    let error = Code::InvalidLoadRequest.error(format!("`{key}` {message}"));
    error.with_param(key)
}
