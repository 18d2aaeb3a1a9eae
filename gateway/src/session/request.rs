//! A request on a session, as its owner holds it. Dropping it cancels the work.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use muster_proto::v1::{Event, Start, event};

use super::{Batch, CREDIT, Session, mailbox::Mailbox};

/// A running request.
#[derive(Debug)]
pub(crate) struct Request<G> {
    session: Arc<Session>,
    handle: u64,
    mailbox: Arc<Mailbox>,
    /// Number of events rendered since credit was last granted.
    taken: u32,
    /// What must live as long as the request, for example its place in a gauge.
    _guard: G,
}

impl<G> Request<G> {
    /// Sends `start` with the initial credit.
    pub(crate) fn start(session: Arc<Session>, start: Start, guard: G) -> Self {
        let (handle, mailbox) = session.start(Start {
            credit: CREDIT,
            ..start
        });
        Self {
            session,
            handle,
            mailbox,
            taken: 0,
            _guard: guard,
        }
    }

    /// Appends the events that are there to `out`, and grants credit for them.
    pub(crate) fn poll(&mut self, cx: &Context<'_>, out: &mut Vec<Event>) -> Poll<Batch> {
        let before = out.len();
        let batch = std::task::ready!(self.mailbox.poll(cx, out));
        for event in out.iter().skip(before) {
            if matches!(event.kind, Some(event::Kind::Delta(_) | event::Kind::Progress(_))) {
                self.taken += 1;
            }
        }
        if self.taken >= CREDIT / 2 {
            self.session.credit(self.handle, self.taken);
            self.taken = 0;
        }
        Poll::Ready(batch)
    }

    /// The session that it runs on.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }
}

impl<G> Drop for Request<G> {
    fn drop(&mut self) {
        self.session.forget(self.handle);
    }
}
