//! Starts engines and talks to them through their links.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use muster_core::InstanceId;
use muster_proto::v1::{
    Cancel, Credit, Device, DeviceKind, Event, GenerateRequest, LoadProgress, ModelSettings, Prompt,
    PromptPiece, SessionCommand, SessionMessage, Start, event, generate_request::Input, prompt_piece,
    session_command, session_message, start::Work,
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::{self, EngineConfig, EngineProcess, Launch, LaunchError, RunningEngine, Runtime};

/// Whatever a test waits for comes within this time or not at all.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A run directory with all runtimes.
pub(crate) struct Bench {
    pub(crate) config: EngineConfig,
    _dir: tempfile::TempDir,
}

/// A launch and the handles its caller keeps.
pub(crate) struct Load {
    pub(crate) launch: Launch,
    pub(crate) process: watch::Receiver<Option<Arc<dyn EngineProcess>>>,
    pub(crate) progress: watch::Receiver<LoadProgress>,
    pub(crate) cancel: CancellationToken,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("mstr").tempdir().unwrap();
        // The file that engines of a host share is beside it: in it nothing may be left.
        let run_dir = dir.path().join("run");
        std::fs::create_dir(&run_dir).unwrap();
        let config = EngineConfig {
            run_dir,
            cores: dir.path().join("cores"),
            worker: env!("CARGO_BIN_EXE_muster-worker").into(),
            muster_llama: muster_llama(),
            llama_server: std::env::var_os("MUSTER_TEST_LLAMA_SERVER")
                .unwrap_or_default()
                .into(),
            grace: Duration::from_secs(5),
        };
        Self { config, _dir: dir }
    }

    pub(crate) fn runtime(&self, name: &str) -> Arc<dyn Runtime> {
        engine::runtimes(&self.config)
            .into_iter()
            .find(|runtime| runtime.kind().name() == name)
            .unwrap()
    }

    pub(crate) async fn launch(
        &self,
        runtime: &str,
        settings: ModelSettings,
    ) -> Result<RunningEngine, LaunchError> {
        let runtime = self.runtime(runtime);
        timeout(PATIENCE, runtime.launch(load(settings).launch))
            .await
            .expect("the load neither ended nor failed")
    }
}

/// The embedded engine: beside the worker, where cargo builds it, unless the environment says otherwise.
fn muster_llama() -> PathBuf {
    let beside = || Path::new(env!("CARGO_BIN_EXE_muster-worker")).with_file_name("muster-llama");
    std::env::var_os("MUSTER_TEST_MUSTER_LLAMA").map_or_else(beside, PathBuf::from)
}

/// A generated model.
pub(crate) fn model(name: &str) -> String {
    let dir = std::env::var("MUSTER_TEST_MODELS")
        .expect("MUSTER_TEST_MODELS is not set: use tests/run, which prepares everything");
    format!("{dir}/{name}.gguf")
}

pub(crate) fn load(settings: ModelSettings) -> Load {
    let (process_sender, process) = watch::channel(None);
    let (progress_sender, progress) = watch::channel(LoadProgress::default());
    let cancel = CancellationToken::new();
    let cpu = Device {
        device_id: "cpu".into(),
        kind: DeviceKind::Cpu.into(),
        ..Default::default()
    };
    let launch = Launch {
        instance: InstanceId::fresh(),
        model: "m".into(),
        settings,
        devices: vec![cpu],
        progress: progress_sender,
        process: process_sender,
        cancel: cancel.clone(),
    };
    Load {
        launch,
        process,
        progress,
        cancel,
    }
}

pub(crate) fn prompt(text: &str) -> GenerateRequest {
    let piece = PromptPiece {
        kind: Some(prompt_piece::Kind::Text(text.into())),
    };
    let prompt = Prompt {
        pieces: vec![piece],
        add_special: None,
    };
    GenerateRequest {
        input: Some(Input::Prompt(prompt)),
        stream: true,
        ..Default::default()
    }
}

/// What one request got.
#[derive(Debug, Default)]
pub(crate) struct Got {
    pub(crate) events: Vec<Event>,
    pub(crate) finished: u32,
}

impl Got {
    pub(crate) fn text(&self) -> String {
        self.deltas().map(|delta| delta.content.as_str()).collect()
    }

    pub(crate) fn deltas(&self) -> impl Iterator<Item = &muster_proto::v1::Delta> {
        self.events.iter().filter_map(|event| match &event.kind {
            Some(event::Kind::Delta(delta)) => Some(delta),
            _ => None,
        })
    }

    pub(crate) fn terminals(&self) -> Vec<&event::Kind> {
        let terminal =
            |kind: &&event::Kind| matches!(kind, event::Kind::Finished(_) | event::Kind::Failed(_));
        self.events
            .iter()
            .filter_map(|event| event.kind.as_ref())
            .filter(terminal)
            .collect()
    }

