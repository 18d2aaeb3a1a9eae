//! Starts the real engine process on a unix socket and drives its session.
#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::missing_panics_doc,
    reason = "a test fails by panicking"
)]

use std::{
    collections::HashMap,
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use muster_core::Error;
use muster_proto::{
    MAX_MESSAGE_BYTES,
    net::{self, Channel},
    trust::Credentials,
    v1::{
        Cancel, Chat, ChatMessage, ContentPart, Credit, EmbedRequest, EngineDescribeRequest,
        EngineDescription, EngineLoadRequest, Event, GenerateRequest, ModelSettings, ModelType, Prompt,
        PromptPiece, RerankRequest, Sampling, SessionCommand, SessionMessage, Start, content_part,
        engine_client::EngineClient, engine_load_event, event, generate_request, prompt_piece,
        session_command, session_message, start,
    },
};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

/// A deadline no passing test comes near.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Path of a generated test model.
pub(crate) fn model(name: &str) -> String {
    let directory = std::env::var_os("MUSTER_TEST_MODELS").map_or_else(generate, PathBuf::from);
    let path = directory.join(name);
    assert!(
        path.is_file(),
        "{} is missing: MUSTER_TEST_MODELS must name a folder made by tests/models/generate.py",
        path.display()
    );
    path.display().to_string()
}

/// Without MUSTER_TEST_MODELS: makes the models once per build folder.
fn generate() -> PathBuf {
    static ONCE: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    ONCE.get_or_init(|| {
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/generate.py");
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("models");
        println!("MUSTER_TEST_MODELS is not set: making models in {}", directory.display());
        let status = Command::new("python3").arg(&script).arg(&directory).status();
        assert!(
            status.as_ref().is_ok_and(std::process::ExitStatus::success),
            "MUSTER_TEST_MODELS is not set and {} failed ({status:?}); run tests/run, which prepares everything",
            script.display()
        );
        directory
    })
    .clone()
}

/// A running engine process.
pub(crate) struct Engine {
    child: Child,
    _dir: tempfile::TempDir,
    pub(crate) client: EngineClient<Channel>,
    pub(crate) description: EngineDescription,
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

pub(crate) fn settings(file: &str) -> ModelSettings {
    // one thread: tests run side by side, and threads of one graph wait for each other
    ModelSettings {
        checkpoint: model(file),
        ctx_size: 2048,
        sequences: 4,
        threads: 1,
        r#type: ModelType::Llm.into(),
        ..Default::default()
    }
}

impl Engine {
    /// Starts a process; nothing is loaded.
    pub(crate) async fn bare() -> Self {
        Self::logging("warning", Stdio::inherit()).await
    }

    /// Starts a process that writes its log from `level` on to `log`.
    pub(crate) async fn logging(level: &str, log: Stdio) -> Self {
        Self::start(&["--log-level", level], log).await
    }

    /// Starts a process with these arguments besides its address.
    pub(crate) async fn start(args: &[&str], log: Stdio) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let notify = dir.path().join("notify");
        let socket = UnixDatagram::bind(&notify).unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        let address = format!("unix:{}", dir.path().join("engine").display());
        let child = Command::new(env!("CARGO_BIN_EXE_muster-llama"))
            .args(["--listen", &address])
            .args(args)
            .env("NOTIFY_SOCKET", &notify)
            .stderr(log)
            .spawn()
            .unwrap();
        let mut buffer = [0; 512];
        socket
            .recv(&mut buffer)
            .expect("the engine says that it is ready");
        let channel = net::channel(&address.parse().unwrap(), &Credentials::none())
            .await
            .unwrap();
        let client = EngineClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        Self {
            child,
            _dir: dir,
            client,
            description: EngineDescription::default(),
        }
    }

    /// Loads a model; the error of a failed load.
    pub(crate) async fn try_load(&mut self, settings: ModelSettings) -> Result<EngineDescription, Error> {
        let request = EngineLoadRequest {
            model_id: "test".into(),
            settings: Some(settings),
        };
        let mut events = self.client.load(request).await.unwrap().into_inner();
        while let Some(event) = events.message().await.unwrap() {
            match event.kind.unwrap() {
                engine_load_event::Kind::Progress(_) => {}
                engine_load_event::Kind::Ready(description) => return Ok(description),
                engine_load_event::Kind::Failed(error) => return Err(error.into()),
            }
        }
        panic!("the load ended without a result");
    }

    /// A process with a model.
    pub(crate) async fn with(settings: ModelSettings) -> Self {
        let mut engine = Self::bare().await;
        engine.description = engine.try_load(settings).await.expect("the model loads");
        engine
    }

    pub(crate) async fn describe(&mut self) -> EngineDescription {
        self.client
            .describe(EngineDescribeRequest {})
            .await
            .unwrap()
            .into_inner()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    pub(crate) fn terminate(&self) {
        let status = Command::new("kill")
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Bytes of memory of its own that are in use: nothing mapped from files.
    pub(crate) fn anonymous(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"))
            .unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        kib * 1024
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) async fn session(&mut self) -> Session {
        Session::open(&mut self.client).await
    }
}

type Waiters = Arc<Mutex<HashMap<u64, mpsc::UnboundedSender<(Event, bool)>>>>;

/// A session; checks tick numbers and that nothing follows `finished`.
pub(crate) struct Session {
    commands: mpsc::Sender<SessionCommand>,
    waiters: Waiters,
    next: u64,
    /// Whose requests these are; empty = those of all who share what is cached.
    pub(crate) owner: String,
    pub(crate) ticks: Arc<Mutex<Vec<usize>>>,
    pub(crate) alives: Arc<Mutex<u64>>,
    /// What the last sign of life said of the longest work.
    pub(crate) busy: Arc<Mutex<Duration>>,
    /// Bytes of the largest tick.
    pub(crate) largest: Arc<Mutex<usize>>,
}

/// One request's events.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    events: mpsc::UnboundedReceiver<(Event, bool)>,
}

impl Session {
    #[allow(
        clippy::disallowed_methods,
        reason = "a test's demultiplexer must not hold up the session"
    )]
    pub(crate) async fn open(client: &mut EngineClient<Channel>) -> Self {
        let (commands, rx) = mpsc::channel(1024);
        let mut messages = client.run(ReceiverStream::new(rx)).await.unwrap().into_inner();
        let waiters: Waiters = Arc::default();
        let ticks: Arc<Mutex<Vec<usize>>> = Arc::default();
        let alives: Arc<Mutex<u64>> = Arc::default();
        let busy: Arc<Mutex<Duration>> = Arc::default();
        let largest: Arc<Mutex<usize>> = Arc::default();
        let session = Self {
            commands,
            waiters: Arc::clone(&waiters),
            next: 1,
            owner: String::new(),
            ticks: Arc::clone(&ticks),
            alives: Arc::clone(&alives),
            busy: Arc::clone(&busy),
            largest: Arc::clone(&largest),
        };
        tokio::spawn(async move {
            let mut last = 0;
            while let Ok(Some(SessionMessage { kind: Some(kind) })) = messages.message().await {
                let tick = match kind {
                    session_message::Kind::Tick(tick) => tick,
                    session_message::Kind::Alive(alive) => {
                        *alives.lock().unwrap() += 1;
                        let longest = alive.busy_for.unwrap_or_default();
                        *busy.lock().unwrap() = longest.try_into().unwrap();
                        continue;
                    }
                };
                assert_eq!(tick.seq, last + 1, "ticks have no gaps");
                {
                    let mut largest = largest.lock().unwrap();
                    *largest = tick.encoded_len().max(*largest);
                }
                last = tick.seq;
                ticks.lock().unwrap().push(tick.sequences.len());
                for sequence in tick.sequences {
                    let mut waiters = waiters.lock().unwrap();
                    let count = sequence.events.len();
                    for (index, event) in sequence.events.into_iter().enumerate() {
                        let end = sequence.finished && index + 1 == count;
                        let waiter = waiters.get(&sequence.handle).expect("events after the end");
                        drop(waiter.send((event, end)));
                    }
                    if sequence.finished {
                        waiters.remove(&sequence.handle);
                    }
                }
            }
            waiters.lock().unwrap().clear();
        });
        session
    }

    pub(crate) async fn send(&self, kind: session_command::Kind) {
        self.commands
            .send(SessionCommand { kind: Some(kind) })
            .await
            .unwrap();
    }

    #[allow(clippy::disallowed_methods, reason = "as above")]
    pub(crate) async fn start(&mut self, work: start::Work, credit: u32) -> Stream {
        let handle = self.next;
        self.next += 1;
        let (tx, events) = mpsc::unbounded_channel();
        self.waiters.lock().unwrap().insert(handle, tx);
        let start = Start {
            handle,
            credit,
            work: Some(work),
            fairness_key: self.owner.clone(),
            private_prefixes: !self.owner.is_empty(),
            ..Default::default()
        };
        self.send(session_command::Kind::Start(start)).await;
        Stream { handle, events }
    }

    pub(crate) async fn generate(&mut self, request: GenerateRequest) -> Stream {
        self.start(start::Work::Generate(request), 1_000_000).await
    }

    pub(crate) async fn cancel(&self, handle: u64) {
        self.send(session_command::Kind::Cancel(Cancel { handle })).await;
    }

    pub(crate) async fn credit(&self, handle: u64, events: u32) {
        self.send(session_command::Kind::Credit(Credit { handle, events }))
            .await;
    }

    /// Runs one request to its end.
    pub(crate) async fn run(&mut self, request: GenerateRequest) -> Answer {
        self.generate(request).await.answer().await
    }

    pub(crate) async fn embed(&mut self, request: EmbedRequest) -> Answer {
        self.start(start::Work::Embed(request), 10).await.answer().await
    }

    pub(crate) async fn rerank(&mut self, request: RerankRequest) -> Answer {
        self.start(start::Work::Rerank(request), 10).await.answer().await
    }
}

