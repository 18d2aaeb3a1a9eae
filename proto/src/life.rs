//! Whether a process is alive, for its supervisor and for health checks: all the parts that it needs make progress.
//!
//! ```text
//!   task or thread ── holds ──► Part ── beats ──► Life ──► watchdog ──► supervisor (systemd, `muster up`): no sign of life, no process
//!                                └── dropped: the task ended or panicked ──► `ended` ──► the process ends, and is started again
//! ```
//!
//! Invariants: a part that ends by itself ends its process, because half a process helps nobody. A sign of life comes from the loop itself,
//! never from a task beside it, which would go on when the loop is stuck.
//!
//! The mutex is held for a few assignments and never across an await: a std one is enough.

use std::{
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;

/// Longest time between two signs of life of a loop.
pub const BEAT_EVERY: Duration = Duration::from_secs(1);
/// Time without a sign of life after which a loop counts as stuck: longer than any work it does without a break, even on a busy machine.
pub const STILL_AFTER: Duration = Duration::from_secs(8);

/// The parts of a process. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Life(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    parts: Mutex<Vec<Weak<Pulse>>>,
    /// The first part that ended while the process was not shutting down.
    ended: watch::Sender<State>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Alive,
    /// Parts may end.
    Leaving,
    Ended(String),
}

#[derive(Debug)]
struct Pulse {
    name: String,
    born: Instant,
    /// Milliseconds from `born` to the last sign of life.
    last: AtomicU64,
}

impl Pulse {
    fn still_for(&self) -> Duration {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        self.born.elapsed().saturating_sub(last)
    }
}

impl Default for Life {
    fn default() -> Self {
        Self(Arc::new(Shared {
            parts: Mutex::default(),
            ended: watch::Sender::new(State::Alive),
        }))
    }
}

impl Life {
    /// Adds a part that the process needs. The task that does its work holds the value.
    #[must_use]
    pub fn part(&self, name: impl Into<String>) -> Part {
        let pulse = Arc::new(Pulse {
            name: name.into(),
            born: Instant::now(),
            last: AtomicU64::new(0),
        });
        let mut parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|part| part.strong_count() > 0);
        parts.push(Arc::downgrade(&pulse));
        Part {
            pulse,
            life: self.clone(),
        }
    }

    /// A part that is stuck; none if all make progress.
    #[must_use]
    pub fn still(&self) -> Option<String> {
        let parts = self.0.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts = parts.iter().filter_map(Weak::upgrade);
        let still = parts.find(|part| part.still_for() > STILL_AFTER)?;
        Some(still.name.clone())
    }

    /// The process shuts down: from now on parts may end.
    pub fn leaving(&self) {
        self.0.ended.send_if_modified(|state| {
            let alive = *state == State::Alive;
            if alive {
                *state = State::Leaving;
            }
            alive
        });
    }

    /// Waits until a part ends by itself (it returned or panicked), and returns its name.
    pub async fn ended(&self) -> String {
        let mut ended = self.0.ended.subscribe();
        let found = ended.wait_for(|state| matches!(state, State::Ended(_))).await;
        match found.as_deref() {
            Ok(State::Ended(name)) => name.clone(),
            // The sender is held here.
            Ok(State::Alive | State::Leaving) | Err(_) => std::future::pending().await,
        }
    }
}

/// A part's membership in its process's life; dropped when the holder ends for whatever reason.
#[derive(Debug)]
pub struct Part {
    pulse: Arc<Pulse>,
    life: Life,
}

impl Part {
    /// Gives a sign of life.
    pub fn beat(&self) {
        let since = self.pulse.born.elapsed().as_millis();
        self.pulse
            .last
            .store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Does the part's work and gives signs of life whenever the task is polled; for work that mostly awaits.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        loop {
            self.beat();
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(BEAT_EVERY) => {}
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.life.0.ended.send_if_modified(|state| {
            let alive = *state == State::Alive;
            if alive {
                *state = State::Ended(self.pulse.name.clone());
            }
            alive
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_panics_or_returns_is_named_and_one_that_leaves_in_order_is_not() {
        let life = Life::default();
        let part = life.part("follower");
        let task = tokio::spawn(part.run(async { panic!("as a bug would") }));
        assert_eq!(life.ended().await, "follower");
        assert!(task.await.is_err());

        let life = Life::default();
        let (first, second) = (life.part("io-0"), life.part("io-1"));
        life.leaving();
        drop(first);
        drop(second);
        let ended = tokio::time::timeout(Duration::from_millis(20), life.ended()).await;
        assert!(ended.is_err(), "{ended:?}");
    }

    #[tokio::test]
    async fn a_part_stands_still_unless_it_beats() {
        let life = Life::default();
        let (beating, still) = (life.part("a"), life.part("b"));
        assert_eq!(life.still(), None);
        let long_ago = |part: &Part| Pulse {
            name: part.pulse.name.clone(),
            born: Instant::now().checked_sub(2 * STILL_AFTER).unwrap(),
            last: AtomicU64::new(0),
        };
        let (a, b) = (Arc::new(long_ago(&beating)), Arc::new(long_ago(&still)));
        *life.0.parts.lock().unwrap() = vec![Arc::downgrade(&a), Arc::downgrade(&b)];
        let a = Part {
            pulse: a,
            life: life.clone(),
        };
        a.beat();
        assert_eq!(life.still().as_deref(), Some("b"));
        drop(b);
        assert_eq!(life.still(), None, "one that has ended is not still");
    }
}
