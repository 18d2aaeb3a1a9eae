//! Runtimes whose engine speaks our own `Engine` service on a unix socket: `llama_cpp` (`muster-llama`) and `stub`.
//!
//! The engine says over sd_notify when it listens. The link relays messages as they are; it only checks that no tick is missing
//! (PROTOCOL.md 16), since an engine that lost events cannot be trusted.

use std::{
    ffi::OsString,
    path::PathBuf,
    sync::{Arc, OnceLock, Weak},
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, ready},
    stream::BoxStream,
};
use muster_core::{Code, Error, Runtime as Kind};
use muster_proto::{
    MAX_MESSAGE_BYTES, StatusExt as _, VERSION,
    net::{self, Address, Channel},
    pauses::Pauses,
    trust::Credentials,
    v1::{
        ApplyTemplateCall, ApplyTemplateResult, DetokenizeCall, DetokenizeResult, Device, DeviceKind,
        EngineDescribeRequest, EngineDescription, EngineHttpCall, EngineHttpChunk, EngineLoadRequest,
        LoadPhase, RuntimeInfo, SessionMessage, SlotActionCall, SlotActionResult, TokenizeCall,
        TokenizeResult, engine_client::EngineClient, engine_load_event, session_message,
    },
};
use tokio::{net::UnixDatagram, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::{
    EngineCalls, EngineConfig, EngineLink, EngineProcess, Launch, LaunchError, RunningEngine, Runtime, files,
    gpus::{self, Listed},
    started::{LoadFailure, Started, private_dir, report, unix_address},
};
use crate::keeper::Kept;

/// Commands on their way to an engine; full = the instance waits.
const COMMANDS: usize = 256;
/// Messages on their way from an engine; full = the engine waits, once HTTP/2's windows are full too.
const MESSAGES: usize = 64;
const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));

/// A runtime with an engine of ours.
#[derive(Clone, Debug)]
pub(super) struct GrpcRuntime {
    kind: Kind,
    program: PathBuf,
    /// Arguments; the address to listen on follows them.
    args: Vec<OsString>,
    config: EngineConfig,
    /// What the engine was built for; it is asked once, where there is a GPU.
    listed: Arc<OnceLock<Listed>>,
}

impl GrpcRuntime {
    /// A runtime that starts `program args… unix:PATH`.
    pub(super) fn new(kind: Kind, program: PathBuf, args: Vec<OsString>, config: &EngineConfig) -> Self {
        Self {
            kind,
            program,
            args,
            config: config.clone(),
            listed: Arc::default(),
        }
    }

    /// Whether the engine was built for an interface of GPUs.
    fn drives(&self, api: &str) -> bool {
        let listed = self.listed.get_or_init(|| match gpus::list(&self.program) {
            Ok(listed) => {
                tracing::info!(backends = ?listed.backends, "what muster-llama was built for");
                listed
            }
            Err(error) => {
                tracing::warn!(program = %self.program.display(), %error, "it does not say what it was built for");
                Listed::default()
            }
        });
        listed.has(api)
    }

    fn is_stub(&self) -> bool {
        self.kind == Kind::Stub
    }

    async fn run(self, launch: Launch) -> Result<RunningEngine, LaunchError> {
        let begin = Instant::now();
        report(&launch.progress, LoadPhase::Starting, begin);
        if !self.is_stub() {
            let refused = |info| LaunchError { info };
            // Known here, they need no process to be refused.
            muster_proto::llamacpp::check(&launch.settings.args).map_err(refused)?;
            files::check(&launch.settings).await.map_err(refused)?;
        }
        let dir = private_dir(&self.config, &launch)?;
        let socket = dir.path().join("engine.sock");
        let notify = dir.path().join("notify");
        let ready = UnixDatagram::bind(&notify).map_err(|error| LaunchError {
            info: Code::Internal.error(format!("no readiness socket: {error}")),
        })?;
        let mut args = self.args;
        args.push(unix_address(&socket));
        if self.kind == Kind::LlamaCpp {
            let devices = gpus::device_names(&launch.devices);
            args.extend(
                devices
                    .into_iter()
                    .flat_map(|name| ["--device".into(), name.into()]),
            );
        }
        let environment = vec![("NOTIFY_SOCKET".into(), notify.into_os_string())];
        let started = Started::start(&self.config, &launch, dir, self.program, args, environment).await?;
        let process = started.kept().map(Arc::downgrade).unwrap_or_default();
        let address = Address::Unix(socket);
        let work = async {
            let client = connect(&address, &ready).await;
            let description = load(client.clone(), &launch).await?;
            let link = link(client.clone(), process).await?;
            Ok((client, description, link))
        };
        let ((client, description, link), process) = started.finish(&launch, work).await?;
        Ok(RunningEngine {
            link,
            description,
            process,
            calls: Arc::new(GrpcCalls { client }),
            backend_url: address.to_string(),
            sends_alive: true,
        })
    }
}

