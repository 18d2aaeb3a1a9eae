//! What is done with the cache of a sequence that nobody uses: saving, restoring, erasing (llama.cpp's `/slots/{id}`).
//!
//! Orders wait here until their sequence is idle. Whoever gave one may go away at any time, and nothing is done for it then.

use std::{sync::Arc, time::Instant};

use muster_core::{Code, Error};

use super::Engine;
use crate::{
    content::Content,
    context::Extent,
    request::{SlotAction, SlotJob, Timed},
    saved::Saved,
};

impl Engine {
    /// Takes an order, and does it if its sequence is idle.
    pub(super) fn order(&mut self, job: SlotJob) {
        if job.slot >= self.slots.len() {
            let error = Code::InvalidRequest.error("Invalid slot ID");
            return job.action.refuse(error.with_param("id_slot"));
        }
        self.orders.push_back(job);
        self.act_on_slots();
    }

    /// Does what was ordered for sequences that are idle now.
    pub(super) fn act_on_slots(&mut self) {
        if self.orders.is_empty() {
            return;
        }
        for job in std::mem::take(&mut self.orders) {
            if job.action.is_abandoned() {
                continue;
            }
            if self.slots[job.slot].run.is_some() {
                self.orders.push_back(job);
                continue;
            }
            self.act(job);
        }
    }

    fn act(&mut self, job: SlotJob) {
        let started = Instant::now();
        // Whoever does not listen any more had it done all the same.
        match job.action {
            SlotAction::Save(answer) => {
                let saved = self.save_slot(job.slot);
                drop(answer.send(saved.map(|saved| Timed::since(started, saved))));
            }
            SlotAction::Restore {
                saved,
                tenant,
                answer,
            } => {
                let done = self.restore_slot(job.slot, &saved, tenant);
                drop(answer.send(done.map(|()| Timed::since(started, ()))));
            }
            SlotAction::Erase(answer) => {
                let tokens = self.slots[job.slot].held.len();
                self.forget_slot(job.slot);
                drop(answer.send(Ok(Timed::since(started, tokens))));
            }
        }
    }

    fn save_slot(&mut self, index: usize) -> Result<Saved, Error> {
        let slot = &mut self.slots[index];
        if slot.content.has_parts() || slot.held.begun() > 0 {
            return Err(
                Code::UnsupportedByRuntime.error("the slot holds images: only sequences of text are saved")
            );
        }
        slot.held.agrees(&mut self.context, &slot.content);
        let (tokens, scales) = (slot.cached().to_vec(), slot.scales.as_slice().to_vec());
        let state = if tokens.is_empty() {
            Vec::new()
        } else {
            let state = self.context.save_state(slot.held.seq(), Extent::Whole);
            state.ok_or_else(|| Code::RuntimeError.error("Unable to save slot"))?
        };
        Ok(Saved {
            scales,
            tokens,
            state,
        })
    }

    fn restore_slot(&mut self, index: usize, saved: &Saved, tenant: Option<Arc<str>>) -> Result<(), Error> {
        let no_room = || Code::NoRoom.error("Unable to restore slot: too few KV cells are free");
        if !self.finds_cells(saved.tokens.len()) {
            return Err(no_room());
        }
        self.forget_slot(index);
        if saved.tokens.is_empty() {
            return Ok(());
        }
        let content = Content::from(saved.tokens.clone());
        loop {
            let held = &mut self.slots[index].held;
            if held.take_in(&mut self.context, &content, &saved.state) {
                break;
            }
            // Where each sequence has its own cells, others' are of no use.
            if self.context.info().is_split() || !self.drop_idle_cache() {
                return Err(no_room());
            }
        }
        let slot = &mut self.slots[index];
        slot.content = content;
        slot.tenant = tenant;
        slot.scales = saved.scales.clone().into();
        slot.last_used = self.clock;
        Ok(())
    }

    fn forget_slot(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.held.forget(&mut self.context);
        slot.content.clear();
        slot.tenant = None;
        self.checkpoints.drop_beyond(slot.held.seq(), 0);
    }
}
