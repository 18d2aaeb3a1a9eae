//! Watches engines of lost workers until they have ended (PROTOCOL.md 1): by looking at the process if it is visible here, else through a
//! live worker that can see it.
//!
//! A pid means something only inside its pid namespace, and a missing pid proves nothing. So an engine has ended only if its process was
//! seen here with the right start time while its worker was connected and is gone now; or if a worker of the same host and pid namespace
//! says so.
//! seen here, with the right start time, while its worker was connected; or if a worker of the same host and pid namespace says so.
//!
//! ```text
//! reported with processes ─► seen here? ─► remembered ─┐
//!                                 └ no ────────────────┴─► worker lost ─► looked at, or asked about, 1 ms to 1 s apart ─► all gone ─► told
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_core::{HostId, InstanceId, WorkerId};
use muster_policy::Event;
use muster_proto::v1::{self, InstanceStatus, ProcessId};
use tokio::time::Instant;

use super::{Driver, sessions::Sent};

const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Engines that were seen, by instance, and the next look at those of lost workers.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    seen: BTreeMap<String, Vec<ProcessId>>,
    /// Unanswered questions to other workers: the instance for each command id.
    asked: BTreeMap<String, InstanceId>,
    /// The unanswered question about each instance.
    open: BTreeMap<InstanceId, Question>,
    questions: u64,
    /// Hosts that may have such engines.
    hosts: BTreeSet<HostId>,
    next: Option<Look>,
}

#[derive(Debug)]
struct Question {
    wire_id: String,
    asked: WorkerId,
    at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    after: Duration,
}

impl Ghosts {
    /// Remembers an instance's processes if they are visible here.
    pub(super) fn note(&mut self, status: &InstanceStatus) {
        let known = self.seen.get(&status.instance_id);
        if known.is_some_and(|known| *known == status.engine) {
            return;
        }
        // The root of the process tree is first; helper processes may already have ended.
        if status.engine.first().is_some_and(runs) {
            self.seen
                .insert(status.instance_id.clone(), status.engine.clone());
        }
    }

    /// Removes an instance that has ended.
    pub(super) fn remove(&mut self, instance: &InstanceId) {
        self.seen.remove(instance.as_str());
        self.remove_question(instance);
    }

    /// Begins to look at the host's engines: one of its workers was lost, or one joined that may see them.
    pub(super) fn begin(&mut self, host: HostId) {
        self.hosts.insert(host);
        self.next = Some(Look {
            at: Instant::now() + FIRST_LOOK,
            after: FIRST_LOOK,
        });
    }

    /// The instance that a question was about; each answer counts once.
    pub(super) fn answered(&mut self, wire_id: &str) -> Option<InstanceId> {
        let ghost = self.asked.remove(wire_id)?;
        self.open.remove(&ghost);
        Some(ghost)
    }

    /// Whether the question about a ghost is still unanswered. A question that took too long is dropped.
    fn waits(&mut self, ghost: &InstanceId, patience: Duration) -> bool {
        let Some(question) = self.open.get(ghost) else {
            return false;
        };
        let waits = question.at.elapsed() < patience;
        if !waits {
            self.remove_question(ghost);
        }
        waits
    }

    fn remove_question(&mut self, ghost: &InstanceId) {
        if let Some(question) = self.open.remove(ghost) {
            self.asked.remove(&question.wire_id);
        }
    }

    /// Drops the questions to a worker whose session has ended.
    pub(super) fn unanswered_by(&mut self, worker: &WorkerId) {
        let asked = self.open.iter().filter(|(_, question)| question.asked == *worker);
        let ghosts: Vec<InstanceId> = asked.map(|(ghost, _)| ghost.clone()).collect();
        ghosts.iter().for_each(|ghost| self.remove_question(ghost));
    }

    /// When the next look is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next.map(|look| look.at)
    }

    fn gone(&self, id: &str) -> Option<bool> {
        self.seen.get(id).map(|processes| !processes.iter().any(runs))
    }
}

impl Driver {
    /// Looks at the engines of lost workers, and plans the next look if any is left.
    pub(super) fn look_at_ghosts(&mut self) {
        let after = self.ghosts.next.take().map_or(FIRST_LOOK, |look| look.after);
        for host in std::mem::take(&mut self.ghosts.hosts) {
            let mut left = false;
            for ghost in self.fleet.ghosts_of_host(&host) {
                match self.ghosts.gone(ghost.id.as_str()) {
                    Some(true) => self.ghost_gone(ghost.id),
                    Some(false) => left = true,
                    None => left |= self.ask_about(&ghost.id, &ghost.worker),
                }
            }
            if left {
                self.ghosts.hosts.insert(host);
            }
        }
        if !self.ghosts.hosts.is_empty() {
            let after = after.saturating_mul(2).min(LAST_LOOK);
            self.ghosts.next = Some(Look {
                at: Instant::now() + after,
                after,
            });
        }
    }
}

impl Driver {
    fn ghost_gone(&mut self, instance: InstanceId) {
        tracing::info!(%instance, "the engine of a lost worker is gone");
        self.ended.insert(instance.clone());
        self.feed(Event::GhostGone { instance });
    }

    /// Asks a live worker that sees the same processes as the lost one. Returns false if there is none.
    fn ask_about(&mut self, ghost: &InstanceId, lost: &WorkerId) -> bool {
        if self.ghosts.waits(ghost, self.config.timing.command_wait) {
            return true;
        }
        let processes = self.mirror.engine(ghost.as_str());
        let Some(peer) = self.mirror.peer(lost.as_str()).filter(|_| !processes.is_empty()) else {
            return false;
        };
        self.ghosts.questions += 1;
        let command = v1::Command {
            command_id: format!("{}-look-{}", self.run, self.ghosts.questions),
            instance_id: ghost.to_string(),
            kind: Some(v1::command::Kind::LookAt(v1::LookAt { processes })),
        };
        let id = command.command_id.clone();
        if self.sessions.ask(&peer, command) == Sent::Yes {
            let question = Question {
                wire_id: id.clone(),
                asked: peer,
                at: Instant::now(),
            };
            self.ghosts.open.insert(ghost.clone(), question);
            self.ghosts.asked.insert(id, ghost.clone());
        }
        true
    }

    /// Handles a worker's answer about a ghost's processes.
    pub(super) fn looked_at(&mut self, ghost: InstanceId, outcome: &v1::Outcome) {
        if let Some(v1::outcome::Kind::Done(_)) = outcome.kind {
            self.ghost_gone(ghost);
        }
    }
}

/// Whether a process runs here: same pid and start time (field 22 of `/proc/PID/stat`, proc(5)), and not a zombie, whose memory is free.
fn runs(process: &ProcessId) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)) else {
        return false;
    };
    // The second field is the command in parentheses, which may contain anything.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    let start = fields.nth(18).and_then(|field| field.parse::<u64>().ok());
    !matches!(state, Some("Z" | "X") | None) && start == Some(process.start_time)
}
