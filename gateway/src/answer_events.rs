//! The events of an answer. They come from one request, or from several that answer one call together (completions with several prompts);
//! then the choices get consecutive numbers.
//!
//! Invariant: exactly one terminal event is returned, and it is the last. Once one request has failed, the others are dropped, which
//! cancels them.

use std::{
    future::poll_fn,
    task::{Context, Poll},
    time::Instant,
};

use muster_core::{Code, Error};
use muster_proto::v1::{Event, Finished, Timings, Usage, event::Kind};

use crate::{
    dispatch::Admitted,
    session::{Batch, End},
    stats::{Meter, Streaming},
};

/// The requests whose events make up an answer.
#[derive(Debug)]
pub(crate) struct AnswerEvents {
    parts: Vec<Option<Admitted>>,
    /// Number of choices of each request.
    choices: u32,
    waited: bool,
    finished: Finished,
    meter: Meter,
    /// Present while a client reads the events as they come.
    streaming: Option<Streaming>,
}

impl AnswerEvents {
    pub(crate) fn new(parts: Vec<Admitted>, choices: u32, meter: Meter) -> Self {
        Self {
            waited: parts.iter().any(|part| part.waited),
            parts: parts.into_iter().map(Some).collect(),
            choices,
            finished: Finished::default(),
            meter,
            streaming: None,
        }
    }

    /// Counts the answer as one that is being streamed, until it is dropped.
    pub(crate) fn is_streamed(&mut self) {
        self.streaming = Some(self.meter.streaming());
    }

    /// Whether the request had to wait until its model was loaded.
    pub(crate) const fn waited(&self) -> bool {
        self.waited
    }

    /// Waits for the first events. An error that comes first is the whole answer.
    ///
    /// # Errors
    /// The failure in the first event.
    pub(crate) async fn first(&mut self) -> Result<Vec<Event>, Error> {
        let mut events = Vec::new();
        poll_fn(|cx| self.poll(cx, &mut events)).await;
        match events.first().and_then(|event| event.kind.as_ref()) {
            Some(Kind::Failed(error)) => Err(error.clone().into()),
            Some(_) | None => Ok(events),
        }
    }

    /// Appends the events that are ready to `out`. Ready if there are any.
    pub(crate) fn poll(&mut self, cx: &Context<'_>, out: &mut Vec<Event>) -> Poll<()> {
        let before = out.len();
        std::task::ready!(self.advance(cx, out));
        let now = Instant::now();
        for event in out.iter().skip(before) {
            self.meter.event(event, now);
        }
        Poll::Ready(())
    }

    fn advance(&mut self, cx: &Context<'_>, out: &mut Vec<Event>) -> Poll<()> {
        if let [part] = self.parts.as_mut_slice() {
            // The common case of one request: its choices need no new numbers.
            return match part {
                Some(part) => read(part, cx, out),
                None => Poll::Pending,
            };
        }
        let mut events = Vec::new();
        for index in 0..self.parts.len() {
            let Some(part) = &mut self.parts[index] else {
                continue;
            };
            if read(part, cx, &mut events).is_pending() {
                continue;
            }
            for event in events.drain(..) {
                match event.kind {
                    Some(Kind::Finished(finished)) => {
                        self.parts[index] = None;
                        self.finish(&finished);
                        if self.parts.iter().all(Option::is_none) {
                            let kind = Some(Kind::Finished(self.finished));
                            out.push(Event {
                                kind,
                                extra_json: event.extra_json,
                            });
                        }
                    }
                    Some(Kind::Failed(_)) => {
                        self.parts.clear();
                        out.push(event);
                        return Poll::Ready(());
                    }
                    kind => {
                        let base = u32::try_from(index).unwrap_or_default() * self.choices;
                        out.push(Event {
                            kind: kind.map(|kind| numbered(kind, base)),
                            extra_json: event.extra_json,
                        });
                    }
                }
            }
        }
        if out.is_empty() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }

    fn finish(&mut self, finished: &Finished) {
        let usage = self.finished.usage.get_or_insert_default();
        add_usage(usage, &finished.usage.unwrap_or_default());
        if let Some(more) = &finished.timings {
            add_timings(self.finished.timings.get_or_insert_default(), more);
        }
    }
}

/// Reads the events of one request. An end without a terminal event becomes a terminal error.
fn read(part: &mut Admitted, cx: &Context<'_>, out: &mut Vec<Event>) -> Poll<()> {
    if !part.events.is_empty() {
        out.append(&mut part.events);
        return Poll::Ready(());
    }
    let error = match std::task::ready!(part.request.poll(cx, out)) {
        Batch::More => return Poll::Ready(()),
        Batch::End(End::Lost) => {
            Code::WorkerLost.error("the connection to the worker broke while the request ran")
        }
        Batch::End(End::Finished) => Code::RuntimeError.error("the answer ended without a last event"),
    };
    out.push(Event {
        kind: Some(Kind::Failed(error.into())),
        extra_json: String::new(),
    });
    Poll::Ready(())
}

fn numbered(kind: Kind, base: u32) -> Kind {
    match kind {
        Kind::Delta(mut delta) => {
            delta.choice += base;
            Kind::Delta(delta)
        }
        Kind::ChoiceFinished(mut end) => {
            end.choice += base;
            Kind::ChoiceFinished(end)
        }
        Kind::Admitted(_)
        | Kind::Progress(_)
        | Kind::Embedded(_)
        | Kind::Reranked(_)
        | Kind::Finished(_)
        | Kind::Failed(_) => kind,
    }
}

fn add_usage(sum: &mut Usage, more: &Usage) {
    sum.prompt_tokens += more.prompt_tokens;
    sum.cached_tokens += more.cached_tokens;
    sum.completion_tokens += more.completion_tokens;
    sum.reasoning_tokens += more.reasoning_tokens;
    sum.draft_tokens += more.draft_tokens;
    sum.draft_accepted_tokens += more.draft_accepted_tokens;
}

fn add_timings(sum: &mut Timings, more: &Timings) {
    sum.prompt_n += more.prompt_n;
    sum.prompt_ms += more.prompt_ms;
    sum.predicted_n += more.predicted_n;
    sum.predicted_ms += more.predicted_ms;
    sum.cache_n += more.cache_n;
    sum.queue_ms += more.queue_ms;
}
