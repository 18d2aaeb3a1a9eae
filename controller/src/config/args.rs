//! The controller's command line.

use std::path::PathBuf;

use clap::Parser;
use muster_policy::{Limit, Limits};
use muster_proto::{
    net::Address,
    process::LogLevel,
    trust::{KeyOptions, TokenOptions, place},
};

use super::{Defaults, policy::limits_of};

/// Default address for operators.
const OPERATORS: &str = "127.0.0.1:8100";

/// Muster's controller: the catalogue, the policy and the sessions of workers.
#[derive(Debug, Clone, Parser)]
#[command(name = "muster-controller", version)]
pub struct Options {
    /// Configuration file: TOML, JSON (.json) or presets of llama.cpp's router (.ini); several are merged, later ones override.
    #[arg(long = "config", value_name = "FILE", env = "MUSTER_CONTROLLER_CONFIG")]
    pub config: Vec<PathBuf>,
    /// Address for workers and gateways: unix:PATH, or HOST:PORT with --token-file. Operators can use it as well.
    #[arg(long, value_name = "ADDR", default_value_t = place::controller(), env = "MUSTER_CONTROLLER_LISTEN")]
    pub listen: Address,
    /// Address for operators (`muster`, grpcurl): HOST:PORT, unix:PATH or none. If keys are configured, operators need the admin key.
    /// [default: 127.0.0.1:8100 beside a unix socket, else none]
    #[arg(long, value_name = "ADDR", env = "MUSTER_CONTROLLER_OPERATORS", value_parser = operators)]
    pub operators: Option<Operators>,
    /// API keys.
    #[command(flatten)]
    pub keys: KeyOptions,
    /// Token between Muster's own processes on different machines.
    #[command(flatten)]
    pub token: TokenOptions,
    /// Directory for state: epoch, known workers, measured memory, models of users.
    #[arg(long, value_name = "DIR", env = "MUSTER_CONTROLLER_STATE_DIR")]
    pub state_dir: PathBuf,
    /// Largest number of loaded models: one number for all types, or up to five (llm, embedding, reranking, audio, image); -1 = no limit.
    #[arg(long, value_name = "N", num_args = 1..=5, allow_negative_numbers = true,
          env = "MUSTER_CONTROLLER_MAX_LOADED_MODELS", value_delimiter = ',')]
    pub max_loaded_models: Vec<i64>,
    /// Context size in tokens of models that set none.
    #[arg(long, value_name = "N", env = "MUSTER_CTX_SIZE")]
    pub ctx_size: Option<u32>,
    /// llama.cpp backend of models that set no device: cpu, cuda, vulkan, rocm or metal.
    #[arg(long, value_name = "BACKEND", env = "MUSTER_LLAMACPP")]
    pub llamacpp: Option<String>,
    /// llama.cpp arguments of models that set none.
    #[arg(
        long,
        value_name = "ARGS",
        env = "MUSTER_LLAMACPP_ARGS",
        allow_hyphen_values = true
    )]
    pub llamacpp_args: Option<String>,
    /// Folder whose GGUF files are models, watched and only read; may be given several times.
    #[arg(long, value_name = "DIR", env = "MUSTER_MODELS_DIR", value_delimiter = ',')]
    pub models_dir: Vec<PathBuf>,
    /// Log level: critical, error, warning, info, debug or trace. RUST_LOG overrides it.
    #[arg(long, value_name = "LEVEL", default_value = "info", env = "MUSTER_LOG_LEVEL")]
    pub log_level: LogLevel,
}

/// The value of --operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operators {
    /// No separate address for operators.
    None,
    /// This address.
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

/// Limits given on the command line.
#[derive(Debug, Clone, Copy)]
pub struct LimitsArg(pub(super) Limits);

impl Options {
    /// The separate address for operators, if there is one.
    #[must_use]
    pub fn operators(&self) -> Option<Address> {
        match (&self.operators, &self.listen) {
            (Some(Operators::At(address)), _) => Some(address.clone()),
            (None, Address::Unix(_)) => Some(Address::Tcp(OPERATORS.to_owned())),
            (Some(Operators::None), _) | (None, Address::Tcp(_)) => None,
        }
    }

    /// Settings for models that set none themselves.
    ///
    /// # Errors
    /// A flag has an invalid value.
    pub fn defaults(&self) -> Result<Defaults, String> {
        Defaults::new(
            self.ctx_size,
            self.llamacpp.as_deref(),
            self.llamacpp_args.as_deref(),
        )?
        .with_models_dirs(&self.models_dir)
    }

    /// `--max-loaded-models`, if given.
    ///
    /// # Errors
    /// A number is not a valid limit.
    pub fn limits(&self) -> Result<Option<LimitsArg>, String> {
        match self.max_loaded_models.as_slice() {
            [] => Ok(None),
            numbers => limits_of(numbers, Limit::ONE)
                .map(|limits| Some(LimitsArg(limits)))
                .map_err(|message| format!("--max-loaded-models: {message}")),
        }
    }
}
