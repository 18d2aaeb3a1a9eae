//! Where events leave: one numbered stream of ticks per session, fed by the loop and the parse thread.
//!
//! Invariant: tick numbers have no gaps; who sends holds the lock from numbering to sending. The channel is bounded: credits bound what can be
//! in flight, so a full channel means that the worker stopped reading, and then the engine waits (the worker sees it in `Alive.busy_for`).
//! No message is larger than one may be, whatever is ready at once: each single event is bounded where it is made.

use std::sync::{Arc, Mutex, PoisonError};

use muster_proto::{
    limits::MESSAGE_BYTES,
    v1::{Event, SequenceEvents, SessionMessage, Tick, event, session_message},
};
use prost::Message as _;
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
        // nearly always nothing in it is large, and measuring costs as much as writing
        let parts = if sequences.iter().flat_map(|one| &one.events).any(may_be_large) {
            split(sequences, MESSAGE_BYTES)
        } else {
            vec![sequences]
        };
        for sequences in parts {
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
    }

    /// Sends a sign of life if there is room for it.
    pub(crate) fn alive(&self, alive: muster_proto::v1::Alive) {
        let message = SessionMessage {
            kind: Some(session_message::Kind::Alive(alive)),
        };
        drop(self.inner.tx.try_send(Ok(message)));
    }
}

/// Whether an event may be more than some text.
fn may_be_large(event: &Event) -> bool {
    match &event.kind {
        Some(event::Kind::Embedded(_) | event::Kind::Reranked(_)) => true,
        Some(event::Kind::Delta(delta)) => !delta.logprobs.is_empty(),
        Some(event::Kind::ChoiceFinished(end)) => !end.prompt.is_empty(),
        Some(
            event::Kind::Admitted(_)
            | event::Kind::Progress(_)
            | event::Kind::Finished(_)
            | event::Kind::Failed(_),
        )
        | None => false,
    }
}

/// Events in their order, for several messages: each is ended by the event that brings it to `bytes`.
fn split(sequences: Vec<SequenceEvents>, bytes: usize) -> Vec<Vec<SequenceEvents>> {
    let mut parts = Vec::new();
    let mut part: Vec<SequenceEvents> = Vec::new();
    let mut size = 0;
    for SequenceEvents {
        handle,
        events,
        finished,
    } in sequences
    {
        let last = events.len().saturating_sub(1);
        let opened = |events| SequenceEvents {
            handle,
            events,
            finished: false,
        };
        part.push(opened(Vec::new()));
        for (index, event) in events.into_iter().enumerate() {
            size += event.encoded_len();
            if let Some(open) = part.last_mut() {
                open.events.push(event);
            }
            if size >= bytes && index < last {
                parts.push(std::mem::replace(&mut part, vec![opened(Vec::new())]));
                size = 0;
            }
        }
        if let Some(open) = part.last_mut() {
            open.finished = finished;
        }
        if size >= bytes {
            parts.push(std::mem::take(&mut part));
            size = 0;
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}

#[cfg(test)]
mod tests {
    use muster_proto::v1::Delta;
    use proptest::prelude::*;

    use super::*;

    fn text(text: String) -> Event {
        Event {
            kind: Some(event::Kind::Delta(Delta {
                content: text,
                ..Delta::default()
            })),
            extra_json: String::new(),
        }
    }

    proptest! {
        #[test]
        fn messages_are_bounded_and_nothing_is_lost_or_out_of_order(
            sizes in prop::collection::vec((prop::collection::vec(0_usize..400, 0..6), any::<bool>()), 0..12),
        ) {
            const BYTES: usize = 1000;
            let whole: Vec<SequenceEvents> = (1..).zip(&sizes).map(|(handle, (events, finished))| SequenceEvents {
                handle,
                events: events.iter().map(|size| text("x".repeat(*size))).collect(),
                finished: *finished,
            }).collect();
            let parts = split(whole.clone(), BYTES);
            let mut again: Vec<SequenceEvents> = Vec::new();
            for part in &parts {
                let size: usize = part.iter().flat_map(|one| &one.events).map(Event::encoded_len).sum();
                prop_assert!(size < BYTES + 420, "{size}");
                for one in part {
                    match again.last_mut().filter(|last| last.handle == one.handle) {
                        Some(last) => {
                            prop_assert!(!last.finished, "events after the end");
                            last.events.extend(one.events.clone());
                            last.finished = one.finished;
                        }
                        None => again.push(one.clone()),
                    }
                }
            }
            prop_assert_eq!(again, whole);
        }
    }
}
