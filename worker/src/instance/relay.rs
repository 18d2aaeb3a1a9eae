//! The relay of an engine: who waits, who runs, and how the engine's ticks become ticks of the sessions.
//!
//! ```text
//!                    ┌ full ──► queue_full          ┌ cancelled, superseded ──► failed
//!   begin ─admitted──┴► queue ──pump──► running ────┴► finished (once) ──► pump
//!                         ▲               │
//!                         └── no_room ────┘ before its first event; keeps its place
//! ```
//!
//! The hot path is [`Relay::tick`]: one hash lookup per sequence, one lock per session, no clock and no allocation per event. Credits go
//! from end to end: what a session grants is passed to the engine with its own handle; the count kept here only reveals slow readers.
//!
//! A handle at the engine is made of the ticket and the attempt, so a retry after `no_room` never uses one twice.
//!
//! Architecture invariant: knows no channel, process or clock. Commands for the engine wait in `outgoing`, whose length is limited: a start
//! and a cancel per request, and merged credits.

mod batches;
mod outgoing;
#[cfg(test)]
mod tests;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::{Code, Error};
use muster_proto::{
    trace,
    v1::{
        Admitted, Cancel, SequenceEvents, SessionCommand, Start, Tick, event::Kind,
        session_command::Kind as Command, start::Work,
    },
};
use rustc_hash::FxHashMap;
use tracing::Span;

use crate::{
    convert,
    instance::{
        admission::{Admission, Rank},
        duplicates::Claim,
        health::is_late,
    },
    session::outbox::{Reply, event},
};
use batches::Batches;
use outgoing::Outgoing;

/// Number of bits of an engine handle that count attempts.
const ATTEMPT_BITS: u32 = 20;

/// A new request.
#[derive(Debug)]
pub(crate) struct Begin {
    /// Its number at this worker.
    pub(crate) ticket: u64,
    /// The way to its caller.
    pub(crate) reply: Reply,
    /// The request as it arrived.
    pub(crate) start: Start,
    /// Its claim on its `request_id`; none if it has no id.
    pub(crate) claim: Option<Claim>,
    /// When it arrived.
    pub(crate) arrived: Instant,
}

/// Ticks were lost between the engine and the worker.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("tick {got} came where {want} was due")]
pub(crate) struct Gap {
    want: u64,
    got: u64,
}

#[derive(Debug)]
struct Job {
    ticket: u64,
    attempt: u64,
    /// None once the caller has its terminal event; the engine may still work on it.
    reply: Option<Reply>,
    /// Kept until the engine has accepted it.
    start: Option<Box<Start>>,
    /// Number of events that the engine may still send.
    credit: u64,
    /// Whether it needs credits; only generation does.
    metered: bool,
    starved: Option<Instant>,
    cancelled: bool,
    arrived: Instant,
    started: Instant,
    /// From its admission to its end.
    span: Span,
    _claim: Option<Claim>,
}

impl Job {
    fn handle(&self) -> u64 {
        (self.ticket << ATTEMPT_BITS) | (self.attempt & ((1 << ATTEMPT_BITS) - 1))
    }
}

/// Numbers of requests that began and ended, for touches and reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Requests that were admitted.
    pub(crate) begun: u64,
    /// Requests that ended.
    pub(crate) ended: u64,
}

/// The waiting and the running requests of an engine.
#[derive(Debug)]
pub(crate) struct Relay {
    admission: Admission<Job>,
    running: FxHashMap<u64, Job>,
    next_tick: u64,
    outgoing: Outgoing,
    batches: Batches,
    moved: Moved,
    instance: String,
    /// When slow readers were last looked for.
    swept: Option<Instant>,
    /// Mean time in seconds that a request runs; for `retry_after`.
    mean_run: f64,
    target: usize,
}

