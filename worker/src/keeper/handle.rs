//! The worker's side of a keeper: starts it, reads its reports and the engine's log, and sends it orders.
//!
//! One task per engine owns the control socket from the start. The task ends with the engine's processes. If the worker's runtime ends
//! first, the socket closes and the keeper ends the processes. Dropping [`Kept`] kills them.
//!
//! ```text
//!   spawn ──► silent ──Started──► running ──Exited──► exited ──┐
//!               │                                              ▼
//!               └──Failed, keeper lost────────────────────► keeper waited for ──► gone
//! ```

use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream as StdUnixStream},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use muster_proto::{secrets::redacted, v1::ProcessId};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixStream, unix::OwnedWriteHalf},
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    MARK,
    dir::EngineDir,
    environment::inherited,
    proc,
    protocol::{Exit, Order, Report},
    record::Record,
    sweep,
};
use crate::engine::EngineProcess;

const LOG_LINES: usize = 50;
const LOG_LINE_BYTES: usize = 2000;
const LOG_PIECE_BYTES: u64 = 16 << 10;
/// Time for a keeper to end its processes after an order; past it, the keeper itself is stuck.
const OBEYS_WITHIN: Duration = Duration::from_secs(5);
/// The log's last lines arrive with the end of the processes, unless another process has the pipe.
const LOG_END: Duration = Duration::from_millis(200);

/// An engine to start.
#[derive(Debug)]
pub(crate) struct EngineCommand {
    /// Path of `muster-worker`, whose subcommand the keeper is.
    pub(crate) keeper: PathBuf,
    /// The engine's private directory; removed when the processes have ended.
    pub(crate) dir: EngineDir,
    /// The instance id, with which the processes are marked.
    pub(crate) instance: String,
    /// The engine's program.
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// Environment variables in addition to the worker's that engines get.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Time between TERM and KILL when the engine is asked to stop.
    pub(crate) grace: Duration,
}

impl EngineCommand {
    /// The engine's command line, its program first, without secrets.
    fn shown(&self) -> Vec<String> {
        let program = std::iter::once(self.program.as_os_str());
        let words = program.chain(self.args.iter().map(OsString::as_os_str));
        let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        redacted(&words)
    }
}

/// Why an engine was not started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The keeper itself could not be started.
    #[error("cannot start the keeper {path}")]
    Keeper { path: PathBuf, source: io::Error },
    /// The engine's program could not be started.
    #[error("cannot start {path}: {message}")]
    Engine {
        path: PathBuf,
        /// The kind of failure, for example "not found".
        kind: io::ErrorKind,
        /// The operating system's message.
        message: String,
    },
    /// The keeper ended without a report.
    #[error("the keeper ended before the engine ran: {0}")]
    Silent(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wish {
    Run,
    Stop,
    Kill,
}

/// An engine and its keeper.
#[derive(Debug)]
pub(crate) struct Kept {
    keeper: u32,
    grace: Duration,
    /// As people may see it.
    command: Vec<String>,
    wish: watch::Sender<Wish>,
    state: watch::Receiver<TreeState>,
    log: Arc<Log>,
}

#[derive(Clone, Debug, Default)]
struct TreeState {
    /// The engine's first process, or why there is none; `None` until the keeper reports.
    started: Option<Result<ProcessId, (i32, String)>>,
    exit: Option<Exit>,
    gone: bool,
}

impl Kept {
    /// Resolves when the engine's first process has ended. `None` if its status is unknown.
    pub(crate) fn exited(&self) -> impl Future<Output = Option<Exit>> + Send + 'static {
        let mut state = self.state.clone();
        async move {
            // An error means that the task has ended, and with it the processes.
            state
                .wait_for(|state| state.exit.is_some() || state.gone)
                .await
                .ok()
                .and_then(|state| state.exit)
        }
    }

    /// Waits for the engine to run.
    async fn started(&self, program: PathBuf) -> Result<(), StartError> {
        let mut state = self.state.clone();
        // An error means that the task has ended, and with it the processes.
        drop(
            state
                .wait_for(|state| state.started.is_some() || state.gone)
                .await,
        );
        let started = state.borrow().started.clone();
        match started {
            Some(Ok(_)) => Ok(()),
            Some(Err((errno, message))) => Err(StartError::Engine {
                path: program,
                kind: io::Error::from_raw_os_error(errno).kind(),
                message,
            }),
            None => Err(StartError::Silent(self.log().join("; "))),
        }
    }

    /// A receiver that changes whenever the engine writes a line.
    pub(crate) fn lines(&self) -> watch::Receiver<u64> {
        self.log.count.subscribe()
    }

    fn wish(&self, wish: Wish) {
        self.wish.send_if_modified(|current| {
            let more = wish > *current;
            *current = wish.max(*current);
            more
        });
    }
}

