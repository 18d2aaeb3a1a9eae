//! Admission: a sequence, the reusable part of its memory, and room; or `no_room` (the worker queues, not the engine).

use std::{sync::Arc, sync::atomic::AtomicU32, time::Instant};

use muster_proto::{
    Code, ErrorExt as _,
    v1::{Admitted, ErrorInfo, event},
};

use super::{
    Engine,
    slot::{Pending, RESERVE, Request, Run, WaitingChoice},
};
use crate::{
    model::Token,
    parse::{Lane, LaneGroup},
    pick::{Candidate, Pick, common_prefix, pick},
    request::{GenerateJob, Job, Work},
    text::TextStream,
};

impl Engine {
    pub(super) fn start(&mut self, job: Job) {
        if job.control.is_cancelled() {
            return self.refuse(job.handle, Code::Cancelled.error("the request was cancelled"));
        }
        match job.work {
            Work::Embed(embed) => self.start_embed(job.handle, job.control, embed),
            Work::Generate(generate) => {
                if let Err((error, handle)) = self.start_generate(job.handle, &job.control, *generate) {
                    self.refuse(handle, error);
                }
            }
        }
    }

    fn start_generate(
        &mut self,
        handle: u64,
        control: &Arc<crate::control::Control>,
        job: GenerateJob,
    ) -> Result<(), (ErrorInfo, u64)> {
        let params = Arc::clone(&job.params);
        let picked = self.admission(&job).map_err(|error| (error, handle))?;
        let lanes = self.lanes(handle, control, &job);
        let mut runs = Vec::with_capacity(job.samplers.len());
        let choices = u32::try_from(job.samplers.len()).unwrap_or(u32::MAX);
        for (choice, sampler) in (0..).zip(job.samplers) {
            let lane = match (&lanes, &job.chat) {
                (Some(group), Some(chat)) => {
                    let parser = chat
                        .parser()
                        .map_err(|error| (Code::RuntimeError.error(error.to_string()), handle))?;
                    Some(Lane::new(
                        choice,
                        Arc::clone(group),
                        parser,
                        chat.info().tail_plain,
                    ))
                }
                _ => None,
            };
            runs.push(Box::new(Run {
                handle,
                choice,
                age: self.clock,
                sampler,
                text: TextStream::new(params.stops.clone(), params.min_indent),
                params: Arc::clone(&params),
                prompt_len: job.prompt.len(),
                generated: 0,
                first_token: None,
                preempted: false,
                newline: false,
                lane,
                pending: Pending::default(),
            }));
        }
        self.requests.insert(
            handle,
            Request {
                handle,
                control: Arc::clone(control),
                choices_left: choices,
                lanes,
                started: Instant::now(),
                first_token: None,
                prompt_len: job.prompt.len(),
                cached: 0,
                generated: 0,
                slot: picked.seq,
                allowance: 0,
                out_at: (0, 0),
            },
        );
        self.emit(handle, event::Kind::Admitted(Admitted::default()));
        let prompt = Arc::new(job.prompt);
        let mut runs = runs.into_iter();
        if let Some(first) = runs.next() {
            let cached = self.occupy(picked, &prompt, first);
            if let Some(request) = self.requests.get_mut(&handle) {
                request.cached = cached;
            }
        }
        self.waiting.extend(runs.map(|run| WaitingChoice {
            prompt: Arc::clone(&prompt),
            run,
        }));
        Ok(())
    }

    /// A sequence and room for the request, or why not.
    fn admission(&self, job: &GenerateJob) -> Result<Pick, ErrorInfo> {
        let no_room = |why: &str| Code::NoRoom.error(why);
        if self.idle_slots() <= self.waiting.len() {
            return Err(no_room("no sequence is free"));
        }
        if job.params.id_slot.is_some_and(|wish| wish >= self.slots.len()) {
            return Err(Code::InvalidRequest
                .error("there is no such slot")
                .with_param("id_slot"));
        }
        let reserve = job
            .params
            .max_tokens
            .map_or(RESERVE, |max| (max as usize).min(RESERVE));
        let need = job.prompt.len() + reserve * job.samplers.len();
        let busy = self.slots.iter().any(|slot| slot.run.is_some());
        if busy && need > self.free_cells() {
            return Err(no_room("too few KV cells are free"));
        }
        self.pick(&job.prompt, job.params.id_slot, job.params.cache_prompt)
            .ok_or_else(|| no_room("the sequence is not free"))
    }

    fn pick(&self, prompt: &[Token], wish: Option<usize>, reuse: bool) -> Option<Pick> {
        let candidates: Vec<Candidate<'_>> = self
            .slots
            .iter()
            .map(|slot| Candidate {
                idle: slot.run.is_none(),
                cached: slot.cached(),
                last_used: slot.last_used,
            })
            .collect();
        pick(&candidates, prompt, wish, reuse, self.may_share)
    }

