//! `muster-worker`: one process per device. It hosts engines and streams their tokens.
//!
//! ```text
//!   controller ◄──Join──► fleet ──orders──► instances ──► engine processes (keeper, engine)
//!                           ▲                │  ▲ ▲
//!                           └──── board ◄────┘  │ └── devices, monitor
//!   gateways ◄──Session──► session (outbox) ◄───┘
//! ```
//!
//! * [`config`]: the command line. [`worker`]: start and shutdown.
//! * [`fleet`]: the session with the controller. [`command`]: its orders. [`board`]: what it is told.
//! * [`instance`]: one task per load. [`session`]: gateways. [`grpc`]: the services.
//! * [`hub`]: downloads of model files into the host's cache.
//! * [`devices`], [`procfs`], [`monitor`]: memory. [`engine`], [`keeper`]: engine processes.
//!
//! Architecture invariant: the worker does not decide which model runs where; it knows what runs.

mod board;
mod command;
mod config;
mod convert;
mod devices;
mod engine;
mod fleet;
mod grpc;
mod hub;
mod instance;
mod keeper;
mod monitor;
mod procfs;
mod session;
mod tls;
mod worker;

use std::{io::Write as _, process::ExitCode};

use clap::Parser as _;
use config::{Cli, EngineOptions, Other, WorkerArgs};
use muster_proto::process::{LogLevel, init_logging, raise_file_limit};
use tokio::runtime::Builder;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Other::Keeper(args)) => keeper::run(&args),
        Some(Other::StubEngine(args)) => engine::stub::run(&args),
        Some(Other::Devices(engines)) => {
            init_logging(LogLevel::Warning);
            shown(list_devices(&engines))
        }
        None => {
            init_logging(cli.worker.log_level);
            raise_file_limit();
            shown(work(cli.worker))
        }
    }
}

fn shown(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn list_devices(engines: &EngineOptions) -> anyhow::Result<()> {
    let server = engine::is_installed(&engines.llama_server);
    let mut out = std::io::stdout().lock();
    for gpu in devices::survey::gpus(&engines.muster_llama()?, server) {
        writeln!(out, "{}", serde_json::to_string(&gpu)?)?;
    }
    Ok(())
}

fn work(args: WorkerArgs) -> anyhow::Result<()> {
    // A single thread for all traffic costs less per event than work stealing (proto/README.md, Life of a streaming chat).
    let mut builder = match args.io_threads {
        1 => Builder::new_current_thread(),
        threads => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(threads.into());
            builder
        }
    };
    let runtime = builder.enable_all().build()?;
    let ended = runtime.block_on(worker::run(args));
    // Do not wait for a look at a disk that hangs.
    runtime.shutdown_background();
    ended
}
