//! `muster-worker`: one process per device; hosts engines and streams their tokens.
//!
//! ```text
//!   controller ◄──Join──► fleet ──orders──► instances ──► engine processes (keeper, engine)
//!                           ▲                │  ▲ ▲
//!                           └──── board ◄────┘  │ └── devices, monitor
//!   gateways ◄──Session──► session (outbox) ◄───┘
//! ```
//!
//! * [`config`]: the command line. [`worker`]: start and shutdown.
//! * [`fleet`]: the session with the controller. [`command`]: its orders. [`board`]: what it hears.
//! * [`instance`]: one task per load attempt. [`session`]: gateways. [`grpc`]: the services.
//! * [`hub`]: files of models, from the hub into the cache of the host.
//! * [`devices`], [`procfs`], [`monitor`]: memory. [`engine`], [`keeper`]: what hosts models.
//!
//! Architecture invariant: the worker decides nothing about which model runs where; it is the truth about what runs.

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

use std::process::ExitCode;

use clap::Parser as _;
use config::{Cli, Other, WorkerArgs};
use muster_proto::process::{init_logging, raise_file_limit};
use tokio::runtime::Builder;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Other::Keeper(args)) => keeper::run(&args),
        Some(Other::StubEngine(args)) => engine::stub::run(&args),
        None => {
            init_logging(cli.worker.log_level);
            raise_file_limit();
            match work(cli.worker) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    tracing::error!("{error:#}");
                    ExitCode::FAILURE
                }
            }
        }
    }
}

fn work(args: WorkerArgs) -> anyhow::Result<()> {
    // One thread for all traffic costs less per event than work stealing does (proto/README.md, Life of a streaming chat).
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
    // A look at a disk that hangs is not waited for.
    runtime.shutdown_background();
    ended
}
