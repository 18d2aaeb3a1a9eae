//! Probabilities of tokens from raw logits: softmax over the whole vocabulary, without sorting it.
//!
//! Source: seed 004 (`n_probs`), ENGINE.md 16. The module knows neither llama.cpp nor the wire.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::model::Token;

/// Log-probabilities of the chosen token and of the likeliest ones.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Probabilities {
    /// Natural logarithm of the chosen token's probability.
    pub(crate) chosen: f32,
    /// The likeliest tokens, descending; ties by id.
    pub(crate) top: Vec<(Token, f32)>,
}

/// Softmax of `logits`, reported for `chosen` and the `n_top` likeliest.
pub(crate) fn from_logits(logits: &[f32], chosen: Token, n_top: usize) -> Probabilities {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a logarithm of a sum of at most 2^32 terms fits f32"
    )]
    let log_sum = sum.ln() as f32 + max;
    let chosen = usize::try_from(chosen)
        .ok()
        .and_then(|index| logits.get(index))
        .map_or(f32::NEG_INFINITY, |logit| logit - log_sum);
    let top = top(logits, n_top)
        .into_iter()
        .map(|(token, logit)| (token, logit - log_sum))
        .collect();
    Probabilities { chosen, top }
}

/// The `n` largest logits, descending; ties by id. One pass with a heap of the best, whose worst is on top: most logits cost one comparison.
fn top(logits: &[f32], n: usize) -> Vec<(Token, f32)> {
    let mut best: BinaryHeap<Worst> = BinaryHeap::with_capacity(n.min(logits.len()));
    for (token, logit) in (0..).zip(logits.iter().copied()) {
        if logit.is_nan() {
            continue;
        }
        if best.len() < n {
            best.push(Worst(token, logit));
        } else if let Some(mut worst) = best.peek_mut()
            && logit > worst.1
        {
            *worst = Worst(token, logit);
        }
    }
    let sorted = best.into_sorted_vec().into_iter();
    sorted.map(|Worst(token, logit)| (token, logit)).collect()
}

/// A token and its logit; the greater the worse, and of equals the later one is worse.
#[derive(PartialEq)]
struct Worst(Token, f32);

impl Eq for Worst {}

impl PartialOrd for Worst {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Worst {
    fn cmp(&self, other: &Self) -> Ordering {
        other.1.total_cmp(&self.1).then(self.0.cmp(&other.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// It was quadratic: a list of 110,000, kept in order by moving most of it for each.
    #[test]
    fn all_of_a_large_vocabulary_is_a_matter_of_sorting() {
        const VOCABULARY: i32 = 1_000_000;
        // ascending, so that each is better than all before it
        let counted = std::iter::successors(Some(0.0_f32), |logit| Some(logit + 1.0));
        let logits: Vec<f32> = counted.zip(0..VOCABULARY).map(|(logit, _)| logit).collect();
        for n in [1, 1000, logits.len(), usize::MAX] {
            let best = top(&logits, n);
            assert_eq!(best.len(), n.min(logits.len()));
            assert_eq!(best[0].0, VOCABULARY - 1);
            assert!(best.is_sorted_by_key(|one| std::cmp::Reverse(one.0)));
        }
        assert_eq!(
            top(&[1.0, f32::NAN, 1.0, 2.0, 1.0], 3),
            [(3, 2.0), (0, 1.0), (2, 1.0)]
        );
        assert_eq!(top(&[1.0], 0), []);
    }

    proptest! {
        #[test]
        fn agrees_with_sorting_everything(logits in prop::collection::vec(-20.0_f32..20.0, 1..200), n in 0_usize..20) {
            let probabilities = from_logits(&logits, 0, n);
            let mut all: Vec<(Token, f32)> = (0..).zip(logits.iter().copied()).collect();
            all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let tokens: Vec<Token> = all.iter().take(n).map(|t| t.0).collect();
            prop_assert_eq!(probabilities.top.iter().map(|t| t.0).collect::<Vec<_>>(), tokens);
            let whole = from_logits(&logits, 0, logits.len());
            let sum: f32 = whole.top.iter().map(|t| t.1.exp()).sum();
            prop_assert!((sum - 1.0).abs() < 1e-3);
        }
    }
}