impl EngineProcess for Kept {
    fn tree(&self) -> Vec<ProcessId> {
        let engine = match &*self.state.borrow() {
            state if state.gone => return Vec::new(),
            state => state
                .started
                .as_ref()
                .and_then(|started| started.as_ref().ok())
                .map(|engine| engine.pid),
        };
        let mut tree: Vec<ProcessId> = proc::descendants(self.keeper)
            .into_iter()
            .map(proc::Process::id)
            .collect();
        // A stable sort: the engine's own process comes first.
        tree.sort_by_key(|process| Some(process.pid) != engine);
        tree
    }

    fn command(&self) -> Vec<String> {
        self.command.clone()
    }

    fn gone(&self) -> BoxFuture<'static, ()> {
        let mut state = self.state.clone();
        async move {
            drop(state.wait_for(|state| state.gone).await);
        }
        .boxed()
    }

    fn stop(&self) {
        tracing::debug!(keeper = self.keeper, grace = ?self.grace, "asking an engine to stop");
        self.wish(Wish::Stop);
    }

    fn kill(&self) {
        self.wish(Wish::Kill);
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().iter().cloned().collect()
    }
}

/// Starts a keeper and, through it, the engine. `announce` gets the engine before it runs, so that a caller who gives up can wait for its
/// end. Dropping the future ends both, unless somebody else holds what was announced.
///
/// # Errors
/// Neither runs.
pub(crate) async fn start(
    command: EngineCommand,
    announce: impl FnOnce(&Arc<Kept>),
) -> Result<Arc<Kept>, StartError> {
    let program = command.program.clone();
    let (mut child, control) = spawn_keeper(&command).map_err(|source| StartError::Keeper {
        path: command.keeper.clone(),
        source,
    })?;
    let log = Arc::new(Log::default());
    let readers = [
        child
            .stdout
            .take()
            .map(|pipe| log.clone().follow(pipe, command.instance.clone())),
        child
            .stderr
            .take()
            .map(|pipe| log.clone().follow(pipe, command.instance.clone())),
    ];
    let (wish, wishes) = watch::channel(Wish::Run);
    let (report, state) = watch::channel(TreeState::default());
    let kept = Arc::new(Kept {
        keeper: child.id().unwrap_or_default(),
        grace: command.grace,
        command: command.shown(),
        wish,
        state,
        log,
    });
    let (read, write) = control.into_split();
    let watcher = Watcher {
        command,
        child,
        write,
        wishes,
        state: report,
        readers,
    };
    tokio::spawn(watcher.watch(BufReader::new(read).lines()));
    announce(&kept);
    kept.started(program).await?;
    Ok(kept)
}

fn spawn_keeper(command: &EngineCommand) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut keeper = Command::new(&command.keeper);
    keeper
        .arg("keeper")
        .arg("--dir")
        .arg(command.dir.path())
        .arg("--instance")
        .arg(&command.instance)
        .arg("--")
        .arg(&command.program)
        .args(&command.args)
        .env_clear()
        .envs(inherited())
        .envs(command.environment.iter().map(|(key, value)| (key, value)))
        .env(MARK, &command.instance)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    Ok((keeper.spawn()?, UnixStream::from_std(ours)?))
}

type Reports = tokio::io::Lines<BufReader<tokio::net::unix::OwnedReadHalf>>;

/// The keeper's next report; `None` at the end.
async fn next_report(reports: &mut Reports) -> Option<Report> {
    let line = reports.next_line().await.ok()??;
    line.parse()
        .inspect_err(|error| tracing::error!(%error, "ending an engine whose keeper talks nonsense"))
        .ok()
}

/// What the task of an engine owns.
struct Watcher {
    command: EngineCommand,
    child: Child,
    write: OwnedWriteHalf,
    wishes: watch::Receiver<Wish>,
    state: watch::Sender<TreeState>,
    readers: [Option<JoinHandle<()>>; 2],
}

