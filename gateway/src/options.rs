//! The command line.

use std::{num::NonZeroUsize, thread, time::Duration};

use clap::Parser;
use muster_proto::{net::Address, process::LogLevel};

/// Below the limit of one internal message, since an encoded request is hardly larger than its JSON.
const MAX_BODY_BYTES: i64 = 60 << 20;

/// HTTP in front of Muster's workers.
#[derive(Clone, Debug, Parser)]
#[command(name = "muster-gateway", version, max_term_width = 100)]
pub struct Options {
    /// Where the controller is: HOST:PORT or unix:PATH.
    #[arg(long, env = "MUSTER_GATEWAY_CONTROLLER", default_value = "127.0.0.1:8100")]
    pub controller: Address,

    /// Where to listen for HTTP: HOST:PORT (port 0 = any free one) or unix:PATH.
    #[arg(long, env = "MUSTER_GATEWAY_LISTEN", default_value = "127.0.0.1:8000")]
    pub listen: Address,

    /// I/O threads, each with its own listener and sessions [default: the machine's cores].
    #[arg(long, env = "MUSTER_GATEWAY_IO_THREADS")]
    pub io_threads: Option<NonZeroUsize>,

    /// Largest request body in bytes, at most 60 MiB: a request must fit one message to a worker.
    #[arg(long, env = "MUSTER_GATEWAY_MAX_BODY_BYTES", default_value_t = 32 << 20,
          value_parser = clap::value_parser!(u32).range(1..=MAX_BODY_BYTES))]
    pub max_body_bytes: u32,

    /// Seconds that running streams get to end after SIGTERM.
    #[arg(long, env = "MUSTER_GATEWAY_DRAIN_SECONDS", default_value_t = 30)]
    pub drain_seconds: u64,

    /// critical, error, warning, info, debug or trace; RUST_LOG wins.
    #[arg(long, env = "MUSTER_LOG_LEVEL", default_value_t)]
    pub log_level: LogLevel,
}

impl Options {
    /// Largest request body in bytes.
    pub(crate) fn max_body(&self) -> usize {
        usize::try_from(self.max_body_bytes).unwrap_or(usize::MAX)
    }

    /// Threads to start.
    pub(crate) fn threads(&self) -> usize {
        let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.io_threads.map_or_else(cores, NonZeroUsize::get)
    }

    /// Longest drain.
    pub(crate) fn drain(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }
}
