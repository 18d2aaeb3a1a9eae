//! One planned decode: builds the batch, runs it, samples where there are logits, and makes room if there is none.

use std::{sync::Arc, time::Instant};

use muster_core::Code;

use super::{Engine, checkpoints::Checkpoint};
use crate::{
    context::{DecodeError, Extent},
    plan::Part,
};

/// Number of decodes in a row that may fail before the batch's requests fail.
const PATIENCE: u32 = 3;
/// A checkpoint is taken this many tokens before a prompt's end, because chats differ in the last few tokens (the generation prompt).
const CHECKPOINT_BEFORE_END: usize = 4;

/// The code of a decode that could not begin, beside llama.cpp's own.
pub(super) const NO_ADAPTERS: i32 = -4;

impl Engine {
    /// Decodes the parts in `self.parts`.
    pub(super) fn decode_planned(&mut self, started: Instant) {
        let parts = std::mem::take(&mut self.parts);
        let tokens: usize = parts.iter().map(|part| part.tokens).sum();
        if tokens > parts.len() {
            self.decode_parts(&parts);
            let micros = micros_since(started);
            // a decode that was stopped says nothing about the cost of a whole one
            if !self.any_cancelled() {
                self.pace.read(tokens, micros);
            }
            tracing::trace!(tokens, sequences = parts.len(), micros, "read prompts");
        } else {
            let guesses = self.guesses_in(&parts);
            let grouping = &self.grouping[usize::from(self.allotted > 1)];
            for call in parts.chunks(grouping.size(parts.len())) {
                self.decode_parts(call);
            }
            self.time_round(parts.len(), guesses, micros_since(started));
        }
        self.parts = parts;
    }

    /// Decodes parts, in several pieces if there is no room for all at once.
    fn decode_parts(&mut self, parts: &[Part]) {
        loop {
            self.build(parts);
            let Some(first) = parts.first().filter(|_| !self.batch.is_empty()) else {
                return;
            };
            if !self.apply_adapters_of(first.seq) {
                return self.recover(NO_ADAPTERS, parts);
            }
            if self.batch.len() > parts.len() {
                let whom = parts
                    .iter()
                    .filter_map(|part| self.requests.get(&self.slots[part.seq].run.as_ref()?.handle))
                    .map(|request| Arc::clone(&request.control));
                self.context.stop_when_cancelled(whom);
            }
            match self.context.decode(&self.batch) {
                Ok(()) => {
                    self.broken = 0;
                    return self.advance();
                }
                Err(DecodeError::NoRoom) => {
                    if self.withdraw(parts) || self.drop_idle_cache() {
                        continue;
                    }
                    if self.batch.len() > 1 {
                        let (first, second) = halve(parts);
                        self.decode_parts(&first);
                        return self.decode_parts(&second);
                    }
                    if !self.preempt(parts) {
                        return;
                    }
                }
                Err(DecodeError::Refused) => return self.isolate(parts),
                Err(DecodeError::GivenUp) => return self.give_up(parts),
                Err(DecodeError::Broken(code)) => return self.recover(code, parts),
            }
        }
    }

    /// Applies the adapters of a sequence to the next decode. False if there is no memory for that.
    pub(super) fn apply_adapters_of(&mut self, index: usize) -> bool {
        let applied = self.context.apply(&self.slots[index].scales);
        if let Err(error) = &applied {
            tracing::error!(%error, "adapters could not be applied");
        }
        applied.is_ok()
    }

    /// Fills the batch. Leaves out parts of sequences that were preempted or ended in the meantime.
    fn build(&mut self, parts: &[Part]) {
        self.batch.clear();
        self.outputs.clear();
        for slot in &mut self.slots {
            slot.planned = 0;
        }
        for part in parts {
            let slot = &mut self.slots[part.seq];
            let Some(run) = &slot.run else { continue };
            if run.preempted {
                continue;
            }
            slot.held.agrees(&mut self.context, &slot.content);
            let from = slot.held.len();
            let mut to = from + part.tokens.min(slot.unread());
            if self.checkpoints.wanted() && run.first_token.is_none() {
                // stop where a checkpoint is wanted
                let at = run.prompt_len.saturating_sub(CHECKPOINT_BEFORE_END);
                if from < at && at < to {
                    to = at;
                }
            }
            let begin = slot.content.position(from);
            for index in from..to {
                let output = index + 1 == slot.content.len();
                let pos = i32::try_from(begin + index - from).unwrap_or(i32::MAX);
                let at = self
                    .batch
                    .push(slot.content.tokens[index], pos, slot.held.seq(), output);
                if output {
                    self.outputs.push((part.seq, at));
                }
            }
            slot.planned = to;
            if to == slot.content.len() {
                for (ahead, guess) in run.guesses.tokens().iter().enumerate() {
                    let pos = i32::try_from(begin + to - from + ahead).unwrap_or(i32::MAX);
                    self.batch.push(*guess, pos, slot.held.seq(), true);
                }
            }
        }
    }