impl Watcher {
    async fn watch(mut self, mut reports: Reports) {
        let clean = self.follow(&mut reports).await;
        // Closing the socket makes the keeper end the processes, whatever it was doing.
        drop((self.write, reports));
        // If it can do nothing any more (it may be stopped), the worker ends the processes for it.
        if !clean && let Err(error) = self.child.start_kill() {
            tracing::error!(%error, "cannot kill a keeper");
        }
        if let Err(error) = self.child.wait().await {
            tracing::error!(%error, "cannot wait for a keeper");
        }
        if !clean {
            finish_for_keeper(&self.command).await;
        }
        for reader in self.readers.into_iter().flatten() {
            drop(timeout(LOG_END, reader).await);
        }
        self.state.send_modify(|state| state.gone = true);
    }

    /// Passes orders and reports until the processes have ended (`true`), or the keeper is lost or stuck.
    async fn follow(&mut self, reports: &mut Reports) -> bool {
        let mut dropped = false;
        let mut deadline = None;
        loop {
            let overdue = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = overdue => {
                    tracing::error!(keeper = ?self.child.id(), "a keeper does not do what it was told");
                    return false;
                }
                report = next_report(reports) => match report {
                    Some(Report::Gone) => return true,
                    Some(Report::Exited(exit)) => self.state.send_modify(|state| state.exit = Some(exit)),
                    Some(Report::Started(engine)) => self.state.send_modify(|state| state.started = Some(Ok(engine))),
                    // No engine runs, and the keeper has nothing left to do.
                    Some(Report::Failed(errno, message)) => {
                        self.state.send_modify(|state| state.started = Some(Err((errno, message))));
                        return true;
                    }
                    None => return false,
                },
                changed = self.wishes.changed(), if !dropped => {
                    dropped = changed.is_err();
                    let wish = if dropped { Wish::Kill } else { *self.wishes.borrow_and_update() };
                    let (order, within) = match wish {
                        Wish::Run => continue,
                        Wish::Stop => (Order::Stop(self.command.grace), self.command.grace),
                        Wish::Kill => (Order::Kill, Duration::ZERO),
                    };
                    deadline = Some(Instant::now() + within + OBEYS_WITHIN);
                    if self.write.write_all(order.to_string().as_bytes()).await.is_err() {
                        return false;
                    }
                }
            }
        }
    }
}

/// The keeper ended before its work was done, so the worker does it.
async fn finish_for_keeper(command: &EngineCommand) {
    tracing::warn!(
        instance = command.instance,
        "a keeper was lost; ending its engine"
    );
    let record = Record::read(command.dir.private()).unwrap_or_else(|| Record {
        instance: command.instance.clone(),
        leaders: Vec::new(),
    });
    match tokio::task::spawn_blocking(move || sweep::end(&record)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!(%error, "an engine without a keeper does not end"),
        Err(error) => tracing::error!(%error, "ending an engine without a keeper failed"),
    }
}

/// The last lines of an engine's output.
#[derive(Debug)]
struct Log {
    // Held for single operations, never across an await.
    lines: Mutex<VecDeque<String>>,
    count: watch::Sender<u64>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            lines: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }
}

impl Log {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<String>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a pipe to its end.
    fn follow(
        self: Arc<Self>,
        pipe: impl AsyncRead + Send + Unpin + 'static,
        instance: String,
    ) -> JoinHandle<()> {
        tokio::spawn(async move {
            let mut reader = BufReader::new(pipe);
            let mut line = Vec::new();
            // A very long line is read in pieces.
            while let Ok(1..) = (&mut reader)
                .take(LOG_PIECE_BYTES)
                .read_until(b'\n', &mut line)
                .await
            {
                self.push(&instance, &String::from_utf8_lossy(&line));
                line.clear();
            }
        })
    }

    fn push(&self, instance: &str, line: &str) {
        let line = line.trim_end();
        tracing::debug!(target: "engine", instance, "{line}");
        let end = line.floor_char_boundary(LOG_LINE_BYTES);
        let mut lines = self.lock();
        if lines.len() == LOG_LINES {
            lines.pop_front();
        }
        lines.push_back(line[..end].to_owned());
        drop(lines);
        self.count.send_modify(|count| *count += 1);
    }
}
