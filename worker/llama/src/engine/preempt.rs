//! Makes room in memory (ENGINE.md 4): first drops idle caches, then preempts the youngest sequence, which reads its tokens again later.
//! Its reader sees a pause.

use super::Engine;
use crate::plan::Part;

/// Number of tokens that must be free, besides its own, before a preempted sequence comes back. Otherwise it would be preempted again at
/// once.
const COMEBACK: usize = 64;

impl Engine {
    /// Forgets the least recently used idle cache; false if there is none.
    pub(super) fn drop_idle_cache(&mut self) -> bool {
        let idle = self
            .slots
            .iter_mut()
            .filter(|slot| slot.run.is_none() && !slot.held.is_empty())
            .min_by_key(|slot| slot.last_used);
        let Some(slot) = idle else { return false };
        slot.held.forget(&mut self.context);
        slot.content.clear();
        self.checkpoints.drop_beyond(slot.held.seq(), 0);
        true
    }

    /// Takes the memory of the youngest sequence. False if the one token in `parts` can't be decoded now: it was the victim, or it was alone and
    /// its context is full.
    pub(super) fn preempt(&mut self, parts: &[Part]) -> bool {
        let running = |slot: &super::slot::Slot| {
            slot.run
                .as_ref()
                .filter(|run| !run.preempted)
                .map(|run| (run.age, slot.held.seq()))
        };
        let wanting = parts.first().map(|part| part.seq);
        let victim = (0..self.slots.len())
            .filter_map(|i| running(&self.slots[i]).map(|key| (key, i)))
            .max();
        let others = self.slots.iter().filter(|slot| running(slot).is_some()).count();
        let Some((_, victim)) = victim else { return false };
        if others == 1 {
            // the sequence is alone and has no room: its context is full
            self.run_out_of_context(victim);
            return false;
        }
        let slot = &mut self.slots[victim];
        slot.held.forget(&mut self.context);
        slot.planned = 0;
        self.checkpoints.drop_beyond(slot.held.seq(), 0);
        if let Some(run) = &mut slot.run {
            tracing::info!(
                handle = run.handle,
                choice = run.choice,
                "preempted: no room for all sequences"
            );
            run.preempted = true;
        }
        Some(victim) != wanting
    }

    /// Lets preempted sequences read their tokens again, the oldest first, once there is room.
    pub(super) fn resume_preempted(&mut self) {
        loop {
            let preempted = (0..self.slots.len())
                .filter_map(|i| {
                    self.slots[i]
                        .run
                        .as_ref()
                        .filter(|run| run.preempted)
                        .map(|run| (run.age, i))
                })
                .min();
            let Some((_, index)) = preempted else { return };
            let alone = !self
                .slots
                .iter()
                .any(|slot| slot.run.as_ref().is_some_and(|run| !run.preempted));
            let slot = &self.slots[index];
            let ahead = slot.run.as_ref().map_or(0, |run| run.reserve().min(COMEBACK));
            // preempted sequences hold no cells: neither this one nor those that come back after it
            if !alone && slot.content.len() + ahead > self.cells_beside(|run| !run.preempted) {
                return;
            }
            if let Some(run) = &mut self.slots[index].run {
                run.preempted = false;
            }
        }
    }
}
