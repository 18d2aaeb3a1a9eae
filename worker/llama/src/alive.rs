//! Sends signs of life from a thread of its own, so that a worker can tell a loop stuck in a decode from a dead process (PROTOCOL.md 12).
//! The thread also returns freed memory to the system after large allocations, where it delays no request.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::{model::give_memory_back, outbox::Outbox, shared::Shared};

const EVERY: Duration = Duration::from_secs(1);

/// The thread that sends signs of life, and the session to which it sends them.
#[derive(Clone, Debug)]
pub(crate) struct Beat(Arc<(Mutex<Target>, Condvar)>);

#[derive(Debug, Default)]
struct Target {
    outbox: Option<Outbox>,
    stop: bool,
}

impl Beat {
    /// Sends to this session from now on; with `None` to nobody.
    pub(crate) fn follow(&self, outbox: Option<Outbox>) {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner).outbox = outbox;
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let mut target = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        target.stop = true;
        target.outbox = None;
        self.0.1.notify_all();
    }
}

/// Starts the thread.
///
/// # Errors
/// The thread can't be started.
pub(crate) fn start(shared: Arc<Shared>) -> std::io::Result<Beat> {
    let beat = Beat(Arc::default());
    let own = beat.clone();
    std::thread::Builder::new()
        .name("alive".to_owned())
        .spawn(move || {
            let (target, changed) = &*own.0;
            let mut guard = target.lock().unwrap_or_else(PoisonError::into_inner);
            while !guard.stop {
                if let Some(outbox) = &guard.outbox {
                    outbox.alive(shared.alive());
                }
                if shared.gives_back() {
                    give_memory_back();
                }
                guard = changed
                    .wait_timeout(guard, EVERY)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        })?;
    Ok(beat)
}
