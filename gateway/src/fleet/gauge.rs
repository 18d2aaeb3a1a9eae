//! How busy instances are.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// How busy an instance is, as this gateway knows: its own requests there and the queue that the worker reported last. Survives route updates.
#[derive(Debug, Default)]
pub(crate) struct Gauge {
    inflight: AtomicU32,
    queued: AtomicU32,
}

impl Gauge {
    /// Requests there, running and waiting.
    pub(crate) fn load(&self) -> u64 {
        // Relaxed: a heuristic, nothing else is ordered by it.
        u64::from(self.inflight.load(Ordering::Relaxed)) + u64::from(self.queued.load(Ordering::Relaxed))
    }

    /// Requests of this gateway there.
    pub(crate) fn inflight(&self) -> u32 {
        self.inflight.load(Ordering::Relaxed)
    }

    /// Requests that wait there, as the worker said last.
    pub(crate) fn queued(&self) -> u32 {
        self.queued.load(Ordering::Relaxed)
    }

    /// The worker said how many wait before a request.
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
        // The last one out forgets the report, so that an old figure never keeps requests away.
        if self.0.inflight.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.queued.store(0, Ordering::Relaxed);
        }
    }
}
