//! A whole answer, gathered from its events: what a dialect writes a body from.

use std::collections::BTreeMap;

use muster_proto::v1::{
    ChoiceFinished, Delta, EmbedResult, ErrorInfo, Event, Finished, RerankResult, TokenLogprob, Usage,
    event::Kind,
};

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) id: String,
    pub(crate) name: String,
    /// JSON text.
    pub(crate) arguments: String,
}

/// Whether a piece's tokens belong to the text: not those of reasoning. Tokens without any output yet are on their way to the text.
pub(crate) fn is_text(delta: &Delta) -> bool {
    !delta.content.is_empty() || delta.reasoning.is_empty()
}

/// One choice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) content: String,
    pub(crate) reasoning: String,
    pub(crate) calls: BTreeMap<u32, Call>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    /// How many of these belong to the reasoning: the first so many.
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
    /// The engine's further fields: a JSON object, or empty.
    pub(crate) extra: String,
}

impl Answer {
    /// Takes an event; true if it was the last one.
    ///
    /// # Errors
    /// The request failed.
    pub(crate) fn event(&mut self, event: Event) -> Result<bool, ErrorInfo> {
        match event.kind {
            Some(Kind::Delta(delta)) => self.delta(delta),
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
            Some(Kind::Failed(error)) => return Err(error),
            Some(Kind::Admitted(_) | Kind::Progress(_)) | None => {}
        }
        Ok(false)
    }

    /// Token counts of the whole.
    pub(crate) fn usage(&self) -> Usage {
        self.finished.usage.unwrap_or_default()
    }

    /// The only choice of a dialect that has no others.
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
