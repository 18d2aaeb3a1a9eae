//! The events of a tick, grouped by session: one lock and one wake-up per session.

use std::sync::Arc;

use muster_proto::v1::SequenceEvents;

use crate::session::outbox::Outbox;

/// Events for sessions. Keeps its memory from tick to tick.
#[derive(Debug, Default)]
pub(super) struct Batches(Vec<Batch>);

#[derive(Debug)]
struct Batch {
    outbox: Arc<Outbox>,
    sequences: Vec<SequenceEvents>,
    bulky: bool,
}

impl Batches {
    /// Adds events. The session is searched in a list, since few sessions share an engine.
    pub(super) fn add(&mut self, outbox: &Arc<Outbox>, sequence: SequenceEvents, bulky: bool) {
        if let Some(batch) = self.0.iter_mut().find(|batch| Arc::ptr_eq(&batch.outbox, outbox)) {
            batch.sequences.push(sequence);
            batch.bulky |= bulky;
        } else {
            self.0.push(Batch {
                outbox: Arc::clone(outbox),
                sequences: vec![sequence],
                bulky,
            });
        }
    }

    /// Delivers all events. A session without events in this tick is dropped, so that a closed one is not kept alive.
    pub(super) fn flush(&mut self) {
        self.0.retain_mut(|batch| {
            let used = !batch.sequences.is_empty();
            if used {
                batch.outbox.push(&mut batch.sequences, batch.bulky);
                batch.bulky = false;
            }
            used
        });
    }
}
