//! Engines as the worker sees them: whatever hosts a model, ours or foreign, is a process tree and an [`EngineLink`].
//!
//! ```text
//!   instance ──SessionCommand──► EngineLink ──► ours: gRPC Engine.Run on a unix socket (muster-llama, stub)
//!            ◄──SessionMessage──             └─► foreign: an adapter task that speaks HTTP+SSE (llama-server, …)
//! ```
//!
//! Architecture invariant: nothing in here knows gateways' sessions, the controller or policy. A [`Runtime`] starts an engine, describes
//! what it can do, and returns typed events; the instance manages queues, holds and touches.

mod files;
pub(crate) mod gpus;
mod grpc;
mod llama_server;
mod started;
pub(crate) mod stub;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_core::{Error, InstanceId, ModelId, Runtime as Kind};
use muster_proto::v1::{
    ApplyTemplateCall, ApplyTemplateResult, DetokenizeCall, DetokenizeResult, Device, EngineDescription,
    EngineHttpCall, EngineHttpChunk, LoadProgress, ModelSettings, ProcessId, RuntimeInfo, SessionCommand,
    SessionMessage, SlotActionCall, SlotActionResult, TokenizeCall, TokenizeResult,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Paths of engines and their directories.
#[derive(Clone, Debug)]
pub(crate) struct EngineConfig {
    /// Directory for the engines' private directories. [`crate::keeper::sweep`] cleans and locks it.
    pub(crate) run_dir: PathBuf,
    /// File through which all engines of this host share its cores.
    pub(crate) cores: PathBuf,
    /// Path of `muster-worker` itself, whose hidden subcommands are the keeper and the stub engine.
    pub(crate) worker: PathBuf,
    /// Path of the embedded engine, `muster-llama`.
    pub(crate) muster_llama: PathBuf,
    /// Path of llama.cpp's `llama-server`, or a name to look up in `PATH`.
    pub(crate) llama_server: PathBuf,
    /// Time between TERM and KILL when an engine is ended.
    pub(crate) grace: Duration,
}

/// Whether there is such a program, by path or in `PATH`.
pub(crate) fn is_installed(program: &Path) -> bool {
    files::program(program).is_some()
}

/// All runtimes of this build. [`Runtime::info`] tells which are installed.
pub(crate) fn runtimes(config: &EngineConfig) -> Vec<Arc<dyn Runtime>> {
    let llama = vec!["--cores".into(), config.cores.clone().into(), "--listen".into()];
    let stub = vec!["stub-engine".into(), "--listen".into()];
    vec![
        Arc::new(grpc::GrpcRuntime::new(
            Kind::LlamaCpp,
            config.muster_llama.clone(),
            llama,
            config,
        )),
        Arc::new(llama_server::LlamaServer::new(config)),
        Arc::new(grpc::GrpcRuntime::new(
            Kind::Stub,
            config.worker.clone(),
            stub,
            config,
        )),
    ]
}

/// Starts engines of one kind.
pub(crate) trait Runtime: Send + Sync + fmt::Debug {
    /// The kind of the runtime.
    fn kind(&self) -> Kind;

    /// What the runtime offers on these devices; `None` if it is not installed.
    fn info(&self, devices: &[Device]) -> Option<RuntimeInfo>;

    /// Starts an engine and loads the model. Cancelling or dropping the future ends the engine's processes.
    fn launch(&self, launch: Launch) -> BoxFuture<'static, Result<RunningEngine, LaunchError>>;
}

/// A load attempt.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The instance that the engine is for. It also names the engine's private files.
    pub(crate) instance: InstanceId,
    /// The model, for logs and messages.
    pub(crate) model: ModelId,
    /// Everything the engine needs.
    pub(crate) settings: ModelSettings,
    /// Devices that the engine may use, with the bytes reserved on each.
    pub(crate) devices: Vec<Device>,
    /// Receives progress. Any change counts as progress (PROTOCOL.md 12).
    pub(crate) progress: watch::Sender<LoadProgress>,
    /// Receives the process as soon as it runs, so that its memory and CPU time can be measured while it loads.
    pub(crate) process: watch::Sender<Option<Arc<dyn EngineProcess>>>,
    /// Cancelled when the load is no longer wanted.
    pub(crate) cancel: CancellationToken,
}