impl Relay {
    /// A relay with at most `target` running and `limit` waiting requests.
    pub(crate) fn new(instance: String, target: usize, limit: usize) -> Self {
        Self {
            admission: Admission::new(target, limit),
            running: FxHashMap::default(),
            next_tick: 1,
            outgoing: Outgoing::default(),
            batches: Batches::default(),
            moved: Moved::default(),
            instance,
            swept: None,
            mean_run: 0.0,
            target: target.max(1),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.admission.running()
    }

    pub(crate) fn queued(&self) -> usize {
        self.admission.queued()
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.admission.is_idle()
    }

    /// Whether a request waits because the engine had no room, and none runs whose end would make room.
    pub(crate) fn wants_retry(&self) -> bool {
        self.admission.is_blocked() && self.admission.running() == 0
    }

    /// Whether a request runs that could get an event.
    pub(crate) fn expects_events(&self) -> bool {
        self.running.values().any(|job| !job.metered || job.credit > 0)
    }

    /// The requests that began and ended since the last call.
    pub(crate) fn take_moved(&mut self) -> Moved {
        std::mem::take(&mut self.moved)
    }

    /// The next command for the engine.
    pub(crate) fn next_outgoing(&mut self) -> Option<SessionCommand> {
        self.outgoing.next()
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Admits a request, or refuses it with `queue_full`.
    pub(crate) fn begin(&mut self, begin: Begin) {
        let Begin {
            ticket,
            reply,
            start,
            claim,
            arrived,
        } = begin;
        let rank = Rank {
            key: Arc::from(start.fairness_key.as_str()),
            user: Arc::from(start.fairness_user.as_str()),
            priority: start.priority,
        };
        let Some(position) = self.admission.place(&rank) else {
            reply.fail(self.queue_full());
            return;
        };
        reply.send(Kind::Admitted(Admitted {
            queue_position: convert::count(position),
            instance_id: self.instance.clone(),
        }));
        let job = Job {
            ticket,
            attempt: 0,
            reply: Some(reply),
            credit: start.credit.into(),
            metered: matches!(start.work, Some(Work::Generate(_))),
            span: trace::span(&start),
            start: Some(Box::new(start)),
            starved: None,
            cancelled: false,
            arrived,
            started: arrived,
            _claim: claim,
        };
        self.admission.push(&rank, job);
        self.moved.begun += 1;
        self.pump(arrived);
    }

    fn queue_full(&self) -> Error {
        let waiting = u32::try_from(self.admission.queued()).unwrap_or(u32::MAX);
        let slots = u32::try_from(self.target).unwrap_or(u32::MAX);
        let seconds = self.mean_run * f64::from(waiting) / f64::from(slots);
        Code::QueueFull
            .error("too many requests wait for this model")
            .with_detail("queued", self.admission.queued())
            .with_retry_after(Duration::from_secs_f64(seconds.clamp(1.0, 60.0)))
    }

    /// Starts the requests that may start.
    pub(crate) fn pump(&mut self, now: Instant) {
        while let Some(mut job) = self.admission.next() {
            job.attempt += 1;
            job.started = now;
            let handle = job.handle();
            if let Some(start) = &job.start {
                let start = Start {
                    handle,
                    credit: u32::try_from(job.credit).unwrap_or(u32::MAX),
                    ..Start::clone(start)
                };
                self.outgoing.push(Command::Start(start));
            }
            self.running.insert(job.ticket, job);
        }
    }

    /// Allows more events for a request. One that has ended is ignored.
    pub(crate) fn credit(&mut self, ticket: u64, events: u32) {
        if let Some(job) = self.running.get_mut(&ticket) {
            job.credit += u64::from(events);
            job.starved = None;
            let handle = job.handle();
            self.outgoing.credit(handle, events);
        } else if let Some(job) = self.admission.find_mut(|job| job.ticket == ticket) {
            job.credit += u64::from(events);
        }
    }

    /// Cancels a request for its caller. A running one ends with the engine's event.
    pub(crate) fn cancel(&mut self, ticket: u64) {
        if self.running.contains_key(&ticket) {
            self.stop(ticket);
        } else {
            self.dequeue(ticket, cancelled());
        }
    }

    /// Ends a request at once with `error`.
    pub(crate) fn expel(&mut self, ticket: u64, error: Error) {
        if let Some(job) = self.running.get_mut(&ticket) {
            if let Some(reply) = job.reply.take() {
                reply.fail(error);
            }
            self.stop(ticket);
        } else {
            self.dequeue(ticket, error);
        }
    }

    fn stop(&mut self, ticket: u64) {
        if let Some(job) = self.running.get_mut(&ticket)
            && !job.cancelled
        {
            job.cancelled = true;
            let handle = job.handle();
            self.outgoing.push(Command::Cancel(Cancel { handle }));
        }
    }

    fn dequeue(&mut self, ticket: u64, error: Error) {
        if let Some(job) = self.admission.remove(|job| job.ticket == ticket) {
            self.end(job, error);
        }
    }

    fn end(&mut self, job: Job, error: Error) {
        self.moved.ended += 1;
        tracing::debug!(parent: &job.span, instance = self.instance, %error, "ended");
        if let Some(reply) = job.reply {
            reply.fail(error);
        }
    }

    /// Ends all waiting requests.
    pub(crate) fn fail_queued(&mut self, error: &Error) {
        let waiting: Vec<_> = self.admission.drain().collect();
        for job in waiting {
            self.end(job, error.clone());
        }
    }

    /// Ends all requests: the engine is lost or will be ended.
    pub(crate) fn fail_all(&mut self, error: &Error) {
        self.fail_queued(error);
        let running: Vec<_> = self.running.drain().map(|(_, job)| job).collect();
        for job in running {
            self.admission.finished();
            self.end(job, error.clone());
        }
        self.outgoing.clear();
    }

    /// Cancels requests that have had no credit since `limit` ago (PROTOCOL.md 18). Called periodically, so that an event needs no clock.
    /// After a late call all times begin anew: the worker itself was stopped, and credits may be unread.
    pub(crate) fn sweep(&mut self, now: Instant, limit: Duration) {
        let late = self.swept.is_some_and(|swept| is_late(swept, now, limit));
        self.swept = Some(now);
        if late {
            self.running.values_mut().for_each(|job| job.starved = None);
        }
        let mut slow = Vec::new();
        for job in self
            .running
            .values_mut()
            .filter(|job| job.metered && job.reply.is_some())
        {
            if job.credit > 0 {
                job.starved = None;
            } else if now.saturating_duration_since(*job.starved.get_or_insert(now)) >= limit {
                slow.push(job.ticket);
            }
        }
        for ticket in slow {
            let error = Code::SlowReader.error("the client took nothing for too long");
            self.expel(ticket, error.with_detail("limit_seconds", limit.as_secs_f64()));
        }
    }

    /// Allows starts again: the engine may have room.
    pub(crate) fn retry(&mut self, now: Instant) {
        self.admission.unblock();
        self.pump(now);
    }

    /// Passes an engine's tick on to the sessions.
    ///
    /// # Errors
    /// Ticks are missing: events were lost, and the engine must be ended.
    pub(crate) fn tick(&mut self, tick: Tick) -> Result<(), Gap> {
        if tick.seq != self.next_tick {
            let (want, got) = (self.next_tick, tick.seq);
            return Err(Gap { want, got });
        }
        self.next_tick += 1;
        let mut ended = false;
        for sequence in tick.sequences {
            ended |= self.sequence(sequence);
        }
        self.batches.flush();
        if ended {
            self.pump(Instant::now());
        }
        Ok(())
    }

    /// Handles one request's part of a tick. Returns whether the request ended.
    fn sequence(&mut self, mut sequence: SequenceEvents) -> bool {
        let ticket = sequence.handle >> ATTEMPT_BITS;
        let Some(job) = self.running.get_mut(&ticket) else {
            return false;
        };
        if job.handle() != sequence.handle {
            return false;
        }
        if job.start.is_some() {
            if is_no_room(&sequence) {
                if !job.cancelled {
                    self.no_room(ticket);
                    return false;
                }
                sequence.events = vec![event(Kind::Failed(cancelled().into()))];
            }
            job.start = None;
            sequence
                .events
                .retain(|event| !matches!(event.kind, Some(Kind::Admitted(_))));
        }
        let mut bulky = false;
        for event in &sequence.events {
            match &event.kind {
                Some(Kind::Delta(delta)) => {
                    job.credit = job.credit.saturating_sub(1);
                    bulky |= !delta.logprobs.is_empty();
                }
                Some(Kind::Progress(_)) => job.credit = job.credit.saturating_sub(1),
                Some(Kind::Embedded(_) | Kind::Reranked(_)) => bulky = true,
                Some(Kind::ChoiceFinished(end)) => bulky |= !end.prompt.is_empty(),
                Some(Kind::Admitted(_) | Kind::Finished(_) | Kind::Failed(_)) | None => {}
            }
        }
        if !sequence.finished {
            if let Some(reply) = &job.reply
                && !sequence.events.is_empty()
            {
                sequence.handle = reply.handle();
                self.batches.add(reply.outbox(), sequence, bulky);
            }
            return false;
        }
        if let Some(job) = self.running.remove(&ticket) {
            self.finish(job, sequence, bulky);
        }
        true
    }

    fn finish(&mut self, job: Job, mut sequence: SequenceEvents, bulky: bool) {
        self.admission.finished();
        self.moved.ended += 1;
        let ran = job.started.elapsed().as_secs_f64();
        tracing::debug!(parent: &job.span, instance = self.instance, seconds = ran, "ended");
        self.mean_run = if self.mean_run > 0.0 {
            self.mean_run.mul_add(0.9, ran * 0.1)
        } else {
            ran
        };
        let Some(reply) = job.reply else { return };
        match sequence.events.last_mut().map(|event| &mut event.kind) {
            Some(Some(Kind::Finished(finished))) => {
                let queued = job.started.saturating_duration_since(job.arrived);
                finished.timings.get_or_insert_default().queue_ms = queued.as_secs_f64() * 1e3;
            }
            Some(Some(Kind::Failed(_))) => {}
            Some(_) | None => {
                let error = Code::RuntimeError.error("the engine ended the request without saying how");
                sequence.events.push(event(Kind::Failed(error.into())));
            }
        }
        sequence.handle = reply.handle();
        self.batches.add(reply.outbox(), sequence, bulky);
        reply.settled();
    }

    fn no_room(&mut self, ticket: u64) {
        if let Some(job) = self.running.remove(&ticket) {
            self.admission.put_back(job);
        }
    }
}

fn cancelled() -> Error {
    Code::Cancelled.error("the request was cancelled")
}

fn is_no_room(sequence: &SequenceEvents) -> bool {
    sequence.finished
        && matches!(
            sequence.events.last().and_then(|event| event.kind.as_ref()),
            Some(Kind::Failed(error)) if Code::parse(&error.code) == Some(Code::NoRoom)
        )
}
