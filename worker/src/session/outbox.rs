//! The events of all requests of a session, which the next reader takes together.
//!
//! ```text
//!   instances ──push (one lock per tick and session)──► ready ──poll──► one Tick with all of it ──► HTTP/2
//!                                                        └ open: handle → who runs it, for Cancel and Credit
//! ```
//!
//! Invariants: events that are ready together are sent together; `seq` has no gaps; a handle is `finished` exactly once and then forgotten.
//! The outbox needs no limit: credits limit the events of each request (PROTOCOL.md 18).
//!
//! A std Mutex is enough: it is held for a few assignments and never across an await, and with one I/O thread nobody ever waits for it.

use std::{
    collections::hash_map::Entry,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use muster_core::{Code, Error};
use muster_proto::v1::{Event, SequenceEvents, event::Kind};
use rustc_hash::FxHashMap;

use crate::instance::Instance;

/// Where a request's Cancel and Credit are sent.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) instance: Instance,
    /// Number of the request at the instance.
    pub(crate) ticket: u64,
}

/// The events of a session that are not sent yet.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    ready: Vec<SequenceEvents>,
    open: FxHashMap<u64, Route>,
    reader: Option<Waker>,
    /// `ready` has vectors, scores or probabilities: these are sent one by one, so that no message exceeds the size limit.
    bulky: bool,
    /// Nobody reads any more.
    abandoned: bool,
    /// No more requests will come.
    closing: bool,
}

/// The result of a read.
#[derive(Debug)]
pub(crate) enum Taken {
    /// These events are ready.
    Events(Vec<SequenceEvents>),
    /// No more events will come.
    End,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a handle. Returns false if it is open already, which breaks the protocol.
    pub(crate) fn open(&self, handle: u64, route: Route) -> bool {
        match self.lock().open.entry(handle) {
            Entry::Vacant(free) => {
                free.insert(route);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// The route of a handle; none if it has finished.
    pub(crate) fn route(&self, handle: u64) -> Option<Route> {
        self.lock().open.get(&handle).cloned()
    }

    /// Adds events. Empties `batch` but keeps its memory.
    pub(crate) fn push(&self, batch: &mut Vec<SequenceEvents>, bulky: bool) {
        let waker = {
            let mut inner = self.lock();
            for sequence in batch.iter().filter(|sequence| sequence.finished) {
                inner.open.remove(&sequence.handle);
            }
            if inner.abandoned {
                batch.clear();
                None
            } else {
                inner.bulky |= bulky;
                inner.ready.append(batch);
                inner.reader.take()
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the events that are ready.
    pub(crate) fn poll_take(&self, cx: &Context<'_>) -> Poll<Taken> {
        let mut inner = self.lock();
        if inner.ready.is_empty() {
            if inner.closing && inner.open.is_empty() {
                return Poll::Ready(Taken::End);
            }
            match &mut inner.reader {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        if inner.bulky && inner.ready.len() > 1 {
            let first = inner.ready.remove(0);
            return Poll::Ready(Taken::Events(vec![first]));
        }
        inner.bulky = false;
        let room = inner.ready.len();
        Poll::Ready(Taken::Events(mem::replace(
            &mut inner.ready,
            Vec::with_capacity(room),
        )))
    }

    /// Records that no more requests will come. The reader's stream ends when the last one has finished.
    pub(crate) fn close(&self) {
        let waker = {
            let mut inner = self.lock();
            inner.closing = true;
            inner.reader.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records that nobody reads any more. Returns the routes of unfinished requests.
    pub(crate) fn abandon(&self) -> Vec<Route> {
        let mut inner = self.lock();
        inner.abandoned = true;
        inner.ready.clear();
        inner.open.drain().map(|(_, route)| route).collect()
    }
}

/// The way to the caller of a request. Dropping it without a terminal event sends one, so that nobody waits for ever.
#[derive(Debug)]
pub(crate) struct Reply {
    outbox: Arc<Outbox>,
    handle: u64,
    over: bool,
}

impl Reply {
    pub(crate) fn new(outbox: Arc<Outbox>, handle: u64) -> Self {
        let over = false;
        Self { outbox, handle, over }
    }

    /// The session's handle of the request.
    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    /// The session it belongs to.
    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Drops it without sending a terminal event, because that is sent in another way.
    pub(crate) fn settled(mut self) {
        self.over = true;
    }

    /// Sends an event that does not end the request.
    pub(crate) fn send(&self, kind: Kind) {
        self.put(kind, false);
    }

    /// Ends the request with an error.
    pub(crate) fn fail(mut self, error: Error) {
        self.over = true;
        self.put(Kind::Failed(error.into()), true);
    }

    fn put(&self, kind: Kind, finished: bool) {
        let sequence = SequenceEvents {
            handle: self.handle,
            events: vec![event(kind)],
            finished,
        };
        self.outbox.push(&mut vec![sequence], false);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.over {
            let error = Code::StaleInstance.error("the instance ended before it took the request");
            self.put(Kind::Failed(error.into()), true);
        }
    }
}

/// An event of this kind without extra fields.
pub(crate) fn event(kind: Kind) -> Event {
    Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(outbox: &Outbox) -> Option<Vec<SequenceEvents>> {
        match outbox.poll_take(&Context::from_waker(Waker::noop())) {
            Poll::Ready(Taken::Events(events)) => Some(events),
            Poll::Ready(Taken::End) | Poll::Pending => None,
        }
    }

    fn sequence(handle: u64) -> SequenceEvents {
        SequenceEvents {
            handle,
            events: Vec::new(),
            finished: false,
        }
    }

    #[test]
    fn what_is_ready_together_is_taken_together() {
        let outbox = Outbox::default();
        assert!(take(&outbox).is_none());
        outbox.push(&mut vec![sequence(1), sequence(2)], false);
        outbox.push(&mut vec![sequence(1)], false);
        let handles: Vec<_> = take(&outbox).unwrap().iter().map(|one| one.handle).collect();
        assert_eq!(handles, [1, 2, 1]);
        assert!(take(&outbox).is_none());
    }

    #[test]
    fn bulky_answers_leave_one_by_one_and_in_order() {
        let outbox = Outbox::default();
        outbox.push(&mut vec![sequence(1), sequence(2)], true);
        assert_eq!(take(&outbox).unwrap()[0].handle, 1);
        assert_eq!(take(&outbox).unwrap()[0].handle, 2);
        outbox.push(&mut vec![sequence(3), sequence(4)], false);
        assert_eq!(take(&outbox).unwrap().len(), 2);
    }

    #[test]
    fn a_reply_ends_exactly_once() {
        let outbox = Arc::new(Outbox::default());
        Reply::new(Arc::clone(&outbox), 1).fail(Code::Cancelled.error("x"));
        Reply::new(Arc::clone(&outbox), 2).settled();
        drop(Reply::new(Arc::clone(&outbox), 3));
        let finished: Vec<_> = take(&outbox)
            .unwrap()
            .iter()
            .map(|one| (one.handle, one.finished, one.events.len()))
            .collect();
        assert_eq!(finished, [(1, true, 1), (3, true, 1)]);
    }

    #[test]
    fn a_closing_session_ends_when_its_last_request_has() {
        let outbox = Outbox::default();
        outbox.close();
        assert!(matches!(
            outbox.poll_take(&Context::from_waker(Waker::noop())),
            Poll::Ready(Taken::End)
        ));
        assert!(outbox.abandon().is_empty());
        outbox.push(&mut vec![sequence(1)], false);
        assert!(take(&outbox).is_none(), "nobody reads, nothing is kept");
    }
}