/// Why no engine runs. If one was started, all its processes have ended.
#[derive(Debug, thiserror::Error)]
#[error("{info}")]
pub(crate) struct LaunchError {
    /// The reason for the controller and the user, with the engine's last log lines in `details.log`.
    pub(crate) info: Error,
}

/// An engine that has loaded its model.
pub(crate) struct RunningEngine {
    /// The channel for requests and events.
    pub(crate) link: EngineLink,
    /// The engine's description of the loaded model.
    pub(crate) description: EngineDescription,
    /// The engine's processes.
    pub(crate) process: Arc<dyn EngineProcess>,
    /// Calls outside the link.
    pub(crate) calls: Arc<dyn EngineCalls>,
    /// Address of the engine, for people.
    pub(crate) backend_url: String,
    /// The engine sends `Alive`, as ours do. Others are judged by their output and CPU time.
    pub(crate) sends_alive: bool,
}

impl fmt::Debug for RunningEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningEngine")
            .field("backend_url", &self.backend_url)
            .finish_non_exhaustive()
    }
}

/// The session with an engine. The worker chooses the handles. When `messages` ends, the engine is lost. Dropping the link cancels
/// everything that runs in the engine.
#[derive(Debug)]
pub(crate) struct EngineLink {
    /// The channel for commands. When it is full the instance waits, which only delays starts and credits.
    pub(crate) commands: mpsc::Sender<SessionCommand>,
    /// The channel for ticks and signs of life. When it is full the engine waits, after its sequences have used up their credits.
    pub(crate) messages: mpsc::Receiver<SessionMessage>,
}

/// The processes of an engine, started by the keeper (PROTOCOL.md 22).
pub(crate) trait EngineProcess: Send + Sync + fmt::Debug {
    /// All processes of the tree, the root first; empty once they have ended.
    fn tree(&self) -> Vec<ProcessId>;

    /// The command line that the engine was started with, its program first, without secrets.
    fn command(&self) -> Vec<String>;

    /// Resolves when no process of the tree is left. May be called several times.
    fn gone(&self) -> BoxFuture<'static, ()>;

    /// Asks the processes to end: TERM, and KILL after a time. Idempotent, does not block.
    fn stop(&self);

    /// Kills the processes. Idempotent, does not block.
    fn kill(&self);

    /// The last lines that the engine wrote, oldest first.
    fn log(&self) -> Vec<String>;
}

/// Calls to an engine outside its link. An engine that cannot answer one returns `unsupported_by_runtime`.
pub(crate) trait EngineCalls: Send + Sync {
    /// Turns text into tokens.
    fn tokenize(&self, call: TokenizeCall) -> BoxFuture<'static, Result<TokenizeResult, Error>>;
    /// Turns tokens into text.
    fn detokenize(&self, call: DetokenizeCall) -> BoxFuture<'static, Result<DetokenizeResult, Error>>;
    /// Turns a chat into a prompt.
    fn apply_template(
        &self,
        call: ApplyTemplateCall,
    ) -> BoxFuture<'static, Result<ApplyTemplateResult, Error>>;
    /// Saves, restores or erases what a sequence has cached.
    fn slot_action(&self, call: SlotActionCall) -> BoxFuture<'static, Result<SlotActionResult, Error>>;
    /// The engine's description of itself, with its sequences.
    fn describe(&self) -> BoxFuture<'static, Result<EngineDescription, Error>>;
    /// Forwards an HTTP request to the engine.
    fn engine_http(
        &self,
        call: EngineHttpCall,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Result<EngineHttpChunk, Error>>, Error>>;
}
