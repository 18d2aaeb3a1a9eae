//! Signs of life from a thread of its own, so that a loop stuck in a decode is told apart from a dead process (PROTOCOL.md 12). It also gives memory back
//! to the system after something large, in nobody's way.

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

use crate::{model::give_memory_back, outbox::Outbox, shared::Shared};

const EVERY: Duration = Duration::from_secs(1);

/// Where signs of life go.
#[derive(Clone, Debug)]
pub(crate) struct Beat(Arc<(Mutex<Target>, Condvar)>);

#[derive(Debug, Default)]
struct Target {
    outbox: Option<Outbox>,
    stop: bool,
}

impl Beat {
    /// Sends to this session from now on; `None` = nobody listens.
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
