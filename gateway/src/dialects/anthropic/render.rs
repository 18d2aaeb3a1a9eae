//! Renders answers as Anthropic's messages: one body, or a stream of events.
//!
//! ```text
//!  message_start ─ ( content_block_start ─ content_block_delta* ─ content_block_stop )* ─ message_delta ─ message_stop | error
//! ```
//!
//! `message_start` counts the prompt's tokens, which the engine tells before it reads them. All counts come in the last event with usage,
//! `message_delta`.

use bytes::{Bytes, BytesMut};
use muster_core::Error;
use muster_proto::v1::{ChoiceFinished, FinishReason, Finished, PromptProgress, StopKind, Usage};
use serde_json::value::RawValue;

use crate::render::{
    Head,
    answer::Answer,
    blocks::{Block, BlockFrames, Blocks, Piece, blocks},
    json::{list, member, raw, value},
    reason,
    stream::Stream,
};

/// Renders a complete message.
pub(crate) fn body(head: &Head, answer: Answer) -> Bytes {
    let usage = answer.usage();
    let choice = answer.into_only();
    let end = choice.end.clone();
    let mut out = BytesMut::with_capacity(512);
    open(&mut out, head);
    raw(&mut out, ",\"content\":");
    list(&mut out, blocks(choice), |out, block| whole(out, &block));
    stop(&mut out, &end);
    write_usage(&mut out, &usage);
    raw(&mut out, "}");
    out.freeze()
}

/// Renders a message as a stream.
pub(crate) fn stream(head: Head) -> Stream<Blocks<Message>> {
    let usage = Usage::default();
    Stream::new(Blocks::new(Message { head, usage }), false)
}

/// The state of a streamed message.
#[derive(Debug)]
pub(crate) struct Message {
    head: Head,
    /// What is known at the beginning.
    usage: Usage,
}

fn open(out: &mut BytesMut, head: &Head) {
    raw(out, "{\"id\":");
    value(out, &head.id);
    raw(out, ",\"type\":\"message\",\"role\":\"assistant\"");
    member(out, "model", &head.model);
}

fn whole(out: &mut BytesMut, block: &Block) {
    match block {
        Block::Reasoning(text) => {
            raw(out, "{\"type\":\"thinking\",\"thinking\":");
            value(out, text);
            raw(out, ",\"signature\":\"\"}");
        }
        Block::Text(said) => {
            raw(out, "{\"type\":\"text\",\"text\":");
            value(out, &said.text);
            raw(out, "}");
        }
        Block::Call(call) => {
            raw(out, "{\"type\":\"tool_use\",\"id\":");
            value(out, &call.id);
            member(out, "name", &call.name);
            raw(out, ",\"input\":");
            raw(out, object(&call.arguments));
            raw(out, "}");
        }
    }
}

/// A call's arguments as a JSON object; `{}` if they are not a complete object.
fn object(arguments: &str) -> &str {
    match serde_json::from_str::<&RawValue>(arguments) {
        Ok(json) if json.get().starts_with('{') => json.get(),
        Ok(_) | Err(_) => "{}",
    }
}

/// Writes the reason for the message's end.
fn stop(out: &mut BytesMut, end: &ChoiceFinished) {
    let word = match reason(end.reason) {
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::ContentFilter => "refusal",
        FinishReason::Stop | FinishReason::Unspecified if end.stop == i32::from(StopKind::Word) => {
            "stop_sequence"
        }
        FinishReason::Stop | FinishReason::Unspecified => "end_turn",
    };
    member(out, "stop_reason", word);
    let hit = Some(&end.stopping_word).filter(|_| word == "stop_sequence");
    member(out, "stop_sequence", &hit);
}

/// Writes the token counts. Cached tokens do not count as input a second time.
fn write_usage(out: &mut BytesMut, usage: &Usage) {
    raw(out, ",\"usage\":{\"input_tokens\":");
    value(out, &usage.prompt_tokens.saturating_sub(usage.cached_tokens));
    raw(out, ",\"cache_creation_input_tokens\":0");
    member(out, "cache_read_input_tokens", &usage.cached_tokens);
    member(out, "output_tokens", &usage.completion_tokens);
    raw(out, "}");
}

