//! One supervised child.
//!
//! ```text
//!   starting ──READY=1──► ready ──exit──► backoff ──► starting …
//!      └─exit before the first READY──► failed
//!     ready ──no sign of life for so long──► killed ──exit──► backoff …
//!   any ──stop(Term)──► stopping ──exit──► ended        stop(Kill) at any time
//! ```
//!
//! Invariants: no child outlives this process, however it ends (see [`die_with_parent`]); a child that is asked to stop is never restarted.

use std::{
    ffi::OsString,
    io,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use muster_proto::{net::Address, pauses::Pauses, trust::KeyOptions};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use tokio::{
    process::{Child, Command},
    sync::watch,
    task::JoinHandle,
    time::{Instant, Interval, MissedTickBehavior, interval},
};

use super::{UpError, logs, notify::NotifySocket};

/// Pauses before a restart, which grow with each crash in a row.
const RESTART: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// A child that was ready this long has recovered: the next crash starts with the first pause again.
const HEALTHY_AFTER: Duration = Duration::from_secs(10);
/// How long a dead child's last words may take to arrive.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// What to run.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// For people.
    pub(crate) name: String,
    /// The binary.
    pub(crate) program: PathBuf,
    /// Its arguments but the address below.
    pub(crate) args: Vec<OsString>,
    /// The flag that says where it should listen.
    pub(crate) listen_flag: &'static str,
    /// Where it should listen.
    pub(crate) listen: Address,
    /// Keys, by the names of their variables: command lines are for everybody to read.
    pub(crate) secrets: Vec<(&'static str, OsString)>,
    /// Restarts listen where the first start did.
    pub(crate) keeps_address: bool,
    /// How long it may show no sign of life once it is ready; none = for ever.
    pub(crate) watchdog: Option<Duration>,
    /// Path of its readiness socket.
    pub(crate) notify: PathBuf,
    /// Width of the column of names in the log.
    pub(crate) width: usize,
}

/// How much a child is asked to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Not at all.
    Run,
    /// In order.
    Term,
    /// At once.
    Kill,
}

#[derive(Clone, Debug)]
enum Life {
    Starting,
    Ready(Address),
    Failed(String),
}

/// A handle on a supervised child. Dropping it kills the child.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    life: watch::Receiver<Life>,
    urgency: watch::Sender<Urgency>,
    task: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts and supervises it. Call it on the main thread's runtime only: children die with the thread that started them.
    pub(crate) fn start(spec: Spec) -> Self {
        let (life_sender, life) = watch::channel(Life::Starting);
        let (urgency, asked) = watch::channel(Urgency::Run);
        let name = spec.name.clone();
        let task = tokio::spawn(supervise(spec, life_sender, asked));
        Self {
            name,
            life,
            urgency,
            task: Some(task),
        }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Waits until it is ready for the first time; where it listens.
    pub(crate) async fn ready(&mut self) -> Result<Address, UpError> {
        let died = |why: &str| UpError::Died {
            name: self.name.clone(),
            why: why.to_owned(),
        };
        loop {
            match &*self.life.borrow_and_update() {
                Life::Ready(address) => return Ok(address.clone()),
                Life::Failed(why) => return Err(died(why)),
                Life::Starting => {}
            }
            if self.life.changed().await.is_err() {
                return Err(died("it was stopped"));
            }
        }
    }

    /// Asks it to end. Asking less than before changes nothing.
    pub(crate) fn stop(&self, urgency: Urgency) {
        self.urgency.send_if_modified(|asked| {
            let more = urgency > *asked;
            *asked = urgency.max(*asked);
            more
        });
    }

    /// Waits until it has ended for good.
    pub(crate) async fn ended(&mut self) {
        if let Some(task) = &mut self.task {
            if let Err(error) = task.await {
                tracing::error!(name = self.name, %error, "the supervision of a process failed");
            }
            self.task = None;
        }
    }
}

async fn supervise(mut spec: Spec, life: watch::Sender<Life>, mut asked: watch::Receiver<Urgency>) {
    let mut ever_ready = false;
    let mut pauses = Pauses::new(RESTART);
    loop {
        let end = match live(&mut spec, &life, &mut asked).await {
            Ok(end) => end,
            Err(error) => End {
                why: error.to_string(),
                ready_for: None,
            },
        };
        if *asked.borrow() != Urgency::Run {
            tracing::debug!(name = spec.name, end = end.why, "ended");
            return;
        }
        ever_ready |= end.ready_for.is_some();
        if !ever_ready {
            life.send_replace(Life::Failed(end.why));
            return;
        }
        life.send_replace(Life::Starting);
        if end.ready_for.is_some_and(|time| time >= HEALTHY_AFTER) {
            pauses.reset();
        }
        let pause = pauses.take();
        tracing::error!(name = spec.name, end = end.why, restart_in = ?pause, "a process ended by itself");
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Either asked to stop, or nobody holds the handle any more.
            _ = asked.changed() => return,
        }
    }
}

