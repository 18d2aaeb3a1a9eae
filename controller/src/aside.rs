//! Work that may block, away from the threads that serve.

use tokio::task::JoinHandle;

/// Has it done by a thread that may wait for a disk.
pub(crate) fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    // A simulated history is one thread's doing: when another would be ready is no part of its seed.
    #[cfg(test)]
    if crate::driver::simulated() {
        return tokio::spawn(async { work() });
    }
    tokio::task::spawn_blocking(work)
}
