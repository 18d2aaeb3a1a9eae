//! The stub's one session: takes commands, hands out ticks.
//!
//! ```text
//!   commands ──► Engine (sequences) ──tick──► out (bounded; full = the worker is slow, nothing is made)
//! ```

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use muster_core::{Code, Error};
use muster_proto::v1::{
    Admitted, Alive, Credit, EmbedRequest, EmbedResult, Embedding, Event, Finished, ModelType, RerankRequest,
    RerankResult, SequenceEvents, SequencePhase, SequenceState, SessionCommand, SessionMessage, Start, Tick,
    Usage, Vector, event, session_command, session_message, start::Work,
};
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{
    sequence::{Sequence, kind},
    settings::{Behaviour, Fail},
    text,
};

/// Interval between signs of life.
const ALIVE_EVERY: Duration = Duration::from_millis(500);

/// The channel for ticks.
pub(super) type Out = mpsc::Sender<Result<SessionMessage, Status>>;

/// The loaded model and its sequences.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) behaviour: Behaviour,
    slots: Vec<Option<Sequence>>,
    by_handle: HashMap<u64, usize>,
    /// Events of requests that need no sequence, or no longer have one.
    answered: Vec<SequenceEvents>,
    seq: u64,
    tokens: u64,
    pub(super) iterations: u64,
    stalled: Option<Instant>,
    /// Memory that a test asked for. Never read.
    _memory: Vec<u8>,
}

/// Shared with Describe and the signs of life. Locked for one tick or one command, never across an await.
pub(super) type Shared = Arc<Mutex<Engine>>;

pub(super) fn lock(engine: &Shared) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    pub(super) fn new(behaviour: Behaviour, memory: Vec<u8>) -> Self {
        let slots = (0..behaviour.sequences).map(|_| None).collect();
        Self {
            behaviour,
            slots,
            by_handle: HashMap::new(),
            answered: Vec::new(),
            seq: 0,
            tokens: 0,
            iterations: 0,
            stalled: None,
            _memory: memory,
        }
    }

    /// Clears what the last session left.
    fn reset(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.by_handle.clear();
        self.answered.clear();
        self.seq = 0;
    }

    fn command(&mut self, command: SessionCommand, now: Instant) {
        match command.kind {
            Some(session_command::Kind::Start(start)) => self.start(start, now),
            Some(session_command::Kind::Cancel(cancel)) => {
                if let Some(slot) = self.by_handle.remove(&cancel.handle) {
                    self.slots[slot] = None;
                    self.fail(cancel.handle, Code::Cancelled.error("cancelled"));
                }
            }
            Some(session_command::Kind::Credit(Credit { handle, events })) => {
                if let Some(sequence) = self
                    .by_handle
                    .get(&handle)
                    .and_then(|slot| self.slots[*slot].as_mut())
                {
                    sequence.grant(events, now);
                }
            }
            None => {}
        }
    }

    fn start(&mut self, start: Start, now: Instant) {
        let answer = match (start.work, self.behaviour.kind) {
            (Some(Work::Generate(request)), ModelType::Llm) => {
                let Some(slot) = self.slots.iter().position(Option::is_none) else {
                    return self.fail(start.handle, Code::NoRoom.error("all sequences are busy"));
                };
                Sequence::plan(start.handle, start.credit, &request, &self.behaviour, now).map(|sequence| {
                    self.slots[slot] = Some(sequence);
                    self.by_handle.insert(start.handle, slot);
                    None
                })
            }
            (Some(Work::Embed(request)), ModelType::Embedding) => {
                Ok(Some(event::Kind::Embedded(embed(&request))))
            }
            (Some(Work::Rerank(request)), ModelType::Reranking) => {
                Ok(Some(event::Kind::Reranked(rerank(&request))))
            }
            (Some(_), _) => Err(Code::UnsupportedByRuntime.error("this model does another kind of work")),
            (None, _) => Err(Code::InvalidRequest.error("no work was given")),
        };
        match answer {
            Ok(None) => {
                let events = vec![admitted()];
                self.answered.push(SequenceEvents {
                    handle: start.handle,
                    events,
                    finished: false,
                });
            }
            Ok(Some(result)) => {
                let finished = Finished {
                    usage: usage(&result),
                    ..Finished::default()
                };
                let events = vec![admitted(), kind(result), kind(event::Kind::Finished(finished))];
                self.answered.push(SequenceEvents {
                    handle: start.handle,
                    events,
                    finished: true,
                });
            }
            Err(error) => self.fail(start.handle, error),
        }
    }

    fn fail(&mut self, handle: u64, error: Error) {
        let events = vec![kind(event::Kind::Failed(error.into()))];
        self.answered.push(SequenceEvents {
            handle,
            events,
            finished: true,
        });
    }

    /// When the next tick is due; `None` while there is nothing to send.
    fn due(&self, now: Instant) -> Option<Instant> {
        if !self.answered.is_empty() {
            return Some(now);
        }
        self.by_handle
            .values()
            .filter_map(|slot| self.slots[*slot].as_ref()?.due())
            .min()
    }

    /// All events that are ready; `None` if there are none.
    fn tick(&mut self, now: Instant) -> Option<Tick> {
        self.iterations += 1;
        let mut sequences = std::mem::take(&mut self.answered);
        for slot in &mut self.slots {
            let Some(sequence) = slot else { continue };
            let mut events = Vec::new();
            let (tokens, finished) = sequence.take(now, &mut events);
            self.tokens += u64::from(tokens);
            if !events.is_empty() {
                sequences.push(SequenceEvents {
                    handle: sequence.handle,
                    events,
                    finished,
                });
            }
            if finished {
                self.by_handle.remove(&sequence.handle);
                *slot = None;
            }
        }
        if sequences.is_empty() {
            return None;
        }
        self.seq += 1;
        self.misbehave(now);
        let free = self.slots.len() - self.by_handle.len();
        Some(Tick {
            seq: self.seq,
            sequences,
            free_sequences: u32::try_from(free).unwrap_or(u32::MAX),
            free_cells: self.behaviour.context,
        })
    }

    /// Fails as the settings ask.
    fn misbehave(&mut self, now: Instant) {
        match self.behaviour.fail {
            Fail::AbortAfter(tokens) if self.tokens >= tokens => std::process::abort(),
            Fail::StallAfter(tokens) if self.tokens >= tokens => self.stalled = Some(now),
            Fail::GapAfter(tokens) if self.tokens >= tokens => self.seq += 1,
            Fail::AbortAfter(_)
            | Fail::StallAfter(_)
            | Fail::GapAfter(_)
            | Fail::None
            | Fail::Load
            | Fail::HangLoad
            | Fail::AbortLoad => {}
        }
    }

    fn alive(&self) -> Alive {
        Alive {
            iterations: self.iterations,
            busy_for: self.stalled.and_then(|since| since.elapsed().try_into().ok()),
            running: u32::try_from(self.by_handle.len()).unwrap_or(u32::MAX),
        }
    }

    /// The state of every sequence, for people.
    pub(super) fn states(&self) -> Vec<SequenceState> {
        let now = Instant::now();
        let ids = 0_u32..;
        let state = |(id, slot): (u32, &Option<Sequence>)| match slot {
            Some(sequence) => sequence.state(id, now),
            None => SequenceState {
                id,
                phase: SequencePhase::Idle.into(),
                ..SequenceState::default()
            },
        };
        ids.zip(&self.slots).map(state).collect()
    }
}

