//! How many prompt tokens go into one call. Pure: durations are arguments.
//!
//! A call that reads m tokens costs a + b·m for each physical batch (`n_ubatch`) of it: the weights are read and the threads meet once per physical
//! batch, whatever its size. Only b is the tokens' own. Whoever takes a for the tokens' own makes slices smaller, which makes a weigh more, until
//! nearly all of each call is fixed cost. So both are fitted, by medians of the last calls, and no slice is ever chosen so small that the fixed cost
//! is most of it:
//!
//! - alone, a slice is whole physical batches, however slow they are;
//! - beside those who generate, a call may take twice as long as theirs takes without a prompt, or [`BESIDE_MICROS`] if that is longer.

use std::collections::VecDeque;

/// Time between two tokens of those who generate that hurts nobody, in microseconds: what people notice begins at about 50 ms, and one call in a hundred
/// takes half as long again as was foreseen.
const BESIDE_MICROS: f64 = 32_000.0;
/// Those who generate may be slowed down so many times.
const BESIDE_TIMES: f64 = 2.0;
/// Time that several physical batches in one call may take, in microseconds: bounds how late a newcomer is seen.
const ALONE_MICROS: f64 = 60_000.0;
/// A physical batch that takes longer than this is read in parts, in microseconds: the worker takes an engine for stuck that shows no sign of progress for
/// two minutes. So long a call has next to no fixed cost.
const PATIENCE_MICROS: f64 = 20_000_000.0;
/// Fewest prompt tokens beside others: prompts advance, whatever was measured.
const LEAST: usize = 16;
/// Calls that the line is fitted to.
const CALLS: usize = 16;
/// Calls that say how fast this machine is now: prompts get slower as they get longer, and other work comes and goes.
const NOW: usize = 5;
/// Two calls tell fixed and own cost apart if one has so many times the tokens of the other.
const APART: f64 = 1.5;
/// Pairs of such calls without which the shape of the line is kept.
const PAIRS: usize = 3;
/// A call has at most so many times the tokens of the largest before it: the line is not known to go on far beyond it.
const GROWTH: usize = 4;
/// Weight of a new time between tokens.
const WEIGHT: f64 = 0.25;

/// One call, by physical batch.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// Tokens in each physical batch.
    size: f64,
    /// Microseconds for each.
    micros: f64,
}

/// What calls that read prompts cost here, and what those cost that read none.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    /// Tokens of a physical batch.
    physical: usize,
    /// Most tokens that a call has had.
    largest: usize,
    /// The last calls, newest last.
    calls: VecDeque<Call>,
    /// Microseconds of a physical batch with nothing in it.
    fixed: f64,
    /// Microseconds of one token in it.
    token: f64,
    /// Microseconds of a round in which n sequences generate and nobody reads, at index n; 0 = not seen.
    rounds: Vec<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "a number of tokens")]
