//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand};
use muster_proto::{net::Address, process::LogLevel, trust::KeyOptions};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 controller not reachable, 4 no such model, 130 interrupted.";

/// Operate a Muster fleet, or run one on this box.
#[derive(Debug, Parser)]
#[command(name = "muster", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Where the controller listens: unix:PATH or HOST:PORT [default: the socket of this user's `muster up`, else 127.0.0.1:8100]
    #[arg(long, global = true, env = "MUSTER_CONTROLLER", value_name = "ADDR")]
    pub(crate) controller: Option<Address>,
    /// File with the admin key, for a controller at HOST:PORT that wants one; MUSTER_KEY holds the key itself
    #[arg(long, global = true, env = "MUSTER_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Print JSON (the messages of muster.v1, one per line) instead of tables
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run controller, workers and gateway on this box until Ctrl-C
    Up(Box<UpOptions>),
    /// List the models of the catalogue
    Models,
    /// List what is loaded or loading, with each instance
    Ps,
    /// Load a model and wait until it is loaded
    Load {
        /// Model id
        model: String,
        /// Device to load it on, as `muster devices` names it, or a kind of device: cpu, gpu, npu
        #[arg(long, value_name = "DEVICE", default_value = "")]
        device: String,
        /// Instances to load, all or none [default: as configured]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        replicas: Option<u32>,
        /// If it is loaded on another device or with other settings, unload it first; it is loaded again as it was if the load fails
        #[arg(long)]
        replace: bool,
    },
    /// Download a model's files onto a worker's host; a name that begins with `user.` may be registered by it
    Pull(PullOptions),
    /// Unload a model and remove its files; one that `pull` registered leaves the catalogue
    Delete {
        /// Model id
        model: String,
    },
    /// Unload a model: what runs finishes, what waits is cancelled
    Unload {
        /// Model id
        model: String,
        /// Cancel what runs, too
        #[arg(long)]
        force: bool,
    },
    /// Say what loading a model would do now, and why; does nothing
    Explain {
        /// Model id
        model: String,
    },
    /// Keep a model from being evicted, from now on and over restarts; loads nothing
    Pin {
        /// Model id
        model: String,
    },
    /// Let a model be evicted again, whatever the configuration says
    Unpin {
        /// Model id
        model: String,
    },
    /// Talk to a model; loads it if it is cold
    Chat(ChatOptions),
    /// List the workers
    Workers,
    /// Declare a lost worker gone: what it hosted no longer counts as loaded, its memory as free
    Forget {
        /// Worker id, as `muster workers` shows it
        worker: String,
    },
    /// List the devices with their memory
    Devices,
    /// Follow what the fleet does, and why
    Events {
        /// Only events of this model
        #[arg(long, default_value = "")]
        model: String,
    },
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

