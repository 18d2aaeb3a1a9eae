//! An answer as a sequence of blocks (reasoning, text, tool calls), each opened, filled and closed, for OpenAI's Responses and Anthropic's
//! Messages.
//!
//! ```text
//!  begin ─► ( open ─► piece* ─► close )* ─► finish | fail
//! ```
//!
//! Invariants: at most one block is open; there is at least one, if only an empty text; a call's pieces come together, as engines send them.
//! Such dialects have one choice.

use bytes::BytesMut;
use muster_core::Error;
use muster_proto::v1::{
    ChoiceFinished, Delta, FinishReason, Finished, PromptProgress, Timings, TokenLogprob, ToolCallDelta,
};

use super::{
    answer::{Choice, FunctionCall, is_text},
    reason,
    stream::Frames,
};

/// Text with the probabilities of its tokens, if they were requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Said {
    pub(crate) text: String,
    pub(crate) logprobs: Vec<TokenLogprob>,
}

/// A block and its contents so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Block {
    /// The model's reasoning.
    Reasoning(String),
    /// The model's text.
    Text(Said),
    /// A tool call.
    Call(FunctionCall),
}

/// More of a block.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Piece<'a> {
    pub(crate) text: &'a str,
    pub(crate) logprobs: &'a [TokenLogprob],
    /// The times so far, if they were requested.
    pub(crate) timings: Option<&'a Timings>,
}

/// How a dialect writes blocks; `index` counts the blocks.
pub(crate) trait BlockFrames {
    /// Learns how much of the prompt is read; comes before the beginning, if the request asked for it.
    fn note(&mut self, _progress: &PromptProgress) {}
    /// Writes how much of the prompt is read; the first time, this is the answer's beginning.
    fn progress(&mut self, _progress: &PromptProgress, _first: bool, _out: &mut BytesMut) {}
    /// Whether [`progress`](Self::progress) writes anything.
    fn shows_progress(&self) -> bool {
        false
    }
    /// Writes the beginning of the answer.
    fn begin(&mut self, out: &mut BytesMut);
    /// Writes the beginning of a block. The id and name of a tool call are set already.
    fn open(&mut self, index: usize, block: &Block, out: &mut BytesMut);
    /// Writes more text of the open block.
    fn piece(&mut self, index: usize, block: &Block, piece: Piece<'_>, out: &mut BytesMut);
    /// Writes the end of a block. `cut`: a limit ended the answer within this block.
    fn close(&mut self, index: usize, block: &Block, cut: bool, out: &mut BytesMut);
    /// Writes the end of a complete answer.
    fn finish(&mut self, blocks: &[Block], end: &ChoiceFinished, finished: &Finished, out: &mut BytesMut);
    /// Whether the end of a block shows its probabilities again, so that they must be kept.
    fn keeps_logprobs(&self) -> bool {
        false
    }
    /// Writes the end of a failed answer.
    fn fail(&mut self, blocks: &[Block], error: &Error, out: &mut BytesMut);
}

/// The blocks of a complete answer.
pub(crate) fn blocks(mut choice: Choice) -> Vec<Block> {
    let mut blocks = Vec::new();
    if !choice.reasoning.is_empty() {
        blocks.push(Block::Reasoning(choice.reasoning));
    }
    if !choice.content.is_empty() || (blocks.is_empty() && choice.calls.is_empty()) {
        let reasoning = choice.of_reasoning.min(choice.logprobs.len());
        blocks.push(Block::Text(Said {
            text: choice.content,
            logprobs: choice.logprobs.split_off(reasoning),
        }));
    }
    blocks.extend(choice.calls.into_values().map(Block::Call));
    blocks
}

/// Whether a limit ended the answer, in the middle of its last block.
pub(crate) fn is_cut(number: i32) -> bool {
    match reason(number) {
        FinishReason::Length | FinishReason::ContentFilter => true,
        FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Unspecified => false,
    }
}

/// The kind of block that a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Reasoning,
    Text,
    Call(u32),
}

/// The blocks of a streamed answer.
#[derive(Debug)]
pub(crate) struct Blocks<B> {
    frames: B,
    open: Option<Place>,
    /// All blocks opened so far. The last one may still be open.
    blocks: Vec<Block>,
    end: ChoiceFinished,
}

