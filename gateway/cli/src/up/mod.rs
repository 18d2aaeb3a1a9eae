//! `muster up`: the real processes, supervised on one box.
//!
//! ```text
//!   lock state dir ─► check ports ─► controller ready ─► workers + gateway ready ─► running ──Ctrl-C, SIGTERM──► drain
//!        │                 │               │                      │                                              │
//!        └─────────────────┴── error ──────┴──────────────────────┴─► drain what runs, exit 1                     │
//!                                     gateway ─► workers ─► controller, TERM each; KILL at the deadline ◄─────────┘
//! ```
//!
//! The controller starts first because the others connect to it: a refused connection costs them a backoff, and the controller starts in
//! milliseconds.
//!
//! Architecture invariant: this module knows only the command lines and readiness messages of its children.

mod catalogue;
mod directories;
mod logs;
mod notify;
mod plan;
mod ports;
mod process;

pub(crate) use directories::expected_run_dir as run_dir;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::ArgMatches;
use muster_proto::{
    net::{self, Address},
    private::NotPrivate,
    process::{init_logging, notify_ready, notify_stopping, raise_file_limit},
    trust::{Credentials, KeyOptions},
    v1::{ListModelsRequest, Model, ModelType, control_client::ControlClient},
};
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::{
    plan::Plan,
    process::{Process, Urgency},
};
use crate::{args::UpOptions, failure::Failure, output::Output};

/// Longest wait for the list of models shown at the start.
const GREETING_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest wait for a child to become ready.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a child whose drain has timed out to end the remaining requests with an error.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Longest time for a killed child to end.
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Why `muster up` cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpError {
    /// There is no directory for state.
    #[error("nowhere to keep state: neither $XDG_STATE_HOME nor $HOME is set")]
    NoHome,
    /// A directory or file of `muster up` cannot be used.
    #[error("cannot use {path}: {source}")]
    Path { path: PathBuf, source: std::io::Error },
    /// Another `muster up` uses the state directory.
    #[error("another `muster up` (process {holder}) uses the state directory {path}")]
    Locked {
        /// The state directory.
        path: PathBuf,
        /// Process id of the other one, if known.
        holder: String,
    },
    /// Another user could change the contents of a directory of `muster up`.
    #[error(transparent)]
    NotPrivate(#[from] NotPrivate),
    /// A model or configuration file cannot be read.
    #[error("{flag} {path}: {why}")]
    NoFile {
        /// The flag that names the file.
        flag: &'static str,
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
    },
    /// Two `--model` files have the same name.
    #[error("two --model files would both be called `{0}`")]
    SameName(String),
    /// The generated configuration cannot be written.
    #[error("cannot write the generated configuration: {0}")]
    Generated(#[from] toml::ser::Error),
    /// A binary is missing in muster's directory.
    #[error("{name} is not in {directory}, where muster itself is")]
    NoBinary {
        name: &'static str,
        /// The directory where it should be.
        directory: PathBuf,
    },
    /// An address is in use.
    #[error("{what} cannot listen on {address}: the port is already in use")]
    PortTaken {
        /// The process that needs the address.
        what: &'static str,
        address: String,
        /// The flag that changes the address.
        flag: &'static str,
    },
    /// An address cannot be used for another reason.
    #[error("{what} cannot listen on {address}: {source}")]
    PortRefused {
        /// The process that needs the address.
        what: &'static str,
        address: String,
        source: std::io::Error,
    },
    /// A child process ended before it was ready.
    #[error("{name} ended before it was ready: {why}")]
    Died {
        /// Name of the child.
        name: String,
        /// Its exit status, or why it could not be started.
        why: String,
    },
    /// A child process did not become ready in time.
    #[error("{0} was not ready after {seconds} s", seconds = START_TIMEOUT.as_secs())]
    NotReady(String),
}

impl UpError {
    /// What a person can do about it.
    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoHome => Some("say where: --state-dir DIR"),
            Self::Locked { .. } => {
                Some("stop that one, or give this one its own --state-dir, --http and --grpc")
            }
            Self::NoBinary { .. } => Some("build all of them: cargo build --release"),
            Self::PortTaken { flag: "--http", .. } => {
                Some("stop what listens there, or choose another: --http HOST:PORT")
            }
            Self::PortTaken { .. } => Some("stop what listens there, or choose another: --grpc HOST:PORT"),
            Self::Died { .. } | Self::NotReady(_) => {
                Some("its own words are above; --log-level debug says more")
            }
            Self::Path { .. }
            | Self::NotPrivate(_)
            | Self::NoFile { .. }
            | Self::SameName(_)
            | Self::Generated(_)
            | Self::PortRefused { .. } => None,
        }
    }
}

