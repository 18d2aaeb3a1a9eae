//! Decides when an engine counts as stuck (PROTOCOL.md 12). Our own engines send `Alive`; others are judged by their events and CPU time.
//!
//! If a check comes late, the worker itself was stopped or overloaded, and messages of the engine may be unread. Such a check judges
//! nothing, and the silence is counted anew from then.
//!
//! Architecture invariant: reads no clock and no process; both are arguments.

use std::time::{Duration, Instant};

use muster_core::{Bytes, Code, Error};
use muster_proto::v1::Alive;

use crate::{config::Patience, convert, procfs::Activity};

/// The signs of life of a loaded engine.
#[derive(Debug)]
pub(super) struct Health {
    patience: Patience,
    sends_alive: bool,
    last_alive: Instant,
    /// When the last check was.
    looked: Instant,
    /// Number of ticks so far, the number at the last check that saw new ones, and when that was.
    ticks: u64,
    seen: (u64, Duration),
    changed: Instant,
}

impl Health {
    pub(super) fn new(patience: Patience, sends_alive: bool, now: Instant) -> Self {
        Self {
            patience,
            sends_alive,
            last_alive: now,
            looked: now,
            ticks: 0,
            seen: (0, Duration::ZERO),
            changed: now,
        }
    }

    /// Counts a tick.
    pub(super) fn ticked(&mut self) {
        self.ticks += 1;
    }

