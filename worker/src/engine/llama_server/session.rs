//! The adapter between an engine link and llama-server: a task per request, and one task that merges their events into ticks.
//!
//! ```text
//!   commands ──► Session ──spawn──► request task: HTTP, SSE, credits ──► outbox (bounded) ──► Session ──tick──► messages
//!                   └── cancel tokens, credits ──────────▲
//! ```
//!
//! A request without credits does not read its socket, so the server's own buffers fill up (PROTOCOL.md 18). Cancelling drops the HTTP
//! request; the server notices at its next token or, while it reads a prompt, after the current batch. Dropping the link drops all
//! requests.

use std::{collections::HashMap, sync::Arc};

use muster_core::{Code, Error};
use muster_proto::{
    trace,
    v1::{
        Admitted, Event, GenerateRequest, SequenceEvents, SessionCommand, SessionMessage, Start, Tick, event,
        session_command, session_message, start::Work,
    },
};
use tokio::{
    sync::{
        Semaphore,
        mpsc::{self, error::TrySendError},
    },
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    reply::kind,
    run::{Job, Out},
};
use crate::engine::EngineLink;

/// Number of commands in the channel; when it is full the instance waits.
const COMMANDS: usize = 256;
/// Number of ticks in the channel; when it is full events wait in the outbox.
const MESSAGES: usize = 16;
/// Number of requests' events that wait for a tick; when it is full the requests stop reading their sockets.
const OUTBOX: usize = 512;
/// Largest number of requests whose events go into one tick.
const TICK: usize = 256;
/// Largest number of credits; a semaphore takes at most `usize::MAX >> 3`.
const CREDITS: usize = u32::MAX as usize;

/// The state of a running request.
struct Running {
    cancel: CancellationToken,
    credit: Arc<Semaphore>,
    sequences: u32,
}

/// The task at the far end of the link.
pub(super) struct Session {
    job: Job,
    sequences: u32,
    running: HashMap<u64, Running>,
    handles: HashMap<Id, u64>,
    tasks: JoinSet<()>,
    outbox: mpsc::Sender<SequenceEvents>,
    inbox: mpsc::Receiver<SequenceEvents>,
    seq: u64,
}

/// Opens a session that lasts until the link is dropped or `engine_end` resolves.
pub(super) fn open(
    job: Job,
    sequences: u32,
    engine_end: impl Future<Output = ()> + Send + 'static,
) -> EngineLink {
    let (commands, receiver) = mpsc::channel(COMMANDS);
    let (sender, messages) = mpsc::channel(MESSAGES);
    let (outbox, inbox) = mpsc::channel(OUTBOX);
    let session = Session {
        job,
        sequences,
        running: HashMap::new(),
        handles: HashMap::new(),
        tasks: JoinSet::new(),
        outbox,
        inbox,
        seq: 0,
    };
    tokio::spawn(async move {
        tokio::select! {
            () = session.run(receiver, sender) => {}
            () = engine_end => tracing::debug!("llama-server has ended"),
        }
    });
    EngineLink { commands, messages }
}