impl<B: BlockFrames> Blocks<B> {
    pub(crate) fn new(frames: B) -> Self {
        Self {
            frames,
            open: None,
            blocks: Vec::new(),
            end: ChoiceFinished::default(),
        }
    }

    /// Writes a piece into a block of its kind, which is opened first if another one is open.
    fn write(&mut self, place: Place, piece: Piece<'_>, out: &mut BytesMut) {
        let Piece { text, logprobs, .. } = piece;
        if self.open != Some(place) {
            let block = match place {
                Place::Reasoning => Block::Reasoning(String::new()),
                Place::Text => Block::Text(Said::default()),
                Place::Call(_) => Block::Call(FunctionCall::default()),
            };
            self.begin(place, block, out);
        }
        let index = self.blocks.len() - 1;
        let block = &mut self.blocks[index];
        match block {
            Block::Reasoning(held) => held.push_str(text),
            Block::Text(held) => {
                held.text.push_str(text);
                if self.frames.keeps_logprobs() {
                    held.logprobs.extend_from_slice(logprobs);
                }
            }
            Block::Call(call) => call.arguments.push_str(text),
        }
        if !text.is_empty() || !logprobs.is_empty() {
            self.frames.piece(index, block, piece, out);
        }
    }

    fn begin(&mut self, place: Place, block: Block, out: &mut BytesMut) {
        self.close(false, out);
        self.frames.open(self.blocks.len(), &block, out);
        self.blocks.push(block);
        self.open = Some(place);
    }

    fn call(&mut self, piece: &ToolCallDelta, timings: Option<&Timings>, out: &mut BytesMut) {
        let place = Place::Call(piece.index);
        if self.open != Some(place) {
            let call = FunctionCall {
                id: piece.id.clone(),
                name: piece.name.clone(),
                arguments: String::new(),
            };
            self.begin(place, Block::Call(call), out);
        }
        let piece = Piece {
            text: &piece.arguments,
            logprobs: &[],
            timings,
        };
        self.write(place, piece, out);
    }

    fn close(&mut self, cut: bool, out: &mut BytesMut) {
        if self.open.take().is_some()
            && let Some(block) = self.blocks.last()
        {
            self.frames.close(self.blocks.len() - 1, block, cut, out);
        }
    }
}

impl<B: BlockFrames> Frames for Blocks<B> {
    fn note(&mut self, progress: &PromptProgress) {
        self.frames.note(progress);
    }

    fn progress(&mut self, progress: &PromptProgress, first: bool, out: &mut BytesMut) {
        self.frames.progress(progress, first, out);
    }

    fn shows_progress(&self) -> bool {
        self.frames.shows_progress()
    }

    fn delta(&mut self, delta: &Delta, first: bool, _extra: &str, out: &mut BytesMut) {
        let timings = delta.timings.as_ref();
        if first {
            self.frames.begin(out);
        }
        if !delta.reasoning.is_empty() {
            let piece = Piece {
                text: &delta.reasoning,
                logprobs: &[],
                timings,
            };
            self.write(Place::Reasoning, piece, out);
        }
        // Bytes that are not a whole character yet come without text, but with their tokens' probabilities.
        let held_back = !delta.logprobs.is_empty() && is_text(delta) && delta.tool_calls.is_empty();
        if !delta.content.is_empty() || held_back {
            let piece = Piece {
                text: &delta.content,
                logprobs: &delta.logprobs,
                timings,
            };
            self.write(Place::Text, piece, out);
        }
        for piece in &delta.tool_calls {
            self.call(piece, timings, out);
        }
    }

    fn end(&mut self, end: &ChoiceFinished, first: bool, _last: Option<&Finished>, out: &mut BytesMut) {
        if first {
            self.frames.begin(out);
        }
        if self.blocks.is_empty() {
            self.begin(Place::Text, Block::Text(Said::default()), out);
        }
        self.close(is_cut(end.reason), out);
        self.end = end.clone();
    }

    fn finish(&mut self, finished: &Finished, _extra: &str, out: &mut BytesMut) {
        self.close(false, out);
        self.frames.finish(&self.blocks, &self.end, finished, out);
    }

    fn fail(&mut self, error: &Error, out: &mut BytesMut) {
        self.frames.fail(&self.blocks, error, out);
    }
}
