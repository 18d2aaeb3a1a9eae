//! Tokens that are guessed ahead: how many in this round, and what becomes of them (`draft`).
//!
//! Guesses are made only in rounds in which nobody reads a prompt: these are timed, and leave no room for them.
//!
//! Invariant: after a decode the memory holds no guess that was wrong, and none of a choice that ended.

use super::Engine;
use crate::{
    context::ContextInfo,
    draft::Odds,
    model::{ModelInfo, Token},
    plan::Part,
};

/// Most guesses in one decode.
const MOST: usize = muster_proto::llamacpp::DRAFTS as usize;

/// Whether tokens can be guessed ahead with such a memory: what was guessed wrongly must be taken back.
pub(crate) fn may_guess(model: &ModelInfo, memory: &ContextInfo) -> bool {
    let recurrent = model.recurrent || model.hybrid;
    // In a split cache sequences of different lengths are decoded one after the other, and the later part may overwrite the window.
    let forgets = model.n_swa > 0 && memory.is_split();
    memory.has_memory && !recurrent && !forgets
}

impl Engine {
    /// Guesses ahead for the sequences that generate in this round.
    pub(super) fn guess_ahead(&mut self) {
        let riders = self.parts.len();
        let reading = self
            .parts
            .iter()
            .any(|part| part.tokens > 1 || !self.generates(part.seq));
        let physical = self.context.info().n_ubatch as usize;
        let (round, token) = (self.pace.round(riders), self.pace.token());
        let can = self.guesses && !reading;
        let mut others = 0;
        for (turn, part) in self.parts.iter().enumerate() {
            let slot = &mut self.slots[part.seq];
            let Some(run) = slot.run.as_deref_mut() else {
                continue;
            };
            run.guesses.withdraw();
            let Some(request) = self.requests.get_mut(&run.handle).filter(|_| can) else {
                continue;
            };
            let most = run.params.max_tokens.unwrap_or(u32::MAX);
            let room = [
                // each its share of what is left, so that the first does not take all
                (MOST - others).div_ceil(riders - turn),
                physical.saturating_sub(riders + others),
                most.saturating_sub(run.generated + 1) as usize,
                self.max_tokens.saturating_sub(slot.content.len() + 1),
                usize::try_from(request.allowance).unwrap_or(0),
            ];
            let room = room.into_iter().min().unwrap_or(0);
            let price = |count| self.price.of(count, others, riders, round, token);
            let count = run.guesses.guess(&slot.content.tokens, room, price);
            request.allowance -= i64::try_from(count).unwrap_or(0);
            others += count;
        }
    }

    fn generates(&self, index: usize) -> bool {
        let run = self.slots[index].run.as_deref();
        run.is_some_and(|run| run.first_token.is_some())
    }

    /// Guesses in the decode of these parts.
    pub(super) fn guesses_in(&self, parts: &[Part]) -> usize {
        let runs = parts
            .iter()
            .filter_map(|part| self.slots[part.seq].run.as_deref());
        runs.map(|run| run.guesses.tokens().len()).sum()
    }

    /// Takes the guesses of these parts back, because there is no room for them. False if there were none.
    pub(super) fn withdraw(&mut self, parts: &[Part]) -> bool {
        let mut any = false;
        for part in parts {
            if let Some(run) = &mut self.slots[part.seq].run {
                any |= run.guesses.withdraw();
            }
        }
        any
    }

    /// Samples for slot `index` from the batch's token `at`, and on from its guesses for as long as they are what was sampled.
    pub(super) fn sample_along(&mut self, index: usize, at: usize) {
        let mut guesses = std::mem::take(&mut self.ahead);
        let run = self.slots[index].run.as_deref_mut();
        let agrees = run.map_or(0, |run| run.guesses.made(&mut guesses));
        self.sample(index, at);
        let mut right = 0;
        while guesses
            .get(right)
            .is_some_and(|guess| self.goes_on_with(index, *guess))
        {
            right += 1;
            self.sample_one(index, at + right);
        }
        if right < guesses.len() {
            let slot = &mut self.slots[index];
            slot.held.take_back(&mut self.context, &slot.content, self.reach);
        }
        if !guesses.is_empty() {
            self.learn(index, agrees, right, guesses.len());
        }
        guesses.clear();
        self.ahead = guesses;
    }

    /// Whether the token that was just sampled is `guess`; if so, it is in memory already.
    fn goes_on_with(&mut self, index: usize, guess: Token) -> bool {
        let slot = &mut self.slots[index];
        let Some(run) = slot.run.as_deref_mut() else {
            return false;
        };
        // a text that was just shifted is read again
        if slot.content.tokens.last() != Some(&guess) || slot.content.len() != slot.held.len() + 1 {
            return false;
        }
        run.guesses.was_right();
        slot.held.grown_to(slot.held.len() + 1);
        true
    }

    fn learn(&mut self, index: usize, agrees: usize, right: usize, count: usize) {
        let run = self.slots[index].run.as_deref_mut();
        // where a text ends, the next guess was neither right nor wrong
        let tried = (right + usize::from(run.is_some())).min(count);
        if let Some(run) = run {
            run.guesses.learn(agrees, right, tried);
        }
        self.odds.learn(agrees, right, tried);
    }

    /// The odds that a new request begins with.
    pub(super) fn first_odds(&self) -> Odds {
        self.odds.for_another()
    }
}
