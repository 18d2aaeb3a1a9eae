//! The wire of Muster: `muster.v1` messages and services, and what every process needs to speak them alike.
//!
//! * [`v1`]: generated messages, clients and servers.
//! * [`convert`]: conversions to the core's types (`muster-core`).
//! * [`error`]: errors as messages and as gRPC statuses.
//! * [`engine_http`]: the routes of engines' own HTTP that are passed on.
//! * [`net`]: addresses (`HOST:PORT`, `unix:PATH`), and the settings of internal channels (PROTOCOL.md 20). [`accept`]: listeners.
//! * [`trust`]: who may call what, and callers' credentials.
//! * [`trace`]: W3C trace context, from HTTP headers to the engine.
//! * [`oai`]: typed chats as OpenAI JSON, for engines that read it.
//! * [`parameters`]: request parameters, one row each.
//! * [`settings`]: load settings, one row each.
//! * [`overrides`]: settings for one load (seed 001), checked and merged into a definition.
//! * [`hub`]: names of checkpoints on a hub.
//! * [`private`]: directories that other users cannot change.
//! * [`secrets`]: what settings and command lines do not show.
//! * [`process`]: logging, readiness over sd_notify and the shutdown signal, the same in every process.
//!
//! Architecture invariant: this crate knows no policy, no device and no engine.
#![forbid(unsafe_code)]

pub mod v1 {
    //! Generated from `proto/muster/v1/*.proto`; the comments there are the documentation.
    #![allow(
        clippy::all,
        clippy::pedantic,
        clippy::restriction,
        missing_debug_implementations,
        unreachable_pub,
        unused_qualifications,
        rustdoc::all,
        reason = "generated code"
    )]
    tonic::include_proto!("muster.v1");
}

/// Encoded `FileDescriptorSet` of `muster.v1` and its imports, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

pub mod accept;
pub mod convert;
pub mod defaults;
pub mod disk;
pub mod engine_http;
pub mod error;
pub mod hub;
pub mod life;
pub mod limits;
pub mod llamacpp;
pub mod net;
pub mod oai;
pub mod overrides;
pub mod parameters;
pub mod pauses;
pub mod private;
pub mod process;
pub mod secrets;
pub mod settings;
pub mod trace;
pub mod trust;

pub use error::StatusExt;

/// Largest gRPC message between Muster's processes, in bytes. tonic's default for decoding is 4 MiB, so both sides must set it.
pub const MAX_MESSAGE_BYTES: usize = 64 << 20;

/// Metadata key of `Inference.Session` with the gateway's id.
pub const GATEWAY_ID_KEY: &str = "muster-gateway-id";

/// Version of the protocol between worker and controller.
pub const PROTOCOL_VERSION: u32 = 1;

/// Version of the software, as all processes report it.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Feature in `Hello` and `Welcome`: the worker carries out `FilesOrder`.
pub const MODEL_FILES: &str = "model_files";

/// Feature beside it: orders name a revision of the repository.
pub const MODEL_REVISIONS: &str = "model_revisions";

/// All features of this version.
pub const FEATURES: [&str; 2] = [MODEL_FILES, MODEL_REVISIONS];
