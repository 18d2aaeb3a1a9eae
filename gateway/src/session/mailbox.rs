//! The events of one request, between the session's reader and the body that renders them.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use muster_proto::v1::Event;

/// How the events of a request end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The worker ended the request.
    Finished,
    /// The session broke.
    Lost,
}

/// The result of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// Events were appended.
    More,
    /// No more events will come.
    End(End),
}

#[derive(Debug, Default)]
struct Slot {
    events: Vec<Event>,
    end: Option<End>,
    waker: Option<Waker>,
}

/// The events of a request that are not read yet. Credits limit their number: a worker sends no more `delta` and `progress` events than
/// were granted, and few others.
///
/// A std mutex is enough: reader and body run on the same thread, so nobody ever waits for it, and no guard is held across an await.
#[derive(Debug, Default)]
pub(crate) struct Mailbox(Mutex<Slot>);

impl Mailbox {
    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds events and wakes the reader.
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

    /// Records that the session broke.
    pub(super) fn lose(&self) {
        let mut slot = self.slot();
        slot.end.get_or_insert(End::Lost);
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }

    /// Appends all events that are there to `out`.
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
