//! Admission: finds a sequence, the reusable part of its memory, and room for a request, or answers `no_room` (the worker queues, not the
//! engine).

use std::{sync::Arc, sync::atomic::AtomicU32, time::Instant};

use muster_core::{Code, Error};
use muster_proto::v1::{Admitted, event};

use super::{
    Engine,
    slot::{Pending, RESERVE, Request, Run, WaitingChoice},
};
use crate::{
    content::Content,
    draft::Guesses,
    model::Token,
    parse::{Lane, LaneGroup},
    pick::{Candidate, Pick, common_prefix, pick},
    request::{GenerateJob, GenerateParams, Job, Work},
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
    ) -> Result<(), (Error, u64)> {
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
                guesses: Guesses::new(params.guessing, self.first_odds()),
                text: TextStream::new(params.stops.clone(), params.min_indent),
                params: Arc::clone(&params),
                prompt_len: job.prompt.len(),
                generated: 0,
                first_token: None,
                preempted: false,
                shifted: false,
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
                guessed: [0; 2],
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
            self.report_beginning(handle);
        }
        self.waiting.extend(runs.map(|run| WaitingChoice {
            prompt: Arc::clone(&prompt),
            run,
        }));
        Ok(())
    }

    /// Picks a sequence with room for the request, or says why there is none.
    fn admission(&self, job: &GenerateJob) -> Result<Pick, Error> {
        let no_room = |why: &str| Code::NoRoom.error(why);
        if self.idle_slots() <= self.waiting.len() {
            return Err(no_room("no sequence is free"));
        }
        let reserve = job
            .params
            .max_tokens
            .map_or(RESERVE, |max| (max as usize).min(RESERVE));
        let need = job.prompt.len() + reserve * job.samplers.len();
        if !self.finds_cells(need) {
            return Err(no_room("too few KV cells are free"));
        }
        // As llama.cpp counts them: on from the last to the first.
        let wish = job.params.id_slot.map(|wish| wish % self.slots.len().max(1));
        self.pick(&job.prompt.tokens, wish, &job.params)
            .ok_or_else(|| no_room("the sequence is not free"))
    }

    fn pick(&self, prompt: &[Token], wish: Option<usize>, params: &GenerateParams) -> Option<Pick> {
        let candidates: Vec<Candidate<'_>> = self
            .slots
            .iter()
            .map(|slot| Candidate {
                idle: slot.run.is_none(),
                ours: slot.tenant == params.tenant,
                // What other adapters read is of no use, but an other's it remains.
                cached: if slot.tenant == params.tenant && slot.scales != params.scales {
                    &[]
                } else {
                    slot.cached()
                },
                last_used: slot.last_used,
            })
            .collect();
        pick(&candidates, prompt, wish, params.cache_prompt, self.may_share)
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

    /// Starts a choice on a sequence and keeps the part of the prompt that is already in memory. Returns its length in tokens.
    fn occupy(&mut self, picked: Pick, prompt: &Arc<Content>, run: Box<Run>) -> usize {
        // at least one token of the prompt must be read for its logits
        let most = prompt.len() - 1;
        let whole = |len: usize| prompt.whole(len.min(most));
        match picked.donor {
            Some((donor, len)) => self.take_over(donor, picked.seq, prompt, whole(len)),
            None => self.keep_prefix(picked.seq, prompt, whole(picked.own)),
        }
        let slot = &mut self.slots[picked.seq];
        slot.begin(prompt, run, self.clock);
        let kept = slot.held.len();
        self.checkpoints.drop_beyond(slot.held.seq(), kept);
        kept
    }

    /// Shares the first `len` tokens of another sequence's memory.
    fn take_over(&mut self, donor: usize, to: usize, prompt: &Content, len: usize) {
        let Ok([from, to]) = self.slots.get_disjoint_mut([donor, to]) else {
            return;
        };
        let context = &mut self.context;
        if from.held.reaches_back_to(context, prompt, len, self.reach) {
            to.held.share(context, &from.held, prompt, len);
        } else {
            to.held.forget(context);
        }
    }

    /// Cuts a sequence's memory down to a common prefix, or to the newest checkpoint in it.
    pub(super) fn keep_prefix(&mut self, index: usize, prompt: &Content, len: usize) {
        let (held, context) = (&mut self.slots[index].held, &mut self.context);
        if held.reaches_back_to(context, prompt, len, self.reach) {
            return held.cut(context, prompt, len);
        }
        match self.checkpoints.newest(held.seq(), len, self.clock) {
            Some(checkpoint) => held.restore(context, prompt, checkpoint.len, &checkpoint.data),
            None => held.forget(context),
        }
    }

    /// Starts waiting choices on sequences that became free.
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
            let need = next.prompt.len() + next.run.reserve();
            let shared = self
                .slots
                .iter()
                .filter(|slot| {
                    let params = &next.run.params;
                    slot.tenant == params.tenant && slot.scales == params.scales
                })
                .map(|slot| common_prefix(slot.cached(), &next.prompt.tokens))
                .max()
                .unwrap_or(0);
            let shared = if self.may_share { shared } else { 0 };
            if parent_reads || !self.finds_cells(need.saturating_sub(shared)) {
                return;
            }
            let Some(choice) = self.waiting.pop_front() else {
                return;
            };
            let Some(picked) = self.pick(&choice.prompt.tokens, None, &choice.run.params) else {
                self.waiting.push_front(choice);
                return;
            };
            self.occupy(picked, &choice.prompt, choice.run);
        }
    }
}
