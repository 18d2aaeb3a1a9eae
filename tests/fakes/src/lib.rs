//! Scripted peers: what one part of Muster talks to in its own tests, doing what the test says and remembering what it heard. They speak the real protocol
//! over real sockets.
//!
//! * [`controller`]: for [gateways](controller::gateways) to follow, for [workers](controller::workers) to join.
//! * [`worker`]: for [gateways](worker::gateways) to send work to, for [controllers](worker::controllers) to command.
//! * [`gateway`]: sends work to workers.
//! * [`hub`]: has files of models, and faults.

#![forbid(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    clippy::missing_panics_doc,
    missing_debug_implementations,
    reason = "helpers of tests, where a panic is the report"
)]

pub mod controller {
    //! Scripted controllers.

    mod catalogue;
    pub mod gateways;
    pub mod workers;
}
pub mod gateway;
pub mod hub;
pub mod worker {
    //! Scripted workers.

    pub mod controllers;
    pub mod gateways;
}

use std::{future::Future, time::Duration};

use muster_core::Code;
use muster_proto::StatusExt as _;

/// Longest wait for anything that must happen; generous, because test machines are busy.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Waits for `what`, or fails the test.
pub async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, what)
        .await
        .expect("nothing happened in time")
}

/// The answer to calls that no script is about.
fn absent<T>() -> Result<T, tonic::Status> {
    Err(Code::UnsupportedByRuntime.error("not scripted").into_status())
}

/// A place for a scripted process to listen at.
pub(crate) fn socket() -> muster_proto::net::Address {
    let name = format!("mg-{}.sock", muster_core::id::fresh());
    muster_proto::net::Address::Unix(std::env::temp_dir().join(name))
}

/// A runtime of its own for a scripted process: dropping it cuts all its connections, as a kill would.
#[derive(Debug)]
pub(crate) struct Process(Option<tokio::runtime::Runtime>);

impl Process {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self(Some(runtime.unwrap()))
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Runtime {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
