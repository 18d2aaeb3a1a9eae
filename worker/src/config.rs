//! The worker's command line, parsed once into valid values.

use std::{path::PathBuf, str::FromStr, time::Duration};

use bytesize::ByteSize;
use clap::{Parser, Subcommand};
use muster_core::Bytes;
use muster_proto::{
    net::Address,
    process::LogLevel,
    trust::{TokenOptions, place},
};

use crate::{
    engine::{
        gpus::{CUDA, VULKAN},
        stub::StubArgs,
    },
    keeper::KeeperArgs,
    procfs,
};

/// Hosts engines on the devices of one machine and streams their tokens.
#[derive(Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub(crate) struct Cli {
    /// A hidden subcommand instead of a worker.
    #[command(subcommand)]
    pub(crate) command: Option<Other>,
    /// Flags of a worker.
    #[command(flatten)]
    pub(crate) worker: WorkerArgs,
}

/// Hidden subcommands that the worker starts itself.
#[derive(Debug, Subcommand)]
pub(crate) enum Other {
    /// Keeps the process tree of one engine
    #[command(hide = true)]
    Keeper(KeeperArgs),
    /// List the GPUs of this machine, a line of JSON each: what --device calls it, and why it is of no use if it is not
    Devices(EngineOptions),
    /// A deterministic engine for tests and benchmarks; loads no real model
    #[command(hide = true)]
    StubEngine(StubArgs),
}

/// Where engines are.
#[derive(Debug, clap::Args)]
pub(crate) struct EngineOptions {
    /// Path of the embedded engine [default: muster-llama beside this binary]
    #[arg(long, env = "MUSTER_WORKER_ENGINE_LLAMA", value_name = "PATH")]
    pub(crate) engine_llama: Option<PathBuf>,

    /// Path of llama.cpp's own server
    #[arg(
        long,
        env = "MUSTER_LLAMA_SERVER",
        default_value = "llama-server",
        value_name = "PATH"
    )]
    pub(crate) llama_server: PathBuf,
}

impl EngineOptions {
    /// The embedded engine.
    ///
    /// # Errors
    /// This program's own path is unknown.
    pub(crate) fn muster_llama(&self) -> std::io::Result<PathBuf> {
        match &self.engine_llama {
            Some(path) => Ok(path.clone()),
            None => Ok(std::env::current_exe()?.with_file_name("muster-llama")),
        }
    }
}

/// Flags of a worker.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    /// Address of the controller: unix:PATH, or HOST:PORT with --token-file
    #[arg(long, env = "MUSTER_CONTROLLER", default_value_t = place::controller(), value_name = "ADDR")]
    pub(crate) controller: Address,

    /// Address to serve gateways on: unix:PATH, or HOST:PORT (port 0 = any) with --token-file [default: a socket in the run directory]
    #[arg(long, env = "MUSTER_WORKER_LISTEN", value_name = "ADDR")]
    pub(crate) listen: Option<Address>,

    /// Token between Muster's own processes on different machines
    #[command(flatten)]
    pub(crate) token: TokenOptions,

    /// Address at which gateways reach this worker, if it differs from --listen; may be given several times
    #[arg(
        long,
        env = "MUSTER_WORKER_ADVERTISE",
        value_delimiter = ',',
        value_name = "ADDR"
    )]
    pub(crate) advertise: Vec<Address>,

    /// Device to use: cpu, cuda:UUID, cuda:INDEX, cuda:all or sim:NAME:CAPACITY; may be given several times [default: cpu]
    #[arg(
        long = "device",
        env = "MUSTER_WORKER_DEVICE",
        value_delimiter = ',',
        value_name = "DEVICE"
    )]
    pub(crate) devices: Vec<DeviceChoice>,

    /// Stable name of this worker, unique in the fleet [default: host name and first device]
    #[arg(long, env = "MUSTER_WORKER_NAME", value_name = "WORKER_ID")]
    pub(crate) name: Option<String>,

    /// Directory for sockets and records, shared by the workers of a host [default: muster in $XDG_RUNTIME_DIR, for root in /run]
    #[arg(long, env = "MUSTER_WORKER_RUN_DIR", value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// The engines
    #[command(flatten)]
    pub(crate) engines: EngineOptions,

    /// Most bytes per second of all downloads together, such as 20MB [default: no limit]
    #[arg(long, env = "MUSTER_DOWNLOAD_LIMIT", value_name = "SIZE")]
    pub(crate) download_limit: Option<ByteSize>,

    /// Threads for network traffic
    #[arg(long, env = "MUSTER_WORKER_IO_THREADS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..), value_name = "N")]
    pub(crate) io_threads: u8,

    /// Longest wait in seconds for running requests at shutdown
    #[arg(long, env = "MUSTER_WORKER_DRAIN_TIMEOUT", default_value = "60", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) drain_timeout: Duration,

    /// Time in seconds without progress after which a load is ended
    #[arg(long, env = "MUSTER_WORKER_LOAD_STALL", default_value = "60", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) load_stall: Duration,

    /// Time in seconds after which the request of a client that does not read is cancelled
    #[arg(long, env = "MUSTER_WORKER_SLOW_READER", default_value = "60", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) slow_reader: Duration,

    /// Time in seconds without a sign of life after which an engine is ended
    #[arg(long, env = "MUSTER_WORKER_ENGINE_SILENT", default_value = "10", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) engine_silent: Duration,

    /// Time in seconds without progress after which a busy engine is ended
    #[arg(long, env = "MUSTER_WORKER_ENGINE_STUCK", default_value = "120", value_parser = seconds, value_name = "SECONDS")]
    pub(crate) engine_stuck: Duration,

    /// Log level: critical, error, warning, info, debug or trace
    #[arg(long, env = "MUSTER_LOG_LEVEL", default_value_t, value_name = "LEVEL")]
    pub(crate) log_level: LogLevel,
}

