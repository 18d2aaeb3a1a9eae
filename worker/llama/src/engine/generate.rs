//! From logits to the next token: sample, look for an end, keep what is needed for the next round.

use std::time::{Duration, Instant};

use muster_core::Code;
use muster_proto::v1::{ChoiceFinished, FinishReason, StopKind, TokenLogprob, TopLogprob};

use super::{
    Engine,
    slot::{Run, Slot},
};
use crate::{
    ffi::NativeError,
    model::{Model, Token},
    probs,
    text::Cut,
    thought::Mark,
};

/// Most tokens needed to finish a character: its bytes but the first.
const CHARACTER: u32 = 3;

/// Why a choice is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The model generated an end token.
    EndOfText,
    /// The output contains this stop string.
    Word(String),
    /// A limit of tokens, time or indentation was reached.
    Limit,
    /// The context is full.
    ContextFull,
}

impl Ending {
    pub(super) fn event(&self, choice: u32, generated: u32) -> ChoiceFinished {
        let (reason, stop) = match self {
            Self::EndOfText => (FinishReason::Stop, StopKind::Eos),
            Self::Word(_) => (FinishReason::Stop, StopKind::Word),
            Self::Limit | Self::ContextFull => (FinishReason::Length, StopKind::Limit),
        };
        ChoiceFinished {
            choice,
            reason: reason.into(),
            stop: stop.into(),
            stopping_word: match self {
                Self::Word(word) => word.clone(),
                Self::EndOfText | Self::Limit | Self::ContextFull => String::new(),
            },
            truncated: *self == Self::ContextFull,
            generated,
            ..ChoiceFinished::default()
        }
    }
}

impl Engine {
    /// Samples for slot `index` from the batch's token `at`, and for the choices that wait to share its prompt.
    pub(super) fn sample(&mut self, index: usize, at: usize) {
        let Some(run) = &self.slots[index].run else { return };
        let first = run.choice == 0 && run.first_token.is_none();
        let handle = run.handle;
        if run.params.max_tokens == Some(0) {
            return self.finish(index, &Ending::Limit);
        }
        if first && !self.waiting.is_empty() {
            self.fork(index, handle, at);
        }
        self.sample_one(index, at);
    }

    /// n > 1: the prompt was read once; siblings share its cells and take their first token from the same logits (ENGINE.md 9).
    fn fork(&mut self, parent: usize, handle: u64, at: usize) {
        while let Some(waiting) = self.waiting.iter().position(|choice| choice.run.handle == handle) {
            let idle = (0..self.slots.len())
                .filter(|i| self.slots[*i].run.is_none())
                .min_by_key(|i| (!self.slots[*i].held.is_empty(), self.slots[*i].last_used));
            let Some(index) = idle else { return };
            let Some(choice) = self.waiting.remove(waiting) else {
                return;
            };
            let Ok([from, slot]) = self.slots.get_disjoint_mut([parent, index]) else {
                return;
            };
            slot.held
                .share(&mut self.context, &from.held, &choice.prompt, choice.prompt.len());
            slot.begin(&choice.prompt, choice.run, self.clock);
            self.checkpoints.drop_beyond(slot.held.seq(), 0);
            self.sample_one(index, at);
        }
    }

