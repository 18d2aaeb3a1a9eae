//! The runtime `llama_server`: llama.cpp's own HTTP server as a managed child.
//!
//! It listens on a unix socket in the engine's private directory and wants a random key, so nothing else is ever taken for it. Its HTTP and
//! SSE become the same typed events as those of our own engine:
//!
//! * [`args`]: settings → command line. [`client`]: HTTP and errors. [`request`]: our requests → its JSON.
//! * [`sse`], [`reply`]: its stream → events. [`run`]: one request. [`session`]: all of them behind an engine link. [`calls`]: the rest.
//!
//! Architecture invariant: only this module knows llama-server's JSON; nothing outside of it sees HTTP.

mod args;
mod calls;
mod client;
mod reply;
mod request;
mod run;
mod session;
mod sse;

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, pending},
};
use muster_core::{Code, Runtime as Kind};
use muster_proto::{
    pauses::Pauses,
    v1::{Device, DeviceKind, LoadPhase, LoadProgress, ModelSettings, RuntimeInfo},
};
use tokio::{sync::watch, time::timeout};

use super::{
    EngineConfig, Launch, LaunchError, RunningEngine, Runtime, files,
    started::{LoadFailure, Started, private_dir, report},
};
use crate::keeper::EngineDir;
use calls::Calls;
use client::Http;
use run::Job;

const POLL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));

/// The runtime.
#[derive(Clone, Debug)]
pub(super) struct LlamaServer {
    config: EngineConfig,
}

impl LlamaServer {
    /// The runtime for the configured binary.
    pub(super) fn new(config: &EngineConfig) -> Self {
        Self {
            config: config.clone(),
        }
    }

    async fn run(self, launch: Launch) -> Result<RunningEngine, LaunchError> {
        let begin = Instant::now();
        report(&launch.progress, LoadPhase::Starting, begin);
        let refused = |info| LaunchError { info };
        files::check(&launch.settings).await.map_err(refused)?;
        let name = self.config.llama_server.display();
        let program = files::program(&self.config.llama_server).ok_or_else(|| {
            refused(Code::FileNotFound.error(format!("llama-server is not installed: {name}")))
        })?;
        let settings = ModelSettings {
            args: args::understood(&program, &launch.settings.args)
                .await
                .map_err(refused)?,
            ..launch.settings.clone()
        };
        let dir = private_dir(&self.config, &launch)?;
        let socket = dir.path().join("engine.sock");
        let internal = |error: &dyn std::fmt::Display| refused(Code::Internal.error(error.to_string()));
        let template = template(&dir, &launch.settings.chat_template).map_err(|error| internal(&error))?;
        let args = args::line(&settings, &launch.devices, &socket, template.as_deref()).map_err(refused)?;
        let key = key().map_err(|error| internal(&error))?;
        let http = Http::new(&socket, &key).map_err(|error| internal(&error))?;
        // In the environment, not on the command line, which everybody on the host can read.
        let environment = vec![("LLAMA_API_KEY".into(), key.into())];
        let started = Started::start(&self.config, &launch, dir, program, args, environment).await?;
        let lines = started.kept().map(|kept| kept.lines());
        let work = async {
            ready(&http, lines, &launch.progress, begin).await;
            calls::description(&http, launch.model.as_str(), &launch.settings)
                .await
                .map_err(LoadFailure::Said)
        };
        let ((description, marker), process) = started.finish(&launch, work).await?;
        let capabilities = description.capabilities.clone().unwrap_or_default();
        let job = Job {
            http: http.clone(),
            context: capabilities.context_length,
            longest: args::longest(&launch.settings).min(capabilities.context_length),
            unpooled: launch.settings.pooling == "none",
            media: request::Media {
                vision: capabilities.vision,
                audio: capabilities.audio,
            },
            marker,
        };
        let ended = process.exited();
        let link = session::open(job, capabilities.sequences, async move {
            ended.await;
        });
        Ok(RunningEngine {
            link,
            description: description.clone(),
            process,
            calls: Arc::new(Calls { http, description }),
            backend_url: format!("unix:{}", socket.display()),
            sends_alive: false,
        })
    }
}

impl Runtime for LlamaServer {
    fn kind(&self) -> Kind {
        Kind::LlamaServer
    }

    fn info(&self, devices: &[Device]) -> Option<RuntimeInfo> {
        files::program(&self.config.llama_server)?;
        let usable = |device: &&Device| match device.kind() {
            DeviceKind::Cpu | DeviceKind::Sim | DeviceKind::Gpu => true,
            DeviceKind::Npu | DeviceKind::Unspecified => false,
        };
        let device_ids = devices
            .iter()
            .filter(usable)
            .map(|device| device.device_id.clone())
            .collect();
        Some(RuntimeInfo {
            name: self.kind().to_string(),
            version: String::new(),
            device_ids,
        })
    }

    fn launch(&self, launch: Launch) -> BoxFuture<'static, Result<RunningEngine, LaunchError>> {
        self.clone().run(launch).boxed()
    }
}

/// Waits until the server has its model: asked again whenever it writes a line, and with a backoff.
async fn ready(
    http: &Http,
    mut lines: Option<watch::Receiver<u64>>,
    progress: &watch::Sender<LoadProgress>,
    begin: Instant,
) {
    let mut pauses = Pauses::new(POLL);
    while !http.ready().await {
        let line = async {
            // An engine that is gone writes nothing; the caller sees that it is.
            let gone = match &mut lines {
                Some(lines) => lines.changed().await.is_err(),
                None => true,
            };
            if gone {
                pending::<()>().await;
            }
        };
        if timeout(pauses.take(), line).await.is_ok() {
            report(progress, LoadPhase::Weights, begin);
        }
    }
}

/// Writes a chat template to a file; `None` if the model's own is wanted.
fn template(dir: &EngineDir, text: &str) -> io::Result<Option<PathBuf>> {
    if text.is_empty() {
        return Ok(None);
    }
    let path = dir.path().join("template");
    fs::write(&path, text)?;
    Ok(Some(path))
}

/// 128 random bits.
fn key() -> io::Result<String> {
    let mut bytes = [0; 16];
    File::open(Path::new("/dev/urandom"))?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