    fn lanes(
        &self,
        handle: u64,
        control: &Arc<crate::control::Control>,
        job: &GenerateJob,
    ) -> Option<Arc<LaneGroup>> {
        let outbox = self.outbox.clone()?;
        job.chat.as_ref()?;
        Some(Arc::new(LaneGroup {
            handle,
            control: Arc::clone(control),
            outbox,
            waker: self.waker.clone(),
            open: AtomicU32::new(u32::try_from(job.samplers.len()).unwrap_or(u32::MAX)),
            terminal: std::sync::Mutex::new(None),
            reasoning: std::sync::Mutex::new(Some(0)),
        }))
    }

    /// Puts a choice on a sequence and keeps what its memory has of the prompt; returns how much.
    fn occupy(&mut self, picked: Pick, prompt: &Arc<Vec<Token>>, run: Box<Run>) -> usize {
        let n_past = match picked.donor {
            Some((donor, len)) => self.take_over(donor, picked.seq, len, prompt.len()),
            None => self.keep_prefix(picked.seq, picked.own, prompt.len()),
        };
        let clock = self.clock;
        let slot = &mut self.slots[picked.seq];
        slot.tokens.clear();
        slot.tokens.extend_from_slice(prompt);
        slot.n_past = n_past;
        slot.last_used = clock;
        slot.run = Some(run);
        n_past
    }

    /// Shares another sequence's beginning.
    fn take_over(&mut self, donor: usize, to: usize, len: usize, prompt_len: usize) -> usize {
        let (from_seq, to_seq) = (self.slots[donor].seq, self.slots[to].seq);
        self.context.forget(to_seq);
        self.context.share(from_seq, to_seq);
        let keep = len.min(prompt_len - 1);
        if self.context.forget_from(to_seq, keep) {
            keep
        } else {
            self.context.forget(to_seq);
            0
        }
    }

    /// Cuts a sequence's memory down to a common prefix; returns what is left. At least one token of the prompt must be read for its logits.
    fn keep_prefix(&mut self, index: usize, own: usize, prompt_len: usize) -> usize {
        let seq = self.slots[index].seq;
        let mut keep = own.min(prompt_len - 1);
        if keep == 0 {
            self.context.forget(seq);
            self.slots[index].checkpoints.clear();
            return 0;
        }
        if self.needs_checkpoints && keep < self.slots[index].n_past {
            keep = self.restore_checkpoint(index, keep);
        }
        if keep > 0 && !self.context.forget_from(seq, keep) {
            self.context.forget(seq);
            keep = 0;
        }
        self.slots[index]
            .checkpoints
            .retain(|checkpoint| checkpoint.n_past <= keep);
        keep
    }

    /// Goes back to the newest checkpoint at or before `keep` tokens; returns where that is (0 = nothing usable).
    fn restore_checkpoint(&mut self, index: usize, keep: usize) -> usize {
        let slot = &self.slots[index];
        let seq = slot.seq;
        // a window that still reaches back far enough needs no checkpoint
        let info = self.model.info();
        if !info.recurrent && !info.hybrid {
            let needed = keep.saturating_sub(info.n_swa as usize);
            if usize::try_from(self.context.first_position(seq))
                .is_ok_and(|first| first < needed || first == 0)
            {
                return keep;
            }
        }
        let Some(checkpoint) = slot
            .checkpoints
            .iter()
            .rev()
            .find(|checkpoint| checkpoint.n_past <= keep)
        else {
            return 0;
        };
        let n_past = checkpoint.n_past;
        if self.context.load_state(seq, &checkpoint.data) {
            n_past
        } else {
            0
        }
    }

    /// Gives waiting choices the sequences that became free.
    pub(super) fn admit_waiting(&mut self) {
        self.resume_preempted();
        while self.idle_slots() > 0 {
            let Some(next) = self.waiting.front() else { return };
            // the first choice is about to fill the cells that this one can share
            let handle = next.run.handle;
            let parent_reads = self.slots.iter().any(|slot| {
                slot.run
                    .as_ref()
                    .is_some_and(|run| run.handle == handle && run.choice == 0 && run.first_token.is_none())
            });
            let busy = self.slots.iter().any(|slot| slot.run.is_some());
            let need = next.prompt.len() + next.run.reserve();
            let shared = self
                .slots
                .iter()
                .map(|slot| common_prefix(slot.cached(), &next.prompt))
                .max()
                .unwrap_or(0);
            if parent_reads
                || (busy && need.saturating_sub(if self.may_share { shared } else { 0 }) > self.free_cells())
            {
                return;
            }
            let Some(choice) = self.waiting.pop_front() else {
                return;
            };
            let Some(picked) = self.pick(&choice.prompt, None, choice.run.params.cache_prompt) else {
                self.waiting.push_front(choice);
                return;
            };
            self.occupy(picked, &choice.prompt, choice.run);
        }
    }
}