/// How a child's life ended.
struct End {
    why: String,
    /// Time between its readiness and its end; `None` if it never was ready.
    ready_for: Option<Duration>,
}

async fn live(
    spec: &mut Spec,
    life: &watch::Sender<Life>,
    asked: &mut watch::Receiver<Urgency>,
) -> io::Result<End> {
    let socket = NotifySocket::bind(&spec.notify)?;
    let mut child = spawn(spec)?;
    let mut words: Vec<JoinHandle<()>> = Vec::new();
    words.extend(
        child
            .stdout
            .take()
            .map(|pipe| logs::forward(&spec.name, spec.width, pipe)),
    );
    words.extend(
        child
            .stderr
            .take()
            .map(|pipe| logs::forward(&spec.name, spec.width, pipe)),
    );
    let mut ready_since = None;
    let mut watchdog = Watchdog::new(spec.watchdog);
    let status = loop {
        tokio::select! {
            // What it has said is read before its silence counts: this process may have stood still itself.
            biased;
            status = child.wait() => break status?,
            message = socket.recv() => {
                let message = message?;
                if message.ready || message.alive {
                    watchdog.heard();
                }
                if message.ready {
                    ready_since = Some(Instant::now());
                    let address = message.address.unwrap_or_else(|| spec.listen.clone());
                    tracing::debug!(name = spec.name, %address, "ready");
                    if spec.keeps_address {
                        spec.listen = address.clone();
                    }
                    life.send_replace(Life::Ready(address));
                }
            }
            () = watchdog.silent(), if *asked.borrow() == Urgency::Run => {
                tracing::error!(name = spec.name, silent_for = ?spec.watchdog, "a process shows no sign of life; killing it");
                watchdog = Watchdog::new(None);
                signal(&child, Urgency::Kill);
            }
            changed = asked.changed() => {
                // A dropped handle is the strongest wish.
                let urgency = if changed.is_ok() { *asked.borrow_and_update() } else { Urgency::Kill };
                signal(&child, urgency);
                if changed.is_err() {
                    break child.wait().await?;
                }
            }
        }
    };
    for task in words {
        // A grandchild may hold the pipe; its words are not waited for.
        drop(tokio::time::timeout(LAST_WORDS, task).await);
    }
    Ok(End {
        why: describe(status),
        ready_for: ready_since.map(|since| since.elapsed()),
    })
}

/// Looks in one span of silence. Looks and not a clock: one that comes late, because this process or the box stood still, is one look all the same.
const LOOKS: u32 = 4;

/// Counts how long a child has been silent, from its readiness on.
struct Watchdog {
    looks: Option<Interval>,
    since_heard: u32,
    ready: bool,
}

impl Watchdog {
    fn new(limit: Option<Duration>) -> Self {
        let looks = limit.map(|limit| {
            let mut looks = interval(limit / LOOKS);
            looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            looks
        });
        Self {
            looks,
            since_heard: 0,
            ready: false,
        }
    }

    fn heard(&mut self) {
        self.ready = true;
        self.since_heard = 0;
    }

    /// Resolves when it has been silent for too long.
    async fn silent(&mut self) {
        let Some(looks) = &mut self.looks else {
            return std::future::pending().await;
        };
        loop {
            looks.tick().await;
            self.since_heard += u32::from(self.ready);
            if self.since_heard > LOOKS {
                return;
            }
        }
    }
}

fn signal(child: &Child, urgency: Urgency) {
    let signal = match urgency {
        Urgency::Run => return,
        Urgency::Term => Signal::TERM,
        Urgency::Kill => Signal::KILL,
    };
    let pid = child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid
        && let Err(error) = kill_process(pid, signal)
    {
        tracing::warn!(%error, "could not signal a process");
    }
}

fn spawn(spec: &Spec) -> io::Result<Child> {
    let mut command = Command::new(&spec.program);
    command
        .args(&spec.args)
        .arg(spec.listen_flag)
        .arg(spec.listen.to_string())
        .env("NOTIFY_SOCKET", &spec.notify)
        .env_remove("WATCHDOG_USEC")
        .env_remove("WATCHDOG_PID")
        .envs(
            spec.watchdog
                .map(|limit| ("WATCHDOG_USEC", limit.as_micros().to_string())),
        )
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A terminal's Ctrl-C reaches only `muster up`, which then stops its children in order.
        .process_group(0)
        .kill_on_drop(true);
    for name in KeyOptions::VARIABLES {
        command.env_remove(name);
    }
    command.envs(spec.secrets.iter().cloned());
    die_with_parent(&mut command);
    command.spawn()
}

/// Makes the kernel kill the child when the thread that starts it ends, which is this process's main thread: `muster up` itself may be killed.
#[expect(
    unsafe_code,
    reason = "there is no safe way to run code between fork and exec"
)]
fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let set = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if getppid() == Some(parent) {
            Ok(())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; `set` makes two system calls and neither allocates nor locks.
    unsafe { command.pre_exec(set) };
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}