    pub(crate) fn code(&self) -> Option<&str> {
        match self.terminals().as_slice() {
            [event::Kind::Failed(error)] => Some(&error.code),
            _ => None,
        }
    }

    /// Exactly one terminal event, the last one; `admitted` first unless it was refused; `finished` once.
    pub(crate) fn check(&self) {
        assert_eq!(self.terminals().len(), 1, "terminal events: {:?}", self.events);
        assert_eq!(self.finished, 1);
        let last = self.events.last().and_then(|event| event.kind.as_ref());
        assert!(
            matches!(last, Some(event::Kind::Finished(_) | event::Kind::Failed(_))),
            "{last:?}"
        );
        let first = self.events.first().and_then(|event| event.kind.as_ref());
        assert!(
            matches!(first, Some(event::Kind::Admitted(_) | event::Kind::Failed(_))),
            "{:?}",
            self.events
        );
    }
}

/// The instance's side of a link.
pub(crate) struct Talk {
    pub(crate) engine: RunningEngine,
    pub(crate) got: HashMap<u64, Got>,
    seq: u64,
    next: u64,
}

impl Talk {
    pub(crate) fn new(engine: RunningEngine) -> Self {
        Self {
            engine,
            got: HashMap::new(),
            seq: 0,
            next: 1,
        }
    }

    async fn send(&self, kind: session_command::Kind) {
        let command = SessionCommand { kind: Some(kind) };
        timeout(PATIENCE, self.engine.link.commands.send(command))
            .await
            .expect("commands are stuck")
            .unwrap();
    }

    pub(crate) async fn start(&mut self, work: Work, credit: u32) -> u64 {
        let handle = self.next;
        self.next += 1;
        let start = Start {
            handle,
            request_id: format!("r{handle}"),
            credit,
            work: Some(work),
            ..Default::default()
        };
        self.send(session_command::Kind::Start(start)).await;
        self.got.insert(handle, Got::default());
        handle
    }

    pub(crate) async fn generate(&mut self, request: GenerateRequest, credit: u32) -> u64 {
        self.start(Work::Generate(request), credit).await
    }

    pub(crate) async fn cancel(&self, handle: u64) {
        self.send(session_command::Kind::Cancel(Cancel { handle })).await;
    }

    pub(crate) async fn credit(&self, handle: u64, events: u32) {
        self.send(session_command::Kind::Credit(Credit { handle, events }))
            .await;
    }

    /// Takes one message; `false` once the engine is lost.
    pub(crate) async fn step(&mut self) -> bool {
        let message = timeout(PATIENCE, self.engine.link.messages.recv())
            .await
            .expect("the engine says nothing");
        match message {
            Some(SessionMessage {
                kind: Some(session_message::Kind::Tick(tick)),
            }) => {
                self.seq += 1;
                assert_eq!(tick.seq, self.seq, "ticks are counted without gaps");
                for sequence in tick.sequences {
                    let got = self
                        .got
                        .get_mut(&sequence.handle)
                        .expect("events of a request nobody started");
                    assert_eq!(got.finished, 0, "events after the end");
                    got.events.extend(sequence.events);
                    got.finished += u32::from(sequence.finished);
                }
                true
            }
            Some(_) => true,
            None => false,
        }
    }

    /// Waits until a condition on one request holds.
    pub(crate) async fn until(&mut self, handle: u64, what: impl Fn(&Got) -> bool) {
        while !what(&self.got[&handle]) {
            assert!(
                self.step().await,
                "the engine was lost: {:?}",
                self.engine.process.log()
            );
        }
    }

    pub(crate) async fn finish(&mut self, handle: u64) -> &Got {
        self.until(handle, |got| got.finished > 0).await;
        self.got[&handle].check();
        &self.got[&handle]
    }

    /// Sequences that are not idle, as the engine itself says.
    pub(crate) async fn busy(&self) -> usize {
        let description = self.engine.calls.describe().await.unwrap();
        let idle = i32::from(muster_proto::v1::SequencePhase::Idle);
        description
            .sequences
            .iter()
            .filter(|sequence| sequence.phase != idle)
            .count()
    }

    /// Ends the engine in order; its processes must be gone and the memory with them.
    pub(crate) async fn unload(self) {
        let tree = self.engine.process.tree();
        assert!(!tree.is_empty());
        self.engine.process.stop();
        self.engine.process.stop();
        timeout(PATIENCE, self.engine.process.gone())
            .await
            .expect("the engine does not go");
        self.engine.process.stop();
        self.engine.process.kill();
        timeout(PATIENCE, self.engine.process.gone()).await.unwrap();
        assert_eq!(self.engine.process.tree(), []);
        for process in tree {
            assert!(!alive(process.pid), "{process:?} is left");
        }
    }
}

/// Whether a process runs (a zombie does not).
pub(crate) fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit_once(')')
            .unwrap()
            .1
            .trim_start()
            .starts_with(['Z', 'X'])
    })
}

/// Waits for a condition that nothing announces.
pub(crate) async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
