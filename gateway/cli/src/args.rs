//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use muster_proto::{net::Address, process::LogLevel, trust::KeyOptions};

const EXIT_CODES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 controller not reachable, 4 no such model, 130 interrupted.";

/// Operate a Muster fleet, or run one on this machine.
#[derive(Debug, Parser)]
#[command(name = "muster", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Address of the controller: unix:PATH or HOST:PORT [default: the socket of this user's `muster up`, else 127.0.0.1:8100]
    #[arg(long, global = true, env = "MUSTER_CONTROLLER", value_name = "ADDR")]
    pub(crate) controller: Option<Address>,
    /// File with the admin key, for a controller at HOST:PORT that requires one; MUSTER_KEY holds the key itself
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
    /// Run controller, workers and gateway on this machine until Ctrl-C
    Up(Box<UpOptions>),
    /// List the models of the catalogue
    Models {
        /// Also list well-known models that may be pulled by name
        #[arg(long)]
        all: bool,
    },
    /// List loaded and loading models with each instance
    Ps,
    /// Load a model and wait until it is loaded
    Load {
        /// Model id
        model: String,
        /// Device to load it on, as listed by `muster devices`, or a kind of device: cpu, gpu, npu
        #[arg(long, value_name = "DEVICE", default_value = "")]
        device: String,
        /// Number of instances to load, all or none [default: as configured]
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        replicas: Option<u32>,
        /// If the model is loaded on another device or with other settings, unload it first; if the load then fails, it is loaded again as
        /// before
        #[arg(long)]
        replace: bool,
    },
    /// Download a model's files to a worker's host, or newer ones if the hub has any; can also register a model whose name begins with `user.`
    Pull(PullOptions),
    /// List downloads with their speed and the time left, or pause, resume or cancel one
    Downloads {
        /// What to do with the model's download
        #[arg(requires = "model")]
        action: Option<DownloadVerb>,
        /// Model id
        model: Option<String>,
    },
    /// Ask the hub whether it has newer files of downloaded models; `pull` fetches them
    CheckUpdates {
        /// Model ids; all downloaded models if none is given
        models: Vec<String>,
    },
    /// Unload a model and remove its files; a model registered by `pull` leaves the catalogue
    Delete {
        /// Model id
        model: String,
    },
    /// Unload a model: running requests finish, waiting ones are cancelled
    Unload {
        /// Model id
        model: String,
        /// Cancel running requests as well
        #[arg(long)]
        force: bool,
    },
    /// Explain what loading a model would do now, without doing it
    Explain {
        /// Model id
        model: String,
    },
    /// Never evict a model, from now on and after restarts; does not load it
    Pin {
        /// Model id
        model: String,
    },
    /// Allow a model to be evicted again, even if the configuration pins it
    Unpin {
        /// Model id
        model: String,
    },
    /// Chat with a model; loads it first if necessary
    Chat(ChatOptions),
    /// List the workers
    Workers,
    /// Declare a lost worker gone: its models no longer count as loaded and its memory counts as free
    Forget {
        /// Worker id, as `muster workers` shows it
        worker: String,
    },
    /// List the devices with their memory
    Devices,
    /// Have the controller read its configuration again: what runs goes on, and is loaded anew when it is idle
    Reload,
    /// Follow the fleet's events and their reasons
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

