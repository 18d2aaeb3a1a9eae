//! The wire of Muster: `muster.v1` messages and services, and what every process needs to speak them alike.
//!
//! * [`v1`]: generated messages, clients and servers.
//! * [`id`]: newtypes of identities. [`units`]: bytes.
//! * [`error`]: the one error catalogue, code ⇄ gRPC status ⇄ HTTP status.
//! * [`net`]: addresses (`HOST:PORT`, `unix:PATH`), and the settings of internal channels (PROTOCOL.md 20).
//! * [`trace`]: trace context in gRPC metadata.
//! * [`oai`]: typed chats as OpenAI JSON, for engines that read it.
//! * [`ready`]: readiness over sd_notify, and logging set up alike everywhere.
//!
//! Architecture invariant: this crate knows no policy, no device and no engine.

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
