//! What every process does in the same way: logging, the limit of open files, readiness, the shutdown signal.

use std::{
    io,
    os::{linux::net::SocketAddrExt as _, unix::net},
    str::FromStr,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{EnvFilter, fmt};

use crate::{life::Life, net::Address};

/// Levels of `--log-level`; Lemonade's names (seed 000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Only failures that end the process.
    Critical,
    /// Failures.
    Error,
    /// In addition, what looks wrong.
    Warning,
    /// In addition, what operators want to see.
    #[default]
    Info,
    /// In addition, what helps to find a bug.
    Debug,
    /// Everything.
    Trace,
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "critical" => Ok(Self::Critical),
            "error" => Ok(Self::Error),
            "warning" | "warn" => Ok(Self::Warning),
            "info" => Ok(Self::Info),
            "debug" => Ok(Self::Debug),
            "trace" => Ok(Self::Trace),
            _ => Err("want critical, error, warning, info, debug or trace".to_owned()),
        }
    }
}

impl LogLevel {
    /// The level's name, as the flag takes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    const fn filter(self) -> &'static str {
        match self {
            Self::Critical | Self::Error => "error",
            Self::Warning => "warn",
            Self::Info => "info",
            Self::Debug => "debug,h2=info,hyper=info,tower=info",
            Self::Trace => "trace,h2=debug,hyper=debug,tower=debug",
        }
    }
}

impl std::fmt::Display for LogLevel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The level and a way to change it; set when the process begins to log.
static LOGGING: OnceLock<Logging> = OnceLock::new();

struct Logging {
    /// Held for a copy: a std mutex is enough.
    level: Mutex<LogLevel>,
    change: Box<dyn Fn(EnvFilter) + Send + Sync>,
}

/// Changes the level while the process runs, even if `RUST_LOG` is set. Does nothing if logging was not set up.
pub fn set_log_level(level: LogLevel) {
    let Some(logging) = LOGGING.get() else { return };
    (logging.change)(EnvFilter::new(level.filter()));
    *logging.level.lock().unwrap_or_else(PoisonError::into_inner) = level;
    tracing::info!(%level, "changed the log level");
}

/// The level that was set last.
#[must_use]
pub fn log_level() -> LogLevel {
    let level = LOGGING.get().map(|logging| &logging.level);
    level.map_or_else(LogLevel::default, |level| {
        *level.lock().unwrap_or_else(PoisonError::into_inner)
    })
}

/// Sends logs to standard error. `RUST_LOG` overrides `level`.
pub fn init_logging(level: LogLevel) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level.filter()));
    let subscriber = fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_filter_reloading();
    let handle = subscriber.reload_handle();
    // This fails only when the subscriber is gone.
    let change = Box::new(move |filter| drop(handle.reload(filter)));
    let level = Mutex::new(level);
    // A second call in the same process (tests) keeps the first one's, here and below.
    drop(LOGGING.set(Logging { level, change }));
    let subscriber = subscriber.finish();
    // A second call in the same process (tests) keeps the first subscriber.
    drop(tracing::subscriber::set_global_default(subscriber));
}

/// Largest limit of open files that is asked for. Some systems allow a thousand million, and libraries in engines loop over all of them.
const FILES: u64 = 1 << 16;

/// Raises the limit of open files as far as allowed: connections are files, and the soft limit is often 1,024.
pub fn raise_file_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // None = no limit.
    let wanted = maximum.map_or(FILES, |maximum| maximum.min(FILES));
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, wanted, "the limit of open files cannot be raised");
    }
}

/// Number of files that this process may have open.
#[must_use]
pub fn file_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(FILES)
}

/// Tells the supervisor (systemd, `muster up`, the test harness) that this process is ready, and its address: `READY=1` and
/// `MUSTER_ADDRESS=…` to `$NOTIFY_SOCKET`. Does nothing without that variable.
pub fn notify_ready(address: &Address) {
    let address = format!("MUSTER_ADDRESS={address}");
    notify(&[
        sd_notify::NotifyState::Custom(&address),
        sd_notify::NotifyState::Ready,
    ]);
}

/// Tells the supervisor that this process is shutting down.
pub fn notify_stopping() {
    notify(&[sd_notify::NotifyState::Stopping]);
}

/// Gives the supervisor signs of life as long as all parts make progress, four times within the watchdog's time (`$WATCHDOG_USEC`;
/// systemd's `WatchdogSec`, `muster up --watchdog`). Without a watchdog it only logs parts that are stuck.
pub async fn show_life(life: Life) {
    let watchdog = sd_notify::watchdog_enabled();
    let pause = watchdog.unwrap_or(DEFAULT_WATCHDOG) / 4;
    loop {
        match life.still() {
            Some(part) => tracing::error!(part, "stands still"),
            None if watchdog.is_some() => pat(),
            None => {}
        }
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
    }
}

/// Time from which the interval of the checks follows if there is no watchdog.
const DEFAULT_WATCHDOG: Duration = Duration::from_secs(20);

/// Sends `WATCHDOG=1` without waiting: a stuck supervisor must not stop us.
fn pat() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = || {
        let bytes = path.as_encoded_bytes();
        let address = match bytes.strip_prefix(b"@") {
            Some(name) => net::SocketAddr::from_abstract_name(name)?,
            None => net::SocketAddr::from_pathname(&path)?,
        };
        let socket = net::UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        socket.send_to_addr(b"WATCHDOG=1\n", &address)
    };
    match sent() {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            tracing::warn!(%error, "could not show the supervisor that this process lives");
        }
        Ok(_) | Err(_) => {}
    }
}

fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "could not notify the supervisor");
    }
}

/// Waits for SIGTERM or SIGINT.
///
/// # Errors
/// The handlers cannot be installed.
pub async fn shutdown_signal() -> io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut int = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}
