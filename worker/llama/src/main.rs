//! `muster-llama`: llama.cpp as an engine process. It serves the `Engine` service (`proto/muster/v1/engine.proto`) to its worker on a unix socket.
//!
//! ```text
//!   session task ──► prepare threads ──► loop thread ──► outbox ──► session stream
//!   (gRPC)           templates, tokens,   KV, batches,      ▲
//!                    grammars, samplers   sampling ──► parse thread (tools, reasoning)
//! ```
//!
//! One process holds at most one model; its end is how memory is given back. All FFI is behind [`model`], [`context`], [`sampler`] and [`chat`].
//! Architecture invariant: nothing here knows other models, devices of the fleet, HTTP, or which worker is its parent.

mod adapters;
mod alive;
mod budget;
mod busy;
mod chat;
mod content;
mod context;
mod control;
mod cores;
mod devices;
mod draft;
mod engine;
mod ffi;
mod group;
mod grpc;
mod guard;
mod limits;
mod media;
mod model;
mod outbox;
mod pace;
mod parse;
mod pick;
mod plan;
mod probs;
mod request;
mod sampler;
mod saved;
mod shared;
mod slot_files;
mod text;
mod thought;
mod totals;
mod vector;
mod waker;

use std::{io::Write as _, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::Address,
    process::{self, LogLevel},
    trust::{Door, Keys},
    v1::engine_server::EngineServer,
};

/// llama.cpp as an engine process of Muster.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    /// Where to serve the Engine service: unix:PATH, for processes of the same user.
    #[arg(long, env = "MUSTER_LLAMA_LISTEN", required_unless_present = "list_devices")]
    listen: Option<Address>,
    /// A device that the model may use beside the CPU, as --list-devices names it; repeat it for more, which get even shares. none = the CPU only.
    #[arg(long = "device", value_name = "NAME")]
    devices: Vec<String>,
    /// Print what this build can use here as a line of JSON, and end.
    #[arg(long)]
    list_devices: bool,
    /// With --list-devices: print it again after so many seconds, until the input ends.
    #[arg(long, value_name = "SECONDS", requires = "list_devices")]
    every: Option<u32>,
    /// File in which the engines of this host meet to share its cores.
    #[arg(long, env = "MUSTER_LLAMA_CORES", value_name = "PATH")]
    cores: Option<PathBuf>,
    /// How much to log: critical, error, warning, info, debug or trace.
    #[arg(long, env = "MUSTER_LOG_LEVEL", default_value = "info")]
    log_level: LogLevel,
}

/// Among the names of devices: none of them.
const NO_DEVICE: &str = "none";
/// Without this variable ggml starts a debugger when it aborts; it is read by C code, so it must be there before any thread is.
const NO_BACKTRACE: &str = "GGML_NO_BACKTRACE";
/// How long OpenMP's threads spin where they wait for each other, in turns of a loop: some 20 µs, after that they sleep. By default they spin for milliseconds,
/// and on a busy machine a token took 75 ms where it takes 3. Sleeping at once costs more than the work between two barriers of a small model.
const SPIN: (&str, &str) = ("GOMP_SPINCOUNT", "1000");
/// An operator who sets one of these has thought about it.
const WAITING: [&str; 2] = ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"];

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if std::env::var_os(NO_BACKTRACE).is_none() {
        return restart_with_environment();
    }
    process::init_logging(args.log_level);
    process::raise_file_limit();
    model::init();
    if args.list_devices {
        return list_devices(args.every);
    }
    let devices = match args.devices.as_slice() {
        [] => None,
        [none] if none == NO_DEVICE => Some(Vec::new()),
        devices => Some(devices.to_vec()),
    };
    let listen = args.listen.context("--listen is required")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(256 << 20)
        .build()?;
    runtime.block_on(serve(listen, args.cores, devices))
}

/// Runs this program again in its place, with the environment llama.cpp needs (setting it here would not be thread-safe).
fn restart_with_environment() -> anyhow::Result<()> {
    use std::os::unix::process::CommandExt as _;
    let program = std::env::current_exe().context("own path")?;
    let mut again = std::process::Command::new(program);
    again.args(std::env::args_os().skip(1)).env(NO_BACKTRACE, "1");
    if WAITING.iter().all(|name| std::env::var_os(name).is_none()) {
        again.env(SPIN.0, SPIN.1);
    }
    let error = again.exec();
    Err(error).context("restart with GGML_NO_BACKTRACE")
}

/// Prints the devices, again and again if `every` says how often.
fn list_devices(every: Option<u32>) -> anyhow::Result<()> {
    let Some(seconds) = every else {
        return print_devices();
    };
    // Whoever reads the lines holds the other end of the input, and takes it along when it ends.
    std::thread::spawn(|| {
        drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        std::process::exit(0);
    });
    loop {
        print_devices()?;
        std::thread::park_timeout(Duration::from_secs(seconds.max(1).into()));
    }
}

fn print_devices() -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(&devices::find()?)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    Ok(out.flush()?)
}

async fn serve(address: Address, cores: Option<PathBuf>, devices: Option<Vec<String>>) -> anyhow::Result<()> {
    let door = Door::parts(&address, None, &Keys::default()).await?;
    let service = grpc::EngineService::new(cores, devices);
    let engine = EngineServer::new(service.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    process::notify_ready(door.address());
    let (mut server, listener) = door.open();
    let stopping = {
        let service = service.clone();
        async move {
            drop(process::shutdown_signal().await);
            process::notify_stopping();
            service.stop().await;
        }
    };
    server
        .add_service(engine)
        .serve_with_incoming_shutdown(listener, stopping)
        .await
        .context("serve")
}
