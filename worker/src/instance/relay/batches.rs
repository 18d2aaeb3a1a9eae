//! The events of one tick, sorted by the session they are for: one lock and one wake per session.

use std::sync::Arc;

use muster_proto::v1::SequenceEvents;

use crate::session::outbox::Outbox;

/// Events on their way to their sessions. Keeps its memory from tick to tick.
#[derive(Debug, Default)]
pub(super) struct Batches(Vec<Batch>);

#[derive(Debug)]
struct Batch {
    outbox: Arc<Outbox>,
    sequences: Vec<SequenceEvents>,
    bulky: bool,
}

impl Batches {
    /// Adds events; few sessions share an engine, so they are searched.
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

    /// Hands everything over. A session without events in this tick is let go, so that a closed one is not kept alive.
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
