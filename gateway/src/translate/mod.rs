//! From a client's JSON to one validated request: what all dialects share.
//!
//! ```text
//! body ── object ──► a dialect's translate ──► Work + Common + View
//!                          ▲
//!                     read (bodies as structs: reader and document of one definition)
//!                     sampling, tools, output, prompt (fields that several dialects have)
//! ```
//!
//! Fields are read by name, with their ranges; what no dialect knows goes on untouched as `extra_json`.
//!
//! Architecture invariant: pure functions; this module knows no fleet, no connection and no clock.

pub(crate) mod defaults;
pub(crate) mod gemma;
mod languages;
pub(crate) mod object;
pub(crate) mod output;
pub(crate) mod parameters;
pub(crate) mod prompt;
pub(crate) mod prompt_media;
pub(crate) mod read;
pub(crate) mod sampling;
pub(crate) mod tools;

use muster_core::Error;
use utoipa::openapi::{RefOr, Schema};

use self::{object::Field, read::Read};

/// What every request has beside its work.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Asked {
    /// The name that it gives a model, if it gives one. Whom that means is the route table's to know ([`App::common`](crate::web::App::common)).
    pub(crate) model: Option<String>,
    /// Who asks, for fairness between callers; empty = nobody said.
    pub(crate) user: String,
    /// Thinking was switched explicitly with seed 001's `thinking`, so the model must be able to.
    pub(crate) thinking: bool,
}

/// The same once it is known which model is meant.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Common {
    /// Catalogue id, another name of the model, or a name that nobody has.
    pub(crate) model: String,
    /// The end user, for fairness between users; empty if not given.
    pub(crate) user: String,
    /// The request switches thinking with seed 001's `thinking`, so the model must be able to.
    pub(crate) thinking: bool,
}

/// How the answer is to be shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Send events as they come, instead of one body.
    pub(crate) stream: bool,
    /// Send a last chunk with token counts (`stream_options.include_usage`).
    pub(crate) include_usage: bool,
    /// Report token probabilities.
    pub(crate) logprobs: bool,
    /// Report probabilities after sampling instead of logarithms (seed 004, `post_sampling_probs`).
    pub(crate) post_sampling: bool,
    /// Report token ids.
    pub(crate) tokens: bool,
    /// Show the times so far in each event of a stream (seed 004, `timings_per_token`).
    pub(crate) timed: bool,
    /// Show what llama.cpp's own route shows, too (`__verbose`).
    pub(crate) verbose: bool,
    /// Number of choices per prompt.
    pub(crate) choices: u32,
}

/// Largest length of a model's name in bytes. No model has a longer name, and it would not fit the headers that carry errors between
/// Muster's processes.
pub(crate) const LONGEST_NAME: usize = 1024;

/// The name of a model.
#[derive(Debug)]
pub(crate) struct ModelName(pub(crate) String);

impl Read<'_> for ModelName {
    fn read(field: &Field<'_>) -> Result<Self, Error> {
        let name = field.string()?;
        if name.is_empty() {
            return Err(field.wrong("must not be empty"));
        }
        if name.len() > LONGEST_NAME {
            return Err(field.wrong(format_args!("must not be longer than {LONGEST_NAME} bytes")));
        }
        Ok(Self(name))
    }

    fn schema() -> RefOr<Schema> {
        String::schema()
    }
}
