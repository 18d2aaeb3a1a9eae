//! Prepared work: what the loop gets. Everything in it was checked; nothing needs the wire any more.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use muster_core::Error;
use muster_proto::v1::{GenerateRequest, Sampling};
use tokio::sync::oneshot;

use crate::{
    adapters::Scales, chat::Chat, content::Content, control::Control, draft::Guessing, engine::Shift,
    model::Token, outbox::Outbox, sampler::Sampler, saved::Saved,
};

/// One request, ready to run.
#[derive(Debug)]
pub(crate) struct Job {
    /// The session it came from; work of a session that ended meanwhile is dropped.
    pub(crate) session: u64,
    pub(crate) handle: u64,
    pub(crate) control: Arc<Control>,
    pub(crate) work: Work,
}

/// What a job does.
#[derive(Debug)]
pub(crate) enum Work {
    Generate(Box<GenerateJob>),
    Embed(EmbedJob),
}

/// Text to generate.
#[derive(Debug)]
pub(crate) struct GenerateJob {
    pub(crate) prompt: Content,
    /// One per choice; each has seen the prompt if it must.
    pub(crate) samplers: Vec<Sampler>,
    /// How to read the answer; `None` if the output is the content.
    pub(crate) chat: Option<Arc<Chat>>,
    pub(crate) params: Arc<GenerateParams>,
}

/// How to generate.
#[derive(Clone, Debug)]
pub(crate) struct GenerateParams {
    /// Tokens per choice; `None` = until the context is full.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stops: Vec<String>,
    /// 0 = off.
    pub(crate) min_indent: usize,
    /// Alternatives to report per token; `None` = no probabilities.
    pub(crate) top_logprobs: Option<usize>,
    pub(crate) post_sampling_probs: bool,
    pub(crate) return_tokens: bool,
    pub(crate) return_progress: bool,
    pub(crate) timings_per_token: bool,
    /// The prompt as text, for a reader that wants it back; else empty.
    pub(crate) shown_prompt: String,
    /// How tokens are chosen, for a reader that wants to know.
    pub(crate) shown_sampling: Option<Box<Sampling>>,
    pub(crate) cache_prompt: bool,
    pub(crate) guessing: Guessing,
    /// What is left out of a text that outgrows the context; none = the text ends there.
    pub(crate) shift: Option<Shift>,
    pub(crate) id_slot: Option<usize>,
    /// With whom what is cached may be shared: with requests that have the same here.
    pub(crate) tenant: Option<Arc<str>>,
    /// How much of each adapter is applied.
    pub(crate) scales: Scales,
    pub(crate) max_predict_ms: Option<u32>,
    /// Tokens gathered per event, at least 1.
    pub(crate) interval: u32,
    /// The request as it came, without its input.
    pub(crate) asked: Arc<GenerateRequest>,
}

/// Vectors or scores to compute.
#[derive(Debug)]
pub(crate) struct EmbedJob {
    pub(crate) inputs: Vec<Vec<Token>>,
    pub(crate) output: EmbedOutput,
    /// Bytes that the results take.
    pub(crate) bytes: usize,
}

/// What becomes of the vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EmbedOutput {
    /// Vectors, normalised as llama.cpp's `embd_normalize` says, cut to `dimensions` (0 = whole).
    Vectors { normalize: i32, dimensions: usize },
    /// Raw scores.
    Scores,
}

/// Something to do with the cache of a sequence once no request runs on it.
#[derive(Debug)]
pub(crate) struct SlotJob {
    /// Number of the sequence.
    pub(crate) slot: usize,
    pub(crate) action: SlotAction,
}

/// An answer, and how long the loop took to make it.
#[derive(Debug)]
pub(crate) struct Timed<T> {
    pub(crate) value: T,
    pub(crate) took: Duration,
}

impl<T> Timed<T> {
    /// A value that was begun at `started` and is done now.
    pub(crate) fn since(started: Instant, value: T) -> Self {
        let took = started.elapsed();
        Self { value, took }
    }
}

/// Where the answer to an order goes; whoever drops the other end takes the order back.
pub(crate) type Reply<T> = oneshot::Sender<Result<Timed<T>, Error>>;

/// What to do with a cache.
#[derive(Debug)]
pub(crate) enum SlotAction {
    /// Copy it.
    Save(Reply<Saved>),
    /// Replace it.
    Restore {
        saved: Saved,
        /// Whose it is then, as [`GenerateParams::tenant`].
        tenant: Option<Arc<str>>,
        answer: Reply<()>,
    },
    /// Forget it, and tell how many tokens that were.
    Erase(Reply<usize>),
}

impl SlotAction {
    /// Whether nobody waits for it any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Save(answer) => answer.is_closed(),
            Self::Restore { answer, .. } => answer.is_closed(),
            Self::Erase(answer) => answer.is_closed(),
        }
    }

    /// Answers that it is not done.
    pub(crate) fn refuse(self, error: Error) {
        // Whoever does not listen any more need not know.
        match self {
            Self::Save(answer) => drop(answer.send(Err(error))),
            Self::Restore { answer, .. } => drop(answer.send(Err(error))),
            Self::Erase(answer) => drop(answer.send(Err(error))),
        }
    }
}

/// What the loop is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A session begins; its events go to the outbox.
    Attach { session: u64, outbox: Outbox },
    /// A session ended: everything that runs is cancelled.
    Detach,
    /// A request is ready to run.
    Start(Job),
    /// A request was refused while it was prepared.
    Refused { session: u64, handle: u64, error: Error },
    /// The cache of a sequence is to be saved, restored or erased.
    Slot(SlotJob),
    /// Credits or cancellations came while the loop slept.
    Wake,
    /// No more work will come; ends the loop.
    Stop,
}

/// Milliseconds between two instants, as the wire wants them.
pub(crate) fn millis(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}
