//! Prepared work: what the loop gets. Everything in it was checked; nothing needs the wire any more.

use std::{sync::Arc, time::Instant};

use muster_core::Error;
use muster_proto::v1::{GenerateRequest, Sampling};

use crate::{chat::Chat, content::Content, control::Control, model::Token, outbox::Outbox, sampler::Sampler};

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
    pub(crate) id_slot: Option<usize>,
    /// With whom what is cached may be shared: with requests that have the same here.
    pub(crate) tenant: Option<Arc<str>>,
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
    /// Credits or cancellations came while the loop slept.
    Wake,
    /// No more work will come; ends the loop.
    Stop,
}

/// Milliseconds between two instants, as the wire wants them.
pub(crate) fn millis(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}