    /// Records a sign of life from the engine's side thread.
    ///
    /// # Errors
    /// The engine's loop has been busy without an iteration for too long.
    pub(super) fn alive(&mut self, alive: &Alive, now: Instant) -> Result<(), Error> {
        self.last_alive = now;
        match convert::span_from(alive.busy_for) {
            Some(busy) if busy >= self.patience.engine_stuck => {
                Err(stuck("the engine has been busy without progress", busy))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A periodic check. `expects`: a request runs that may get events. `cpu`: the processes' CPU time, which may be a little old.
    ///
    /// # Errors
    /// There was no sign of life for too long.
    pub(super) fn check(&mut self, now: Instant, expects: bool, cpu: Duration) -> Result<(), Error> {
        let late = is_late(self.looked, now, self.patience.engine_silent);
        self.looked = now;
        if late {
            (self.last_alive, self.changed) = (now, now);
            return Ok(());
        }
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
        let signs = (self.ticks, cpu);
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

/// Whether the check comes so late that it cannot be told who was silent. Checks are due eight times within `patience`.
pub(super) fn is_late(looked: Instant, now: Instant, patience: Duration) -> bool {
    now.saturating_duration_since(looked) >= patience / 2
}

fn stuck(what: &str, silence: Duration) -> Error {
    let seconds = silence.as_secs_f64();
    Code::RuntimeCrashed
        .error(format!("{what} for {seconds:.1} s and was ended"))
        .with_detail("seconds", seconds)
}

/// Bytes that count as progress of a load. Fewer may come from our own questions whether it is ready.
const ADVANCE: Bytes = Bytes::mib(16);
/// Share of the time limit that counts as progress if it was spent computing, as a divisor.
const COMPUTING: u32 = 20;

/// Decides whether a load makes progress.
#[derive(Debug)]
pub(super) struct LoadWatch {
    limit: Duration,
    seen: Activity,
    changed: Instant,
    looked: Instant,
}

impl LoadWatch {
    pub(super) fn new(limit: Duration, now: Instant) -> Self {
        Self {
            limit,
            seen: Activity::default(),
            changed: now,
            looked: now,
        }
    }

    /// Records a change of phase or fraction, or a new process.
    pub(super) fn progressed(&mut self, now: Instant) {
        self.changed = now;
    }

    /// A periodic check of what the processes have done so far.
    ///
    /// # Errors
    /// `load_stalled`: no progress for too long.
    pub(super) fn check(&mut self, now: Instant, activity: Activity) -> Result<(), Error> {
        let computed = activity.cpu.saturating_sub(self.seen.cpu);
        let moved = activity.bytes.saturating_sub(self.seen.bytes);
        let late = is_late(self.looked, now, self.limit);
        self.looked = now;
        if late || computed >= self.limit / COMPUTING || moved >= ADVANCE {
            (self.seen, self.changed) = (activity, now);
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

    /// Checks each second after `from` and last at `to`; only the last check may fail.
    fn look(
        health: &mut Health,
        start: Instant,
        (from, to): (u32, u32),
        expects: bool,
        cpu: Duration,
    ) -> Result<(), Error> {
        for second in from + 1..to {
            health.check(start + second * SECOND, expects, cpu).unwrap();
        }
        health.check(start + to * SECOND, expects, cpu)
    }

    #[test]
    fn an_engine_of_ours_must_speak_and_move() {
        let start = Instant::now();
        let mut health = Health::new(patience(), true, start);
        let idle = Duration::ZERO;
        assert!(look(&mut health, start, (0, 9), true, idle).is_ok());
        assert!(
            look(&mut health, start, (9, 10), false, idle).is_err(),
            "idle ones speak too"
        );
        let busy = |seconds| Alive {
            busy_for: Some(convert::span(seconds * SECOND)),
            ..Alive::default()
        };
        assert!(health.alive(&busy(119), start + 10 * SECOND).is_ok());
        assert!(look(&mut health, start, (10, 19), true, idle).is_ok());
        let error = health.alive(&busy(120), start + 11 * SECOND).unwrap_err();
        assert_eq!(error.code, Code::RuntimeCrashed);
    }

    #[test]
    fn a_worker_that_was_stopped_blames_no_engine() {
        let start = Instant::now();
        let mut ours = Health::new(patience(), true, start);
        let mut foreign = Health::new(patience(), false, start);
        let cpu = Duration::from_millis(6);
        assert!(look(&mut ours, start, (0, 3), true, cpu).is_ok());
        assert!(look(&mut foreign, start, (0, 3), true, cpu).is_ok());
        // The worker was stopped for ten minutes; then the silence counts anew.
        let back = start + 600 * SECOND;
        assert!(ours.check(back, true, cpu).is_ok());
        assert!(foreign.check(back, true, cpu).is_ok());
        assert!(look(&mut ours, back, (0, 9), true, cpu).is_ok());
        assert!(look(&mut ours, back, (9, 10), true, cpu).is_err());
        assert!(look(&mut foreign, back, (0, 119), true, cpu).is_ok());
        assert!(look(&mut foreign, back, (119, 120), true, cpu).is_err());
        let mut load = LoadWatch::new(60 * SECOND, start);
        assert!(load.check(back, Activity::default()).is_ok());
        assert!(load.check(back + 29 * SECOND, Activity::default()).is_ok());
        assert!(load.check(back + 58 * SECOND, Activity::default()).is_ok());
        assert!(load.check(back + 60 * SECOND, Activity::default()).is_err());
    }

    #[test]
    fn a_foreign_engine_is_judged_by_events_and_processor_time() {
        let start = Instant::now();
        let cpu = Duration::from_millis;
        let mut health = Health::new(patience(), false, start);
        assert!(
            look(&mut health, start, (0, 200), false, cpu(5)).is_ok(),
            "idle is fine"
        );
        assert!(
            look(&mut health, start, (200, 300), true, cpu(5)).is_ok(),
            "not yet"
        );
        assert!(
            look(&mut health, start, (300, 400), true, cpu(6)).is_ok(),
            "it computes"
        );
        health.ticked();
        assert!(
            look(&mut health, start, (400, 520), true, cpu(6)).is_ok(),
            "it answers"
        );
        assert!(look(&mut health, start, (520, 521), true, cpu(6)).is_err());
    }

    #[test]
    fn a_load_stalls_only_if_nothing_moves() {
        let start = Instant::now();
        let at = |seconds| start + seconds * SECOND;
        let did = |seconds, mib| Activity {
            cpu: seconds * SECOND,
            bytes: Bytes::mib(mib),
        };
        let mut watch = LoadWatch::new(60 * SECOND, start);
        for second in 1..60 {
            assert!(watch.check(at(second), did(0, 0)).is_ok());
        }
        assert!(watch.check(at(59), did(3, 0)).is_ok(), "it computed");
        for second in 60..110 {
            assert!(watch.check(at(second), did(3, 0)).is_ok());
        }
        assert!(watch.check(at(110), did(3, 16)).is_ok(), "it read");
        watch.progressed(at(150));
        // Answering our questions costs a little of both.
        for second in 111..210 {
            assert!(watch.check(at(second), did(5, 31)).is_ok());
        }
        let error = watch.check(at(210), did(5, 31)).unwrap_err();
        assert_eq!(error.code, Code::LoadStalled);
    }
}
