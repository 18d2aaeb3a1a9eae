//! Where a session's reader leaves the events of one request, and the body that shows them picks them up.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use muster_proto::v1::Event;

/// How a request's events end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The worker said that nothing more will come.
    Finished,
    /// The session broke.
    Lost,
}

/// One step of reading a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Events were appended.
    More,
    /// Nothing more will come.
    End(End),
}

#[derive(Debug, Default)]
struct Slot {
    events: Vec<Event>,
    end: Option<End>,
    waker: Option<Waker>,
}

/// Bounded by credits: a worker sends no more `delta` and `progress` events than were granted, and few others.
///
/// A std mutex is enough: reader and body live on one thread, so nobody ever waits for it, and no guard is held across an await.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Slot>);

impl Mailbox {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves events, and wakes the reader once.
    pub(super) fn deliver(&self, events: Vec<Event>, finished: bool) {
        let mut slot = self.slot();
        if slot.events.is_empty() {
            slot.events = events;
        } else {
            slot.events.extend(events);
        }
        if finished {
            slot.end.get_or_insert(End::Finished);
        }
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    /// Says that the session broke.
    pub(super) fn lose(&self) {
        let mut slot = self.slot();
        slot.end.get_or_insert(End::Lost);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    /// Appends to `out` what is there; what is ready together is taken together.
    pub(super) fn poll(&self, cx: &Context<'_>, out: &mut Vec<Event>) -> Poll<Batch> {
        let mut slot = self.slot();
        if !slot.events.is_empty() {
            if out.is_empty() {
                std::mem::swap(out, &mut slot.events);
            } else {
                out.append(&mut slot.events);
            }
            return Poll::Ready(Batch::More);
        }
        match slot.end {
            Some(end) => Poll::Ready(Batch::End(end)),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
