//! Sequences, the choices that run on them, and the requests these belong to.

use std::{sync::Arc, time::Instant};

use muster_proto::v1::TokenLogprob;

use super::held::Held;
use crate::{
    adapters::Scales,
    content::Content,
    control::Control,
    draft::Guesses,
    media::Part,
    model::Token,
    parse::{Lane, LaneGroup},
    request::GenerateParams,
    sampler::Sampler,
    text::TextStream,
    thought::Mark,
};

/// Cells promised to a running choice beyond what it holds (ENGINE.md 5).
pub(super) const RESERVE: usize = 256;

/// One sequence of the context (llama.cpp's slot).
#[derive(Debug)]
pub(super) struct Slot {
    /// The part of the sequence that is in memory.
    pub(super) held: Held,
    /// What the sequence consists of: what is in memory first, then what is still to be read.
    pub(super) content: Content,
    /// Tokens that will be in memory after the decode that is being built; 0 = not part of it.
    pub(super) planned: usize,
    /// Tick at which the sequence was last used.
    pub(super) last_used: u64,
    /// Tenant whose tokens these are, as `GenerateParams::tenant`.
    pub(super) tenant: Option<Arc<str>>,
    /// How much of each adapter was applied to what is in memory.
    pub(super) scales: Scales,
    /// The choice that runs on the sequence; `None` if it is idle.
    pub(super) run: Option<Box<Run>>,
}

impl Slot {
    pub(super) fn new(seq: u32) -> Self {
        Self {
            held: Held::new(i32::try_from(seq).unwrap_or(i32::MAX)),
            content: Content::default(),
            planned: 0,
            last_used: 0,
            tenant: None,
            scales: Scales::from(Vec::new()),
            run: None,
        }
    }

    /// The tokens that the memory holds.
    pub(super) fn cached(&self) -> &[Token] {
        &self.content.tokens[..self.held.len()]
    }

    /// Number of tokens still to be read before the end or the next part of an image.
    pub(super) fn unread(&self) -> usize {
        self.content.text_from(self.held.len())
    }

    /// The part of an image that must be read next.
    pub(super) fn next_part(&self) -> Option<&Arc<Part>> {
        self.content.part_at(self.held.len())?.part.as_ref()
    }

    /// Starts a choice: what the memory holds from now on is its request's.
    pub(super) fn begin(&mut self, prompt: &Content, run: Box<Run>, now: u64) {
        self.content.clone_from(prompt);
        self.last_used = now;
        self.tenant.clone_from(&run.params.tenant);
        self.scales.clone_from(&run.params.scales);
        self.run = Some(run);
    }

    /// Ends the run and keeps what the memory holds.
    pub(super) fn rest(&mut self) {
        self.planned = 0;
        self.content.rest_at(self.held.len());
    }
}

/// A running choice.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) handle: u64,
    pub(super) choice: u32,
    /// Order of arrival; larger = younger.
    pub(super) age: u64,
    pub(super) sampler: Sampler,
    /// What may come next.
    pub(super) guesses: Guesses,
    pub(super) text: TextStream,
    pub(super) params: Arc<GenerateParams>,
    pub(super) prompt_len: usize,
    /// Tokens generated, end tokens included.
    pub(super) generated: u32,
    /// When the first token was generated.
    pub(super) first_token: Option<Instant>,
    /// Whether the run lost its memory and waits to read its tokens again.
    pub(super) preempted: bool,
    /// Whether a part of its text was left out.
    pub(super) shifted: bool,
    /// Whether the output contains a newline, for `max_predict_ms`.
    pub(super) newline: bool,
    /// The lane that parses the output; `None` if the output is sent unparsed.
    pub(super) lane: Option<Arc<Lane>>,
    /// Output collected for the next event.
    pub(super) pending: Pending,
}

impl Run {
    /// Number of cells promised on top of those held.
    pub(super) fn reserve(&self) -> usize {
        let left = self
            .params
            .max_tokens
            .map_or(RESERVE, |max| max.saturating_sub(self.generated) as usize);
        left.min(RESERVE)
    }
}

/// Output not sent yet.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) text: String,
    /// For a lane: the length of `text` after each token.
    pub(super) marks: Vec<Mark>,
    pub(super) logprobs: Vec<TokenLogprob>,
    pub(super) tokens: Vec<Token>,
    /// Tokens since the last event.
    pub(super) count: u32,
}

/// Number of collected alternatives to tokens at which an event is sent before it is due, because they outweigh all else in it.
const ALTERNATIVES: usize = 1000;

impl Pending {
    /// Whether the output should be sent now, with `interval` tokens per event.
    pub(super) fn is_due(&self, interval: u32) -> bool {
        let told = self.logprobs.first().map_or(0, |one| one.top.len()) * self.logprobs.len();
        self.count >= interval || told >= ALTERNATIVES
    }
}

/// A choice that waits for a sequence.
#[derive(Debug)]
pub(super) struct WaitingChoice {
    pub(super) prompt: Arc<Content>,
    pub(super) run: Box<Run>,
}

/// A running request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) handle: u64,
    pub(super) control: Arc<Control>,
    /// Number of choices that have not ended.
    pub(super) choices_left: u32,
    pub(super) lanes: Option<Arc<LaneGroup>>,
    pub(super) started: Instant,
    /// When the first token of any choice was generated.
    pub(super) first_token: Option<Instant>,
    pub(super) prompt_len: usize,
    /// Prompt tokens that were already in memory.
    pub(super) cached: usize,
    /// Tokens generated by choices that have ended.
    pub(super) generated: u32,
    /// Tokens guessed for choices that have ended, and those of them that were right.
    pub(super) guessed: [u32; 2],
    /// Index of the first choice's sequence.
    pub(super) slot: usize,
    /// Credits not yet assigned during planning.
    pub(super) allowance: i64,
    /// A tick, and the position of the request's events in it.
    pub(super) out_at: (u64, usize),
}
