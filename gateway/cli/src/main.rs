//! `muster`: operates a fleet over gRPC, or runs one on this machine (`muster up`).
//!
//! ```text
//!   args ──► commands ──► client (Control on the controller)
//!        ├─► chat ──────► client, then Inference.Generate at the worker
//!        └─► up ────────► supervises muster-controller, muster-worker, muster-gateway
//! ```
//!
//! Architecture invariant: this crate links no other process of Muster. `up` starts their binaries; everything else speaks `muster.v1`.

mod args;
mod chat;
mod client;
mod commands;
mod failure;
mod output;
mod progress;
mod up;

use std::{io::Write as _, process::ExitCode};

use clap::{ArgMatches, CommandFactory as _, FromArgMatches as _};
use muster_proto::v1;

use crate::{
    args::{Cli, Command},
    failure::Failure,
};

fn main() -> ExitCode {
    let matches = Cli::command().get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // A single thread: `up` relies on it, because child processes die with the thread that started them.
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(Failure::from)
        .and_then(|runtime| {
            let result = runtime.block_on(run(cli, &matches));
            // A thread that still reads from the terminal must not keep the process alive.
            runtime.shutdown_background();
            result
        });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            // If this fails, nobody can be told.
            drop(writeln!(std::io::stderr(), "{}", failure.report()));
            ExitCode::from(failure.exit_code())
        }
    }
}

async fn run(cli: Cli, matches: &ArgMatches) -> Result<(), Failure> {
    let output = output::Output::new(cli.json);
    let controller = client::Controller::new(cli.controller, cli.key_file);
    match cli.command {
        Command::Up(options) => {
            let given = matches.subcommand_matches("up").unwrap_or(matches);
            up::run(*options, given, output).await
        }
        Command::Models { all } => commands::models::list(&controller, output, all).await,
        Command::Ps => commands::models::running(&controller, output).await,
        Command::Load {
            model,
            device,
            replicas,
            replace,
        } => {
            let request = v1::LoadModelRequest {
                model,
                device_id: device,
                replicas: replicas.unwrap_or_default(),
                download: true,
                ..v1::LoadModelRequest::default()
            };
            commands::load::load(&controller, output, request, replace).await
        }
        Command::Pull(options) => commands::pull::pull(&controller, output, options).await,
        Command::Downloads { action, model } => {
            commands::downloads::downloads(&controller, output, action.zip(model)).await
        }
        Command::CheckUpdates { models } => commands::updates::check(&controller, output, models).await,
        Command::Delete { model } => commands::pull::delete(&controller, output, model).await,
        Command::Unload { model, force } => commands::load::unload(&controller, output, model, force).await,
        Command::Explain { model } => commands::explain::explain(&controller, output, model).await,
        Command::Pin { model } => commands::models::pin(&controller, output, model).await,
        Command::Unpin { model } => commands::models::unpin(&controller, output, model).await,
        Command::Chat(options) => chat::run(&controller, output, options).await,
        Command::Workers => commands::fleet::workers(&controller, output).await,
        Command::Forget { worker } => commands::fleet::forget(&controller, output, worker).await,
        Command::Devices => commands::fleet::devices(&controller, output).await,
        Command::Reload => commands::fleet::reload(&controller, output).await,
        Command::Events { model } => commands::fleet::events(&controller, output, model).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "muster", &mut script);
            Ok(std::io::stdout().write_all(&script)?)
        }
    }
}