    /// Notes what a round took in which so many sequences generated.
    fn time_round(&mut self, sequences: usize, guesses: usize, micros: u64) {
        if guesses == 0 {
            return self.pace.generated(sequences, micros);
        }
        tracing::trace!(sequences, guesses, micros, "guessed ahead");
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        self.price
            .took(guesses, micros as f64, self.pace.round(sequences));
    }

    /// Handles a successful decode: counts the tokens in memory and samples where there are logits.
    fn advance(&mut self) {
        let clock = self.clock;
        let taken = self.slots.iter().filter(|slot| slot.planned > 0).count();
        self.shared.totals().decoded(taken);
        for slot in &mut self.slots {
            if slot.planned > 0 {
                slot.held.grown_to(slot.planned);
                slot.planned = 0;
                slot.last_used = clock;
            }
        }
        if self.checkpoints.wanted() {
            self.take_checkpoints();
        }
        self.report_progress();
        let outputs = std::mem::take(&mut self.outputs);
        for (index, at) in &outputs {
            self.sample_along(*index, *at);
        }
        self.outputs = outputs;
    }

    fn take_checkpoints(&mut self) {
        for slot in &mut self.slots {
            let (seq, len) = (slot.held.seq(), slot.held.len());
            let wanted = slot.run.as_ref().is_some_and(|run| {
                run.first_token.is_none() && len == run.prompt_len.saturating_sub(CHECKPOINT_BEFORE_END)
            });
            if !wanted || len == 0 || self.checkpoints.has(seq, len) {
                continue;
            }
            if let Some(data) = self.context.save_state(seq, Extent::Fixed) {
                self.checkpoints.keep(Checkpoint {
                    seq,
                    len,
                    data,
                    used: self.clock,
                });
            }
        }
    }

    /// Handles an invalid batch, of which llama.cpp took nothing: decodes each sequence alone, so that only the one with the error ends.
    pub(super) fn isolate(&mut self, parts: &[Part]) {
        if let [part] = parts {
            let slot = &mut self.slots[part.seq];
            slot.held.forget(&mut self.context);
            let Some(run) = &slot.run else { return };
            let handle = run.handle;
            tracing::error!(handle, "llama.cpp refused a sequence");
            return self.fail(
                handle,
                Code::RuntimeError.error("llama.cpp could not decode (code -1)"),
            );
        }
        for part in parts {
            self.decode_parts(std::slice::from_ref(part));
        }
    }

    /// Handles a decode that stopped because all its requests were cancelled: keeps the memory that the decode did not touch.
    pub(super) fn give_up(&mut self, parts: &[Part]) {
        for part in parts {
            let slot = &mut self.slots[part.seq];
            slot.planned = 0;
            if self.checkpoints.wanted() {
                // such a state may hold half of the old and half of the new token
                slot.held.forget(&mut self.context);
            } else {
                slot.held.cut(&mut self.context, &slot.content, slot.held.len());
            }
        }
    }

    /// Handles a failed decode: parts of the batch may be in memory, and the logits are lost (ENGINE.md 4).
    pub(super) fn recover(&mut self, code: i32, parts: &[Part]) {
        self.broken += 1;
        tracing::error!(code, in_a_row = self.broken, "a decode broke");
        for part in parts {
            let slot = &mut self.slots[part.seq];
            slot.planned = 0;
            slot.held.cut(&mut self.context, &slot.content, slot.held.len());
        }
        if self.broken >= PATIENCE {
            self.broken = 0;
            let handles: Vec<u64> = parts
                .iter()
                .filter_map(|part| self.slots[part.seq].run.as_ref().map(|run| run.handle))
                .collect();
            for handle in handles {
                self.fail(
                    handle,
                    Code::RuntimeError.error(format!("llama.cpp could not decode (code {code})")),
                );
            }
        }
    }
}

fn micros_since(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Splits parts in two of about the same number of tokens; the second may continue the first's last sequence.
fn halve(parts: &[Part]) -> (Vec<Part>, Vec<Part>) {
    let total: usize = parts.iter().map(|part| part.tokens).sum();
    let mut left = total / 2;
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for part in parts {
        let here = part.tokens.min(left);
        left -= here;
        if here > 0 {
            first.push(Part {
                seq: part.seq,
                tokens: here,
            });
        }
        if part.tokens > here {
            second.push(Part {
                seq: part.seq,
                tokens: part.tokens - here,
            });
        }
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn halves_make_the_whole(tokens in prop::collection::vec(1_usize..50, 1..10)) {
            let parts: Vec<Part> = tokens.iter().enumerate().map(|(seq, tokens)| Part { seq, tokens: *tokens }).collect();
            let (first, second) = halve(&parts);
            let total = |parts: &[Part]| parts.iter().map(|part| part.tokens).sum::<usize>();
            prop_assert_eq!(total(&first) + total(&second), total(&parts));
            prop_assert_eq!(total(&first), total(&parts) / 2);
            for part in &parts {
                let of = |half: &[Part]| half.iter().filter(|p| p.seq == part.seq).map(|p| p.tokens).sum::<usize>();
                prop_assert_eq!(of(&first) + of(&second), part.tokens);
            }
        }
    }
}
