//! How many sequences to decode in one call. Pure: learns from the times of the calls it has chosen.
//!
//! On most machines one call for all is best: the weights are read once. On CPUs with small models it need not be: a matrix product of a few rows
//! can cost more than as many products of one row. So the first rounds try both, and the better one is kept, looked at again from time to time.

/// A split must be this much quicker than one call.
const GAIN: f64 = 0.85;
/// Calls slower than this are never split: such models read their weights once per call.
const SLOW_MICROS: f64 = 40_000.0;
/// Rounds between two looks at the way not taken.
const LOOK_AGAIN: u64 = 512;
/// Weight of a new time.
const WEIGHT: f64 = 0.25;

/// Learned times of calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouping {
    /// Microseconds of a call for n sequences, at index n; 0 = never seen.
    cost: Vec<f64>,
    rounds: u64,
}

impl Grouping {
    /// Size of each call for `n` ready sequences.
    pub(crate) fn size(&mut self, n: usize) -> usize {
        if n <= 1 {
            return n.max(1);
        }
        let whole = self.known(n);
        if whole == 0.0 || whole > SLOW_MICROS {
            return n;
        }
        if self.known(1) == 0.0 {
            return 1;
        }
        self.rounds += 1;
        let best = (1..n)
            .filter_map(|size| self.total(n, size).map(|time| (time, size)))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(time, _)| *time < whole * GAIN)
            .map_or(n, |(_, size)| size);
        if !self.rounds.is_multiple_of(LOOK_AGAIN) {
            return best;
        }
        if best == n { 1 } else { n }
    }

    /// A call for `n` sequences took `micros`.
    pub(crate) fn learn(&mut self, n: usize, micros: u64) {
        if self.cost.len() <= n {
            self.cost.resize(n + 1, 0.0);
        }
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let sample = (micros as f64).max(1.0);
        let known = self.cost[n];
        self.cost[n] = if known == 0.0 {
            sample
        } else {
            // one slow call says more about the machine than about the size
            known + (sample.min(known * 3.0) - known) * WEIGHT
        };
    }

    fn known(&self, n: usize) -> f64 {
        self.cost.get(n).copied().unwrap_or(0.0)
    }

    /// Time of `n` sequences in calls of `size`, if all its calls are known.
    fn total(&self, n: usize, size: usize) -> Option<f64> {
        let (each, rest) = (
            self.known(size),
            if n.is_multiple_of(size) {
                0.0
            } else {
                self.known(n % size)
            },
        );
        if each == 0.0 || (rest == 0.0 && !n.is_multiple_of(size)) {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "a number of sequences")]
        let calls = (n / size) as f64;
        Some(calls * each + rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds of `n` sequences on a machine whose calls take `time`; returns how often each size was chosen last.
    fn settle(n: usize, time: impl Fn(usize) -> u64) -> usize {
        let mut grouping = Grouping::default();
        let mut last = 0;
        for _ in 0..100 {
            last = grouping.size(n);
            let (calls, rest) = (n / last, n % last);
            (0..calls).for_each(|_| grouping.learn(last, time(last)));
            if rest > 0 {
                grouping.learn(rest, time(rest));
            }
        }
        last
    }

    #[test]
    fn where_calls_cost_about_the_same_there_is_one() {
        for n in 1..20 {
            assert_eq!(settle(n, |size| 1000 + 10 * size as u64), n);
        }
    }

    #[test]
    fn where_small_calls_are_dear_they_are_split() {
        let time = |size| if size == 1 { 1100 } else { 4000 + 300 * size as u64 };
        assert_eq!(settle(4, time), 1);
        assert_eq!(settle(16, time), 16);
    }

    #[test]
    fn slow_models_are_not_experimented_with() {
        let mut grouping = Grouping::default();
        grouping.learn(8, 100_000);
        assert_eq!(grouping.size(8), 8);
    }

    #[test]
    fn the_way_not_taken_is_looked_at_again() {
        let mut grouping = Grouping::default();
        grouping.learn(4, 9000);
        grouping.learn(1, 1000);
        let looks = (0..2 * LOOK_AGAIN).filter(|_| grouping.size(4) == 4).count();
        assert_eq!(looks, 2);
    }
}
