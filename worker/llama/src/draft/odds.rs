//! How likely a guess is right, learnt from the last guesses. Pure.
//!
//! A guess after two tokens that stood there before is often wrong, one after twenty seldom. So the share of right guesses is counted for each length of
//! agreement. What is learnt for all requests is where a new request begins; what is learnt for one counts more there.

/// Lengths of agreement from which a class begins.
const CLASSES: [usize; 4] = [2, 3, 6, 16];
/// Share of right guesses, by class, before anything was seen.
const FIRST: [f64; 4] = [0.2, 0.5, 0.75, 0.9];
/// Guesses that the first share counts for.
const WEIGHT: f64 = 4.0;
/// Guesses that count; older ones fade.
const MEMORY: f64 = 32.0;
/// One in so many guesses that would not pay is tried anyway: texts change.
const PROBE: u32 = 48;

/// Right and tried guesses of a class.
#[derive(Clone, Copy, Debug)]
struct Odd {
    right: f64,
    tried: f64,
    /// Guesses not made since one was tried.
    passed: u32,
}

/// How likely guesses are right.
#[derive(Clone, Debug)]
pub(crate) struct Odds {
    classes: [Odd; 4],
}

impl Default for Odds {
    fn default() -> Self {
        let odd = |share| Odd {
            right: share * WEIGHT,
            tried: WEIGHT,
            passed: 0,
        };
        Self {
            classes: FIRST.map(odd),
        }
    }
}

fn class(agrees: usize) -> usize {
    CLASSES
        .partition_point(|least| *least <= agrees)
        .saturating_sub(1)
}

impl Odds {
    /// The odds that a new request begins with: those learnt here, to be outweighed soon.
    pub(crate) fn for_another(&self) -> Self {
        let again = |odd: Odd| Odd {
            right: odd.right / odd.tried * WEIGHT,
            tried: WEIGHT,
            passed: 0,
        };
        Self {
            classes: self.classes.map(again),
        }
    }

    /// Learns that of `tried` guesses after so many agreeing tokens `right` were right.
    pub(crate) fn learn(&mut self, agrees: usize, right: usize, tried: usize) {
        let odd = &mut self.classes[class(agrees)];
        #[expect(clippy::cast_precision_loss, reason = "a number of guesses")]
        let (right, tried) = (right as f64, tried as f64);
        let fade = (MEMORY / (odd.tried + tried)).min(1.0);
        odd.right = (odd.right + right) * fade;
        odd.tried = (odd.tried + tried) * fade;
        odd.passed = 0;
    }

    /// How many of `room` guesses after so many agreeing tokens to make, if making so many costs `price(count)` times what a token costs.
    pub(crate) fn worth(&mut self, agrees: usize, room: usize, price: impl Fn(usize) -> f64) -> usize {
        let odd = &mut self.classes[class(agrees)];
        let share = odd.right / odd.tried;
        let (mut likely, mut gain) = (1.0, 0.0);
        let mut best = (0.0, 0);
        for count in 1..=room {
            likely *= share;
            gain += likely;
            let left = gain - price(count);
            if left > best.0 {
                best = (left, count);
            }
        }
        if best.1 == 0 {
            odd.passed += 1;
            if odd.passed >= PROBE && room > 0 && price(1) < 1.0 {
                odd.passed = 0;
                return 1;
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cheap(count: usize) -> f64 {
        count as f64 * 0.1
    }

    #[test]
    fn the_more_agrees_the_more_is_guessed() {
        let counts: Vec<usize> = [2, 3, 6, 16]
            .iter()
            .map(|agrees| Odds::default().worth(*agrees, 16, cheap))
            .collect();
        assert!(counts.is_sorted() && counts[0] < counts[3], "{counts:?}");
        assert_eq!(
            Odds::default().worth(16, 4, cheap),
            4,
            "no more than there is room for"
        );
    }

    #[test]
    fn what_is_wrong_is_given_up_and_tried_again_now_and_then() {
        let mut odds = Odds::default();
        let mut wrong = 0;
        while odds.worth(3, 16, cheap) > 0 {
            odds.learn(3, 0, 1);
            wrong += 1;
        }
        assert!((1..40).contains(&wrong), "{wrong} wrong guesses until it stopped");
        let tries = (0..PROBE * 4).filter(|_| odds.worth(3, 16, cheap) > 0).count();
        assert_eq!(tries, 4);
        assert!(
            odds.worth(16, 16, cheap) > 0,
            "another length of agreement is another matter"
        );
        let mut again = odds.for_another();
        assert_eq!(again.worth(3, 16, cheap), 0, "known from the first");
        for _ in 0..4 {
            again.learn(3, 4, 4);
        }
        assert!(again.worth(3, 16, cheap) > 3, "and soon unlearnt");
    }

    #[test]
    fn what_costs_as_much_as_a_token_is_never_guessed() {
        let mut odds = Odds::default();
        for _ in 0..200 {
            odds.learn(16, 16, 16);
            assert_eq!(odds.worth(16, 16, |count| count as f64 * 1.01), 0);
        }
    }
}
