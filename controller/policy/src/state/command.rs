//! Commands to an instance: the outstanding one, and the last ones, so that a cycle of commands cannot repeat without pauses.

use std::collections::VecDeque;
use std::time::Duration;

use muster_core::HoldId;

use crate::api::{CommandId, Moment};

/// Number of commands that are remembered per instance. More than one, since a cycle may consist of several commands.
const REMEMBERED: usize = 8;

/// Wait before the same command is sent a second time; doubles with each repetition.
const FIRST_PAUSE: Duration = Duration::from_millis(4);

/// After this long without the same command, the pauses begin anew.
const FORGIVEN: Duration = Duration::from_secs(60);

/// A command that has no outcome yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) id: CommandId,
    pub(crate) asked: Asked,
}

/// The kind of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Load,
    CancelLoad,
    Quiesce,
    Resume,
    Evict,
    OperatorUnload,
    SetAttributes,
    PlaceHold(HoldId),
    ReleaseHold(HoldId),
}

/// The last commands to an instance, each kind once.
#[derive(Debug, Default)]
pub(crate) struct Given {
    last: VecDeque<Repeat>,
    /// When the earliest command that was held back may be sent.
    pub(crate) rests_until: Option<Moment>,
}

/// A command and how often it was repeated lately.
#[derive(Debug, Clone)]
struct Repeat {
    what: Asked,
    at: Moment,
    times: u32,
}

impl Given {
    /// Forgets all commands, so that the next one does not count as a repetition.
    pub(crate) fn forget(&mut self) {
        self.last.clear();
        self.rests_until = None;
    }

    /// Records that a command is sent.
    pub(crate) fn note(&mut self, what: &Asked, now: Moment) {
        let before = self.last.iter().position(|last| last.what == *what);
        let before = before.and_then(|at| self.last.remove(at));
        let again = before.filter(|last| now.since(last.at) < FORGIVEN);
        self.last.truncate(REMEMBERED - 1);
        self.last.push_front(Repeat {
            what: what.clone(),
            at: now,
            times: again.map_or(0, |last| last.times.saturating_add(1)),
        });
        self.rests_until = None;
    }

    /// Whether a repeated command has to wait. The pause grows with each repetition, so that no answer or report can cause the same command
    /// in a busy loop.
    pub(crate) fn rests(&mut self, what: &Asked, now: Moment, longest: Duration) -> bool {
        let Some(last) = self.last.iter().find(|last| last.what == *what) else {
            return false;
        };
        let pause = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(last.times));
        let until = last.at + pause.min(longest);
        if until > now {
            self.rests_until = Some(self.rests_until.map_or(until, |other| other.min(until)));
        }
        until > now
    }
}
