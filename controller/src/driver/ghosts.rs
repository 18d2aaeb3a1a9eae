//! Engines of lost workers, watched where this process can see them itself (PROTOCOL.md 1: a ghost ends when its engine is shown gone).
//!
//! A pid means something only inside its pid namespace, and a missing one is no proof: so an engine's end counts only if its process was
//! seen here, with the right start time, while its worker was connected. Nothing else of another machine or container can match that.
//!
//! ```text
//! reported with processes ─► seen here? ─► remembered ─► worker lost ─► looked at, 1 ms to 1 s apart ─► all gone ─► told
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use muster_policy::Event;
use muster_proto::v1::{InstanceStatus, ProcessId};
use tokio::time::Instant;

use super::Driver;

const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_secs(1);

/// Engines that were seen, by instance, and when to look at those of lost workers.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    seen: BTreeMap<String, Vec<ProcessId>>,
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
    }

    /// A worker was lost: looks begin.
    pub(super) fn begin(&mut self) {
        if !self.seen.is_empty() {
            self.next = Some(Look {
                at: Instant::now() + FIRST_LOOK,
                after: FIRST_LOOK,
            });
        }
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
                Some(true) => {
                    tracing::info!(instance = %ghost.id, worker = %ghost.worker, "the engine of a lost worker is gone");
                    self.feed(Event::GhostGone { instance: ghost.id });
                    self.prune = true;
                }
                Some(false) => left = true,
                None => {}
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