impl Runtime for GrpcRuntime {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn info(&self, devices: &[Device]) -> Option<RuntimeInfo> {
        files::program(&self.program)?;
        // The stub needs no hardware; `sim:` devices have none behind them.
        let fits = |device: &&Device| match device.kind() {
            DeviceKind::Cpu | DeviceKind::Sim => true,
            DeviceKind::Gpu => self.is_stub() || self.drives(&device.api),
            DeviceKind::Npu => self.is_stub(),
            DeviceKind::Unspecified => false,
        };
        let device_ids = devices
            .iter()
            .filter(fits)
            .map(|device| device.device_id.clone())
            .collect();
        Some(RuntimeInfo {
            name: self.kind.to_string(),
            version: VERSION.to_owned(),
            device_ids,
        })
    }

    fn launch(&self, launch: Launch) -> BoxFuture<'static, Result<RunningEngine, LaunchError>> {
        self.clone().run(launch).boxed()
    }
}

type Client = EngineClient<Channel>;

/// Connects as soon as the engine listens: when it says so, and by trying, for engines that don't.
async fn connect(address: &Address, ready: &UnixDatagram) -> Client {
    let mut pauses = Pauses::new(POLL);
    let mut buffer = [0; 512];
    loop {
        if let Ok(channel) = net::channel(address, &Credentials::none()).await {
            return EngineClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES);
        }
        // Whatever it says: it says it when there is something new.
        drop(timeout(pauses.take(), ready.recv(&mut buffer)).await);
    }
}

async fn load(mut client: Client, launch: &Launch) -> Result<EngineDescription, LoadFailure> {
    let request = EngineLoadRequest {
        model_id: launch.model.as_str().to_owned(),
        settings: Some(launch.settings.clone()),
    };
    let mut events = client
        .load(request)
        .await
        .map_err(|status| failure(&status))?
        .into_inner();
    while let Some(event) = events.message().await.map_err(|status| failure(&status))? {
        match event.kind {
            Some(engine_load_event::Kind::Progress(progress)) => {
                launch.progress.send_replace(progress);
            }
            Some(engine_load_event::Kind::Ready(description)) => return Ok(description),
            Some(engine_load_event::Kind::Failed(info)) => return Err(LoadFailure::Said(info.into())),
            None => {}
        }
    }
    Err(LoadFailure::Broken("the load ended without a result".into()))
}

fn failure(status: &Status) -> LoadFailure {
    LoadFailure::Broken(format!("{}: {}", status.code(), status.message()))
}

async fn link(mut client: Client, process: Weak<Kept>) -> Result<EngineLink, LoadFailure> {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (sender, messages) = mpsc::channel(MESSAGES);
    let inbound = client
        .run(ReceiverStream::new(receiver))
        .await
        .map_err(|status| failure(&status))?;
    tokio::spawn(relay(inbound.into_inner(), sender, process));
    Ok(EngineLink { commands, messages })
}

/// Passes messages on until the engine or the instance lets go of the link. Ends both ways: dropping the stream resets it.
async fn relay(
    mut inbound: Streaming<SessionMessage>,
    messages: mpsc::Sender<SessionMessage>,
    process: Weak<Kept>,
) {
    let mut seq = 0;
    loop {
        let message = tokio::select! {
            message = inbound.message() => message,
            () = messages.closed() => return,
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, "an engine's session broke");
                return;
            }
        };
        if let Some(session_message::Kind::Tick(tick)) = &message.kind {
            seq += 1;
            if tick.seq != seq {
                tracing::error!(expected = seq, got = tick.seq, "an engine lost events; ending it");
                if let Some(process) = process.upgrade() {
                    process.kill();
                }
                return;
            }
        }
        if messages.send(message).await.is_err() {
            return;
        }
    }
}

struct GrpcCalls {
    client: Client,
}

type Answer<T> = BoxFuture<'static, Result<T, Error>>;

macro_rules! call {
    ($self:ident, $method:ident, $call:expr) => {{
        let mut client = $self.client.clone();
        async move {
            let answer = client.$method($call).await;
            answer
                .map(tonic::Response::into_inner)
                .map_err(|status| Error::from_status(&status))
        }
        .boxed()
    }};
}

impl EngineCalls for GrpcCalls {
    fn tokenize(&self, call: TokenizeCall) -> Answer<TokenizeResult> {
        call!(self, tokenize, call)
    }

    fn detokenize(&self, call: DetokenizeCall) -> Answer<DetokenizeResult> {
        call!(self, detokenize, call)
    }

    fn apply_template(&self, call: ApplyTemplateCall) -> Answer<ApplyTemplateResult> {
        call!(self, apply_template, call)
    }

    fn slot_action(&self, call: SlotActionCall) -> Answer<SlotActionResult> {
        call!(self, slot_action, call)
    }

    fn describe(&self) -> Answer<EngineDescription> {
        call!(self, describe, EngineDescribeRequest {})
    }

    fn engine_http(&self, _: EngineHttpCall) -> Answer<BoxStream<'static, Result<EngineHttpChunk, Error>>> {
        ready(Err(
            Code::UnsupportedByRuntime.error("this engine speaks no HTTP of its own")
        ))
        .boxed()
    }
}
