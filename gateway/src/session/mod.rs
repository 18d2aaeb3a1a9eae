//! One long-lived stream to one worker, shared by all requests of one I/O thread (PROTOCOL.md 16).
//!
//! ```text
//!  Request ─ start, credit, cancel ─► outbox ═══ Inference.Session ═══► worker
//!  Request ◄───────── mailbox ◄───── reader ◄════════ Tick ════════════
//!
//!  connecting ─► open ─► closed      (a closed session is replaced at the next use; its requests see `End::Lost`)
//! ```
//!
//! The reader task splits a tick and puts each request's events into its mailbox: one wake-up per request and tick, without another task or
//! channel. Commands may be queued while the session is still connecting.
//!
//! Invariants: a handle is never used twice; dropping an unfinished [`Request`] sends exactly one Cancel, or nothing if its Start was not
//! sent yet.
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

/// Number of events that a request may have outstanding. Half of it is granted again once that many were rendered (PROTOCOL.md 18).
pub(crate) const CREDIT: u32 = 256;
/// How long a worker that did not answer is avoided, unless it answers earlier.
const SUSPICION: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Inner {
    last_handle: u64,
    requests: FxHashMap<u64, Arc<Mailbox>>,
    /// Commands to send. Its length is bounded: each request has at most one Start, one Cancel and two Credits in it.
    outbox: VecDeque<SessionCommand>,
    sender: Option<Waker>,
    closed: bool,
    suspect_until: Option<Instant>,
    last_tick: u64,
}

/// A session with one worker. All its users run on one thread.
#[derive(Debug)]
pub(crate) struct Session {
    address: WorkerAddress,
    /// One thread uses it, and no guard is held across an await: a std mutex is enough.
    inner: Mutex<Inner>,
}

/// The error for ticks that were lost on the way from the worker.
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

    /// Sends `start` with a new handle. On a closed session the request is lost at once.
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

    /// Removes a request, and sends Cancel if the worker knows the request and has not finished it.
    fn forget(&self, handle: u64) {
        let mut inner = self.inner();
        if inner.requests.remove(&handle).is_none() {
            return;
        }
        // No credits follow an unsent Start: they are granted for events, which come only after it was sent.
        let is_start = |command: &SessionCommand| matches!(&command.kind, Some(session_command::Kind::Start(start)) if start.handle == handle);
        if let Some(unsent) = inner.outbox.iter().rposition(is_start) {
            inner.outbox.remove(unsent);
        } else {
            Self::send(&mut inner, session_command::Kind::Cancel(Cancel { handle }));
        }
    }

    /// Marks the worker as suspect because it did not answer in time: others are preferred for a while.
    pub(crate) fn suspect(&self) {
        self.inner().suspect_until = Some(Instant::now() + SUSPICION);
    }

    /// Whether other workers are preferred at `now`.
    pub(crate) fn is_suspect(&self, now: Instant) -> bool {
        self.inner().suspect_until.is_some_and(|until| now < until)
    }

    fn is_closed(&self) -> bool {
        self.inner().closed
    }

    /// Puts a tick's events into the mailboxes of their requests.
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
            // An unknown handle belongs to a request that was dropped.
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

    /// Closes the session and loses all its requests. Returns their number.
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

/// The stream of commands for tonic.
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
