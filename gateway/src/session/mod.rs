//! One long-lived stream to one worker, shared by all requests of one I/O thread (PROTOCOL.md 16).
//!
//! ```text
//!  Request ─ start, credit, cancel ─► outbox ═══ Inference.Session ═══► worker
//!  Request ◄───────── mailbox ◄───── reader ◄════════ Tick ════════════
//!
//!  connecting ─► open ─► closed      (a closed session is replaced at the next use; its requests see `End::Lost`)
//! ```
//!
//! The reader task takes a tick apart and leaves each request's events in its mailbox: one wake per request and tick, no task or channel in
//! between. Commands may be queued while the session still connects.
//!
//! Invariants: a handle is never reused; a dropped [`Request`] that has not finished sends exactly one Cancel, or nothing at all if its Start
//! has not been sent.
//! Architecture invariant: this module knows no model, no HTTP and no rendering.

mod link;
mod mailbox;
mod pool;
mod request;

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use futures::Stream;
use muster_core::WorkerAddress;
use muster_proto::v1::{Cancel, Credit, SessionCommand, Start, Tick, session_command};
use rustc_hash::FxHashMap;

use self::mailbox::Mailbox;
pub(crate) use self::{
    mailbox::{Batch, End},
    pool::Pool,
    request::Request,
};

/// Events granted to a request at once; half of it is granted again as soon as it was shown (PROTOCOL.md 18).
pub(crate) const CREDIT: u32 = 256;
/// How long an address that did not answer is avoided, unless it speaks before.
const SUSPICION: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Inner {
    last_handle: u64,
    requests: FxHashMap<u64, Arc<Mailbox>>,
    /// Bounded by the requests: at most one Start, one Cancel and two Credits of each are ever waiting.
    outbox: VecDeque<SessionCommand>,
    sender: Option<Waker>,
    closed: bool,
    suspect_until: Option<Instant>,
    last_tick: u64,
}

/// A session; all its users live on one thread.
#[derive(Debug)]
pub(crate) struct Session {
    address: WorkerAddress,
    /// Never contended (one thread), never held across an await: a std mutex is enough.
    inner: Mutex<Inner>,
}

/// Ticks were lost between the worker and here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    expected: u64,
    got: u64,
}

impl Session {
    fn new(address: WorkerAddress) -> Self {
        Self {
            address,
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(inner: &mut Inner, kind: session_command::Kind) {
        inner.outbox.push_back(SessionCommand { kind: Some(kind) });
        if let Some(waker) = inner.sender.take() {
            waker.wake();
        }
    }

    /// Sends `start` under a fresh handle. On a closed session the request is lost at once.
    fn start(&self, mut start: Start) -> (u64, Arc<Mailbox>) {
        let mailbox = Arc::new(Mailbox::default());
        let mut inner = self.inner();
        inner.last_handle += 1;
        let handle = inner.last_handle;
        if inner.closed {
            mailbox.lose();
        } else {
            start.handle = handle;
            inner.requests.insert(handle, Arc::clone(&mailbox));
            Self::send(&mut inner, session_command::Kind::Start(start));
        }
        (handle, mailbox)
    }

    fn credit(&self, handle: u64, events: u32) {
        let mut inner = self.inner();
        if inner.requests.contains_key(&handle) {
            Self::send(
                &mut inner,
                session_command::Kind::Credit(Credit { handle, events }),
            );
        }
    }

    /// Forgets a request; tells the worker if it knows it and has not finished it.
    fn forget(&self, handle: u64) {
        let mut inner = self.inner();
        if inner.requests.remove(&handle).is_none() {
            return;
        }
        // It has no credits behind its Start: those return for events, and there are none before it is sent.
        let is_start = |command: &SessionCommand| matches!(&command.kind, Some(session_command::Kind::Start(start)) if start.handle == handle);
        if let Some(unsent) = inner.outbox.iter().rposition(is_start) {
            inner.outbox.remove(unsent);
        } else {
            Self::send(&mut inner, session_command::Kind::Cancel(Cancel { handle }));
        }
    }

    /// The worker did not answer in time: others are preferred for a while.
    pub(crate) fn suspect(&self) {
        self.inner().suspect_until = Some(Instant::now() + SUSPICION);
    }

    /// Whether others should be preferred at `now`.
    pub(crate) fn is_suspect(&self, now: Instant) -> bool {
        self.inner().suspect_until.is_some_and(|until| now < until)
    }

    fn is_closed(&self) -> bool {
        self.inner().closed
    }

    /// Hands a tick's events to their requests.
    fn deliver(&self, tick: Tick) -> Result<(), Gap> {
        let mut inner = self.inner();
        let expected = inner.last_tick + 1;
        if tick.seq != expected {
            return Err(Gap {
                expected,
                got: tick.seq,
            });
        }
        inner.last_tick = tick.seq;
        inner.suspect_until = None;
        for sequence in tick.sequences {
            // An unknown handle is one whose client has gone.
            if sequence.finished {
                if let Some(mailbox) = inner.requests.remove(&sequence.handle) {
                    mailbox.deliver(sequence.events, true);
                }
            } else if let Some(mailbox) = inner.requests.get(&sequence.handle) {
                mailbox.deliver(sequence.events, false);
            }
        }
        Ok(())
    }

    /// Ends the session; all its requests are lost. Returns how many.
    fn close(&self) -> usize {
        let mut inner = self.inner();
        inner.closed = true;
        inner.outbox.clear();
        if let Some(waker) = inner.sender.take() {
            waker.wake();
        }
        let requests = std::mem::take(&mut inner.requests);
        for mailbox in requests.values() {
            mailbox.lose();
        }
        requests.len()
    }
}

/// The commands of a session as tonic sends them.
#[derive(Debug)]
struct Outbox(Arc<Session>);

impl Stream for Outbox {
    type Item = SessionCommand;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<SessionCommand>> {
        let mut inner = self.0.inner();
        if let Some(command) = inner.outbox.pop_front() {
            return Poll::Ready(Some(command));
        }
        if inner.closed {
            return Poll::Ready(None);
        }
        inner.sender = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
