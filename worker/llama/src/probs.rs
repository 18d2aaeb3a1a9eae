//! Probabilities of tokens from raw logits: softmax over the whole vocabulary, without sorting it.
//!
//! Source: seed 004 (`n_probs`), ENGINE.md 16. The module knows neither llama.cpp nor the wire.

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

/// The `n` largest logits, descending; ties by id. One pass, with a short sorted list.
fn top(logits: &[f32], n: usize) -> Vec<(Token, f32)> {
    let mut best: Vec<(Token, f32)> = Vec::with_capacity(n.min(logits.len()) + 1);
    if n == 0 {
        return best;
    }
    for (token, logit) in (0..).zip(logits.iter().copied()) {
        if logit.is_nan() || (best.len() == n && best.last().is_some_and(|worst| logit <= worst.1)) {
            continue;
        }
        let at = best.partition_point(|other| other.1 >= logit);
        best.insert(at, (token, logit));
        best.truncate(n);
    }
    best
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
