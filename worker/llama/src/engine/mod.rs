//! The loop: one thread owns the context, the sequences and all requests that run.
//!
//! ```text
//!   commands ──► admit ──► plan ──► decode ──► sample ──► emit ──► one Tick
//!                  │         ▲         │ no room: drop idle caches, halve, preempt
//!                  │         └─────────┘
//!            refused: no_room
//!
//!   a slot:  idle ──admit──► prefill ──all tokens in memory──► decode ──stop, limit──► idle (its cache stays)
//!                               ▲  ▲                             │  │
//!                               │  └──────── preempted ──────────┘  │ zero credit: not planned
//!                               └── n > 1: waits for a slot, then shares the first choice's cells
//! ```
//!
//! Invariants: a handle gets `finished` exactly once; no token is decoded for a request that can't pay for it; only a bounded number of prompt tokens
//! is read per tick. The loop never waits for anything but commands and a full outbox.
//! It does not know sockets, gRPC or how requests are written; it builds wire events itself, since converting every token's event twice would cost
//! more than making it.

mod actions;
mod admit;
mod ahead;
mod checkpoints;
mod decode;
mod embed;
mod emit;
mod generate;
mod held;
mod images;
mod preempt;
mod shift;
mod slot;
#[cfg(test)]
mod tests;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use muster_core::{Code, Error};
use muster_proto::v1::{SequenceEvents, SequencePhase};
use tokio::sync::mpsc;

use crate::{
    context::{Batch, Context},
    cores::Cores,
    draft::{Odds, Price},
    group::Grouping,
    media::Encoder,
    model::{Model, Token},
    outbox::Outbox,
    pace::Pace,
    parse,
    plan::{Bounds, Part, Want, plan},
    request::{Command, SlotJob},
    shared::{Shared, SlotView},
    waker::Waker,
};
pub(crate) use ahead::may_guess;
use checkpoints::Checkpoints;
use embed::EmbedRun;
use held::Reach;
pub(crate) use shift::Shift;
use slot::{Request, Run, Slot, WaitingChoice};

/// The loop's state.
#[derive(Debug)]
pub(crate) struct Engine {
    model: Arc<Model>,
    context: Context,
    /// Most tokens one request may use.
    max_tokens: usize,
    /// Cells may be shared between sequences (plain attention only).
    may_share: bool,
    /// How far the memory can go back without a checkpoint.
    reach: Reach,
    /// Whether tokens are guessed ahead.
    guesses: bool,
    /// How likely guesses are right, over all requests.
    odds: Odds,
    /// What guesses cost.
    price: Price,
    /// Saved states, for going back further.
    checkpoints: Checkpoints,
    slots: Vec<Slot>,
    requests: HashMap<u64, Request>,
    /// Choices beyond the first that have no sequence yet.
    waiting: VecDeque<WaitingChoice>,
    embeds: VecDeque<EmbedRun>,
    /// What is to be done with sequences once they are idle.
    orders: VecDeque<SlotJob>,
    /// Where parts of images are encoded; none without a projector.
    encoder: Option<Encoder>,
    outbox: Option<Outbox>,
    /// Number of the current session; 0 = none.
    session: u64,
    rx: mpsc::Receiver<Command>,
    parse: parse::Queue,
    shared: Arc<Shared>,
    waker: Waker,
    pace: Pace,
    /// How decodes are grouped: with one thread, and with all wanted threads.
    grouping: [Grouping; 2],
    cores: Cores,
    /// Threads for graph runs of one token and for larger ones, if no other engine needs cores.
    threads: (u32, u32),
    /// Threads that the engine may use now.
    allotted: u32,
    /// Counts ticks; orders requests by age and caches by their last use.
    clock: u64,
    /// Number of decodes in a row that failed.
    broken: u32,
    // buffers that are reused, so that a tick does not allocate
    batch: Batch,
    wants: Vec<Want>,
    parts: Vec<Part>,
    outputs: Vec<(usize, usize)>,
    piece: Vec<u8>,
    ahead: Vec<Token>,
    /// Events collected in this tick.
    out: Vec<SequenceEvents>,
}

