//! A complete answer, collected from its events. A dialect writes the body from it.

use std::collections::BTreeMap;

use muster_core::{Code, Error};
use muster_proto::v1::{
    ChoiceFinished, Delta, EmbedResult, Event, Finished, RerankResult, TokenLogprob, Usage, event::Kind,
};
use prost::Message as _;

/// Largest answer that is collected, in bytes of messages: a hundred thousand tokens with a dozen alternatives each. In memory, and again
/// as JSON, it takes several times as much.
const MOST_BYTES: usize = 32 << 20;

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FunctionCall {
    pub(crate) id: String,
    pub(crate) name: String,
    /// The arguments as JSON text.
    pub(crate) arguments: String,
}

/// Whether the tokens of a piece belong to the text and not to the reasoning. Tokens without output yet belong to the text.
pub(crate) fn is_text(delta: &Delta) -> bool {
    !delta.content.is_empty() || delta.reasoning.is_empty()
}

/// One choice of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: BTreeMap<u32, FunctionCall>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// Number of tokens, from the first on, that belong to the reasoning.
    pub(crate) of_reasoning: usize,
    pub(crate) tokens: Vec<i32>,
    pub(crate) end: ChoiceFinished,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answer {
    pub(crate) choices: BTreeMap<u32, Choice>,
    pub(crate) embedded: Option<EmbedResult>,
    pub(crate) reranked: Option<RerankResult>,
    pub(crate) finished: Finished,
    /// Fields that the engine added: a JSON object, or empty.
    pub(crate) extra: String,
    /// Size in bytes of the events so far.
    pub(crate) bytes: usize,
}

impl Answer {
    /// Adds an event. Returns whether it was the last one.
    ///
    /// # Errors
    /// The request failed, or the answer is too large for a body that is not streamed.
    pub(crate) fn event(&mut self, event: Event) -> Result<bool, Error> {
        match event.kind {
            Some(Kind::Delta(delta)) => {
                self.bytes += delta.encoded_len();
                if self.bytes > MOST_BYTES {
                    return Err(too_large());
                }
                self.delta(delta);
            }
            Some(Kind::ChoiceFinished(end)) => {
                let choice = self.choices.entry(end.choice).or_default();
                choice.end = end;
            }
            Some(Kind::Embedded(embedded)) => self.embedded = Some(embedded),
            Some(Kind::Reranked(reranked)) => self.reranked = Some(reranked),
            Some(Kind::Finished(finished)) => {
                self.finished = finished;
                self.extra = event.extra_json;
                return Ok(true);
            }
            Some(Kind::Failed(error)) => return Err(error.into()),
            Some(Kind::Admitted(_) | Kind::Progress(_)) | None => {}
        }
        Ok(false)
    }

    /// Token counts of the whole answer.
    pub(crate) fn usage(&self) -> Usage {
        self.finished.usage.unwrap_or_default()
    }

    /// The only choice, for dialects without `n`.
    pub(crate) fn into_only(mut self) -> Choice {
        self.choices.remove(&0).unwrap_or_default()
    }

    fn delta(&mut self, delta: Delta) {
        let choice = self.choices.entry(delta.choice).or_default();
        if !is_text(&delta) {
            choice.of_reasoning += delta.logprobs.len();
        }
        choice.content.push_str(&delta.content);
        choice.reasoning.push_str(&delta.reasoning);
        choice.tokens.extend(delta.tokens);
        choice.logprobs.extend(delta.logprobs);
        for piece in delta.tool_calls {
            let call = choice.calls.entry(piece.index).or_default();
            call.id.push_str(&piece.id);
            call.name.push_str(&piece.name);
            call.arguments.push_str(&piece.arguments);
        }
    }
}

fn too_large() -> Error {
    let most = MOST_BYTES >> 20;
    Code::InvalidRequest.error(format!(
        "the answer is larger than the {most} MiB that are gathered: ask for fewer probabilities or tokens, or for a stream"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gathered_is_bounded() {
        let mut answer = Answer::default();
        let piece = Delta {
            content: "x".repeat(1 << 20),
            ..Delta::default()
        };
        let mut event = || {
            answer.event(Event {
                kind: Some(Kind::Delta(piece.clone())),
                ..Event::default()
            })
        };
        for _ in 0..31 {
            assert_eq!(event(), Ok(false));
        }
        assert!(event().is_err());
    }
}