impl Stream {
    /// The next event and whether it is the last.
    pub(crate) async fn next(&mut self) -> (Event, bool) {
        tokio::time::timeout(SOON, self.events.recv())
            .await
            .expect("an event in time")
            .expect("the session lives")
    }

    /// The code of the error it has ended with by now, if it has.
    pub(crate) fn failed_by_now(&mut self) -> Option<String> {
        match self.events.try_recv() {
            Ok((
                Event {
                    kind: Some(event::Kind::Failed(error)),
                    ..
                },
                true,
            )) => Some(error.code),
            Ok(other) => panic!("{other:?}"),
            Err(_) => None,
        }
    }

    /// The next event if one comes within a time in which one would have come.
    pub(crate) async fn quiet_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.events.recv()).await.is_err()
    }

    /// Waits for the first delta.
    pub(crate) async fn first_delta(&mut self) {
        loop {
            if matches!(self.next().await.0.kind, Some(event::Kind::Delta(_))) {
                return;
            }
        }
    }

    /// Everything up to the end.
    pub(crate) async fn answer(self) -> Answer {
        self.answer_from(Answer::default()).await
    }

    /// Everything up to the end, added to what was read before.
    pub(crate) async fn answer_from(mut self, mut answer: Answer) -> Answer {
        loop {
            let (event, end) = self.next().await;
            answer.add(event.kind.unwrap());
            if end {
                answer.at = Some(Instant::now());
                return answer;
            }
        }
    }
}