/// What the loop needs at its start.
#[derive(Debug)]
pub(crate) struct EngineParts {
    pub(crate) model: Arc<Model>,
    pub(crate) context: Context,
    pub(crate) max_tokens: usize,
    pub(crate) swa_full: bool,
    /// Whether tokens are guessed ahead: see [`may_guess`].
    pub(crate) guesses: bool,
    /// Bytes that saved states may take together.
    pub(crate) set_aside: usize,
    /// Where parts of images are encoded; none without a projector.
    pub(crate) encoder: Option<Encoder>,
    pub(crate) rx: mpsc::Receiver<Command>,
    pub(crate) parse: parse::Queue,
    pub(crate) shared: Arc<Shared>,
    pub(crate) waker: Waker,
    pub(crate) pace: Pace,
    pub(crate) grouping: [Grouping; 2],
    pub(crate) cores: Cores,
    /// Threads for graph runs of one token and for larger ones.
    pub(crate) threads: (u32, u32),
}

/// Stack of the loop's thread. It is large because samplers' lazy grammars search with `std::regex`, which recurses per character.
const STACK_BYTES: usize = 256 << 20;

/// Starts the loop's thread; it ends at [`Command::Stop`].
///
/// # Errors
/// The thread can't be started.
pub(crate) fn start(parts: EngineParts) -> std::io::Result<std::thread::JoinHandle<()>> {
    let mut engine = Engine::new(parts);
    std::thread::Builder::new()
        .name("loop".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || engine.run())
}

impl Engine {
    fn new(parts: EngineParts) -> Self {
        let info = parts.model.info();
        let windows = info.n_swa > 0 && !parts.swa_full;
        let recurrent = info.recurrent || info.hybrid;
        let memory = parts.context.info();
        let slots = (0..memory.n_seq_max).map(Slot::new).collect();
        Self {
            may_share: !windows && !recurrent && memory.has_memory && !memory.is_split(),
            reach: match info.n_swa {
                _ if recurrent => Reach::Nowhere,
                0 => Reach::Any,
                // with full caches too: llama.cpp takes cells outside the window whenever it comes by one
                window => Reach::Window(window as usize),
            },
            guesses: parts.guesses,
            odds: Odds::default(),
            price: Price::default(),
            checkpoints: Checkpoints::new(parts.set_aside),
            model: parts.model,
            context: parts.context,
            max_tokens: parts.max_tokens,
            slots,
            requests: HashMap::new(),
            waiting: VecDeque::new(),
            embeds: VecDeque::new(),
            orders: VecDeque::new(),
            encoder: parts.encoder,
            outbox: None,
            session: 0,
            rx: parts.rx,
            parse: parts.parse,
            shared: parts.shared,
            waker: parts.waker,
            pace: parts.pace,
            grouping: parts.grouping,
            cores: parts.cores,
            threads: parts.threads,
            allotted: 0,
            clock: 0,
            broken: 0,
            batch: Batch::default(),
            wants: Vec::new(),
            parts: Vec::new(),
            outputs: Vec::new(),
            piece: Vec::new(),
            ahead: Vec::new(),
            out: Vec::new(),
        }
    }

    fn run(&mut self) {
        loop {
            while let Ok(command) = self.rx.try_recv() {
                if !self.handle(command) {
                    return;
                }
            }
            if !self.tick() && !self.sleep() {
                return;
            }
        }
    }

    /// Waits for a command. False ends the loop.
    fn sleep(&mut self) -> bool {
        self.shared.idle();
        self.shared.set_parked(true);
        // credits or cancellations that arrived before the flag was seen
        let missed = self.has_work();
        let command = if missed {
            None
        } else {
            self.cores.idle();
            Some(self.rx.blocking_recv())
        };
        self.shared.set_parked(false);
        match command {
            None => true,
            Some(Some(command)) => self.handle(command),
            Some(None) => false,
        }
    }

