//! The sessions that count, one per worker, and the commands that wait for an answer in them (PROTOCOL.md 3, 5).
//!
//! ```text
//!   join, no session of this worker ──────────────► open
//!   join, same boot ──► the old one is fenced ────► open
//!   join, other boot ─► occupied ─► (closed or silent for a ping) ─► open
//!   open ── task ended · goodbye · fenced ────────► closed: policy hears of it before anything else
//! ```
//!
//! Invariants: a message of a session that is not in this table does not exist; policy commands only workers that are in this table. So what a
//! closed session had outstanding needs no outcome: policy forgets it with the session. In a session that goes on every command has a deadline: a
//! worker answers at once, whatever it sets in motion by it (a load's own time is told by reports), so an answer that does not come was lost.

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

/// A session that counts.
#[derive(Debug)]
pub(super) struct Session {
    /// Its name.
    pub(super) id: SessionId,
    /// The worker's process.
    pub(super) boot: String,
    /// Where commands and orders go.
    pub(super) commands: mpsc::Sender<Box<Down>>,
    pub(super) end: CancellationToken,
    /// Shows that it lives.
    pub(super) pulse: Pulse,
    /// What it said and nobody has read.
    pub(super) said: mpsc::Receiver<Said>,
    /// Commands without an answer, by their id on the wire.
    pub(super) outstanding: BTreeMap<String, CommandId>,
}

/// All sessions that count.
#[derive(Debug)]
pub(super) struct Sessions {
    by_worker: HashMap<WorkerId, Session>,
    workers: HashMap<SessionId, WorkerId>,
    /// How long an answer may take.
    patience: Duration,
    /// Of commands, in the order in which they were sent; some have been answered.
    deadlines: VecDeque<Deadline>,
}

#[derive(Debug)]
struct Deadline {
    at: Instant,
    worker: WorkerId,
    wire_id: String,
}

/// Whether a command is on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is; an outcome will follow, if only because the session ends.
    Yes,
    /// It is not, and nobody will answer.
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

    /// The worker of a session, if that session counts.
    pub(super) fn worker(&self, session: &SessionId) -> Option<WorkerId> {
        self.workers.get(session).cloned()
    }

    /// The next thing that a session said, and its worker; none if there is nothing or the session does not count.
    pub(super) fn said(&mut self, session: &SessionId) -> Option<(WorkerId, Said)> {
        let worker = self.workers.get(session)?;
        let said = self.by_worker.get_mut(worker)?.said.try_recv().ok()?;
        Some((worker.clone(), said))
    }

    pub(super) fn len(&self) -> usize {
        self.by_worker.len()
    }

    /// Ends a session; what comes of it now does not count any more. Policy must hear that the worker is lost, has left or has joined anew
    /// before it is asked anything else.
    pub(super) fn close(&mut self, worker: &WorkerId) {
        let Some(session) = self.by_worker.remove(worker) else {
            return;
        };
        self.workers.remove(&session.id);
        session.end.cancel();
    }

    /// Sends a command of policy, without ever waiting.
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

    /// When to look for commands without an answer.
    pub(super) fn overdue_at(&self) -> Option<Instant> {
        self.deadlines.front().map(|deadline| deadline.at)
    }

    /// Commands whose deadlines are over and whose sessions go on, each once, with their workers.
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

    /// Sends a command whose answer policy does not wait for. A session that takes none although its channel is large has stopped reading:
    /// it is ended.
    pub(super) fn ask(&mut self, worker: &WorkerId, command: v1::Command) -> Sent {
        self.push(worker, Down::Command(command))
    }

    /// Sends an order about files, in the same way; whether the worker understands it is the caller's to know.
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

    /// The command that an outcome answers, once.
    pub(super) fn answered(&mut self, worker: &WorkerId, wire_id: &str) -> Option<CommandId> {
        let id = self.by_worker.get_mut(worker)?.outstanding.remove(wire_id);
        // Nobody is to be woken for what was answered.
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
