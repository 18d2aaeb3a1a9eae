//! Renders Responses: one body, or OpenAI's semantic events.
//!
//! ```text
//!  created ─ in_progress ─ ( output_item.added ─ … ─ output_item.done )* ─ completed | incomplete | failed
//!     reasoning: content_part.added ─ reasoning_text.delta* ─ reasoning_text.done ─ content_part.done
//!     text:      content_part.added ─ output_text.delta* ─ output_text.done ─ content_part.done
//!     call:      function_call_arguments.delta* ─ function_call_arguments.done
//! ```

use bytes::{Bytes, BytesMut};
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, FinishReason, Finished, PromptProgress, TokenLogprob, Usage};

use crate::{
    dialects::openai::translate::Echo,
    render::{
        Head,
        answer::Answer,
        blocks::{Block, BlockFrames, Blocks, Piece, Said, blocks, is_cut},
        json::{list, member, raw, value},
        logprobs, reason,
        stream::Stream,
        usage,
    },
    translate::View,
};

/// The `status` of a response.
#[derive(Clone, Copy, Debug)]
enum Status<'a> {
    InProgress,
    Ended(i32, &'a Usage),
    Failed(&'a Error),
}

/// The end of an event.
const END: &str = "}\n\n";

/// Returns the current Unix time in seconds; called when a response is complete.
pub(crate) type Clock = fn() -> u64;

/// The `status` of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begun,
    Done,
    /// The answer ended within this item, by a limit or a failure.
    Cut,
}

/// Renders a complete response.
pub(crate) fn body(head: Head, echo: Echo, view: View, clock: Clock, answer: Answer) -> Bytes {
    let usage = answer.usage();
    let choice = answer.into_only();
    let reason = choice.end.reason;
    let frames = Response::new(head, echo, view, clock);
    let mut out = BytesMut::with_capacity(1024);
    frames.object(&mut out, Status::Ended(reason, &usage), &blocks(choice));
    out.freeze()
}

/// Renders a response as a stream.
pub(crate) fn stream(head: Head, echo: Echo, view: View, clock: Clock) -> Stream<Blocks<Response>> {
    Stream::new(Blocks::new(Response::new(head, echo, view, clock)), false)
}

/// The state of a streamed response.
#[derive(Debug)]
pub(crate) struct Response {
    head: Head,
    echo: Echo,
    view: View,
    clock: Clock,
    /// Number of events written so far.
    sequence: u64,
}

impl Response {
    fn new(head: Head, echo: Echo, view: View, clock: Clock) -> Self {
        Self {
            head,
            echo,
            view,
            clock,
            sequence: 0,
        }
    }

    /// Begins an event and writes its number; the caller adds the other fields.
    fn open(&mut self, out: &mut BytesMut, name: &str) {
        raw(out, "event: ");
        raw(out, name);
        raw(out, "\ndata: {\"type\":\"");
        raw(out, name);
        raw(out, "\",\"sequence_number\":");
        value(out, &self.sequence);
        self.sequence += 1;
    }

    /// Begins an event about a block.
    fn about(&mut self, out: &mut BytesMut, name: &str, index: usize, block: &Block) {
        self.open(out, name);
        raw(out, ",\"item_id\":\"");
        self.item_id(out, index, block);
        raw(out, "\"");
        member(out, "output_index", &index);
        if !matches!(block, Block::Call(_)) {
            raw(out, ",\"content_index\":0");
        }
    }

    /// Writes an event about the whole response. The caller adds other fields and [ends](END) it.
    fn whole(&mut self, out: &mut BytesMut, name: &str, status: Status<'_>, blocks: &[Block]) {
        self.open(out, name);
        raw(out, ",\"response\":");
        self.object(out, status, blocks);
    }

    /// Writes `response.created`, which everything else follows.
    fn created(&mut self, out: &mut BytesMut) {
        self.whole(out, "response.created", Status::InProgress, &[]);
        raw(out, END);
    }

