//! Starts the real processes of Muster and looks at them from outside, as users and operators do.
//!
//! ```text
//!   Stack ── controller ── worker… ── gateway      each a real process: port 0, its own directory, a readiness socket,
//!     │                                            its log shown if the test fails, ended with the test
//!     ├─ Http: requests and SSE streams
//!     └─ gRPC clients: Control of the controller, Host and Inference of a worker
//! ```
//!
//! Architecture invariant: tests reach the processes through their public doors only (command line, HTTP, gRPC, signals); no crate of theirs is linked
//! but the wire's.
#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test harness fails by panicking and explains itself on standard error"
)]

pub mod binaries;
pub mod engines;
pub mod http;

pub mod processes;
pub mod stack;
pub mod wait;

pub use engines::Engine;
pub use http::{Chat, Http, Reply, Sse};
pub use muster_fakes::hub::{self, Hub};
pub use processes::Running;
pub use stack::{Role, Stack, StackBuilder};
pub use wait::{eventually, within};
