//! Settings for one load (seed 001, `POST /v1/admin/models/{model_name}/load`): which keys there are, what they may hold, and what they
//! change. The validators are written from the seed's text, not from `load_constraints`: the service accepts more than a UI offers.
//!
//! Whoever loads sets numbers, enums and names of checkpoints; paths, addresses, keys, tools and logs come from the configuration
//! (proto/README.md, Trust). Every way in ends here: the keys are a closed list, and flags are judged by [`crate::llamacpp`]'s table.
//!
//! ```text
//!  body ── schema ──► Draft ── values(runtime) ──► Overrides ── apply ──► ModelSettings
//!            422                  400 invalid_load_request
//! ```
//!
//! Architecture invariant: pure; knows no model's state and no fleet. A key that is there with null is an override as well: presence counts.

mod apply;
mod schema;
mod table;
#[cfg(test)]
mod tests;
mod values;

pub use table::{Holds, KEYS, Key, flag_key, flag_keys};

use muster_core::{Code, Error, runtime::Family};
use serde_json::{Map, Value};

/// A load's body whose shape is right; whether its values are, depends on the runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Draft {
    replicas: Option<u32>,
    fields: Map<String, Value>,
}

impl Draft {
    /// Reads the body of a load on the admin API. An absent body is an empty one.
    ///
    /// # Errors
    /// `invalid_schema` (422): malformed JSON, no object, an unknown key, a wrong type, null where no null may be, 0 where a positive
    /// integer is wanted.
    pub fn parse(body: &[u8]) -> Result<Self, Error> {
        schema::draft(body)
    }

    /// Whether it says nothing: a bare load.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.replicas.is_none() && self.fields.is_empty()
    }

    /// Instances wanted; none = as configured.
    #[must_use]
    pub const fn replicas(&self) -> Option<u32> {
        self.replicas
    }

    /// Checks the values for a runtime of a family.
    ///
    /// # Errors
    /// `invalid_load_request` (400): a key of another runtime, a value out of its range, keys that do not go together.
    pub fn check(self, family: Family, replica_max: u32) -> Result<Overrides, Error> {
        if let Some(replicas) = self.replicas.filter(|replicas| *replicas > replica_max) {
            let message = format!("must be at most {replica_max} (`replica_max`), not {replicas}");
            return Err(refused("replicas", message));
        }
        values::check(family, self.fields)
    }
}

/// Settings for one load that fit the model's runtime.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(Map<String, Value>);

impl Overrides {
    /// Reads what came over the wire (`LoadModelRequest.override_json`).
    ///
    /// # Errors
    /// As [`Draft::parse`] and [`Draft::check`], all of them `invalid_load_request`.
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

    /// As JSON text for the wire; empty if nothing is overridden.
    #[must_use]
    pub fn to_json(&self) -> String {
        if self.0.is_empty() {
            return String::new();
        }
        Value::Object(self.0.clone()).to_string()
    }

    /// Whether what a load set over a definition (`ModelSettings.load_override_json`) has only flags that requests may say. Asked again where an
    /// engine's command line is made, so that no mistake on the way becomes a file or a shell.
    ///
    /// # Errors
    /// `invalid_load_request`, naming the flag.
    pub fn check_again(load_override_json: &str) -> Result<(), Error> {
        values::flags(&schema::object(load_override_json.as_bytes())?).map(drop)
    }

    /// Folds them into a definition, and notes them in its `load_override_json`.
    ///
    /// # Errors
    /// `invalid_load_request`: `llamacpp_args` that are no words.
    pub fn apply(&self, settings: &mut crate::v1::ModelSettings) -> Result<(), Error> {
        apply::apply(&self.0, settings)
    }
}

/// `400 invalid_load_request` about one key; `message` follows its name.
fn refused(key: &str, message: impl std::fmt::Display) -> Error {
    let error = Code::InvalidLoadRequest.error(format!("`{key}` {message}"));
    error.with_param(key)
}