fn admitted() -> Event {
    kind(event::Kind::Admitted(Admitted::default()))
}

fn embed(request: &EmbedRequest) -> EmbedResult {
    let length = match usize::try_from(request.dimensions) {
        Ok(dimensions @ 1..text::VECTOR_LENGTH) => dimensions,
        Ok(_) | Err(_) => text::VECTOR_LENGTH,
    };
    let embeddings: Vec<Embedding> = request
        .inputs
        .iter()
        .map(|input| {
            let text = text::render_prompt(input);
            Embedding {
                vectors: vec![Vector {
                    values: text::vector(&text, length),
                }],
                tokens: text::words_of(&text),
            }
        })
        .collect();
    let prompt_tokens = embeddings.iter().map(|embedding| embedding.tokens).sum();
    EmbedResult {
        embeddings,
        usage: Some(Usage {
            prompt_tokens,
            ..Usage::default()
        }),
    }
}

fn rerank(request: &RerankRequest) -> RerankResult {
    let query = text::words_of(&request.query);
    let tokens: Vec<u32> = request
        .documents
        .iter()
        .map(|document| query + text::words_of(document))
        .collect();
    RerankResult {
        scores: request
            .documents
            .iter()
            .map(|document| text::score(&request.query, document))
            .collect(),
        usage: Some(Usage {
            prompt_tokens: tokens.iter().sum(),
            ..Usage::default()
        }),
        tokens,
    }
}

fn usage(result: &event::Kind) -> Option<Usage> {
    match result {
        event::Kind::Embedded(result) => result.usage,
        event::Kind::Reranked(result) => result.usage,
        event::Kind::Admitted(_)
        | event::Kind::Delta(_)
        | event::Kind::Progress(_)
        | event::Kind::ChoiceFinished(_)
        | event::Kind::Finished(_)
        | event::Kind::Failed(_) => None,
    }
}

/// Runs one session to its end, which cancels whatever runs.
pub(super) async fn run(engine: Shared, mut commands: Streaming<SessionCommand>, out: Out) {
    loop {
        let now = Instant::now();
        let (due, stalled) = {
            let engine = lock(&engine);
            (engine.due(now), engine.stalled.is_some())
        };
        if stalled {
            // As if the loop hung: no commands and no tokens, only signs of life.
            out.closed().await;
            break;
        }
        let ready = due.is_some_and(|due| due <= now);
        tokio::select! {
            biased;
            command = commands.message() => match command {
                Ok(Some(command)) => lock(&engine).command(command, Instant::now()),
                Ok(None) | Err(_) => break,
            },
            permit = out.reserve(), if ready => {
                let Ok(permit) = permit else { break };
                if let Some(tick) = lock(&engine).tick(Instant::now()) {
                    permit.send(Ok(SessionMessage { kind: Some(session_message::Kind::Tick(tick)) }));
                }
            }
            () = until(due), if !ready && due.is_some() => {}
        }
    }
    lock(&engine).reset();
}

async fn until(due: Option<Instant>) {
    if let Some(due) = due {
        tokio::time::sleep_until(due.into()).await;
    }
}

/// Sends signs of life until the session ends.
pub(super) async fn signs_of_life(engine: Shared, out: Out) {
    let mut clock = tokio::time::interval(ALIVE_EVERY);
    loop {
        tokio::select! {
            _ = clock.tick() => {}
            () = out.closed() => return,
        }
        let alive = lock(&engine).alive();
        let message = SessionMessage {
            kind: Some(session_message::Kind::Alive(alive)),
        };
        if out.send(Ok(message)).await.is_err() {
            return;
        }
    }
}
