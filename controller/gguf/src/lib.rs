//! What a model's files say before anything is loaded.
//!
//! ```text
//! file(s) ─► Gguf (header: metadata, tensors) ─► Model (layers, widths) ─► memory::demand(model, settings, offload) ─► bytes per place
//!                                            └─► Facts (context, kind, template: what a catalogue shows)
//! folder ─► vllm::Checkpoint (config.json, safetensors) ─► vllm::demand(checkpoint, settings)
//! ```
//!
//! Ours, not a crate's: the published readers believe what a file claims of itself, and some get the sizes of quantised blocks wrong.
//!
//! Invariants:
//! - No file makes this crate panic, loop, or allocate by a number that the file merely claims: every count and length is held against the
//!   bytes that are really there before it is believed, and against a limit of our own.
//! - Nothing here is remembered between calls, and nothing but the named files is read.
//!
//! Headers are read with plain reads, not through a memory map: a file that shrinks under a map (a download that starts over, a network
//! mount that goes away) ends the *controller* by SIGBUS, and a header is read once, front to back, so a map would save nothing.
//!
//! Architecture invariant: the crate knows no wire types, no devices and no policy.
#![forbid(unsafe_code)]

mod error;
mod facts;
mod files;
mod header;
mod input;
mod tensor;
mod value;

pub mod memory;
pub mod model;
pub mod vllm;

pub use error::Error;
pub use facts::{Facts, Kind};
pub use files::{Gguf, parts};
pub use header::Header;
pub use model::Model;
pub use tensor::{CacheType, Tensor, TensorType};
pub use value::{Metadata, Value};