impl WorkerArgs {
    /// The devices to use, at least one.
    pub(crate) fn devices(&self) -> Vec<DeviceChoice> {
        if self.devices.is_empty() {
            vec![DeviceChoice::Cpu]
        } else {
            self.devices.clone()
        }
    }

    /// The worker's stable name.
    pub(crate) fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| {
            let device = self
                .devices
                .first()
                .map_or_else(|| "cpu".to_owned(), DeviceChoice::short);
            format!("{}-{device}", procfs::host_name())
        })
    }

    /// The directory shared by the workers of a host.
    pub(crate) fn run_dir(&self) -> PathBuf {
        self.run_dir.clone().unwrap_or_else(place::runtime_dir)
    }

    /// Times after which an operation counts as stuck.
    pub(crate) fn patience(&self) -> Patience {
        Patience {
            load_stall: self.load_stall,
            slow_reader: self.slow_reader,
            engine_silent: self.engine_silent,
            engine_stuck: self.engine_stuck,
        }
    }
}

/// Times after which an operation counts as stuck (PROTOCOL.md 12, 18).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For a load without progress.
    pub(crate) load_stall: Duration,
    /// For a client that does not read.
    pub(crate) slow_reader: Duration,
    /// For an engine without a sign of life.
    pub(crate) engine_silent: Duration,
    /// For a busy engine without progress.
    pub(crate) engine_stuck: Duration,
}

/// A device, as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// The processor and the host's memory.
    Cpu,
    /// A declared device for tests, without hardware.
    Sim {
        /// Name of the device, unique on its host.
        name: String,
        /// Its total memory.
        capacity: Bytes,
    },
    /// NVIDIA GPUs.
    Cuda(GpuChoice),
    /// GPUs of any maker, as the engine finds them through Vulkan.
    Vulkan(GpuChoice),
}

/// A choice of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuChoice {
    /// All GPUs.
    All,
    /// The GPU with this index in the driver's order.
    Index(u32),
    /// The GPU with this UUID or PCI address.
    Id(String),
}

impl DeviceChoice {
    fn short(&self) -> String {
        match self {
            Self::Cpu => "cpu".to_owned(),
            Self::Sim { name, .. } => name.clone(),
            Self::Cuda(choice) => choice.short(CUDA),
            Self::Vulkan(choice) => choice.short(VULKAN),
        }
    }
}

impl GpuChoice {
    fn short(&self, api: &str) -> String {
        match self {
            Self::All => api.to_owned(),
            Self::Index(index) => format!("{api}{index}"),
            Self::Id(id) => id.clone(),
        }
    }

    fn read(which: &str) -> Self {
        match which {
            "all" => Self::All,
            which => which
                .parse()
                .map_or_else(|_| Self::Id(which.to_owned()), Self::Index),
        }
    }
}

/// The text names no device.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no device: want cpu, cuda:UUID, cuda:INDEX, cuda:all, vulkan:PCI-ADDRESS, vulkan:INDEX, vulkan:all or sim:NAME:CAPACITY (for example sim:gpu0:8GiB)"
)]
pub(crate) struct DeviceError(String);

impl FromStr for DeviceChoice {
    type Err = DeviceError;

    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let wrong = || DeviceError(text.to_owned());
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            Some(("cuda", which)) if !which.is_empty() => Ok(Self::Cuda(GpuChoice::read(which))),
            Some(("vulkan", which)) if !which.is_empty() => Ok(Self::Vulkan(GpuChoice::read(which))),
            Some(("sim", rest)) => {
                let (name, capacity) = rest.split_once(':').ok_or_else(wrong)?;
                let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
                if name.is_empty() || !name.bytes().all(plain) {
                    return Err(wrong());
                }
                let capacity: ByteSize = capacity.parse().map_err(|_| wrong())?;
                Ok(Self::Sim {
                    name: name.to_owned(),
                    capacity: Bytes::new(capacity.as_u64()),
                })
            }
            Some(_) | None => Err(wrong()),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "want a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number)
        .ok()
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "want a positive number of seconds".to_owned())
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
    fn devices_parse() {
        let sim = |name: &str, capacity| DeviceChoice::Sim {
            name: name.to_owned(),
            capacity,
        };
        assert_eq!("cpu".parse(), Ok(DeviceChoice::Cpu));
        assert_eq!("sim:gpu0:8GiB".parse(), Ok(sim("gpu0", Bytes::new(8 << 30))));
        assert_eq!("sim:a:1000".parse(), Ok(sim("a", Bytes::new(1000))));
        assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(GpuChoice::Index(3))));
        assert_eq!("cuda:all".parse(), Ok(DeviceChoice::Cuda(GpuChoice::All)));
        assert_eq!(
            "cuda:GPU-1f".parse(),
            Ok(DeviceChoice::Cuda(GpuChoice::Id("GPU-1f".to_owned())))
        );
        for text in ["", "gpu", "sim", "sim:a", "sim:a:much", "sim:../x:1GiB", "cuda:"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn repeated_devices_and_hidden_commands() {
        let cli = Cli::try_parse_from(["w", "--device", "cpu", "--device", "sim:a:1GiB"]).unwrap();
        assert_eq!(cli.worker.devices().len(), 2);
        assert!(cli.worker.name().ends_with("-cpu"));
    }
}
