//! When and how often an instance was used: decides whether a pause between two requests counts as idle (I9, PROTOCOL 8).
//!
//! The worker's compare-and-set of the touch count guarantees that nothing in use is evicted. This module only keeps policy from trying to
//! evict in a pause of a millisecond. An instance whose requests follow each other with short pauses counts as idle only after a pause
//! several times as long as usual. An instance that is used now and then, or was used a few times and then no more, may go at once, so a
//! swap between two models waits for nothing.
//!
//! Touches arrive late, coalesced and out of order; only a higher count is new.

use std::time::Duration;

use crate::api::Moment;

/// The uses of one instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) last_used: Moment,
    pub(crate) touch_seq: u64,
    /// `last_used` is an estimate: the age of the last use was not reported.
    guessed: bool,
    pauses: Pauses,
    refused: Option<Refused>,
}

/// Short pauses between requests.
#[derive(Debug, Clone, Copy, Default)]
struct Pauses {
    /// Number of short pauses in a row.
    seen: u32,
    /// Roughly the longest of them.
    longest: Duration,
}

/// Evictions that the worker refused.
#[derive(Debug, Clone, Copy)]
struct Refused {
    at: Moment,
    in_a_row: u32,
}

/// A pause is short if this many of it fit into `quiet`. An instance counts as idle after this many times its longest short pause.
const PAUSES_TO_WAIT: u32 = 8;

/// Number of short pauses in a row from which pauses are expected.
const HABIT: u32 = 3;

/// Wait after the first refused eviction; doubles with each further one.
const AFTER_REFUSAL: Duration = Duration::from_millis(4);

impl Usage {
    pub(crate) fn new(last_used: Moment) -> Self {
        Self {
            last_used,
            touch_seq: 0,
            guessed: false,
            pauses: Pauses::default(),
            refused: None,
        }
    }

    /// Records a reported touch. `serving`: the instance was loaded before; `idle`: no request ran, as far as known.
    pub(crate) fn touched(
        &mut self,
        now: Moment,
        (touch_seq, age): (u64, Duration),
        (serving, idle): (bool, bool),
        quiet: Duration,
    ) {
        let at = now.ago(age);
        if touch_seq == self.touch_seq {
            self.last_used = if self.guessed { at } else { self.last_used.min(at) };
            self.guessed = false;
        }
        if touch_seq <= self.touch_seq {
            return;
        }
        let touches = u32::try_from(touch_seq - self.touch_seq).unwrap_or(u32::MAX);
        // A single touch of a busy instance begins or ends a request beside others: that is no pause.
        if serving && (idle || touches > 1) {
            let pause = at.since(self.last_used) / touches;
            self.pauses.learn(pause, touches.div_ceil(2), quiet);
        }
        self.touch_seq = touch_seq;
        self.last_used = self.last_used.max(at);
        self.guessed = false;
    }

    /// Records a count that an outcome told. It does not tell when the use was, so the next report with this count sets `last_used`.
    pub(crate) fn counted(&mut self, touch_seq: u64) {
        if touch_seq > self.touch_seq {
            self.touch_seq = touch_seq;
            self.guessed = true;
        }
    }

    /// Records that the worker refused to unload or quiesce it because it had just been used.
    pub(crate) fn refused(&mut self, now: Moment, touch_seq: u64, quiet: Duration) {
        if touch_seq > self.touch_seq {
            self.touch_seq = touch_seq;
            self.last_used = now;
            self.guessed = true;
        }
        let follows = self.refused.filter(|last| now.since(last.at) <= quiet * 4);
        self.refused = Some(Refused {
            at: now,
            in_a_row: follows.map_or(1, |last| last.in_a_row.saturating_add(1)),
        });
    }

    /// The moment from which it counts as idle.
    pub(crate) fn idle_from(&self, quiet: Duration) -> Moment {
        let habit = self.pauses.seen >= HABIT;
        let by_habit = habit.then(|| self.last_used + (self.pauses.longest * PAUSES_TO_WAIT).min(quiet));
        let by_refusal = self.refused.map(|last| {
            let factor = 2_u32.saturating_pow(last.in_a_row.saturating_sub(1));
            last.at + AFTER_REFUSAL.saturating_mul(factor).min(quiet)
        });
        by_habit.max(by_refusal).unwrap_or(Moment::ZERO)
    }
}

