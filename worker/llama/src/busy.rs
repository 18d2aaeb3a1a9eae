//! Work beside the loop: what is being prepared, parsed or answered by other threads, and since when. A hang there is as bad as one in the loop
//! (a template that never ends takes a preparing thread for good), so signs of life tell the oldest of it too (PROTOCOL.md 12).
//!
//! Invariant: a job is in here exactly as long as its [`Job`] lives. A std Mutex is enough: both critical sections are one move in a small map.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// All work beside the loop. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<Mutex<Jobs>>);

#[derive(Debug, Default)]
struct Jobs {
    last: u64,
    /// By number, so the first is the oldest.
    begun: BTreeMap<u64, Instant>,
}

/// One piece of work; over when dropped.
#[derive(Debug)]
pub(crate) struct Job {
    busy: Busy,
    number: u64,
}

impl Busy {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a piece of work that takes only the processor. Must not be held while waiting for anybody else, who may be slow for good reason.
    pub(crate) fn begin(&self) -> Job {
        let mut jobs = self.lock();
        jobs.last += 1;
        let number = jobs.last;
        jobs.begun.insert(number, Instant::now());
        drop(jobs);
        Job {
            busy: self.clone(),
            number,
        }
    }

    /// How long the oldest work has been going on; `None` if there is none.
    pub(crate) fn longest(&self) -> Option<Duration> {
        self.lock()
            .begun
            .first_key_value()
            .map(|(_, begun)| begun.elapsed())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.busy.lock().begun.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_work_counts_and_what_is_over_does_not() {
        let busy = Busy::default();
        assert_eq!(busy.longest(), None);
        let old = busy.begin();
        let begun = Instant::now();
        let new = busy.begin();
        while begun.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        assert!(busy.longest().unwrap() >= Duration::from_millis(2));
        drop(new);
        assert!(busy.longest().unwrap() >= Duration::from_millis(2));
        let young = busy.begin();
        drop(old);
        assert!(busy.longest().unwrap() < Duration::from_millis(2));
        drop(young);
        assert_eq!(busy.longest(), None);
    }
}