/// Runs all processes until Ctrl-C or SIGTERM.
pub(crate) async fn run(options: UpOptions, given: &ArgMatches, output: Output) -> Result<(), Failure> {
    let started = Instant::now();
    init_logging(options.log_level);
    raise_file_limit();
    KeyOptions::warn_of_command_line(given);
    let mut signals = Signals::install()?;
    let drain_timeout = Duration::from_secs(options.drain_timeout);
    let plan = Plan::new(options)?;
    let mut fleet = Fleet::default();
    let up = tokio::select! {
        up = fleet.start(&plan) => up.map(Some),
        () = signals.next() => Ok(None),
    };
    let result = match up {
        Ok(Some(addresses)) => {
            let banner = announce(output, &addresses, started.elapsed()).await;
            notify_ready(&addresses.http);
            signals.next().await;
            banner
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error.into()),
    };
    notify_stopping();
    fleet.drain(&mut signals, drain_timeout).await;
    drop(plan);
    result
}

/// The addresses of the running fleet.
struct Addresses {
    http: Address,
    /// The controller's address for operators.
    grpc: Address,
    /// The controller's address for Muster's own processes.
    socket: Address,
    /// Whether clients need an API key.
    needs_key: bool,
}

/// The child processes, in the order in which they are stopped.
#[derive(Default)]
struct Fleet {
    gateway: Vec<Process>,
    workers: Vec<Process>,
    controller: Vec<Process>,
}

impl Fleet {
    async fn start(&mut self, plan: &Plan) -> Result<Addresses, UpError> {
        self.controller.push(Process::start(plan.controller()));
        let grpc = first_ready(&mut self.controller).await?;
        let socket = plan.socket();
        self.workers
            .extend(plan.workers(&socket).into_iter().map(Process::start));
        self.gateway.push(Process::start(plan.gateway(&socket)));
        let (http, _) = tokio::try_join!(first_ready(&mut self.gateway), first_ready(&mut self.workers))?;
        Ok(Addresses {
            http,
            grpc,
            socket,
            needs_key: plan.needs_key(),
        })
    }

    /// Stops everything in order. Each group has its own time limit, so that long streams of the gateway do not cost the workers theirs. A
    /// second signal kills everything that is left.
    async fn drain(&mut self, signals: &mut Signals, timeout: Duration) {
        let mut urgency = Urgency::Term;
        for group in [&mut self.gateway, &mut self.workers, &mut self.controller] {
            for process in group.iter() {
                process.stop(urgency);
            }
            if urgency == Urgency::Term {
                let why = tokio::select! {
                    () = all_ended(group) => continue,
                    () = signals.next() => {
                        urgency = Urgency::Kill;
                        "asked again"
                    }
                    () = tokio::time::sleep(timeout + LAST_WORDS) => "the drain took too long",
                };
                tracing::warn!(why, "killing what still runs");
                for process in group.iter() {
                    process.stop(Urgency::Kill);
                }
            }
            if tokio::time::timeout(KILL_GRACE, all_ended(group)).await.is_err() {
                tracing::error!("a killed process does not die");
            }
        }
    }
}

/// Waits until all processes are ready. Returns the address of the first.
async fn first_ready(processes: &mut [Process]) -> Result<Address, UpError> {
    let mut first = None;
    for process in processes {
        let address = tokio::time::timeout(START_TIMEOUT, process.ready())
            .await
            .map_err(|_| UpError::NotReady(process.name().to_owned()))??;
        first.get_or_insert(address);
    }
    first.ok_or_else(|| UpError::NotReady("nothing".to_owned()))
}