    fn has_work(&mut self) -> bool {
        self.any_cancelled() || !self.embeds.is_empty() || {
            self.plan();
            !self.parts.is_empty() || self.next_image().is_some()
        }
    }

    fn handle(&mut self, command: Command) -> bool {
        match command {
            Command::Attach { session, outbox } => {
                self.abandon_all();
                self.session = session;
                self.outbox = Some(outbox);
            }
            Command::Detach => {
                self.abandon_all();
                self.session = 0;
                self.outbox = None;
            }
            Command::Start(job) if job.session != self.session => {}
            Command::Start(job) => self.start(job),
            Command::Refused { session, .. } if session != self.session => {}
            Command::Refused { handle, error, .. } => self.refuse(handle, error),
            Command::Slot(job) => self.order(job),
            Command::Wake => {}
            Command::Stop => {
                self.abandon_all();
                return false;
            }
        }
        true
    }

    /// Runs one round. False if there was nothing to do.
    fn tick(&mut self) -> bool {
        self.clock += 1;
        self.reap_cancelled();
        self.act_on_slots();
        self.admit_waiting();
        // publish admissions before any token, so that the parse thread overtakes nothing of this tick
        self.publish();
        self.flush();
        self.have_encoded();
        self.plan();
        let image = self.next_image();
        let work = !self.parts.is_empty() || !self.embeds.is_empty() || image.is_some();
        if work {
            self.shared.begin_iteration();
            let started = Instant::now();
            self.use_threads(started);
            if !self.parts.is_empty() {
                self.guess_ahead();
                self.decode_planned(started);
            }
            if let Some(image) = image {
                self.decode_image(image);
            }
            if !self.embeds.is_empty() {
                self.embed_some();
            }
            // before the next request takes a sequence that just became idle
            self.act_on_slots();
        }
        self.publish();
        self.flush();
        work
    }

    /// Sets the context to as many threads as this engine may use now.
    fn use_threads(&mut self, now: Instant) {
        let allotted = self.cores.busy(now);
        if allotted == self.allotted {
            return;
        }
        self.allotted = allotted;
        let narrow = |threads: u32| i32::try_from(threads.min(allotted)).unwrap_or(1);
        let (threads, threads_batch) = self.threads;
        self.context.set_threads(narrow(threads), narrow(threads_batch));
        self.shared.set_threads(threads_batch.min(allotted));
        tracing::debug!(allotted, "threads");
    }

    fn plan(&mut self) {
        self.wants.clear();
        for request in self.requests.values_mut() {
            request.allowance = request.control.credit();
        }
        for (seq, slot) in self.slots.iter().enumerate() {
            let Some(run) = slot.run.as_ref() else { continue };
            let Some(request) = self.requests.get_mut(&run.handle) else {
                continue;
            };
            let mut tokens = slot.unread();
            if run.preempted || tokens == 0 {
                continue;
            }
            // a token that makes output must be paid for
            if request.allowance <= 0 {
                tokens -= 1;
            }
            request.allowance -= 1;
            if tokens > 0 {
                self.wants.push(Want {
                    seq,
                    tokens,
                    decode: run.first_token.is_some() && tokens == 1,
                    age: run.age,
                });
            }
        }
        self.keep_one_group();
        let batch = self.context.info().n_batch as usize;
        let riders = self.wants.iter().filter(|want| want.decode).count();
        let bounds = Bounds {
            batch,
            prefill_beside: self.pace.beside(riders, batch),
            prefill_alone: self.pace.alone(batch),
        };
        plan(&mut self.wants, bounds, &mut self.parts);
    }

    /// Leaves what is wanted by the sequences with the same adapters as the one that has waited longest: a decode applies the same to all of its
    /// tokens. So groups take turns.
    fn keep_one_group(&mut self) {
        let slots = &self.slots;
        let Some(next) = self
            .wants
            .iter()
            .min_by_key(|want| (slots[want.seq].last_used, want.age))
        else {
            return;
        };
        let scales = slots[next.seq].scales.clone();
        self.wants.retain(|want| slots[want.seq].scales == scales);
    }

