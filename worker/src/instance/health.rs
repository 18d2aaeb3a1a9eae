//! When an engine counts as stuck (PROTOCOL.md 12): native engines say `Alive`, foreign ones are judged by events and processor time.
//!
//! Architecture invariant: reads no clock and no process; both are arguments.

use std::time::{Duration, Instant};

use muster_proto::{
    Code, ErrorExt as _,
    v1::{Alive, ErrorInfo},
};

use crate::{config::Patience, convert};

/// Signs of life of one loaded engine.
#[derive(Debug)]
pub(super) struct Health {
    patience: Patience,
    sends_alive: bool,
    last_alive: Instant,
    /// Ticks so far, the count at the last change that was noticed, and when that was.
    ticks: u64,
    seen: (u64, u64),
    changed: Instant,
}

impl Health {
    pub(super) fn new(patience: Patience, sends_alive: bool, now: Instant) -> Self {
        Self {
            patience,
            sends_alive,
            last_alive: now,
            ticks: 0,
            seen: (0, 0),
            changed: now,
        }
    }

    /// A tick came.
    pub(super) fn ticked(&mut self) {
        self.ticks += 1;
    }

    /// The engine's side thread spoke.
    ///
    /// # Errors
    /// Its loop has been busy without an iteration for too long.
    pub(super) fn alive(&mut self, alive: &Alive, now: Instant) -> Result<(), ErrorInfo> {
        self.last_alive = now;
        match convert::std_duration(alive.busy_for) {
            Some(busy) if busy >= self.patience.engine_stuck => {
                Err(stuck("the engine has been busy without progress", busy))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A look now and then. `expects` says that a request runs which may get events; `cpu` is the tree's processor time.
    ///
    /// # Errors
    /// There was no sign of life for too long.
    pub(super) fn check(
        &mut self,
        now: Instant,
        expects: bool,
        cpu: impl FnOnce() -> u64,
    ) -> Result<(), ErrorInfo> {
        if self.sends_alive {
            let silence = now.saturating_duration_since(self.last_alive);
            if silence >= self.patience.engine_silent {
                return Err(stuck("the engine gave no sign of life", silence));
            }
            return Ok(());
        }
        if !expects {
            self.changed = now;
            return Ok(());
        }
        let signs = (self.ticks, cpu());
        if signs != self.seen {
            (self.seen, self.changed) = (signs, now);
        }
        let silence = now.saturating_duration_since(self.changed);
        if silence >= self.patience.engine_stuck {
            return Err(stuck(
                "the engine neither answered nor used the processor",
                silence,
            ));
        }
        Ok(())
    }
}

fn stuck(what: &str, silence: Duration) -> ErrorInfo {
    let seconds = silence.as_secs_f64();
    Code::RuntimeCrashed
        .error(format!("{what} for {seconds:.1} s and was ended"))
        .with_detail("seconds", seconds)
}

/// Whether a load makes progress.
#[derive(Debug)]
pub(super) struct LoadWatch {
    limit: Duration,
    activity: u64,
    changed: Instant,
}

impl LoadWatch {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            activity: 0,
            changed: now,
        }
    }

    /// A phase or fraction changed, or a process appeared.
    pub(super) fn progressed(&mut self, now: Instant) {
        self.changed = now;
    }

    /// A look now and then, at the tree's processor time and bytes moved.
    ///
    /// # Errors
    /// `load_stalled`: nothing has moved for too long.
    pub(super) fn check(&mut self, now: Instant, activity: u64) -> Result<(), ErrorInfo> {
        if activity != self.activity {
            (self.activity, self.changed) = (activity, now);
        }
        let silence = now.saturating_duration_since(self.changed);
        if silence < self.limit {
            return Ok(());
        }
        let seconds = silence.as_secs_f64();
        Err(Code::LoadStalled
            .error(format!(
                "the load made no progress for {seconds:.1} s and was ended"
            ))
            .with_detail("seconds", seconds))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn patience() -> Patience {
        Patience {
            load_stall: 60 * SECOND,
            slow_reader: 60 * SECOND,
            engine_silent: 10 * SECOND,
            engine_stuck: 120 * SECOND,
        }
    }

    #[test]
    fn a_native_engine_must_speak_and_move() {
        let start = Instant::now();
        let mut health = Health::new(patience(), true, start);
        assert!(health.check(start + 9 * SECOND, true, || 0).is_ok());
        assert!(
            health.check(start + 10 * SECOND, false, || 0).is_err(),
            "idle ones speak too"
        );
        let busy = |seconds| Alive {
            busy_for: Some(convert::duration(seconds * SECOND)),
            ..Alive::default()
        };
        assert!(health.alive(&busy(119), start + 10 * SECOND).is_ok());
        assert!(health.check(start + 19 * SECOND, true, || 0).is_ok());
        let error = health.alive(&busy(120), start + 11 * SECOND).unwrap_err();
        assert_eq!(error.kind(), Code::RuntimeCrashed);
    }

    #[test]
    fn a_foreign_engine_is_judged_by_events_and_processor_time() {
        let start = Instant::now();
        let at = |seconds| start + seconds * SECOND;
        let mut health = Health::new(patience(), false, start);
        assert!(health.check(at(200), false, || 5).is_ok(), "idle is fine");
        assert!(health.check(at(300), true, || 6).is_ok(), "it computes");
        health.ticked();
        assert!(health.check(at(400), true, || 6).is_ok(), "it answers");
        assert!(health.check(at(519), true, || 6).is_ok());
        assert!(health.check(at(520), true, || 6).is_err());
    }

    #[test]
    fn a_load_stalls_only_if_nothing_moves() {
        let start = Instant::now();
        let at = |seconds| start + seconds * SECOND;
        let mut watch = LoadWatch::new(60 * SECOND, start);
        assert!(watch.check(at(59), 0).is_ok());
        assert!(watch.check(at(60), 1).is_ok(), "processor time moved");
        watch.progressed(at(100));
        assert!(watch.check(at(159), 1).is_ok());
        assert_eq!(watch.check(at(160), 1).unwrap_err().kind(), Code::LoadStalled);
    }
}