async fn all_ended(processes: &mut [Process]) {
    for process in processes {
        process.ended().await;
    }
}

/// Signals within this time count as one: `timeout` and some supervisors signal a process and then its group.
const ONE_WISH: Duration = Duration::from_millis(300);

/// The signals that stop `muster up`.
struct Signals {
    term: Signal,
    interrupt: Signal,
    hangup: Signal,
    last: Option<Instant>,
}

impl Signals {
    fn install() -> std::io::Result<Self> {
        Ok(Self {
            term: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            last: None,
        })
    }

    async fn next(&mut self) {
        loop {
            let name = tokio::select! {
                _ = self.term.recv() => "SIGTERM",
                _ = self.interrupt.recv() => "SIGINT",
                _ = self.hangup.recv() => "SIGHUP",
            };
            if self.last.is_none_or(|last| last.elapsed() >= ONE_WISH) {
                self.last = Some(Instant::now());
                tracing::info!(signal = name, "asked to stop");
                return;
            }
        }
    }
}

/// Prints the addresses and a command to try.
async fn announce(output: Output, addresses: &Addresses, took: Duration) -> Result<(), Failure> {
    let all = models(&addresses.socket).await;
    let models: Vec<&str> = all.iter().map(|model| model.id.as_str()).collect();
    let Addresses {
        http, grpc, socket, ..
    } = addresses;
    if output.is_json() {
        return output.line(json!({
            "http": http.to_string(),
            "grpc": grpc.to_string(),
            "socket": socket.to_string(),
            "models": models,
            "ready_seconds": took.as_secs_f64(),
        }));
    }
    let (base, through) = match http {
        Address::Tcp(text) => (format!("http://{}", dialable(text)), String::new()),
        Address::Unix(path) => (
            "http://localhost".to_owned(),
            format!(" --unix-socket {}", path.display()),
        ),
    };
    let key = if addresses.needs_key {
        " -H 'authorization: Bearer KEY'"
    } else {
        ""
    };
    let chats = all.iter().find(|model| model.r#type() == ModelType::Llm);
    let model = chats.map_or("MODEL", |model| model.id.as_str());
    let listed = if models.is_empty() {
        "none: give --model PATH.gguf or --config FILE".to_owned()
    } else {
        models.join(", ")
    };
    output.line(format_args!(
        "muster is ready after {:.2} s\n  HTTP    {base}/v1{}\n  gRPC    {grpc}\n  models  {listed}\n  try     curl -N{through} {base}/v1/chat/completions \
         -H 'content-type: application/json'{key} -d '{{\"model\":\"{model}\",\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'",
        took.as_secs_f64(),
        if through.is_empty() { String::new() } else { format!("  (on {http})") },
    ))
}

/// The address as a client on this machine can connect to it.
fn dialable(listen: &str) -> String {
    let port = listen.rsplit_once(':').map_or("", |(_, port)| port);
    if listen.starts_with("0.0.0.0:") || listen.starts_with("[::]:") {
        format!("localhost:{port}")
    } else {
        listen.to_owned()
    }
}

/// The models of the catalogue; empty if the controller does not answer, which is no reason to stop.
async fn models(socket: &Address) -> Vec<Model> {
    let mut client = ControlClient::new(net::channel_lazy(socket, &Credentials::none()))
        .max_decoding_message_size(muster_proto::MAX_MESSAGE_BYTES);
    let asked = client.list_models(ListModelsRequest::default());
    match tokio::time::timeout(GREETING_TIMEOUT, asked).await {
        Ok(Ok(response)) => response.into_inner().models,
        Ok(Err(status)) => {
            tracing::warn!(%status, "the controller does not list its models");
            Vec::new()
        }
        Err(_) => {
            tracing::warn!("the controller takes too long to list its models");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_for_everyone_are_shown_as_localhost() {
        assert_eq!(dialable("0.0.0.0:80"), "localhost:80");
        assert_eq!(dialable("[::]:80"), "localhost:80");
        assert_eq!(dialable("127.0.0.1:80"), "127.0.0.1:80");
    }
}
