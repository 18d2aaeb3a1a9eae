//! Reading images: each part is encoded beside the loop, and decoded by it, one piece per tick, so that streams go on beside a large image.

use std::sync::Arc;

use muster_core::Code;

use super::{Engine, decode::NO_ADAPTERS};
use crate::{context::DecodeError, media::Look, plan::Part as Planned};

impl Engine {
    /// Has the parts encoded that must be read next, and ends the requests whose images cannot be encoded.
    pub(super) fn have_encoded(&mut self) {
        let Some(encoder) = &self.encoder else { return };
        let mut failed = Vec::new();
        for slot in &self.slots {
            let Some(run) = slot.run.as_ref().filter(|run| !run.preempted) else {
                continue;
            };
            let (Some(part), Some(request)) = (slot.next_part(), self.requests.get(&run.handle)) else {
                continue;
            };
            match part.look() {
                Look::Raw => encoder.encode(part, &request.control),
                Look::Coming | Look::Ready => {}
                Look::Failed(why) => failed.push((run.handle, why)),
            }
        }
        for (handle, why) in failed {
            self.fail(handle, Code::RuntimeError.error(why));
        }
    }

    /// The sequence whose image is read next: the oldest of those whose next part is encoded.
    pub(super) fn next_image(&self) -> Option<usize> {
        let ready = |index: &usize| {
            let slot = &self.slots[*index];
            let age = slot.run.as_ref().filter(|run| !run.preempted)?.age;
            matches!(slot.next_part()?.look(), Look::Ready).then_some((age, *index))
        };
        let indices: Vec<usize> = (0..self.slots.len()).collect();
        indices.iter().filter_map(ready).min().map(|(_, index)| index)
    }

    /// Decodes a piece of a sequence's next part.
    pub(super) fn decode_image(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let Some(part) = slot.next_part().map(Arc::clone) else {
            return;
        };
        let Some(embeddings) = part.embeddings() else {
            return;
        };
        if slot.held.begun() == 0 {
            slot.held.agrees(&mut self.context, &slot.content);
        }
        let Some(run) = slot.run.as_ref() else { return };
        // What was read may just have been found worthless.
        if slot.next_part().is_none_or(|next| !Arc::ptr_eq(next, &part)) {
            return;
        }
        let control = self
            .requests
            .get(&run.handle)
            .map(|request| Arc::clone(&request.control));
        let begin = i32::try_from(slot.content.position(slot.held.len())).unwrap_or(i32::MAX);
        let (batch, begun) = (self.context.info().n_batch as usize, slot.held.begun());
        let riders = self.parts.iter().any(|planned| planned.tokens == 1);
        let most = if riders {
            self.pace.beside(1, batch)
        } else {
            self.pace.alone(batch)
        };
        let end = if part.whole {
            part.cells
        } else {
            part.cells.min(begun + most.clamp(1, batch))
        };
        let seq = slot.held.seq();
        let positions = part.positions_from(begin);
        self.context.stop_when_cancelled(control.into_iter());
        let cells = begun..end;
        if !self.apply_adapters_of(index) {
            let tokens = cells.len();
            return self.recover(NO_ADAPTERS, &[Planned { seq: index, tokens }]);
        }
        match self
            .context
            .decode_part(&part, &embeddings, &positions, cells.clone(), seq)
        {
            Ok(()) => {
                self.broken = 0;
                let slot = &mut self.slots[index];
                slot.last_used = self.clock;
                slot.held.begins(cells.len());
                if end == part.cells {
                    let len = slot.held.len() + part.cells;
                    slot.held.grown_to(len);
                    part.read();
                    self.report_progress();
                }
            }
            Err(error) => {
                let whom = [Planned {
                    seq: index,
                    tokens: cells.len(),
                }];
                match error {
                    // The next tick tries again.
                    DecodeError::NoRoom => {
                        let _ = self.drop_idle_cache() || self.preempt(&whom);
                    }
                    DecodeError::Refused => self.isolate(&whom),
                    DecodeError::GivenUp => self.give_up(&whom),
                    DecodeError::Broken(code) => self.recover(code, &whom),
                }
            }
        }
    }
}
