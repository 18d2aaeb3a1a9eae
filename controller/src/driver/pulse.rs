//! When a worker was last heard, and a way to ask for a sign of life.

use std::sync::Arc;

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// Cheap to clone. The session's task, the driver and whoever wants the worker's place share it.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    heard: Arc<watch::Sender<Instant>>,
    ping: Arc<Notify>,
}

impl Pulse {
    /// A pulse that counts as heard now.
    pub(crate) fn new() -> Self {
        Self {
            heard: Arc::new(watch::channel(Instant::now()).0),
            ping: Arc::default(),
        }
    }

    /// Records a sign of life.
    pub(crate) fn beat(&self) {
        self.heard.send_replace(Instant::now());
    }

    /// When the worker was last heard.
    pub(crate) fn last(&self) -> Instant {
        *self.heard.borrow()
    }

    /// Waits for the next sign of life.
    pub(crate) async fn next_beat(&self) {
        // The sender is held here, so this cannot fail.
        drop(self.heard.subscribe().changed().await);
    }

    /// Asks the worker for a sign of life.
    pub(crate) fn ping(&self) {
        self.ping.notify_one();
    }

    /// Waits until somebody asks for a sign of life.
    pub(crate) async fn pinged(&self) {
        self.ping.notified().await;
    }
}