    fn object(&self, out: &mut BytesMut, status: Status<'_>, blocks: &[Block]) {
        raw(out, "{\"id\":");
        value(out, &self.head.id);
        raw(out, ",\"object\":\"response\"");
        member(out, "created_at", &self.head.created);
        let (word, incomplete) = match status {
            Status::InProgress => ("in_progress", None),
            Status::Failed(_) => ("failed", None),
            Status::Ended(number, _) => match reason(number) {
                FinishReason::Length => ("incomplete", Some("max_output_tokens")),
                FinishReason::ContentFilter => ("incomplete", Some("content_filter")),
                FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Unspecified => {
                    ("completed", None)
                }
            },
        };
        member(out, "status", word);
        raw(out, ",\"background\":false,\"error\":");
        if let Status::Failed(error) = status {
            raw(out, "{\"code\":");
            value(out, error.code.as_str());
            member(out, "message", &error.message);
            raw(out, "}");
        } else {
            raw(out, "null");
        }
        raw(out, ",\"incomplete_details\":");
        if let Some(why) = incomplete {
            raw(out, "{\"reason\":");
            value(out, why);
            raw(out, "}");
        } else {
            raw(out, "null");
        }
        member(out, "model", &self.head.model);
        raw(out, ",\"output\":");
        let cut = match status {
            Status::InProgress => false,
            Status::Failed(_) => true,
            Status::Ended(reason, _) => is_cut(reason),
        };
        list(out, blocks.iter().enumerate(), |out, (index, block)| {
            let cut = cut && index + 1 == blocks.len();
            self.item(out, index, block, if cut { Stage::Cut } else { Stage::Done });
        });
        raw(
            out,
            ",\"previous_response_id\":null,\"store\":false,\"service_tier\":\"default\"",
        );
        raw(out, &self.echo.0);
        if let Status::Ended(_, usage) = status {
            member(
                out,
                "completed_at",
                &Some((self.clock)()).filter(|_| incomplete.is_none()),
            );
            raw(out, ",\"usage\":");
            write_usage(out, usage);
        } else {
            raw(out, ",\"usage\":null");
        }
        raw(out, "}");
    }

    /// Writes an item's id, which is derived from the response's.
    fn item_id(&self, out: &mut BytesMut, index: usize, block: &Block) {
        raw(
            out,
            match block {
                Block::Reasoning(_) => "rs_",
                Block::Text(_) => "msg_",
                Block::Call(_) => "fc_",
            },
        );
        let id = self.head.id.strip_prefix("resp_").unwrap_or(&self.head.id);
        raw(out, id);
        raw(out, "_");
        value(out, &index);
    }

    fn item(&self, out: &mut BytesMut, index: usize, block: &Block, stage: Stage) {
        let done = stage != Stage::Begun;
        raw(out, "{\"id\":\"");
        self.item_id(out, index, block);
        let status = match stage {
            Stage::Begun => "in_progress",
            Stage::Done => "completed",
            Stage::Cut => "incomplete",
        };
        raw(out, "\"");
        member(out, "status", status);
        match block {
            Block::Reasoning(_) => {
                raw(out, ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
                if done {
                    self.part(out, block);
                }
                raw(out, "]}");
            }
            Block::Text(_) => {
                raw(out, ",\"type\":\"message\",\"role\":\"assistant\",\"content\":[");
                if done {
                    self.part(out, block);
                }
                raw(out, "]}");
            }
            Block::Call(call) => {
                raw(out, ",\"type\":\"function_call\"");
                member(out, "call_id", &call.id);
                member(out, "name", &call.name);
                member(out, "arguments", &call.arguments);
                raw(out, "}");
            }
        }
    }

    /// Writes an event about a whole item.
    fn about_item(&mut self, out: &mut BytesMut, index: usize, block: &Block, stage: Stage) {
        let name = match stage {
            Stage::Begun => "response.output_item.added",
            Stage::Done | Stage::Cut => "response.output_item.done",
        };
        self.open(out, name);
        member(out, "output_index", &index);
        raw(out, ",\"item\":");
        self.item(out, index, block, stage);
        raw(out, "}\n\n");
    }

    /// Writes an event about an item's only content part.
    fn about_part(&mut self, out: &mut BytesMut, index: usize, block: &Block, done: bool) {
        let name = if done {
            "response.content_part.done"
        } else {
            "response.content_part.added"
        };
        self.about(out, name, index, block);
        raw(out, ",\"part\":");
        self.part(out, block);
        raw(out, "}\n\n");
    }

    /// Writes the content part of reasoning or text.
    fn part(&self, out: &mut BytesMut, block: &Block) {
        match block {
            Block::Reasoning(text) => {
                raw(out, "{\"type\":\"reasoning_text\",\"text\":");
                value(out, text);
                raw(out, "}");
            }
            Block::Text(Said { text, logprobs }) => {
                raw(out, "{\"type\":\"output_text\",\"text\":");
                value(out, text);
                raw(out, ",\"annotations\":[]");
                self.logprobs(out, logprobs);
                raw(out, "}");
            }
            Block::Call(_) => {}
        }
    }

    /// Writes `,"logprobs":[…]`. The list is empty unless the request asked for them.
    fn logprobs(&self, out: &mut BytesMut, tokens: &[TokenLogprob]) {
        raw(out, ",\"logprobs\":[");
        if self.view.logprobs {
            logprobs::chat(out, tokens, self.view.post_sampling);
        }
        raw(out, "]");
    }
}

/// Writes the token counts. `reasoning_tokens` is 0 if the engine does not count them, because OpenAI's clients require the field.
fn write_usage(out: &mut BytesMut, usage: &Usage) {
    raw(out, "{\"input_tokens\":");
    value(out, &usage.prompt_tokens);
    raw(out, ",\"input_tokens_details\":{\"cached_tokens\":");
    value(out, &usage.cached_tokens);
    raw(out, "}");
    member(out, "output_tokens", &usage.completion_tokens);
    raw(out, ",\"output_tokens_details\":{\"reasoning_tokens\":");
    value(out, &usage.reasoning_tokens);
    raw(out, "}");
    let total = u64::from(usage.prompt_tokens) + u64::from(usage.completion_tokens);
    member(out, "total_tokens", &total);
    raw(out, "}");
}

impl BlockFrames for Response {
    fn begin(&mut self, out: &mut BytesMut) {
        self.created(out);
        self.whole(out, "response.in_progress", Status::InProgress, &[]);
        raw(out, END);
    }

