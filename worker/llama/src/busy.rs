//! Work outside the loop: what other threads prepare, parse or answer, and since when. Such work can hang as well (a template that never
//! ends occupies a preparing thread for ever), so signs of life report the oldest piece too (PROTOCOL.md 12).
//!
//! Invariant: a job is listed exactly as long as its [`Job`] lives. A std Mutex is enough: each critical section is one operation on a
//! small map.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// All work outside the loop. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Busy(Arc<Mutex<Jobs>>);

#[derive(Debug, Default)]
struct Jobs {
    last: u64,
    /// Start times by job number; the lowest number is the oldest job.
    begun: BTreeMap<u64, Instant>,
}

/// One piece of work. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Job {
    busy: Busy,
    number: u64,
}

impl Busy {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a piece of work that only computes. Drop the result before waiting for anyone who may be slow for a good reason.
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

    /// Age of the oldest job; `None` without jobs.
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