    pub(super) fn sample_one(&mut self, index: usize, at: usize) {
        let slot = &mut self.slots[index];
        let Some(run) = slot.run.as_deref_mut() else {
            return;
        };
        self.piece.clear();
        let sampled = match run.sampler.sample(&mut self.context, at, &mut self.piece) {
            Ok(sampled) => sampled,
            Err(error) => {
                let handle = run.handle;
                let code = match error {
                    NativeError::DeadEnd => Code::InvalidRequest,
                    NativeError::Invalid(_) | NativeError::Failed(_) => Code::RuntimeError,
                };
                return self.fail(handle, code.error(error.to_string()));
            }
        };
        let now = Instant::now();
        let begun = *run.first_token.get_or_insert(now);
        run.generated += 1;
        if let Some(request) = self.requests.get_mut(&run.handle) {
            request.first_token.get_or_insert(now);
        }
        if sampled.eog != 0 {
            return self.finish(index, &Ending::EndOfText);
        }
        if let Some(top) = run.params.top_logprobs {
            let logprob = logprob(
                &self.model,
                &mut self.context,
                run,
                at,
                sampled.token,
                top,
                &self.piece,
            );
            run.pending.logprobs.push(logprob);
        }
        if run.params.return_tokens {
            run.pending.tokens.push(sampled.token);
        }
        run.pending.count += 1;
        let cut = run.text.push(&self.piece, &mut run.pending.text);
        if run.lane.is_some() {
            run.pending.marks.push(Mark {
                bytes: run.pending.text.len(),
                generated: run.generated,
            });
        }
        run.newline |= self.piece.contains(&b'\n');
        let ending = ending(
            slot,
            sampled.token,
            cut,
            now.saturating_duration_since(begun),
            self.max_tokens,
        );
        match ending {
            Some(ending) => self.finish(index, &ending),
            None => {
                if self.slots[index].content.len() >= self.max_tokens {
                    self.shift(index);
                }
                self.emit_output(index);
            }
        }
    }

    /// Ends the only sequence left, because its context has no room for one more token.
    pub(super) fn run_out_of_context(&mut self, index: usize) {
        self.finish(index, &Ending::ContextFull);
    }
}

/// Whether the choice is over after `token`; if not, the token is queued for the next decode.
fn ending(
    slot: &mut Slot,
    token: Token,
    cut: Option<Cut>,
    time: Duration,
    max_tokens: usize,
) -> Option<Ending> {
    let run = slot.run.as_deref()?;
    match cut {
        Some(Cut::Stop(stop)) => return Some(Ending::Word(run.text.stop(stop).to_owned())),
        Some(Cut::Indent) => return Some(Ending::Limit),
        None => {}
    }
    // finish a character that has begun, or its bytes would be useless (ENGINE.md 15)
    let cut_short = |max| run.text.is_whole() || run.generated >= max + CHARACTER;
    if run
        .params
        .max_tokens
        .is_some_and(|max| run.generated >= max && cut_short(max))
    {
        return Some(Ending::Limit);
    }
    let late = run
        .params
        .max_predict_ms
        .is_some_and(|ms| time > Duration::from_millis(u64::from(ms)));
    if late && run.newline {
        return Some(Ending::Limit);
    }
    let shifts = run.params.shift.is_some() && !slot.content.has_parts();
    if slot.content.len() + 1 >= max_tokens && !shifts {
        return Some(Ending::ContextFull);
    }
    slot.content.tokens.push(token);
    None
}

/// A token's log probability and the alternatives to it.
fn logprob(
    model: &Model,
    context: &mut crate::context::Context,
    run: &mut Run,
    at: usize,
    token: Token,
    top: usize,
    piece: &[u8],
) -> TokenLogprob {
    let (logprob, alternatives) = if run.params.post_sampling_probs {
        let candidates = run.sampler.candidates().unwrap_or_default();
        let chosen = candidates
            .iter()
            .find(|candidate| candidate.0 == token)
            .map_or(0.0, |candidate| candidate.1);
        (chosen, candidates.into_iter().take(top).collect())
    } else {
        let logits = context.logits(at).unwrap_or_default();
        let probabilities = probs::from_logits(logits, token, top);
        (probabilities.chosen, probabilities.top)
    };
    let top = alternatives
        .into_iter()
        .map(|(token, logprob)| TopLogprob {
            token,
            bytes: model.piece(token, false).into(),
            logprob,
        })
        .collect();
    TokenLogprob {
        token,
        bytes: piece.to_vec().into(),
        logprob,
        top,
    }
}