/// Options of `muster up`.
#[derive(Args, Debug)]
pub(crate) struct UpOptions {
    /// Configuration file: TOML, JSON (.json) or presets of llama.cpp's router (.ini); several are merged, later ones override
    #[arg(
        long = "config",
        value_name = "FILE",
        env = "MUSTER_CONFIG",
        value_delimiter = ','
    )]
    pub(crate) configs: Vec<PathBuf>,
    /// Model file to serve, under its file name
    #[arg(long = "model", value_name = "PATH.gguf")]
    pub(crate) models: Vec<PathBuf>,
    /// Folder whose GGUF files are models, watched and only read; may be given several times
    #[arg(long, value_name = "DIR", env = "MUSTER_MODELS_DIR", value_delimiter = ',')]
    pub(crate) models_dir: Vec<PathBuf>,
    /// Presets of llama.cpp's router; --config overrides them
    #[arg(long, value_name = "FILE.ini", env = "MUSTER_MODELS_PRESET")]
    pub(crate) models_preset: Option<PathBuf>,
    /// Address of the HTTP API: HOST:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "MUSTER_HTTP",
        default_value = "127.0.0.1:8000"
    )]
    pub(crate) http: Address,
    /// Further host name for HTTP requests if no API key is required; loopback addresses and localhost are always allowed
    #[arg(long, value_name = "NAME", env = "MUSTER_ALLOWED_HOST", value_delimiter = ',')]
    pub(crate) allowed_host: Vec<String>,
    /// Host from which engines may fetch images and audio by URL [default: only `data:` URLs are allowed]
    #[arg(
        long,
        value_name = "NAME",
        env = "MUSTER_ALLOWED_MEDIA_HOST",
        value_delimiter = ','
    )]
    pub(crate) allowed_media_host: Vec<String>,
    /// Whether the prompt cache is shared between API keys: on or off [default: on, but off with several keys]
    #[arg(long, value_name = "on|off", env = "MUSTER_SHARE_PREFIXES", value_parser = ["on", "off"])]
    pub(crate) share_prefixes: Option<String>,
    /// Address of the controller's gRPC API for operators: HOST:PORT or unix:PATH
    #[arg(
        long,
        value_name = "ADDR",
        env = "MUSTER_GRPC",
        default_value = "127.0.0.1:8100"
    )]
    pub(crate) grpc: Address,
    /// API keys, for HTTP and gRPC
    #[command(flatten)]
    pub(crate) keys: KeyOptions,
    /// Directory for state [default: $XDG_STATE_HOME/muster or ~/.local/state/muster]
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
    /// Path of llama.cpp's own server, for the runtime llama_server [default: llama-server on PATH]
    #[arg(long, value_name = "PATH", env = "MUSTER_LLAMA_SERVER")]
    pub(crate) llama_server: Option<PathBuf>,
    /// Largest number of loaded models: one number for all types, or one each for llm, embedding, reranking, audio, image; -1 = no limit
    #[arg(long, value_name = "N", env = "MUSTER_MAX_LOADED_MODELS", num_args = 1..=5, value_delimiter = ' ', allow_negative_numbers = true)]
    pub(crate) max_loaded_models: Vec<i32>,
    /// Largest number of loaded models of each type, as llama.cpp's router has it; 0 = no limit
    #[arg(
        long,
        value_name = "N",
        env = "MUSTER_MODELS_MAX",
        conflicts_with = "max_loaded_models"
    )]
    pub(crate) models_max: Option<u16>,
    /// Context size in tokens of models that set none
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
    /// Log level: critical, error, warning, info, debug or trace
    #[arg(long, value_name = "L", env = "MUSTER_LOG_LEVEL", default_value = "info")]
    pub(crate) log_level: LogLevel,
    /// Time in seconds for running requests to finish when stopping: of the gateway, and then of each worker
    #[arg(
        long,
        value_name = "SECONDS",
        env = "MUSTER_DRAIN_TIMEOUT",
        default_value_t = 30
    )]
    pub(crate) drain_timeout: u64,

    /// Kill and restart a process that shows no sign of life for this long, because it hangs or was stopped; 0 = never
    #[arg(long, value_name = "SECONDS", env = "MUSTER_WATCHDOG", default_value_t = 30)]
    pub(crate) watchdog: u64,
}

impl UpOptions {
    /// Time without a sign of life after which a process is restarted; none = never.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        (self.watchdog > 0).then(|| Duration::from_secs(self.watchdog))
    }

    /// The numbers for the controller's `--max-loaded-models`; empty = as configured.
    pub(crate) fn limits(&self) -> Vec<i32> {
        match self.models_max {
            Some(0) => vec![-1],
            Some(most) => vec![most.into()],
            None => self.max_loaded_models.clone(),
        }
    }
}

/// Options of `muster pull`.
#[derive(Args, Debug)]
pub(crate) struct PullOptions {
    /// Model id
    pub(crate) model: String,
    /// Register the model with these files: ORG/NAME:VARIANT or ORG/NAME on the hub
    #[arg(long, value_name = "CHECKPOINT", default_value = "")]
    pub(crate) checkpoint: String,
    /// Register the model with this recipe [default with --checkpoint: llamacpp]
    #[arg(long, value_name = "RECIPE", requires = "checkpoint")]
    pub(crate) recipe: Option<String>,
    /// File with the multimodal projector in the same repository
    #[arg(long, value_name = "FILE", requires = "checkpoint", default_value = "")]
    pub(crate) mmproj: String,
    /// Branch, tag or commit of the repository [default: main]
    #[arg(long, value_name = "REVISION", requires = "checkpoint", default_value = "")]
    pub(crate) revision: String,
    /// Label, for example embeddings, reranking or vision; may be given several times
    #[arg(long = "label", value_name = "LABEL", requires = "checkpoint")]
    pub(crate) labels: Vec<String>,
}

/// What to do with a download.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DownloadVerb {
    /// End it for now; what came stays
    Pause,
    /// Go on with a paused one
    Resume,
    /// End it, and remove what came
    Cancel,
}

/// Options of `muster chat`.
#[derive(Args, Debug)]
pub(crate) struct ChatOptions {
    /// Model id
    pub(crate) model: String,
    /// Send this message, print the answer and end; without it the message is read from standard input, unless that is a terminal
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) message: Option<String>,
    /// System message
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// Largest number of tokens in an answer
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u32>,
    /// Randomness; 0 = always the most probable token
    #[arg(long, value_name = "T")]
    pub(crate) temperature: Option<f32>,
    /// Seed of the random numbers
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<i64>,
    /// Switch thinking on or off, if the model can
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
    fn llama_cpps_limit_is_one_for_all_types_and_0_is_none() {
        let parse = |words: &[&str]| {
            let cli = Cli::try_parse_from(["muster", "up"].iter().chain(words))?;
            let Command::Up(options) = cli.command else {
                panic!("not up")
            };
            Ok::<_, clap::Error>(options.limits())
        };
        assert_eq!(parse(&["--models-max", "4"]).unwrap(), [4]);
        assert_eq!(parse(&["--models-max", "0"]).unwrap(), [-1]);
        assert_eq!(parse(&["--max-loaded-models", "3", "1"]).unwrap(), [3, 1]);
        assert!(parse(&["--models-max", "4", "--max-loaded-models", "3"]).is_err());
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
