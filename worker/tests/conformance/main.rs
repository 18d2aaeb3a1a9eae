//! The conformance kit: what every runtime must do, judged at its [`EngineLink`](engine::EngineLink) with real engine processes.
//!
//! The engines side of the worker is compiled into this test as it is (the worker is a binary and exports nothing); keeper and stub engine
//! are the worker's real subcommands. `llama_cpp` and `llama_server` need what `tests/run` prepares, and say so if it is missing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of tests; the modules of the worker are checked with the worker"
)]

#[allow(dead_code, unused_imports, reason = "main.rs uses what the kit does not")]
#[path = "../../src/engine/mod.rs"]
mod engine;
#[allow(dead_code, unused_imports, reason = "main.rs uses what the kit does not")]
#[path = "../../src/keeper/mod.rs"]
mod keeper;
#[path = "../../src/tls.rs"]
mod tls;

mod harness;
mod keeping;
mod kit;
mod llama;
mod stub;
