//! Whether a session lives: when its worker was last heard, and a way to ask it for a sign of life.

use std::sync::Arc;

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// Cheap to clone; shared by the session's task, the driver and whoever wants the worker's place.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    heard: Arc<watch::Sender<Instant>>,
    ping: Arc<Notify>,
}

impl Pulse {
    /// Heard just now.
    pub(crate) fn new() -> Self {
        Self {
            heard: Arc::new(watch::channel(Instant::now()).0),
            ping: Arc::default(),
        }
    }

    /// Notes a sign of life.
    pub(crate) fn beat(&self) {
        self.heard.send_replace(Instant::now());
    }

    /// When the worker was last heard.
    pub(crate) fn last(&self) -> Instant {
        *self.heard.borrow()
    }

    /// Resolves with the next sign of life.
    pub(crate) async fn next_beat(&self) {
        // The sender is held here, so this fails only with `self` gone.
        drop(self.heard.subscribe().changed().await);
    }

    /// Asks the worker for a sign of life.
    pub(crate) fn ping(&self) {
        self.ping.notify_one();
    }

    /// Resolves when somebody asked.
    pub(crate) async fn pinged(&self) {
        self.ping.notified().await;
    }
}