const fn float(tokens: usize) -> f64 {
    tokens as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float cast saturates"
)]
const fn whole(tokens: f64) -> usize {
    tokens as usize
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

impl Pace {
    /// Before anything was measured; `physical` is `n_ubatch`.
    pub(crate) fn new(physical: usize) -> Self {
        Self {
            physical: physical.max(1),
            largest: 0,
            calls: VecDeque::with_capacity(CALLS),
            fixed: 0.0,
            token: 0.0,
            rounds: Vec::new(),
        }
    }

    /// One call that read prompts: `tokens` in all, those of riding sequences included, took `micros`.
    pub(crate) fn read(&mut self, tokens: usize, micros: u64) {
        if tokens == 0 {
            return;
        }
        self.largest = self.largest.max(tokens);
        let batches = float(tokens.div_ceil(self.physical));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let micros = (micros as f64).max(1.0);
        if self.calls.len() == CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(Call {
            size: float(tokens) / batches,
            micros: micros / batches,
        });
        self.fit();
    }

    /// One round in which `sequences` generated one token each, and nobody read, took `micros`.
    pub(crate) fn generated(&mut self, sequences: usize, micros: u64) {
        if self.rounds.len() <= sequences {
            self.rounds.resize(sequences + 1, 0.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let sample = (micros as f64).max(1.0);
        let known = &mut self.rounds[sequences];
        if *known == 0.0 {
            *known = sample;
        } else {
            // one slow round says more about the machine than about the model
            *known += (sample.min(*known * 2.0) - *known) * WEIGHT;
        }
    }

    /// Prompt tokens for a call in which nobody generates: whole physical batches, at most `most` tokens.
    pub(crate) fn alone(&self, most: usize) -> usize {
        let full = self.full();
        if full > PATIENCE_MICROS {
            return self.part(PATIENCE_MICROS).min(most);
        }
        let batches = whole(ALONE_MICROS / full.max(1.0)).min(most.min(self.ventured()) / self.physical);
        (batches.max(1) * self.physical).min(most)
    }

    /// Prompt tokens for a call in which `riders` generate, at most `most`.
    pub(crate) fn beside(&self, riders: usize, most: usize) -> usize {
        let budget = BESIDE_MICROS.max(BESIDE_TIMES * self.round(riders));
        let full = self.full();
        let tokens = if full == 0.0 || full > budget {
            self.part(budget)
        } else {
            whole(budget / full).saturating_mul(self.physical)
        };
        let tokens = tokens.min(self.ventured());
        tokens.saturating_sub(riders).max(LEAST).min(most)
    }

    /// Tokens of the largest call to try.
    const fn ventured(&self) -> usize {
        self.largest.saturating_mul(GROWTH)
    }

    /// Tokens of a part of a physical batch that takes `micros`.
    fn part(&self, micros: f64) -> usize {
        if self.token == 0.0 {
            return self.physical;
        }
        whole((micros - self.fixed) / self.token).clamp(LEAST, self.physical.max(LEAST))
    }

    /// Microseconds of a full physical batch; 0 = not known.
    fn full(&self) -> f64 {
        self.token.mul_add(float(self.physical), self.fixed)
    }

    /// Microseconds between two tokens of `sequences` that generate while nobody reads; of as many as were seen, if so many never were.
    pub(crate) fn round(&self, sequences: usize) -> f64 {
        let seen = &self.rounds[..self.rounds.len().min(sequences + 1)];
        seen.iter().copied().fold(0.0, f64::max)
    }

    /// Microseconds of one token of a prompt, without the fixed part of its call; 0 = not known.
    pub(crate) const fn token(&self) -> f64 {
        self.token
    }

    /// Fits the line to the last calls: the slope is the median of those between calls of different sizes (so that a few slow calls say nothing), the
    /// level that of the newest calls. Without calls of different sizes the fixed part stays as it was: tokens get dearer as prompts get longer.
    fn fit(&mut self) {
        let newest = || self.calls.iter().rev().take(NOW);
        let each = newest()
            .map(|call| call.micros / call.size)
            .min_by(f64::total_cmp);
        let Some(each) = each else { return };
        let slopes: Vec<f64> = self
            .calls
            .iter()
            .enumerate()
            .flat_map(|(index, one)| self.calls.iter().skip(index + 1).map(move |other| (one, other)))
            .filter(|(one, other)| one.size.max(other.size) >= APART * one.size.min(other.size))
            .map(|(one, other)| (other.micros - one.micros) / (other.size - one.size))
            .collect();
        let slope = if slopes.len() >= PAIRS.min(self.calls.len() - 1) {
            median(slopes.into_iter())
        } else {
            median(newest().map(|call| (call.micros - self.fixed) / call.size))
        };
        // Never less than half of what a token took in all, so that a wrong slope cannot promise room that is not there.
        self.token = slope.unwrap_or(each).clamp(each / 2.0, each);
        let token = self.token;
        let fixed = median(newest().map(|call| token.mul_add(-call.size, call.micros)));
        self.fixed = fixed.unwrap_or(0.0).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `n_ubatch` of the tests.
    const PHYSICAL: usize = 512;
    const BATCH: usize = 2048;

    /// A machine whose calls cost a fixed part for each physical batch and a part for each token, which grows with what was read before.
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        fixed: f64,
        token: f64,
        /// A token costs this much more for each token before it.
        depth: f64,
    }

    impl Machine {
        fn micros(self, riders: usize, tokens: usize, depth: usize) -> f64 {
            let all = self.token * float(riders + tokens) + self.depth * float(depth * tokens);
            self.fixed * float((riders + tokens).div_ceil(PHYSICAL)) + all
        }
    }

    /// Noise without a random number generator: most calls within a fifth, one in ten takes eight times as long.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let dice = (self.0 >> 33) % 1000;
            if dice < 100 {
                8.0
            } else {
                0.8 + float(usize::try_from(dice).unwrap()) / 2500.0
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a test's time"
    )]
    fn time(micros: f64) -> u64 {
        micros as u64
    }

    /// Reads a prompt beside `riders`; what its calls took, without noise, and how many tokens each read.
    fn read(
        pace: &mut Pace,
        machine: Machine,
        prompt: usize,
        riders: usize,
        noise: &mut Noise,
    ) -> Vec<(f64, usize)> {
        let (mut calls, mut done) = (Vec::new(), 0);
        while done < prompt {
            let most = if riders > 0 {
                pace.beside(riders, BATCH - riders)
            } else {
                pace.alone(BATCH)
            };
            let tokens = most.min(prompt - done);
            let micros = machine.micros(riders, tokens, done);
            pace.read(tokens + riders, time(micros * noise.next()));
            calls.push((micros, tokens));
            done += tokens;
        }
        calls
    }

    /// After a load: a few tokens, and who generates alone.
    fn warmed(machine: Machine, riders: usize) -> Pace {
        let mut pace = Pace::new(PHYSICAL);
        for tokens in [8, 32] {
            pace.read(tokens, time(machine.micros(0, tokens, 0)));
        }
        for sequences in [1, riders.max(1)] {
            pace.generated(sequences, time(machine.micros(sequences, 0, 0)));
        }
        pace
    }

    fn total(calls: &[(f64, usize)]) -> f64 {
        calls.iter().map(|(micros, _)| micros).sum()
    }

    /// Found on the running product: a 3,001-token prompt took 1.3 s the first time and 12 s from then on.
    #[test]
    fn reading_prompts_does_not_collapse() {
        let machine = Machine {
            fixed: 9_000.0,
            token: 250.0,
            depth: 0.05,
        };
        let mut pace = warmed(machine, 4);
        let mut noise = Noise(1);
        for _ in 0..50 {
            let calls = read(&mut pace, machine, 3001, 0, &mut noise);
            assert!(calls.len() <= 3001_usize.div_ceil(PHYSICAL), "{calls:?}");
            let alone = total(&calls);
            let beside = read(&mut pace, machine, 3001, 4, &mut noise);
            assert!(
                total(&beside) < 2.5 * alone,
                "{} against {alone}: {beside:?}",
                total(&beside)
            );
        }
    }

    #[test]
    fn alone_nothing_is_smaller_than_a_physical_batch() {
        let slow = Machine {
            fixed: 900_000.0,
            token: 20_000.0,
            depth: 1.0,
        };
        let pace = warmed(slow, 1);
        assert_eq!(pace.alone(BATCH), PHYSICAL);
        let mut quick = Pace::new(PHYSICAL);
        quick.read(512, 5_000);
        assert_eq!(quick.alone(BATCH), BATCH);
        assert_eq!(quick.alone(100), 100);
        assert_eq!(Pace::new(PHYSICAL).alone(BATCH) % PHYSICAL, 0);
    }

    #[test]
    fn the_slowest_model_is_not_taken_for_stuck() {
        let machine = Machine {
            fixed: 1e6,
            token: 400_000.0,
            depth: 0.0,
        };
        let mut pace = warmed(machine, 1);
        let calls = read(&mut pace, machine, 2000, 0, &mut Noise(3));
        assert!(calls.iter().all(|(micros, _)| *micros < 60e6), "{calls:?}");
        assert!(total(&calls) < 1.1 * machine.micros(0, 2000, 0), "{calls:?}");
    }

    #[test]
    fn slow_calls_that_say_nothing_about_prompts_change_nothing() {
        let machine = Machine {
            fixed: 2_000.0,
            token: 100.0,
            depth: 0.0,
        };
        let mut pace = warmed(machine, 4);
        let mut noise = Noise(7);
        read(&mut pace, machine, 4000, 4, &mut noise);
        let before = pace.beside(4, BATCH);
        pace.read(100, 3_000_000);
        let after = pace.beside(4, BATCH);
        assert!(after * 3 > before * 2, "{before} {after}");
    }

    #[test]
    fn what_was_wrong_after_the_load_is_put_right() {
        let machine = Machine {
            fixed: 3_000.0,
            token: 150.0,
            depth: 0.0,
        };
        for factor in [0.1, 10.0] {
            let mut pace = Pace::new(PHYSICAL);
            pace.read(8, time(machine.micros(0, 8, 0) * factor));
            pace.read(32, time(machine.micros(0, 32, 0) / factor));
            pace.generated(1, 4_000);
            let calls = read(&mut pace, machine, 12_000, 1, &mut Noise(11));
            let late = &calls[calls.len() / 2..calls.len() - 1];
            for (micros, tokens) in late {
                assert!(
                    (15_000.0..80_000.0).contains(micros),
                    "{factor}: {tokens} tokens, {micros} µs"
                );
            }
        }
    }

    proptest! {
        /// Whatever a machine is like: beside others a prompt gets half of its speed alone, and they are slowed down by half at most.
        #[test]
        fn beside_others_both_get_their_share(
            fixed in 100.0_f64..200_000.0, token in 5.0_f64..5_000.0, depth in 0.0_f64..0.02, riders in 1_usize..16, seed in any::<u64>(),
        ) {
            let machine = Machine { fixed, token, depth: depth * token / 100.0 };
            let mut pace = warmed(machine, riders);
            let mut noise = Noise(seed);
            read(&mut pace, machine, 16_000, 0, &mut noise);
            // the first calls learn
            read(&mut pace, machine, 4_000, riders, &mut noise);
            let alone = total(&read(&mut pace, machine, 16_000, 0, &mut noise));
            let calls = read(&mut pace, machine, 16_000, riders, &mut noise);
            prop_assert!(total(&calls) < 2.6 * alone, "{} against {alone}", total(&calls));
            let limit = 50_000.0_f64.max(2.0 * machine.micros(riders, 0, 0)) * 1.3;
            let mut times: Vec<f64> = calls.iter().map(|(micros, _)| *micros).collect();
            times.sort_unstable_by(f64::total_cmp);
            let least = machine.micros(riders, LEAST, 16_000) * 1.3;
            prop_assert!(times[times.len() * 9 / 10] < limit.max(least), "{times:?}, {limit}");
        }

        #[test]
        fn a_slice_is_never_empty_and_never_too_large(
            calls in prop::collection::vec((0_usize..5000, any::<u64>()), 0..40), rounds in prop::collection::vec((1_usize..20, any::<u64>()), 0..10),
            physical in 1_usize..1000, riders in 1_usize..20, most in 1_usize..4000,
        ) {
            let mut pace = Pace::new(physical);
            for (tokens, micros) in calls {
                pace.read(tokens, micros);
            }
            for (sequences, micros) in rounds {
                pace.generated(sequences, micros);
            }
            prop_assert!((1..=most).contains(&pace.alone(most)));
            prop_assert!((1..=most).contains(&pace.beside(riders, most)));
        }
    }
}
