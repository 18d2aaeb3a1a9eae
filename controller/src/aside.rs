//! Runs blocking work on threads other than the serving one.

use tokio::task::JoinHandle;

/// Runs `work` on a thread that may wait for a disk.
pub(crate) fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // In a simulation everything runs on one thread, because the order of other threads would not follow from the seed.
    #[cfg(test)]
    if crate::driver::simulated() {
        return tokio::spawn(async { work() });
    }
    tokio::task::spawn_blocking(work)
}
