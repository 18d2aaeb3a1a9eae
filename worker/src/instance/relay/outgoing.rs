//! Commands that wait until the engine accepts them.

use std::collections::VecDeque;

use muster_proto::v1::{Credit, SessionCommand, session_command::Kind as Command};

/// From this length on, a credit is merged with an earlier one for the same handle.
const MERGE_FROM: usize = 64;

/// The commands. Their number is limited: a start and a cancel per running request, and merged credits.
#[derive(Debug, Default)]
pub(super) struct Outgoing(VecDeque<SessionCommand>);

impl Outgoing {
    pub(super) fn push(&mut self, kind: Command) {
        self.0.push_back(SessionCommand { kind: Some(kind) });
    }

    pub(super) fn credit(&mut self, handle: u64, events: u32) {
        if self.0.len() < MERGE_FROM || !self.merge(handle, events) {
            self.push(Command::Credit(Credit { handle, events }));
        }
    }

    fn merge(&mut self, handle: u64, events: u32) -> bool {
        self.0.iter_mut().rev().any(|command| match &mut command.kind {
            Some(Command::Credit(credit)) if credit.handle == handle => {
                credit.events = credit.events.saturating_add(events);
                true
            }
            Some(Command::Credit(_) | Command::Start(_) | Command::Cancel(_)) | None => false,
        })
    }

    pub(super) fn next(&mut self) -> Option<SessionCommand> {
        self.0.pop_front()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
