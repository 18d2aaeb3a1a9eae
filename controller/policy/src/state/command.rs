//! Commands to an instance: the one without an outcome, and the last ones, so that no round of them goes on without pauses.

use std::collections::VecDeque;
use std::time::Duration;

use muster_core::HoldId;

use crate::api::{CommandId, Moment};

/// Commands that are remembered, so that not even a round of several goes on without pauses.
const REMEMBERED: usize = 8;

/// Wait before the same command is given a second time; doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(4);

/// Who was not given the same command for so long begins anew.
const FORGIVEN: Duration = Duration::from_secs(60);

/// A command without an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) id: CommandId,
    pub(crate) asked: Asked,
}

/// What a command asked for.
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

/// The last commands to an instance, each once.
#[derive(Debug, Default)]
pub(crate) struct Given {
    last: VecDeque<Repeat>,
    /// When a command may be given that was due before its time.
    pub(crate) rests_until: Option<Moment>,
}

/// A command that was given, maybe several times without much else between.
#[derive(Debug, Clone)]
struct Repeat {
    what: Asked,
    at: Moment,
    times: u32,
}

impl Given {
    /// Whatever is asked for now is no repetition.
    pub(crate) fn forget(&mut self) {
        self.last.clear();
        self.rests_until = None;
    }

    /// Notes that a command is given.
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

    /// The same command is given again only after a pause that grows: so no answer to it, and no report beside it, can make it due again at
    /// once, and again. Says whether it is to wait.
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
