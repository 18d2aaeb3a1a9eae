//! Headers good and bad, and what is read and computed from them.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::wildcard_enum_match_arm,
    reason = "a test fails by panicking"
)]

#[path = "../support/seeds.rs"]
mod seeds;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/whole.rs"]
mod whole;

mod facts;
mod hostile;
mod memory;
mod model;
mod split;
mod vllm;

use std::io::Cursor;

use muster_gguf::{Error, Gguf, Header, Model};
use support::writer::Writer;

/// The header of a file that was never written.
fn header(writer: &Writer) -> Result<Header, Error> {
    Header::read(Cursor::new(writer.header()), writer.len())
}

fn gguf(writer: &Writer) -> Gguf {
    header(writer).unwrap().into()
}

fn model(writer: &Writer) -> Model {
    Model::read(&gguf(writer)).unwrap()
}