/// A request's result.
#[derive(Default, Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) choices: Vec<Choice>,
    pub(crate) deltas: usize,
    pub(crate) progress: Vec<muster_proto::v1::PromptProgress>,
    pub(crate) admitted: bool,
    pub(crate) embedded: Option<muster_proto::v1::EmbedResult>,
    pub(crate) reranked: Option<muster_proto::v1::RerankResult>,
    pub(crate) finished: Option<muster_proto::v1::Finished>,
    pub(crate) failed: Option<Error>,
    pub(crate) at: Option<Instant>,
}

/// One choice's result.
#[derive(Default, Debug, Clone)]
pub(crate) struct Choice {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<(String, String, String)>,
    pub(crate) logprobs: Vec<muster_proto::v1::TokenLogprob>,
    pub(crate) tokens: Vec<i32>,
    pub(crate) end: Option<muster_proto::v1::ChoiceFinished>,
}

impl Answer {
    fn choice(&mut self, index: u32) -> &mut Choice {
        let index = index as usize;
        if self.choices.len() <= index {
            self.choices.resize(index + 1, Choice::default());
        }
        &mut self.choices[index]
    }

    pub(crate) fn add(&mut self, kind: event::Kind) {
        assert!(
            self.finished.is_none() && self.failed.is_none(),
            "one terminal event, the last"
        );
        match kind {
            event::Kind::Admitted(_) => self.admitted = true,
            event::Kind::Delta(delta) => {
                self.deltas += 1;
                let choice = self.choice(delta.choice);
                assert!(choice.end.is_none(), "no delta after the choice's end");
                choice.content.push_str(&delta.content);
                choice.reasoning.push_str(&delta.reasoning);
                choice.logprobs.extend(delta.logprobs);
                choice.tokens.extend(delta.tokens);
                for call in delta.tool_calls {
                    let index = call.index as usize;
                    if choice.calls.len() <= index {
                        choice.calls.resize(index + 1, Default::default());
                    }
                    choice.calls[index].0.push_str(&call.id);
                    choice.calls[index].1.push_str(&call.name);
                    choice.calls[index].2.push_str(&call.arguments);
                }
            }
            event::Kind::Progress(progress) => self.progress.push(progress),
            event::Kind::ChoiceFinished(end) => {
                let choice = end.choice;
                self.choice(choice).end = Some(end);
            }
            event::Kind::Embedded(result) => self.embedded = Some(result),
            event::Kind::Reranked(result) => self.reranked = Some(result),
            event::Kind::Finished(finished) => self.finished = Some(finished),
            event::Kind::Failed(error) => self.failed = Some(error.into()),
        }
    }

