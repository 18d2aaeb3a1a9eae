//! How busy each instance is.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// How busy an instance is, as this gateway knows: its own requests and the queue that the worker reported last. It survives route updates.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    inflight: AtomicU32,
    queued: AtomicU32,
}

impl Gauge {
    /// Number of requests that run or wait there.
    pub(crate) fn load(&self) -> u64 {
        // Relaxed: the value is a heuristic, and nothing else is ordered by it.
        u64::from(self.inflight.load(Ordering::Relaxed)) + u64::from(self.queued.load(Ordering::Relaxed))
    }

    /// Number of this gateway's requests there.
    pub(crate) fn inflight(&self) -> u32 {
        self.inflight.load(Ordering::Relaxed)
    }

    /// Number of requests that wait there, as the worker reported last.
    pub(crate) fn queued(&self) -> u32 {
        self.queued.load(Ordering::Relaxed)
    }

    /// Records how many requests wait there.
    pub(crate) fn report(&self, queued: u32) {
        self.queued.store(queued, Ordering::Relaxed);
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> InFlight {
        self.inflight.fetch_add(1, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }
}

/// A request's place in a [`Gauge`].
#[derive(Debug)]
pub(crate) struct InFlight(Arc<Gauge>);

impl Drop for InFlight {
    fn drop(&mut self) {
        // The last request to leave clears the report, so that an outdated number does not keep requests away.
        if self.0.inflight.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.queued.store(0, Ordering::Relaxed);
        }
    }
}
