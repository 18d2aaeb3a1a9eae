//! Engines as the worker sees them: whatever hosts a model, ours or foreign, is a process tree and an [`EngineLink`].
//!
//! ```text
//!   instance ──SessionCommand──► EngineLink ──► ours: gRPC Engine.Run on a unix socket (muster-llama, stub)
//!            ◄──SessionMessage──             └─► foreign: an adapter task that speaks HTTP+SSE (llama-server, …)
//! ```
//!
//! Architecture invariant: nothing in here knows sessions of gateways, the controller or policy. A [`Runtime`] starts an engine, says what it
//! can do, and yields typed events; queues, holds and touches are the instance's business.

mod files;
mod grpc;
mod llama_server;
mod started;
pub(crate) mod stub;

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use muster_core::{Error, InstanceId, ModelId, Runtime as Kind};
use muster_proto::v1::{
    ApplyTemplateCall, ApplyTemplateResult, DetokenizeCall, DetokenizeResult, Device, EngineDescription,
    EngineHttpCall, EngineHttpChunk, LoadProgress, ModelSettings, ProcessId, RuntimeInfo, SessionCommand,
    SessionMessage, TokenizeCall, TokenizeResult,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// Where engines are found and kept.
#[derive(Clone, Debug)]
pub(crate) struct EngineConfig {
    /// Directory for the engines' private directories; swept and locked by [`crate::keeper::sweep`].
    pub(crate) run_dir: PathBuf,
    /// File in which the engines of this host meet to share its cores, whichever worker started them.
    pub(crate) cores: PathBuf,
    /// `muster-worker` itself, whose hidden subcommands are the keeper and the stub engine.
    pub(crate) worker: PathBuf,
    /// The embedded engine, `muster-llama`.
    pub(crate) muster_llama: PathBuf,
    /// llama.cpp's `llama-server`: a path, or a bare name that is looked up in `PATH`.
    pub(crate) llama_server: PathBuf,
    /// Time an engine has between TERM and KILL.
    pub(crate) grace: Duration,
}

/// All runtimes of this build; [`Runtime::info`] says which are installed.
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

/// What hosts models of one kind.
pub(crate) trait Runtime: Send + Sync + fmt::Debug {
    /// Which it is.
    fn kind(&self) -> Kind;

    /// What it offers on these devices; `None` if it is not installed here.
    fn info(&self, devices: &[Device]) -> Option<RuntimeInfo>;

    /// Starts an engine and loads the model. Cancelling, or dropping the future, ends the engine tree.
    fn launch(&self, launch: Launch) -> BoxFuture<'static, Result<RunningEngine, LaunchError>>;
}

/// One load attempt.
#[derive(Debug)]
pub(crate) struct Launch {
    /// The instance the engine is for; also names its private files.
    pub(crate) instance: InstanceId,
    /// The model, for logs and messages.
    pub(crate) model: ModelId,
    /// Everything the engine needs.
    pub(crate) settings: ModelSettings,
    /// Devices it may use, with the bytes reserved on each.
    pub(crate) devices: Vec<Device>,
    /// Where progress is written; any change counts as a sign of life (PROTOCOL.md 12).
    pub(crate) progress: watch::Sender<LoadProgress>,
    /// Where the process is announced as soon as it runs, so that its memory and CPU can be watched while it loads.
    pub(crate) process: watch::Sender<Option<Arc<dyn EngineProcess>>>,
    /// Fires when the load is not wanted any more.
    pub(crate) cancel: CancellationToken,
}

/// Why no engine runs. An engine that was started has been ended, and its processes are gone.
#[derive(Debug, thiserror::Error)]
#[error("{info}")]
pub(crate) struct LaunchError {
    /// The reason, as the controller and the user see it; the engine's last log lines in `details.log`.
    pub(crate) info: Error,
}

/// An engine that has loaded its model.
pub(crate) struct RunningEngine {
    /// Requests and events.
    pub(crate) link: EngineLink,
    /// What is loaded and what it can do.
    pub(crate) description: EngineDescription,
    /// The process tree.
    pub(crate) process: Arc<dyn EngineProcess>,
    /// Calls beside the link.
    pub(crate) calls: Arc<dyn EngineCalls>,
    /// Where the engine listens, for people.
    pub(crate) backend_url: String,
    /// The engine sends `Alive` (ours do); foreign engines are judged by bytes and CPU.
    pub(crate) sends_alive: bool,
}

impl fmt::Debug for RunningEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunningEngine")
            .field("backend_url", &self.backend_url)
            .finish_non_exhaustive()
    }
}

/// The session with one engine. Handles are the worker's own. When `messages` ends, the engine is lost.
/// Dropping the link cancels everything that runs in the engine.
#[derive(Debug)]
pub(crate) struct EngineLink {
    /// Commands; bounded: when it is full the instance waits, which only delays starts and credits.
    pub(crate) commands: mpsc::Sender<SessionCommand>,
    /// Ticks and signs of life; bounded: when it is full the engine waits, after its sequences ran out of credits.
    pub(crate) messages: mpsc::Receiver<SessionMessage>,
}

/// The process tree of one engine, started by the keeper (PROTOCOL.md 22).
pub(crate) trait EngineProcess: Send + Sync + fmt::Debug {
    /// All processes of the tree, root first; empty once it is gone.
    fn tree(&self) -> Vec<ProcessId>;

    /// Resolves when no process of the tree is left. May be called often.
    fn gone(&self) -> BoxFuture<'static, ()>;

    /// Asks the tree to end: TERM, and KILL after a grace. Idempotent, does not block.
    fn stop(&self);

    /// Ends the tree now. Idempotent, does not block.
    fn kill(&self);

    /// The last lines the engine wrote, oldest first.
    fn log(&self) -> Vec<String>;
}

/// What an engine answers beside its link. An engine that cannot answers `unsupported_by_runtime`.
pub(crate) trait EngineCalls: Send + Sync {
    /// Text to tokens.
    fn tokenize(&self, call: TokenizeCall) -> BoxFuture<'static, Result<TokenizeResult, Error>>;
    /// Tokens to text.
    fn detokenize(&self, call: DetokenizeCall) -> BoxFuture<'static, Result<DetokenizeResult, Error>>;
    /// Chat to prompt.
    fn apply_template(
        &self,
        call: ApplyTemplateCall,
    ) -> BoxFuture<'static, Result<ApplyTemplateResult, Error>>;
    /// The engine's own view, sequences included.
    fn describe(&self) -> BoxFuture<'static, Result<EngineDescription, Error>>;
    /// The engine's own HTTP.
    fn engine_http(
        &self,
        call: EngineHttpCall,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Result<EngineHttpChunk, Error>>, Error>>;
}
