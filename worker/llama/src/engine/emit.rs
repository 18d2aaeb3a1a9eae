//! Collects the loop's events about its requests during a tick.

use std::{
    sync::{Arc, PoisonError},
    time::Instant,
};

use muster_core::Error;
use muster_proto::v1::{Delta, Event, Finished, PromptProgress, SequenceEvents, Timings, Usage, event};

use super::{
    Engine,
    generate::Ending,
    slot::{Request, Run},
};
use crate::{
    parse::{End, Lane, Output},
    request::millis,
};

const fn of(kind: event::Kind) -> Event {
    Event {
        kind: Some(kind),
        extra_json: String::new(),
    }
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl Engine {
    /// Adds an event of a running request to this tick.
    pub(super) fn emit(&mut self, handle: u64, kind: event::Kind) {
        let clock = self.clock;
        let Some(request) = self.requests.get_mut(&handle) else {
            return;
        };
        if request.out_at.0 != clock
            || self
                .out
                .get(request.out_at.1)
                .is_none_or(|entry| entry.handle != handle)
        {
            request.out_at = (clock, self.out.len());
            self.out.push(SequenceEvents {
                handle,
                events: Vec::with_capacity(1),
                finished: false,
            });
        }
        if let Some(entry) = self.out.get_mut(request.out_at.1) {
            entry.events.push(of(kind));
        }
    }

    /// Ends a handle with its terminal event. If the request ran, the caller must have removed it before.
    pub(super) fn emit_terminal(&mut self, handle: u64, kind: event::Kind) {
        match self.out.iter_mut().rev().find(|entry| entry.handle == handle) {
            Some(entry) => {
                entry.events.push(of(kind));
                entry.finished = true;
            }
            None => self.out.push(SequenceEvents {
                handle,
                events: vec![of(kind)],
                finished: true,
            }),
        }
    }

    /// Sends the collected output of slot `index` if an event is due.
    pub(super) fn emit_output(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        if slot
            .run
            .as_ref()
            .is_none_or(|run| !run.pending.is_due(run.params.interval))
        {
            return;
        }
        let Some(mut run) = slot.run.take() else { return };
        let handle = run.handle;
        let delta = self.take_output(&mut run);
        self.slots[index].run = Some(run);
        if let Some(delta) = delta {
            if let Some(request) = self.requests.get(&handle) {
                request.control.pay(1);
            }
            self.emit(handle, event::Kind::Delta(delta));
        }
    }

    /// Turns a run's collected output into an event. `None` if all of it is held back or was given to the run's lane.
    fn take_output(&mut self, run: &mut Run) -> Option<Delta> {
        let pending = &mut run.pending;
        let nothing = pending.text.is_empty() && (pending.tokens.is_empty() || run.text.held_bytes() > 0);
        if nothing {
            return None;
        }
        pending.count = 0;
        let timed = self.requests.get(&run.handle);
        let timed = timed.filter(|_| run.params.timings_per_token);
        let timings = timed.map(|request| timings(request, run.generated, Instant::now()));
        if let Some(lane) = &run.lane {
            if let Some(request) = self.requests.get(&run.handle) {
                request.control.pay(1);
            }
            let mut output = Output {
                text: &pending.text,
                marks: &mut pending.marks,
                logprobs: &mut pending.logprobs,
                tokens: &mut pending.tokens,
                generated: run.generated,
                timings,
            };
            let events = lane.push(&mut output, &self.parse);
            pending.text.clear();
            self.merge(events);
            return None;
        }
        Some(Delta {
            choice: run.choice,
            content: std::mem::take(&mut pending.text),
            logprobs: std::mem::take(&mut pending.logprobs),
            tokens: std::mem::take(&mut pending.tokens),
            generated: run.generated,
            timings,
            ..Delta::default()
        })
    }

    fn end_lane(&mut self, lane: &Arc<Lane>, end: End) {
        let queue = self.parse.clone();
        // the parse thread's events must follow those collected in this tick
        let events = lane.end(end, &queue, || {
            self.publish();
            self.flush();
        });
        self.merge(events);
    }

    /// Adds a lane's finished events to this tick.
    fn merge(&mut self, events: Option<SequenceEvents>) {
        let Some(mut events) = events else { return };
        match self
            .out
            .iter_mut()
            .rev()
            .find(|entry| entry.handle == events.handle)
        {
            Some(entry) => {
                entry.events.append(&mut events.events);
                entry.finished |= events.finished;
            }
            None => self.out.push(events),
        }
    }

    /// Ends the choice on slot `index`, and after the last choice the request. The sequence is free at once and keeps its cache.
    pub(super) fn finish(&mut self, index: usize, ending: &Ending) {
        let slot = &mut self.slots[index];
        let Some(mut run) = slot.run.take() else { return };
        slot.rest();
        run.text.finish(&mut run.pending.text);
        let handle = run.handle;
        let mut end = ending.event(run.choice, run.generated);
        end.truncated |= run.shifted;
        end.prompt.clone_from(&run.params.shown_prompt);
        end.sampling.clone_from(&run.params.shown_sampling);
        let delta = self.take_output(&mut run);
        if let Some(request) = self.requests.get_mut(&handle) {
            request.generated += run.generated;
            request.guessed[0] += run.guesses.drafted;
            request.guessed[1] += run.guesses.accepted;
            request.choices_left -= 1;
        }
        if let Some(delta) = delta {
            if let Some(request) = self.requests.get(&handle) {
                request.control.pay(1);
            }
            self.emit(handle, event::Kind::Delta(delta));
        }
        if run.lane.is_none() {
            self.emit(handle, event::Kind::ChoiceFinished(end.clone()));
        }
        let last = self
            .requests
            .get(&handle)
            .is_some_and(|request| request.choices_left == 0);
        let terminal = last
            .then(|| self.requests.remove(&handle))
            .flatten()
            .map(|request| self.finished(&request));
        match (run.lane, terminal) {
            (Some(lane), terminal) => {
                if terminal.is_some() {
                    *lane.group.terminal.lock().unwrap_or_else(PoisonError::into_inner) = terminal;
                }
                self.end_lane(&lane, End::Finished(end));
            }
            (None, Some(terminal)) => self.emit_terminal(handle, terminal),
            (None, None) => {}
        }
    }

    /// The terminal event of a request whose choices have all ended.
    fn finished(&self, request: &Request) -> event::Kind {
        let timings = timings(request, request.generated, Instant::now());
        self.shared.totals().ended(&timings);
        event::Kind::Finished(Finished {
            usage: Some(Usage {
                prompt_tokens: narrow(request.prompt_len),
                cached_tokens: narrow(request.cached),
                completion_tokens: request.generated,
                draft_tokens: request.guessed[0],
                draft_accepted_tokens: request.guessed[1],
                ..Usage::default()
            }),
            timings: Some(timings),
            id_slot: Some(narrow(request.slot)),
        })
    }

    /// Ends a request with an error. Its sequences are free at once.
    pub(super) fn fail(&mut self, handle: u64, error: Error) {
        let Some(request) = self.requests.remove(&handle) else {
            return;
        };
        self.shared
            .totals()
            .ended(&timings(&request, request.generated, Instant::now()));
        let mut lanes = Vec::new();
        for slot in &mut self.slots {
            if slot.run.as_ref().is_some_and(|run| run.handle == handle) {
                if let Some(run) = slot.run.take() {
                    lanes.extend(run.lane);
                }
                slot.rest();
            }
        }
        let waiting = std::mem::take(&mut self.waiting);
        for choice in waiting {
            if choice.run.handle == handle {
                lanes.extend(choice.run.lane);
            } else {
                self.waiting.push_back(choice);
            }
        }
        match &request.lanes {
            Some(group) => {
                *group.terminal.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(event::Kind::Failed(error.into()));
                for lane in lanes {
                    self.end_lane(&lane, End::Dropped);
                }
            }
            None => self.emit_terminal(handle, event::Kind::Failed(error.into())),
        }
    }

    /// Sends prompt progress to readers that asked for it. Skips requests that have no credit.
    pub(super) fn report_progress(&mut self) {
        self.report_progress_of(|_| true);
    }

    /// Sends the first progress to a reader that asked for it: the cached part of the prompt, before any of it is read.
    pub(super) fn report_beginning(&mut self, handle: u64) {
        self.report_progress_of(|run| run.handle == handle);
    }

    fn report_progress_of(&mut self, wanted: impl Fn(&Run) -> bool) {
        let mut reports = Vec::new();
        for slot in &self.slots {
            let Some(run) = slot.run.as_ref().filter(|run| wanted(run)) else {
                continue;
            };
            if !run.params.return_progress || run.choice != 0 || run.first_token.is_some() || run.preempted {
                continue;
            }
            let Some(request) = self.requests.get(&run.handle) else {
                continue;
            };
            if request.control.credit() > 1 {
                request.control.pay(1);
                let progress = PromptProgress {
                    total: narrow(run.prompt_len),
                    cached: narrow(request.cached),
                    processed: narrow(slot.held.len().min(run.prompt_len)),
                    elapsed_ms: millis(request.started, Instant::now()),
                };
                reports.push((run.handle, progress));
            }
        }
        for (handle, progress) in reports {
            self.emit(handle, event::Kind::Progress(progress));
        }
    }
}

/// The request's times until `now`, with `generated` tokens.
fn timings(request: &Request, generated: u32, now: Instant) -> Timings {
    let first = request.first_token.unwrap_or(now);
    Timings {
        prompt_n: narrow(request.prompt_len - request.cached),
        prompt_ms: millis(request.started, first),
        predicted_n: generated,
        predicted_ms: millis(first, now),
        cache_n: narrow(request.cached),
        queue_ms: 0.0,
    }
}