    pub(crate) fn text(&self) -> &str {
        assert!(self.failed.is_none(), "failed: {:?}", self.failed);
        &self.choices[0].content
    }

    pub(crate) fn end(&self) -> &muster_proto::v1::ChoiceFinished {
        assert!(self.failed.is_none(), "failed: {:?}", self.failed);
        self.choices[0].end.as_ref().unwrap()
    }

    pub(crate) fn code(&self) -> &str {
        self.failed.as_ref().map_or("", |error| error.code.as_str())
    }

    pub(crate) fn usage(&self) -> &muster_proto::v1::Usage {
        assert!(self.failed.is_none(), "failed: {:?}", self.failed);
        self.finished.as_ref().unwrap().usage.as_ref().unwrap()
    }
}

pub(crate) fn text_prompt(text: &str) -> Prompt {
    let piece = PromptPiece {
        kind: Some(prompt_piece::Kind::Text(text.into())),
    };
    Prompt {
        pieces: vec![piece],
        add_special: None,
    }
}

pub(crate) fn token_prompt(ids: Vec<i32>) -> Prompt {
    let piece = PromptPiece {
        kind: Some(prompt_piece::Kind::Tokens(muster_proto::v1::TokenIds { ids })),
    };
    Prompt {
        pieces: vec![piece],
        add_special: None,
    }
}

pub(crate) fn greedy() -> Sampling {
    Sampling {
        temperature: Some(0.0),
        ..Default::default()
    }
}

/// A greedy completion that ends only by its limit.
pub(crate) fn completion(prompt: &str, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        input: Some(generate_request::Input::Prompt(text_prompt(prompt))),
        sampling: Some(Sampling {
            ignore_eos: Some(true),
            ..greedy()
        }),
        max_tokens: Some(max_tokens),
        stream: true,
        ..Default::default()
    }
}

pub(crate) fn message(role: &str, text: &str) -> ChatMessage {
    ChatMessage {
        role: role.into(),
        parts: vec![ContentPart {
            kind: Some(content_part::Kind::Text(text.into())),
        }],
        ..Default::default()
    }
}

pub(crate) fn chat(text: &str, max_tokens: u32) -> GenerateRequest {
    let chat = Chat {
        messages: vec![message("user", text)],
        ..Default::default()
    };
    GenerateRequest {
        input: Some(generate_request::Input::Chat(chat)),
        ..completion("", max_tokens)
    }
}

/// Waits until a condition on the description holds.
pub(crate) async fn until(
    engine: &mut Engine,
    what: &str,
    check: impl Fn(&EngineDescription) -> bool,
) -> Duration {
    let begun = Instant::now();
    loop {
        if check(&engine.describe().await) {
            return begun.elapsed();
        }
        assert!(begun.elapsed() < SOON, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

pub(crate) fn all_idle(description: &EngineDescription) -> bool {
    description
        .sequences
        .iter()
        .all(|s| s.phase == muster_proto::v1::SequencePhase::Idle as i32)
}
