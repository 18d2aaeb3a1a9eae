//! The command line.

use std::path::PathBuf;

use clap::Parser;
use muster_policy::{Limit, Limits};
use muster_proto::{
    net::Address,
    process::LogLevel,
    trust::{KeyOptions, TokenOptions, place},
};

use super::{Defaults, policy::limits_of};

/// Where operators look for the controller.
const OPERATORS: &str = "127.0.0.1:8100";

/// Muster's control plane: catalogue, policy, worker sessions.
#[derive(Debug, Clone, Parser)]
#[command(name = "muster-controller", version)]
pub struct Options {
    /// Configuration file (TOML); several are merged, later ones win.
    #[arg(long = "config", value_name = "FILE", env = "MUSTER_CONTROLLER_CONFIG")]
    pub config: Vec<PathBuf>,
    /// Where workers and gateways come in: unix:PATH, or HOST:PORT with --token-file; there operators come in too.
    #[arg(long, value_name = "ADDR", default_value_t = place::controller(), env = "MUSTER_CONTROLLER_LISTEN")]
    pub listen: Address,
    /// Where operators come in, with `muster` or grpcurl: HOST:PORT, unix:PATH or none. With keys they need the admin key.
    /// [default: 127.0.0.1:8100 beside a unix socket, else none]
    #[arg(long, value_name = "ADDR", env = "MUSTER_CONTROLLER_OPERATORS", value_parser = operators)]
    pub operators: Option<Operators>,
    /// Whose orders are obeyed.
    #[command(flatten)]
    pub keys: KeyOptions,
    /// Between our processes on several machines.
    #[command(flatten)]
    pub token: TokenOptions,
    /// Directory for the epoch, the roster and what was learned about memory.
    #[arg(long, value_name = "DIR", env = "MUSTER_CONTROLLER_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Models that may be loaded at once: one number for every type, or up to five (llm, embedding, reranking, audio, image); -1 = unlimited.
    #[arg(long, value_name = "N", num_args = 1..=5, allow_negative_numbers = true,
          env = "MUSTER_CONTROLLER_MAX_LOADED_MODELS", value_delimiter = ',')]
    pub max_loaded_models: Vec<i64>,
    /// Context size of models that set none, in tokens.
    #[arg(long, value_name = "N", env = "MUSTER_CTX_SIZE")]
    pub ctx_size: Option<u32>,
    /// llama.cpp backend of models that name no device: cpu, cuda, vulkan, rocm or metal.
    #[arg(long, value_name = "BACKEND", env = "MUSTER_LLAMACPP")]
    pub llamacpp: Option<String>,
    /// llama.cpp arguments of models that give none.
    #[arg(
        long,
        value_name = "ARGS",
        env = "MUSTER_LLAMACPP_ARGS",
        allow_hyphen_values = true
    )]
    pub llamacpp_args: Option<String>,
    /// critical, error, warning, info, debug or trace; RUST_LOG wins.
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "MUSTER_LOG_LEVEL")]
    pub log_level: LogLevel,
}

/// The operators' door, as the command line has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operators {
    /// There is none.
    None,
    /// It is here.
    At(Address),
}

fn operators(text: &str) -> Result<Operators, String> {
    match text {
        "none" => Ok(Operators::None),
        _ => text
            .parse()
            .map(Operators::At)
            .map_err(|error| format!("{error}, or none")),
    }
}

/// Limits of the command line.
#[derive(Debug, Clone, Copy)]
pub struct LimitsArg(pub(super) Limits);

impl Options {
    /// Where operators come in beside the parts' door.
    #[must_use]
    pub fn operators(&self) -> Option<Address> {
        match (&self.operators, &self.listen) {
            (Some(Operators::At(address)), _) => Some(address.clone()),
            (None, Address::Unix(_)) => Some(Address::Tcp(OPERATORS.to_owned())),
            (Some(Operators::None), _) | (None, Address::Tcp(_)) => None,
        }
    }

    /// What models fall back to.
    ///
    /// # Errors
    /// A flag's value that makes no sense.
    pub fn defaults(&self) -> Result<Defaults, String> {
        Defaults::new(
            self.ctx_size,
            self.llamacpp.as_deref(),
            self.llamacpp_args.as_deref(),
        )
    }

    /// `--max-loaded-models`, if given.
    ///
    /// # Errors
    /// A number that is no limit.
    pub fn limits(&self) -> Result<Option<LimitsArg>, String> {
        match self.max_loaded_models.as_slice() {
            [] => Ok(None),
            numbers => limits_of(numbers, Limit::ONE)
                .map(|limits| Some(LimitsArg(limits)))
                .map_err(|message| format!("--max-loaded-models: {message}")),
        }
    }
}
