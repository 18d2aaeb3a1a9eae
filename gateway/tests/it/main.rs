//! The real gateway binary against a scripted controller and scripted workers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests, where a panic is the report"
)]

mod admin;
mod answers;
mod autoload;
mod cold;
mod contract;
mod controller;
mod dialects;
mod documented;
mod ends;
mod errors;
mod gateway;
mod hostile;
mod keys;
mod lemonade;
mod llamacpp;
mod media;
mod models;
mod retries;
mod worker;

use std::{future::Future, time::Duration};

/// Longest wait for anything that must happen.
const DEADLINE: Duration = Duration::from_secs(20);

/// Waits for `what`, or fails the test.
async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, what)
        .await
        .expect("nothing happened in time")
}

/// A place for a scripted process to listen at.
fn socket() -> muster_proto::net::Address {
    let name = format!("mg-{}.sock", muster_core::id::fresh());
    muster_proto::net::Address::Unix(std::env::temp_dir().join(name))
}

/// A runtime of its own for a scripted process: dropping it cuts all its connections, as a kill would.
#[derive(Debug)]
struct Process(Option<tokio::runtime::Runtime>);

impl Process {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        Self(Some(runtime.unwrap()))
    }

    fn runtime(&self) -> &tokio::runtime::Runtime {
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