/// Begins an event about the content block with this index.
fn about(out: &mut BytesMut, name: &str, index: usize) {
    raw(out, "event: ");
    raw(out, name);
    raw(out, "\ndata: {\"type\":\"");
    raw(out, name);
    raw(out, "\",\"index\":");
    value(out, &index);
}

impl BlockFrames for Message {
    fn note(&mut self, progress: &PromptProgress) {
        self.usage.prompt_tokens = progress.total;
        self.usage.cached_tokens = progress.cached;
    }

    fn begin(&mut self, out: &mut BytesMut) {
        raw(
            out,
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":",
        );
        open(out, &self.head);
        raw(out, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null");
        write_usage(out, &self.usage);
        raw(out, "}}\n\n");
    }

    fn open(&mut self, index: usize, block: &Block, out: &mut BytesMut) {
        about(out, "content_block_start", index);
        raw(out, ",\"content_block\":");
        whole(out, block);
        raw(out, "}\n\n");
    }

    fn piece(&mut self, index: usize, block: &Block, piece: Piece<'_>, out: &mut BytesMut) {
        about(out, "content_block_delta", index);
        raw(
            out,
            match block {
                Block::Reasoning(_) => ",\"delta\":{\"type\":\"thinking_delta\",\"thinking\":",
                Block::Text(_) => ",\"delta\":{\"type\":\"text_delta\",\"text\":",
                Block::Call(_) => ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":",
            },
        );
        value(out, piece.text);
        raw(out, "}}\n\n");
    }

    fn close(&mut self, index: usize, _block: &Block, _cut: bool, out: &mut BytesMut) {
        about(out, "content_block_stop", index);
        raw(out, "}\n\n");
    }

    fn finish(&mut self, _blocks: &[Block], end: &ChoiceFinished, finished: &Finished, out: &mut BytesMut) {
        raw(
            out,
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"container\":null",
        );
        stop(out, end);
        raw(out, "}");
        write_usage(out, &finished.usage.unwrap_or_default());
        raw(
            out,
            "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
    }

    fn fail(&mut self, _blocks: &[Block], error: &Error, out: &mut BytesMut) {
        raw(out, "event: error\ndata: ");
        super::error::FORM.write(out, error);
        raw(out, "\n\n");
    }
}

#[cfg(test)]
mod tests {
    use muster_core::Code;
    use muster_proto::v1::{Event, event::Kind};

    use super::*;
    use crate::render::recorded::{
        done, end, event, gathered, head, json, reasoning_and_text, shown, text, tools,
    };

    fn stopped_by_word() -> Vec<Event> {
        let end = ChoiceFinished {
            reason: FinishReason::Stop.into(),
            stop: StopKind::Word.into(),
            stopping_word: "\n\n".into(),
            ..ChoiceFinished::default()
        };
        vec![text(0, "a"), event(Kind::ChoiceFinished(end)), done()]
    }

    #[test]
    fn messages_stream() {
        let failing = vec![
            text(0, "a"),
            event(Kind::Failed(Code::WorkerLost.error("gone").into())),
        ];
        for (name, events) in [
            ("reasoning", reasoning_and_text()),
            ("tools", tools()),
            ("silent", vec![end(0, FinishReason::Length), done()]),
            ("stop_sequence", stopped_by_word()),
            ("failed", failing),
        ] {
            insta::assert_snapshot!(format!("message_stream_{name}"), shown(stream(head()), events));
        }
    }

    #[test]
    fn message_bodies() {
        for (name, events) in [
            ("reasoning", reasoning_and_text()),
            ("tools", tools()),
            ("stop_sequence", stopped_by_word()),
        ] {
            insta::assert_json_snapshot!(
                format!("message_body_{name}"),
                json(&body(&head(), gathered(events)))
            );
        }
    }

    #[test]
    fn arguments_that_were_cut_short_are_none() {
        assert_eq!(object("{\"a\": 1}"), "{\"a\": 1}");
        assert_eq!(object("{\"a\": "), "{}");
        assert_eq!(object("[1]"), "{}");
    }
}
