//! Where events leave: one numbered stream of ticks per session, fed by the loop and the parse thread.
//!
//! Invariant: tick numbers have no gaps; who sends holds the lock from numbering to sending. The channel is bounded: credits bound what can be
//! in flight, so a full channel means that the worker stopped reading, and then the engine waits (the worker sees it in `Alive.busy_for`).

use std::sync::{Arc, Mutex, PoisonError};

use muster_proto::v1::{SequenceEvents, SessionMessage, Tick, session_message};
use tokio::sync::mpsc;

use crate::shared::Shared;

/// Messages a session may have in flight.
pub(crate) const CAPACITY: usize = 1024;

/// A message of a session, as tonic wants it.
pub(crate) type Message = Result<SessionMessage, tonic::Status>;

/// Sender of one session's events.
#[derive(Clone, Debug)]
pub(crate) struct Outbox {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Number of the last tick.
    seq: Mutex<u64>,
    tx: mpsc::Sender<Message>,
    shared: Arc<Shared>,
}

impl Outbox {
    pub(crate) fn new(tx: mpsc::Sender<Message>, shared: Arc<Shared>) -> Self {
        Self {
            inner: Arc::new(Inner {
                seq: Mutex::new(0),
                tx,
                shared,
            }),
        }
    }

    /// Sends events of one moment; called from the engine's own threads only. If the session is gone the events go nowhere:
    /// its end cancels what they belonged to.
    pub(crate) fn send(&self, sequences: Vec<SequenceEvents>) {
        let mut seq = self.inner.seq.lock().unwrap_or_else(PoisonError::into_inner);
        *seq += 1;
        let tick = Tick {
            seq: *seq,
            sequences,
            free_sequences: self.inner.shared.free_sequences(),
            free_cells: self.inner.shared.free_cells(),
        };
        let message = SessionMessage {
            kind: Some(session_message::Kind::Tick(tick)),
        };
        drop(self.inner.tx.blocking_send(Ok(message)));
    }

    /// Sends a sign of life if there is room for it.
    pub(crate) fn alive(&self, alive: muster_proto::v1::Alive) {
        let message = SessionMessage {
            kind: Some(session_message::Kind::Alive(alive)),
        };
        drop(self.inner.tx.try_send(Ok(message)));
    }
}
