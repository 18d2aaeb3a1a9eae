//! What users and operators see, through real processes. `tests/run` builds everything first and sets what the engines need.
//!
//! Scenarios that hold for every runtime are written once and run through each: `chat::stub`, `chat::llama_cpp`, `chat::llama_server`, …
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking, and print what they measured"
)]

mod admin;
mod attacks;
mod attacks_http;
mod chat;
mod cli;
mod clients;
mod cold;
mod crowd;
mod demo;
mod demo_draft;
mod demo_tools;
mod directories;
mod disconnect;
mod disk;
mod downloads;
mod drop_in;
mod errors;
mod flood;
mod folders;
mod frozen;
mod gpu;
mod hot;
mod kills;
mod lemonade;
mod llamacpp;
mod llamacpp_clients;
mod lora;
mod memory;
mod minilm;
mod ollama;
mod places;
mod policy;
mod pull;
mod recorded_clients;
mod reload;
mod revisions;
mod same;
mod shutdown;
mod slow;
mod stopped;
mod suggested;
mod surface;
mod tuned;
mod up;
mod vision;

/// Runs scenarios `async fn NAME(Engine)` through each runtime.
macro_rules! for_each_runtime {
    ($($scenario:ident),* $(,)?) => {
        mod stub {
            $(#[tokio::test] async fn $scenario() { super::$scenario(muster_tests::Engine::Stub).await; })*
        }
        mod llama_cpp {
            $(#[tokio::test] async fn $scenario() { super::$scenario(muster_tests::Engine::LlamaCpp).await; })*
        }
        mod llama_server {
            $(#[tokio::test] async fn $scenario() { super::$scenario(muster_tests::Engine::LlamaServer).await; })*
        }
    };
}
pub(crate) use for_each_runtime;

/// As `for_each_runtime`, for scenarios that need a real model.
macro_rules! for_each_engine {
    ($($scenario:ident),* $(,)?) => {
        mod llama_cpp {
            $(#[tokio::test] async fn $scenario() { super::$scenario(muster_tests::Engine::LlamaCpp).await; })*
        }
        mod llama_server {
            $(#[tokio::test] async fn $scenario() { super::$scenario(muster_tests::Engine::LlamaServer).await; })*
        }
    };
}
pub(crate) use for_each_engine;
