//! `muster-worker`: one process per device; hosts engines and streams their tokens.

mod engine;
mod keeper;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    hidden: Option<Hidden>,
}

/// Other roles of this binary; never typed by people.
#[derive(Debug, Subcommand)]
enum Hidden {
    /// Starts an engine and ends its whole tree with the worker
    #[command(hide = true)]
    Keeper(keeper::KeeperArgs),
    /// An engine without a model, for tests
    #[command(hide = true)]
    StubEngine(engine::stub::StubArgs),
}

fn main() -> ExitCode {
    match Cli::parse().hidden {
        Some(Hidden::Keeper(args)) => keeper::run(&args),
        Some(Hidden::StubEngine(args)) => engine::stub::run(&args),
        None => ExitCode::FAILURE,
    }
}
