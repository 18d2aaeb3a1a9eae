//! Wakes the loop when it sleeps although there might be work again (credits, cancellations).

use std::sync::Arc;

use tokio::sync::mpsc;

use crate::{request::Command, shared::Shared};

/// Cheap to clone; waking a loop that is awake costs one atomic load.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    shared: Arc<Shared>,
    tx: mpsc::Sender<Command>,
}

impl Waker {
    pub(crate) const fn new(shared: Arc<Shared>, tx: mpsc::Sender<Command>) -> Self {
        Self { shared, tx }
    }

    /// To be called after what might be work has been made visible.
    pub(crate) fn wake(&self) {
        if self.shared.is_parked() {
            // full means that the loop has messages and does not sleep
            drop(self.tx.try_send(Command::Wake));
        }
    }
}
