//! The `stub` engine: the [`Engine`](muster_proto::v1::engine_server::Engine) service without a model, for tests and benchmarks only. Its
//! answers are words drawn from a hash of the prompt and mean nothing.
//!
//! Everything but time is deterministic: the same prompt gives the same text, with the speed, memory and failures that
//! [`StubSettings`](muster_proto::v1::StubSettings) asks for. One thread does all the work, like the loop of a real engine.

mod sequence;
mod service;
mod session;
mod settings;
mod text;

use std::process::ExitCode;

use anyhow::Context as _;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::Address,
    process,
    trust::{Door, Keys},
    v1::engine_server::EngineServer,
};

/// Arguments of the hidden subcommand `stub-engine`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StubArgs {
    /// Address to listen on, `unix:PATH`
    #[arg(long)]
    listen: Address,
}

/// Runs the stub engine until it gets a signal. Must be called before any runtime exists.
pub(crate) fn run(args: &StubArgs) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime
        .context("no runtime")
        .and_then(|runtime| runtime.block_on(serve(args)))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(args: &StubArgs) -> anyhow::Result<()> {
    let door = Door::parts(&args.listen, None, &Keys::default()).await?;
    process::notify_ready(door.address());
    let (mut server, listener) = door.open();
    let service = EngineServer::new(service::Stub::default())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    tokio::select! {
        served = server.add_service(service).serve_with_incoming(listener) => Ok(served?),
        // Running requests are cancelled: the worker has drained before.
        asked = process::shutdown_signal() => Ok(asked?),
    }
}