/// `muster up`.
#[derive(Args, Debug)]
pub(crate) struct UpOptions {
    /// Configuration file (TOML); several are merged, later ones win
    #[arg(
        long = "config",
        value_name = "FILE",
        env = "MUSTER_CONFIG",
        value_delimiter = ','
    )]
    pub(crate) configs: Vec<PathBuf>,
    /// Model file to serve under its file name
    #[arg(long = "model", value_name = "PATH.gguf")]
    pub(crate) models: Vec<PathBuf>,
    /// Where clients reach the HTTP API: HOST:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "MUSTER_HTTP",
        default_value = "127.0.0.1:8000"
    )]
    pub(crate) http: Address,
    /// Further name by which HTTP requests may come where nobody needs a key; loopback addresses and localhost always may
    #[arg(long, value_name = "NAME", env = "MUSTER_ALLOWED_HOST", value_delimiter = ',')]
    pub(crate) allowed_host: Vec<String>,
    /// Host whose images and sounds engines may fetch when a request names their address [default: only `data:` URLs pass]
    #[arg(
        long,
        value_name = "NAME",
        env = "MUSTER_ALLOWED_MEDIA_HOST",
        value_delimiter = ','
    )]
    pub(crate) allowed_media_host: Vec<String>,
    /// Whether what is cached of one key's prompts serves other keys too: on or off [default: on, but off with several keys]
    #[arg(long, value_name = "on|off", env = "MUSTER_SHARE_PREFIXES", value_parser = ["on", "off"])]
    pub(crate) share_prefixes: Option<String>,
    /// Where operators reach the controller by gRPC: HOST:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "MUSTER_GRPC",
        default_value = "127.0.0.1:8100"
    )]
    pub(crate) grpc: Address,
    /// Who may ask, over HTTP and gRPC
    #[command(flatten)]
    pub(crate) keys: KeyOptions,
    /// Where state is kept [default: $XDG_STATE_HOME/muster or ~/.local/state/muster]
    #[arg(long, value_name = "DIR", env = "MUSTER_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Device to start a worker for: cpu, or sim:NAME:CAPACITY for tests; A+B = one worker for both [default: every device found]
    #[arg(
        long = "device",
        value_name = "D",
        env = "MUSTER_DEVICES",
        value_delimiter = ','
    )]
    pub(crate) devices: Vec<String>,
    /// llama.cpp's own server, for the runtime llama_server [default: llama-server on PATH]
    #[arg(long, value_name = "PATH", env = "MUSTER_LLAMA_SERVER")]
    pub(crate) llama_server: Option<PathBuf>,
    /// Models loaded at once: one number for all types, or one each for llm, embedding, reranking, audio, image; -1 = no limit
    #[arg(long, value_name = "N", env = "MUSTER_MAX_LOADED_MODELS", num_args = 1..=5, value_delimiter = ' ', allow_negative_numbers = true)]
    pub(crate) max_loaded_models: Vec<i32>,
    /// Context size of models that set none, in tokens
    #[arg(long, value_name = "N", env = "MUSTER_CTX_SIZE")]
    pub(crate) ctx_size: Option<u32>,
    /// llama.cpp backend of models that set none: cpu, cuda, vulkan, rocm, metal
    #[arg(long, value_name = "BACKEND", env = "MUSTER_LLAMACPP")]
    pub(crate) llamacpp: Option<String>,
    /// llama.cpp arguments of models that set none
    #[arg(
        long,
        value_name = "ARGS",
        env = "MUSTER_LLAMACPP_ARGS",
        allow_hyphen_values = true
    )]
    pub(crate) llamacpp_args: Option<String>,
    /// critical, error, warning, info, debug or trace
    #[arg(long, value_name = "L", env = "MUSTER_LOG_LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
    /// Longest wait, in seconds, for running requests at the end: of the gateway, and then of each worker
    #[arg(
        long,
        value_name = "SECONDS",
        env = "MUSTER_DRAIN_TIMEOUT",
        default_value_t = 30
    )]
    pub(crate) drain_timeout: u64,

    /// Kill and restart a process that shows no sign of life for so long, because it hangs or was stopped; 0 = never.
    #[arg(long, value_name = "SECONDS", env = "MUSTER_WATCHDOG", default_value_t = 30)]
    pub(crate) watchdog: u64,
}

impl UpOptions {
    /// How long a process may show no sign of life; none = for ever.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        (self.watchdog > 0).then(|| Duration::from_secs(self.watchdog))
    }
}

/// `muster pull`.
#[derive(Args, Debug)]
pub(crate) struct PullOptions {
    /// Model id
    pub(crate) model: String,
    /// Register it with these files: ORG/NAME:VARIANT or ORG/NAME of the hub
    #[arg(long, value_name = "CHECKPOINT", default_value = "")]
    pub(crate) checkpoint: String,
    /// Register it with this recipe [default with --checkpoint: llamacpp]
    #[arg(long, value_name = "RECIPE", requires = "checkpoint")]
    pub(crate) recipe: Option<String>,
    /// File of the same repository with the multimodal projector
    #[arg(long, value_name = "FILE", requires = "checkpoint", default_value = "")]
    pub(crate) mmproj: String,
    /// Label, for example embeddings, reranking or vision; may be repeated
    #[arg(long = "label", value_name = "LABEL", requires = "checkpoint")]
    pub(crate) labels: Vec<String>,
}

/// `muster chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatOptions {
    /// Model id
    pub(crate) model: String,
    /// Say this, print the answer and end; without it, standard input is the message unless it is a terminal
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Longest answer, in tokens
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Randomness; 0 = always the likeliest token
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Seed of the randomness
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<i64>,
    /// Switch thinking on or off, where the model can
    #[arg(long, value_name = "BOOL")]
    pub(crate) thinking: Option<bool>,
    /// Print token counts and speed after each answer
    #[arg(long)]
    pub(crate) stats: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn limits_are_one_to_five_numbers_and_may_be_unlimited() {
        let parse = |text: &str| {
            let words = format!("muster up {text}");
            let cli = Cli::try_parse_from(words.split(' '))?;
            let Command::Up(options) = cli.command else {
                panic!("not up")
            };
            Ok::<_, clap::Error>(options.max_loaded_models)
        };
        assert_eq!(parse("--max-loaded-models -1").unwrap(), [-1]);
        assert_eq!(
            parse("--max-loaded-models 3 1 1 --ctx-size 5").unwrap(),
            [3, 1, 1]
        );
        assert!(parse("--max-loaded-models 1 2 3 4 5 6").is_err());
    }
}