impl Pauses {
    fn learn(&mut self, pause: Duration, times: u32, quiet: Duration) {
        if pause * PAUSES_TO_WAIT > quiet {
            *self = Self::default();
        } else {
            self.seen = self.seen.saturating_add(times);
            self.longest = pause.max(self.longest * 3 / 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_millis(250);
    const MS: Duration = Duration::from_millis(1);

    fn at(ms: u64) -> Moment {
        Moment::after_start(MS * u32::try_from(ms).unwrap())
    }

    /// A request of so many milliseconds begins and ends; returns when.
    fn request(usage: &mut Usage, begin: u64, length: u64) -> u64 {
        let seq = usage.touch_seq;
        usage.touched(at(begin), (seq + 1, Duration::ZERO), (true, true), QUIET);
        usage.touched(
            at(begin + length),
            (seq + 2, Duration::ZERO),
            (true, false),
            QUIET,
        );
        begin + length
    }

    #[test]
    fn late_and_reordered_touches_change_nothing() {
        let mut usage = Usage::new(at(0));
        usage.touched(at(1000), (5, MS * 100), (true, true), QUIET);
        usage.touched(at(1100), (3, Duration::ZERO), (true, true), QUIET);
        assert_eq!((usage.last_used, usage.touch_seq), (at(900), 5));
    }

    #[test]
    fn a_count_without_an_age_takes_the_age_that_follows() {
        let mut usage = Usage::new(at(0));
        usage.counted(4);
        assert_eq!(usage.last_used, at(0));
        usage.touched(at(1000), (4, MS * 100), (true, true), QUIET);
        assert_eq!(usage.last_used, at(900), "it was used after what was known");
        usage.refused(at(2000), 6, QUIET);
        usage.touched(at(2100), (6, MS * 400), (true, true), QUIET);
        assert_eq!(usage.last_used, at(1700), "and before the refusal");
    }

    #[test]
    fn a_load_and_a_few_requests_delay_no_eviction() {
        let mut usage = Usage::new(at(0));
        usage.touched(at(20), (2, Duration::ZERO), (false, true), QUIET);
        let end = request(&mut usage, 21, 10);
        let end = request(&mut usage, end + 1, 10);
        assert!(usage.idle_from(QUIET) <= at(end));
    }

    #[test]
    fn short_pauses_make_a_habit_whatever_the_length_of_requests() {
        for length in [2, 5000] {
            let mut usage = Usage::new(at(0));
            let mut end = 0;
            for _ in 0..5 {
                end = request(&mut usage, end + 1, length);
            }
            assert_eq!(usage.idle_from(QUIET), at(end) + MS * 8, "{length}");
        }
    }

    #[test]
    fn coalesced_touches_make_a_habit_too() {
        let mut usage = Usage::new(at(0));
        usage.touched(at(100), (50, Duration::ZERO), (true, false), QUIET);
        assert_eq!(usage.idle_from(QUIET), at(100) + MS * 16);
    }

    #[test]
    fn a_long_pause_ends_a_habit() {
        let mut usage = Usage::new(at(0));
        let mut end = 0;
        for _ in 0..5 {
            end = request(&mut usage, end + 1, 2);
        }
        let end = request(&mut usage, end + 1000, 2);
        assert!(usage.idle_from(QUIET) <= at(end));
    }

    #[test]
    fn refusals_are_followed_by_a_wait_that_doubles() {
        let mut usage = Usage::new(at(0));
        let mut now = 10;
        let mut waits = Vec::new();
        for seq in 1..=8 {
            usage.refused(at(now), seq, QUIET);
            let until = usage.idle_from(QUIET);
            waits.push(until.since(at(now)).as_millis());
            now += u64::try_from(until.since(at(now)).as_millis()).unwrap();
        }
        assert_eq!(waits, [4, 8, 16, 32, 64, 128, 250, 250]);
        usage.refused(at(now + 2000), 9, QUIET);
        assert_eq!(
            usage.idle_from(QUIET),
            at(now + 2000) + MS * 4,
            "long after the last"
        );
    }
}
