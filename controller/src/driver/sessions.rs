//! The sessions in force, one per worker, and the commands that wait for an answer in them (PROTOCOL.md 3, 5).
//!
//! ```text
//!   join, no session of this worker ──────────────► open
//!   join, same boot ──► the old one is fenced ────► open
//!   join, other boot ─► occupied ─► (closed or silent for a ping) ─► open
//!   open ── task ended · goodbye · fenced ────────► closed: policy hears of it before anything else
//! ```
//!
//! Invariants: a message of a session that is not in this table is ignored; policy sends commands only to workers in this table. A closed
//! session's outstanding commands need no outcome, since policy forgets them with the session. In an open session every command has a
//! deadline: a worker answers at once, whatever it starts (reports tell the time of a load), so a missing answer was lost.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::Duration,
};

use muster_core::{SessionId, WorkerId};
use muster_policy::CommandId;
use muster_proto::v1::{self, controller_message::Kind as Down};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{inbox::Said, pulse::Pulse};

/// A session in force.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Id of the worker's process.
    pub(super) boot: String,
    /// The channel for commands and orders.
    pub(super) commands: mpsc::Sender<Box<Down>>,
    pub(super) end: CancellationToken,
    /// The worker's signs of life.
    pub(super) pulse: Pulse,
    /// Messages of the worker that were not read yet.
    pub(super) said: mpsc::Receiver<Said>,
    /// Commands without an answer, by their id on the wire.
    pub(super) outstanding: BTreeMap<String, CommandId>,
}

/// All sessions in force.
#[derive(Debug)]
pub(super) struct Sessions {
    by_worker: HashMap<WorkerId, Session>,
    workers: HashMap<SessionId, WorkerId>,
    /// How long an answer may take.
    patience: Duration,
    /// Deadlines of commands in the order in which they were sent; some commands have been answered.
    deadlines: VecDeque<Deadline>,
}

#[derive(Debug)]
struct Deadline {
    at: Instant,
    worker: WorkerId,
    wire_id: String,
}

/// Whether a command was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was; an outcome will follow, at the latest when the session ends.
    Yes,
    /// It was not; no outcome will follow.
    No,
}

impl Sessions {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            by_worker: HashMap::new(),
            workers: HashMap::new(),
            patience,
            deadlines: VecDeque::new(),
        }
    }

    pub(super) fn open(&mut self, worker: WorkerId, session: Session) {
        self.workers.insert(session.id.clone(), worker.clone());
        self.by_worker.insert(worker, session);
    }

    pub(super) fn of(&self, worker: &WorkerId) -> Option<&Session> {
        self.by_worker.get(worker)
    }

    /// The worker of a session, if the session is in force.
    pub(super) fn worker(&self, session: &SessionId) -> Option<WorkerId> {
        self.workers.get(session).cloned()
    }

    /// The next message of a session and its worker; none if there is none or the session is not in force.
    pub(super) fn said(&mut self, session: &SessionId) -> Option<(WorkerId, Said)> {
        let worker = self.workers.get(session)?;
        let said = self.by_worker.get_mut(worker)?.said.try_recv().ok()?;
        Some((worker.clone(), said))
    }

    pub(super) fn len(&self) -> usize {
        self.by_worker.len()
    }

    /// Ends a session; its messages no longer count. The caller must tell policy that the worker is lost, has left or has joined again
    /// before policy is asked anything else.
    pub(super) fn close(&mut self, worker: &WorkerId) {
        let Some(session) = self.by_worker.remove(worker) else {
            return;
        };
        self.workers.remove(&session.id);
        session.end.cancel();
    }

    /// Sends a command of policy, without waiting.
    pub(super) fn send(&mut self, worker: &WorkerId, id: CommandId, command: v1::Command) -> Sent {
        if self.of(worker).is_none() {
            tracing::error!(%worker, "policy commands a worker without a session");
        }
        let wire_id = command.command_id.clone();
        let sent = self.ask(worker, command);
        if let Some(session) = self.by_worker.get_mut(worker).filter(|_| sent == Sent::Yes) {
            session.outstanding.insert(wire_id.clone(), id);
            self.deadlines.push_back(Deadline {
                at: Instant::now() + self.patience,
                worker: worker.clone(),
                wire_id,
            });
        }
        sent
    }

    /// When the next deadline of a command is.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.deadlines.front().map(|deadline| deadline.at)
    }

    /// Commands whose deadlines have passed in open sessions, each once, with their workers.
    pub(super) fn overdue(&mut self) -> Vec<(WorkerId, CommandId)> {
        let now = Instant::now();
        let due = self
            .deadlines
            .iter()
            .take_while(|deadline| deadline.at <= now)
            .count();
        let due: Vec<Deadline> = self.deadlines.drain(..due).collect();
        let unanswered = |due: Deadline| Some((self.answered(&due.worker, &due.wire_id)?, due.worker));
        due.into_iter()
            .filter_map(unanswered)
            .map(|(id, worker)| (worker, id))
            .collect()
    }

    /// Sends a command whose answer policy does not wait for. A session that takes none although its channel is large has stopped reading,
    /// so it is ended.
    pub(super) fn ask(&mut self, worker: &WorkerId, command: v1::Command) -> Sent {
        self.push(worker, Down::Command(command))
    }

    /// Sends an order about files in the same way. The caller knows whether the worker understands it.
    pub(super) fn order(&mut self, worker: &WorkerId, order: v1::FilesOrder) -> Sent {
        self.push(worker, Down::Files(order))
    }

    fn push(&mut self, worker: &WorkerId, message: Down) -> Sent {
        let Some(session) = self.by_worker.get_mut(worker) else {
            return Sent::No;
        };
        match session.commands.try_send(Box::new(message)) {
            Ok(()) => Sent::Yes,
            Err(error) => {
                tracing::warn!(%worker, %error, "session takes no commands; ending it");
                session.end.cancel();
                Sent::No
            }
        }
    }

    /// The command that an outcome answers; each outcome counts once.
    pub(super) fn answered(&mut self, worker: &WorkerId, wire_id: &str) -> Option<CommandId> {
        let id = self.by_worker.get_mut(worker)?.outstanding.remove(wire_id);
        // Remove deadlines of answered commands, so that they cause no timer.
        while self
            .deadlines
            .front()
            .is_some_and(|first| !self.is_outstanding(first))
        {
            self.deadlines.pop_front();
        }
        id
    }

    fn is_outstanding(&self, of: &Deadline) -> bool {
        let session = self.by_worker.get(&of.worker);
        session.is_some_and(|session| session.outstanding.contains_key(&of.wire_id))
    }

    /// Ends a session from our side; its task then reports the end.
    pub(super) fn end(&self, worker: &WorkerId) {
        if let Some(session) = self.by_worker.get(worker) {
            session.end.cancel();
        }
    }
}
