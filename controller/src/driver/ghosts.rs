//! Engines of lost workers, watched until they are shown gone (PROTOCOL.md 1): by this process where it can see them itself, else through a
//! live worker that can.
//!
//! A pid means something only inside its pid namespace, and a missing one is no proof: so an engine's end counts only if its process was
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

use muster_policy::{Event, InstanceId, WorkerId};
use muster_proto::v1::{self, InstanceStatus, ProcessId};
use tokio::time::Instant;

use super::{Driver, sessions::Sent};

const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Engines that were seen, by instance, and when to look at those of lost workers.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    seen: BTreeMap<String, Vec<ProcessId>>,
    /// Questions to other workers without an answer, by their id on the wire.
    asked: BTreeMap<String, InstanceId>,
    questions: u64,
    next: Option<Look>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    after: Duration,
}

impl Ghosts {
    /// Remembers an instance's processes if they can be seen from here.
    pub(super) fn note(&mut self, status: &InstanceStatus) {
        let known = self.seen.get(&status.instance_id);
        if known.is_some_and(|known| *known == status.engine) {
            return;
        }
        // The root of the tree is first; helpers may already have ended.
        if status.engine.first().is_some_and(runs) {
            self.seen
                .insert(status.instance_id.clone(), status.engine.clone());
        }
    }

    /// Keeps only these instances.
    pub(super) fn retain(&mut self, known: &BTreeSet<String>) {
        self.seen.retain(|id, _| known.contains(id));
        self.asked.retain(|_, ghost| known.contains(ghost.as_str()));
    }

    /// A worker was lost, or one came that may see its engines: looks begin.
    pub(super) fn begin(&mut self) {
        self.next = Some(Look {
            at: Instant::now() + FIRST_LOOK,
            after: FIRST_LOOK,
        });
    }

    /// The ghost that a question was about, once.
    pub(super) fn answered(&mut self, wire_id: &str) -> Option<InstanceId> {
        self.asked.remove(wire_id)
    }

    /// When to look next.
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
        let ghosts = self
            .fleet
            .instances()
            .into_iter()
            .filter(|instance| instance.ghost);
        let mut left = false;
        for ghost in ghosts.collect::<Vec<_>>() {
            match self.ghosts.gone(ghost.id.as_str()) {
                Some(true) => self.ghost_gone(ghost.id),
                Some(false) => left = true,
                None => left |= self.ask_about(&ghost.id, &ghost.worker),
            }
        }
        if left {
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
        self.feed(Event::GhostGone { instance });
        self.prune = true;
    }

    /// Asks a live worker that sees the same processes as the lost one did; false if there is none.
    fn ask_about(&mut self, ghost: &InstanceId, lost: &WorkerId) -> bool {
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
            self.ghosts.asked.insert(id, ghost.clone());
        }
        true
    }

    /// A worker looked at a ghost's processes.
    pub(super) fn looked_at(&mut self, ghost: InstanceId, outcome: &v1::Outcome) {
        if let Some(v1::outcome::Kind::Done(_)) = outcome.kind {
            self.ghost_gone(ghost);
        }
    }
}

/// Whether a process runs here: same pid, same start time (field 22 of `/proc/PID/stat`, proc(5)), and no zombie, whose memory is back.
fn runs(process: &ProcessId) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{}/stat", process.pid)) else {
        return false;
    };
    // The second field is the command in parentheses, and may hold anything.
    let Some((_, rest)) = stat.rsplit_once(')') else {
        return false;
    };
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next();
    let start = fields.nth(18).and_then(|field| field.parse::<u64>().ok());
    !matches!(state, Some("Z" | "X") | None) && start == Some(process.start_time)
}
