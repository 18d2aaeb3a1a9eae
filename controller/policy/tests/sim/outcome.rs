//! What came of a scenario under one policy.

use crate::scenario::{Micros, SECOND};

/// Counters and waits of one run.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    pub(crate) policy: String,
    pub(crate) requests: u64,
    /// Requests that found their model loaded.
    pub(crate) hits: u64,
    pub(crate) loads: u64,
    /// Time spent loading.
    pub(crate) loading: Micros,
    /// Loads whose instance ended without having served a request.
    pub(crate) wasted: u64,
    /// Of the requests that did not: time until they began.
    pub(crate) waits: Vec<Micros>,
    /// Requests that were told an error.
    pub(crate) failed: u64,
    /// Requests that never began.
    pub(crate) starved: u64,
    /// Loads begun without enough memory.
    pub(crate) out_of_memory: u64,
}

impl Outcome {
    pub(crate) fn served(&mut self, waited: Option<Micros>) {
        match waited {
            None => self.hits += 1,
            Some(span) => self.waits.push(span),
        }
    }

    /// The wait that a share of the waiting requests did not exceed, in seconds.
    pub(crate) fn wait(&self, share: f64) -> f64 {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let last = waits.len().saturating_sub(1);
        let mut rank = 0;
        while rank < last && (rank + 1) as f64 <= share * last as f64 {
            rank += 1;
        }
        waits.get(rank).map_or(0.0, |wait| *wait as f64 / SECOND as f64)
    }

    /// The share of the loads that a perfect policy needs less than `lru` which this one needs less, in percent.
    fn closed(&self, lru: u64, offline: u64) -> f64 {
        (lru as f64 - self.loads as f64) * 100.0 / (lru as f64 - offline as f64)
    }

    pub(crate) fn row(&self, lru: u64, offline: u64) -> String {
        format!(
            "| {} | {:.1} % | {} | {:.2} | {:.0} % | {:.0} | {} | {:.1} | {:.1} | {:.0} | {} | {} |",
            self.policy,
            self.hits as f64 * 100.0 / self.requests as f64,
            self.loads,
            self.loads as f64 / offline as f64,
            self.closed(lru, offline),
            self.loading as f64 / SECOND as f64 / 60.0,
            self.wasted,
            self.wait(0.5),
            self.wait(0.99),
            self.wait(1.0),
            self.failed,
            self.starved,
        )
    }
}

/// The head of the table.
pub(crate) const HEAD: &str = "| policy | hits | loads | × offline | gap closed | loading, min | wasted | wait p50, s | p99 | longest | failed | starved |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";