    /// Sends the events collected in this tick.
    fn flush(&mut self) {
        if self.out.is_empty() {
            return;
        }
        let events = std::mem::take(&mut self.out);
        if let Some(outbox) = &self.outbox {
            outbox.send(events);
        }
    }

    /// Free cells for new requests: those that no sequence with work holds or was promised. The cells that a preempted sequence needs to
    /// come back are kept for it, or a stream of short requests would keep it out for ever.
    fn free_cells(&self) -> usize {
        self.cells_beside(|_| true)
    }

    /// Cells left after those of the sequences whose runs satisfy `count`.
    fn cells_beside(&self, count: impl Fn(&Run) -> bool) -> usize {
        let total = self.context.info().n_ctx as usize;
        let used: usize = self
            .slots
            .iter()
            .filter_map(|slot| slot.run.as_deref().map(|run| (slot, run)))
            .filter(|(_, run)| count(run))
            .map(|(slot, run)| slot.content.len() + run.reserve())
            .sum();
        total.saturating_sub(used)
    }

    /// Whether a sequence of so many cells finds them. In a cache that is split each has its own; where all are idle everything can be
    /// forgotten.
    fn finds_cells(&self, need: usize) -> bool {
        let busy = self.slots.iter().any(|slot| slot.run.is_some());
        !busy || self.context.info().is_split() || need <= self.free_cells()
    }

    fn idle_slots(&self) -> usize {
        self.slots.iter().filter(|slot| slot.run.is_none()).count()
    }

    /// Updates the gauges that other threads read.
    fn publish(&self) {
        let free = self.idle_slots().saturating_sub(self.waiting.len());
        self.shared
            .set_load(self.requests.len() + self.embeds.len(), free, self.free_cells());
        for (index, slot) in self.slots.iter().enumerate() {
            let view = match &slot.run {
                None => SlotView {
                    phase: SequencePhase::Idle,
                    cached: slot.held.len(),
                    prompt: 0,
                    generated: 0,
                    handle: 0,
                },
                Some(run) => {
                    let broke = self
                        .requests
                        .get(&run.handle)
                        .is_some_and(|request| request.control.credit() <= 0);
                    let phase = match run.first_token {
                        None => SequencePhase::Prefill,
                        Some(_) if broke || run.preempted => SequencePhase::Blocked,
                        Some(_) => SequencePhase::Decode,
                    };
                    SlotView {
                        phase,
                        cached: slot.held.len(),
                        prompt: run.prompt_len,
                        generated: run.generated,
                        handle: run.handle,
                    }
                }
            };
            self.shared.set_slot(index, view);
        }
    }

    fn any_cancelled(&self) -> bool {
        self.requests
            .values()
            .any(|request| request.control.is_cancelled())
            || self.embeds.iter().any(|run| run.control.is_cancelled())
    }

    fn reap_cancelled(&mut self) {
        if !self.any_cancelled() {
            return;
        }
        let handles: Vec<u64> = self
            .requests
            .values()
            .filter(|request| request.control.is_cancelled())
            .map(|request| request.handle)
            .collect();
        for handle in handles {
            self.fail(handle, Code::Cancelled.error("the request was cancelled"));
        }
        self.reap_cancelled_embeds();
    }

    /// Ends all requests without an event, because their session is gone.
    fn abandon_all(&mut self) {
        let handles: Vec<u64> = self.requests.keys().copied().collect();
        for handle in handles {
            self.fail(handle, Code::Cancelled.error("the session ended"));
        }
        self.embeds.clear();
        self.out.clear();
        self.publish();
    }

    fn refuse(&mut self, handle: u64, error: Error) {
        self.emit_terminal(handle, muster_proto::v1::event::Kind::Failed(error.into()));
    }
}