    /// As llama.cpp shows it: beside a response that is in progress.
    fn progress(&mut self, progress: &PromptProgress, first: bool, out: &mut BytesMut) {
        if first {
            self.created(out);
        }
        self.whole(out, "response.in_progress", Status::InProgress, &[]);
        usage::progress(out, progress, self.view.timed);
        raw(out, END);
    }

    fn shows_progress(&self) -> bool {
        true
    }

    fn open(&mut self, index: usize, block: &Block, out: &mut BytesMut) {
        self.about_item(out, index, block, Stage::Begun);
        if !matches!(block, Block::Call(_)) {
            self.about_part(out, index, block, false);
        }
    }

    fn piece(&mut self, index: usize, block: &Block, piece: Piece<'_>, out: &mut BytesMut) {
        let name = match block {
            Block::Reasoning(_) => "response.reasoning_text.delta",
            Block::Text(_) => "response.output_text.delta",
            Block::Call(_) => "response.function_call_arguments.delta",
        };
        self.about(out, name, index, block);
        member(out, "delta", piece.text);
        if matches!(block, Block::Text(_)) {
            self.logprobs(out, piece.logprobs);
        }
        usage::timed(out, piece.timings);
        raw(out, END);
    }

    fn close(&mut self, index: usize, block: &Block, cut: bool, out: &mut BytesMut) {
        let (name, key, text) = match block {
            Block::Reasoning(text) => ("response.reasoning_text.done", "text", text),
            Block::Text(said) => ("response.output_text.done", "text", &said.text),
            Block::Call(call) => (
                "response.function_call_arguments.done",
                "arguments",
                &call.arguments,
            ),
        };
        self.about(out, name, index, block);
        if let Block::Call(call) = block {
            member(out, "name", &call.name);
        }
        member(out, key, text);
        if let Block::Text(said) = block {
            self.logprobs(out, &said.logprobs);
        }
        raw(out, "}\n\n");
        if !matches!(block, Block::Call(_)) {
            self.about_part(out, index, block, true);
        }
        self.about_item(out, index, block, if cut { Stage::Cut } else { Stage::Done });
    }

    fn finish(&mut self, blocks: &[Block], end: &ChoiceFinished, finished: &Finished, out: &mut BytesMut) {
        let usage = finished.usage.unwrap_or_default();
        // An answer that was cut says so inside: clients of seed 000 wait for this event.
        self.whole(
            out,
            "response.completed",
            Status::Ended(end.reason, &usage),
            blocks,
        );
        usage::timings(out, finished);
        raw(out, END);
    }

    fn keeps_logprobs(&self) -> bool {
        self.view.logprobs
    }

    fn fail(&mut self, blocks: &[Block], error: &Error, out: &mut BytesMut) {
        self.whole(out, "response.failed", Status::Failed(error), blocks);
        raw(out, END);
    }
}
