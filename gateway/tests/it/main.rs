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
mod dialects;
mod documented;
mod ends;
mod errors;
mod gateway;
mod health;
mod hostile;
mod keys;
mod lemonade;
mod llamacpp;
mod media;
mod models;
mod retries;

use muster_fakes::{controller::gateways as controller, within, worker::gateways as worker};
