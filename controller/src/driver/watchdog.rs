//! Logs what the driver is doing if one input takes too long. It has a thread of its own, because a driver that is stuck cannot log
//! anything, and neither can another task on its thread.

use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use muster_core::SessionId;

/// Time after which an input is logged. Limited work takes milliseconds, on a busy machine tens of them.
const LIMIT: Duration = Duration::from_secs(1);

/// A description of an input.
#[derive(Debug, Clone)]
pub(super) struct What {
    kind: &'static str,
    session: Option<SessionId>,
}

impl What {
    pub(super) fn plain(kind: &'static str) -> Self {
        Self { kind, session: None }
    }

    pub(super) fn of(kind: &'static str, session: &SessionId) -> Self {
        Self {
            kind,
            session: Some(session.clone()),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.session {
            Some(session) => write!(f, "{} (session {session})", self.kind),
            None => f.write_str(self.kind),
        }
    }
}

/// The watchdog of one loop.
#[derive(Debug)]
pub(super) struct Watchdog(Arc<Shared>);

/// The mutex is held only for assignments and never across an await: a std one is enough.
#[derive(Debug, Default)]
struct Shared {
    now: Mutex<Option<Begun>>,
    /// Notified when the loop has ended.
    ended: Condvar,
}

#[derive(Debug)]
struct Begun {
    what: What,
    at: Instant,
    said: bool,
}

impl Shared {
    fn now(&self) -> MutexGuard<'_, Option<Begun>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchdog {
    /// A watchdog that writes to the log.
    pub(super) fn start() -> Self {
        Self::with(LIMIT, |what, taken| {
            tracing::error!(input = %what, ?taken, "an input of the driver takes long; nothing else is decided meanwhile");
        })
    }

    fn with(limit: Duration, say: impl Fn(&What, Duration) + Send + 'static) -> Self {
        let shared = Arc::new(Shared::default());
        let watched = Arc::downgrade(&shared);
        let watch = move || watch(&watched, limit, &say);
        if let Err(error) = std::thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(watch)
        {
            tracing::warn!(%error, "nobody watches how long inputs of the driver take");
        }
        Self(shared)
    }

    /// Records that an input begins.
    pub(super) fn begin(&self, what: What) {
        *self.0.now() = Some(Begun {
            what,
            at: Instant::now(),
            said: false,
        });
    }

    /// Records that the input is done.
    pub(super) fn done(&self) {
        let begun = self.0.now().take();
        if let Some(begun) = begun.filter(|begun| begun.said || begun.at.elapsed() > LIMIT) {
            tracing::warn!(input = %begun.what, taken = ?begun.at.elapsed(), "an input of the driver took long");
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.ended.notify_all();
    }
}

fn watch(watched: &Weak<Shared>, limit: Duration, say: &impl Fn(&What, Duration)) {
    while let Some(shared) = watched.upgrade() {
        let waited = shared.ended.wait_timeout(shared.now(), limit / 4);
        let (mut now, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if let Some(begun) = now
            .as_mut()
            .filter(|begun| !begun.said && begun.at.elapsed() > limit)
        {
            begun.said = true;
            say(&begun.what, begun.at.elapsed());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn an_input_that_takes_long_is_said_while_it_lasts_and_once() {
        let (sender, said) = mpsc::sync_channel(8);
        let limit = Duration::from_millis(20);
        let dog = Watchdog::with(limit, move |what, taken| {
            sender.send((what.to_string(), taken)).unwrap();
        });
        dog.begin(What::of("a report", &SessionId::from("s")));
        let (what, taken) = said.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(what, "a report (session s)");
        assert!(taken > limit);
        dog.done();
        dog.begin(What::plain("a list of models"));
        let (what, _) = said.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(what, "a list of models", "the first is said once");
        dog.done();
        drop(dog);
        assert!(
            said.recv_timeout(Duration::from_secs(10)).is_err(),
            "the thread ends with its loop"
        );
    }
}