impl Session {
    async fn run(
        mut self,
        mut commands: mpsc::Receiver<SessionCommand>,
        messages: mpsc::Sender<SessionMessage>,
    ) {
        let mut first: Option<SequenceEvents> = None;
        loop {
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(SessionCommand { kind: Some(command) }) => self.command(command),
                    Some(SessionCommand { kind: None }) => {}
                    None => return,
                },
                Some(ended) = self.tasks.join_next_with_id() => self.ended(ended),
                permit = messages.reserve(), if first.is_some() => {
                    let Ok(permit) = permit else { return };
                    let Some(events) = first.take() else { continue };
                    let tick = session_message::Kind::Tick(self.tick(events));
                    permit.send(SessionMessage { kind: Some(tick) });
                }
                events = self.inbox.recv(), if first.is_none() => first = events,
                () = messages.closed() => return,
            }
        }
    }

    fn command(&mut self, command: session_command::Kind) {
        match command {
            session_command::Kind::Start(start) => self.start(start),
            session_command::Kind::Cancel(cancel) => {
                if let Some(running) = self.running.get(&cancel.handle) {
                    running.cancel.cancel();
                }
            }
            session_command::Kind::Credit(credit) => {
                if let Some(running) = self.running.get(&credit.handle) {
                    let room = CREDITS.saturating_sub(running.credit.available_permits());
                    running
                        .credit
                        .add_permits(usize::try_from(credit.events).unwrap_or(room).min(room));
                }
            }
        }
    }

    fn start(&mut self, start: Start) {
        let used: u32 = self.running.values().map(|running| running.sequences).sum();
        let sequences = match &start.work {
            Some(Work::Generate(request)) => request.n.clamp(1, self.sequences.max(1)),
            Some(Work::Embed(_) | Work::Rerank(_)) | None => 1,
        };
        if used + sequences > self.sequences {
            return self.refuse(start.handle, Code::NoRoom.error("all sequences are busy"));
        }
        let cancel = CancellationToken::new();
        let credit = Arc::new(Semaphore::new(usize::try_from(start.credit).unwrap_or(CREDITS)));
        let out = Out::new(start.handle, self.outbox.clone(), Arc::clone(&credit));
        let span = trace::span(&start);
        let job = Job {
            http: self.job.http.in_trace(&start.trace),
            ..self.job.clone()
        };
        let (stop, work) = (cancel.clone(), own(start.private_prefixes, start.work));
        let task = async move {
            let mut out = out;
            out.push(kind(event::Kind::Admitted(Admitted::default())));
            let result = tokio::select! {
                biased;
                () = stop.cancelled() => Err(Code::Cancelled.error("cancelled")),
                result = job.work(work, &mut out) => result,
            };
            out.end(result).await;
        };
        let task = self.tasks.spawn(task.instrument(span));
        self.handles.insert(task.id(), start.handle);
        self.running.insert(
            start.handle,
            Running {
                cancel,
                credit,
                sequences,
            },
        );
    }

    /// Refuses a request. That needs a task only if the outbox is full.
    fn refuse(&mut self, handle: u64, error: Error) {
        let events = SequenceEvents {
            handle,
            events: vec![failed(error)],
            finished: true,
        };
        if let Err(TrySendError::Full(events)) = self.outbox.try_send(events) {
            let outbox = self.outbox.clone();
            self.tasks.spawn(async move { drop(outbox.send(events).await) });
        }
    }

    /// Ends the request of a task that panicked.
    fn ended(&mut self, ended: Result<(Id, ()), JoinError>) {
        let (id, panicked) = match ended {
            Ok((id, ())) => (id, false),
            Err(error) => {
                tracing::error!(%error, "a request's task failed");
                (error.id(), true)
            }
        };
        if let Some(handle) = self.handles.remove(&id)
            && panicked
        {
            self.refuse(handle, Code::Internal.error("the request's task failed"));
        }
    }

    /// One message with all events that are ready.
    fn tick(&mut self, first: SequenceEvents) -> Tick {
        let mut sequences = vec![first];
        while sequences.len() < TICK
            && let Ok(events) = self.inbox.try_recv()
        {
            sequences.push(events);
        }
        for sequence in sequences.iter().filter(|sequence| sequence.finished) {
            self.running.remove(&sequence.handle);
        }
        let used: u32 = self.running.values().map(|running| running.sequences).sum();
        self.seq += 1;
        Tick {
            seq: self.seq,
            sequences,
            free_sequences: self.sequences.saturating_sub(used),
            free_cells: 0,
        }
    }
}

/// The work in the form for the server. The server knows no tenants, so a request with private prefixes reuses no cache, not even its own,
/// and chooses no slot.
fn own(private: bool, work: Option<Work>) -> Option<Work> {
    match work {
        Some(Work::Generate(request)) if private => Some(Work::Generate(GenerateRequest {
            cache_prompt: Some(false),
            id_slot: None,
            ..request
        })),
        work => work,
    }
}

fn failed(error: Error) -> Event {
    kind(event::Kind::Failed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression (issue 10, 3.13).
    #[test]
    fn a_server_without_tenants_reuses_nothing_for_one_that_shares_nothing() {
        let asked = GenerateRequest {
            id_slot: Some(1),
            cache_prompt: Some(true),
            ..GenerateRequest::default()
        };
        let given = |private| {
            let Some(Work::Generate(given)) = own(private, Some(Work::Generate(asked.clone()))) else {
                panic!("other work")
            };
            (given.cache_prompt, given.id_slot)
        };
        assert_eq!(given(false), (Some(true), Some(1)));
        assert_eq!(given(true), (Some(false), None));
    }
}
