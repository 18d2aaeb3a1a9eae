//! What guesses cost: the time by which a decode with guesses takes longer than one without. Pure: durations are arguments.
//!
//! What a further token costs depends on the model and the machine: next to nothing where the weights' way from memory takes all the time, nearly as much as a
//! decode of its own where computing does. So it is measured, by the number of guesses in the decode.

/// Most guesses in one decode, over all sequences.
const MOST: usize = muster_proto::llamacpp::DRAFTS as usize;
/// Weight of a new time.
const WEIGHT: f64 = 0.2;

/// What decodes with guesses take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Price {
    /// Microseconds that a decode with n guesses takes longer, at index n; 0 = not seen.
    longer: [f64; MOST + 1],
}

impl Price {
    /// A decode with `guesses` guesses took `micros`, where one without takes `round`.
    pub(crate) fn took(&mut self, guesses: usize, micros: f64, round: f64) {
        let Some(known) = self.longer.get_mut(guesses).filter(|_| guesses > 0) else {
            return;
        };
        // at least something: 0 means not seen
        let longer = (micros - round).max(round * 0.001).max(f64::MIN_POSITIVE);
        if *known == 0.0 {
            *known = longer;
        } else {
            // one slow decode says more about the machine than about the model
            *known += (longer.min(*known * 3.0) - *known) * WEIGHT;
        }
    }

    /// Microseconds by which `guesses` guesses are expected to make a decode longer; `token` is what a prompt's token costs.
    fn longer(&self, guesses: usize, token: f64) -> f64 {
        let seen = |at: &usize| self.longer[*at] > 0.0;
        let guesses = guesses.min(MOST);
        let below = (1..=guesses).rev().find(seen);
        let above = (guesses..=MOST).find(seen);
        #[expect(clippy::cast_precision_loss, reason = "a number of guesses")]
        let float = |count: usize| count as f64;
        match (below, above) {
            (Some(below), _) if below == guesses => self.longer[below],
            (Some(below), Some(above)) => {
                let part = float(guesses - below) / float(above - below);
                (self.longer[above] - self.longer[below]).mul_add(part, self.longer[below])
            }
            (Some(below), None) => token.mul_add(float(guesses - below), self.longer[below]),
            (None, Some(above)) => self.longer[above] * float(guesses) / float(above),
            (None, None) => token * float(guesses),
        }
    }

    /// What `count` guesses more than `others` cost a decode, in tokens that it could generate meanwhile: `sequences` in each `round` of so many
    /// microseconds.
    pub(crate) fn of(&self, count: usize, others: usize, sequences: usize, round: f64, token: f64) -> f64 {
        if round <= 0.0 {
            return f64::INFINITY;
        }
        let more = self.longer(others + count, token) - self.longer(others, token);
        #[expect(clippy::cast_precision_loss, reason = "a number of sequences")]
        let each = round / sequences.max(1) as f64;
        more.max(0.0) / each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_timed_lies_between_what_was() {
        let mut price = Price::default();
        assert!(
            (price.of(2, 0, 1, 100.0, 10.0) - 0.2).abs() < 1e-9,
            "as a prompt's tokens"
        );
        price.took(4, 140.0, 100.0);
        assert!(
            (price.of(2, 0, 1, 100.0, 10.0) - 0.2).abs() < 1e-9,
            "half of four"
        );
        assert!((price.of(6, 0, 1, 100.0, 10.0) - 0.6).abs() < 1e-9);
        price.took(8, 200.0, 100.0);
        assert!((price.of(6, 0, 1, 100.0, 10.0) - 0.7).abs() < 1e-9);
        assert!(
            (price.of(4, 4, 1, 100.0, 10.0) - 0.6).abs() < 1e-9,
            "beside four of another"
        );
        assert!(
            (price.of(4, 0, 2, 100.0, 10.0) - 0.8).abs() < 1e-9,
            "two wait for it"
        );
    }

    #[test]
    fn times_are_smoothed_and_what_cannot_be_is_nothing() {
        let mut price = Price::default();
        price.took(4, 150.0, 100.0);
        price.took(4, 9_000.0, 100.0);
        let after = price.of(4, 0, 1, 100.0, 1.0);
        assert!(after > 0.5 && after < 1.0, "{after}");
        price.took(0, 1.0, 1.0);
        price.took(MOST + 1, 1.0, 1.0);
        price.took(2, 50.0, 100.0);
        assert!(price.of(2, 0, 1, 100.0, 1.0) >= 0.0);
        assert_eq!(price.of(2, 0, 1, 0.0, 1.0), f64::INFINITY, "no round was timed");
    }
}
