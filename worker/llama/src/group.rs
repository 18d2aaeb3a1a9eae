//! How many sequences to decode in one call. Pure: chosen once, from calls that were timed at load.
//!
//! On most machines one call for all is best: the weights are read once. On CPUs with small models it need not be: a matrix product of a few rows
//! can cost more than as many products of one row. Measured once at load, on a machine that does nothing else for this model; requests are no place to try.

/// A split must be this much quicker than one call.
const GAIN: f64 = 0.85;
/// Calls slower than this are never split: such models read their weights once per call.
pub(crate) const SLOW_MICROS: f64 = 40_000.0;

/// Size of each call, by number of ready sequences.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouping {
    /// At index n; beyond the end, one call for all.
    sizes: Vec<usize>,
}

/// A timed call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    /// Sequences that generated one token each.
    pub(crate) sequences: usize,
    /// What the call took.
    pub(crate) micros: f64,
}

/// The numbers of sequences to time for an engine of so many, smallest first.
pub(crate) fn sizes(sequences: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(1_usize), |size| size.checked_mul(2))
        .take_while(move |size| *size < sequences)
        .chain((sequences > 0).then_some(sequences))
}

impl Grouping {
    /// Chooses from calls, smallest first; what lies between two is taken to lie on a line. More sequences than were timed go into one call.
    pub(crate) fn new(timed: &[Timed]) -> Self {
        let most = timed.last().map_or(0, |call| call.sequences);
        let sizes = (0..=most).map(|n| best(timed, n)).collect();
        Self { sizes }
    }

    /// Size of each call for `n` ready sequences; at least 1.
    pub(crate) fn size(&self, n: usize) -> usize {
        self.sizes.get(n).copied().unwrap_or(n).max(1)
    }
}

fn best(timed: &[Timed], n: usize) -> usize {
    let Some(whole) = cost(timed, n).filter(|whole| *whole <= SLOW_MICROS) else {
        return n;
    };
    timed
        .iter()
        .map(|call| call.sequences)
        .take_while(|size| *size < n)
        .filter_map(|size| {
            #[expect(clippy::cast_precision_loss, reason = "a number of sequences")]
            let calls = (n / size) as f64;
            Some((calls.mul_add(cost(timed, size)?, cost(timed, n % size)?), size))
        })
        .min_by(|one, other| one.0.total_cmp(&other.0))
        .filter(|(time, _)| *time < whole * GAIN)
        .map_or(n, |(_, size)| size)
}

/// Time of a call for `n` sequences, between the timed ones; `None` beyond them.
fn cost(timed: &[Timed], n: usize) -> Option<f64> {
    if n == 0 {
        return Some(0.0);
    }
    let above = timed.iter().position(|call| call.sequences >= n)?;
    let high = timed[above];
    let Some(low) = above.checked_sub(1).map(|below| timed[below]) else {
        return (high.sequences == n).then_some(high.micros);
    };
    #[expect(clippy::cast_precision_loss, reason = "a number of sequences")]
    let share = (n - low.sequences) as f64 / (high.sequences - low.sequences) as f64;
    Some(share.mul_add(high.micros - low.micros, low.micros))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(sequences: usize, time: impl Fn(usize) -> f64) -> Grouping {
        let calls: Vec<Timed> = sizes(sequences)
            .map(|sequences| Timed {
                sequences,
                micros: time(sequences),
            })
            .collect();
        Grouping::new(&calls)
    }

    #[expect(clippy::cast_precision_loss, reason = "a test's number")]
    fn float(n: usize) -> f64 {
        n as f64
    }

    #[test]
    fn where_calls_cost_about_the_same_there_is_one() {
        let grouping = timed(20, |size| 1000.0 + 10.0 * float(size));
        for n in 1..40 {
            assert_eq!(grouping.size(n), n);
        }
    }

    #[test]
    fn where_small_calls_are_dear_they_are_split() {
        let grouping = timed(16, |size| {
            if size == 1 {
                1100.0
            } else {
                4000.0 + 300.0 * float(size)
            }
        });
        assert_eq!(grouping.size(4), 1);
        assert_eq!(grouping.size(3), 1);
        assert_eq!(grouping.size(16), 16);
    }

    #[test]
    fn slow_models_are_not_split() {
        let grouping = timed(8, |size| if size == 1 { 10_000.0 } else { 100_000.0 });
        assert_eq!(grouping.size(8), 8);
    }

    #[test]
    fn what_was_not_timed_is_one_call() {
        let grouping = Grouping::new(&[]);
        for n in 1..10 {
            assert_eq!(grouping.size(n), n);
        }
        let grouping = Grouping::new(&[Timed {
            sequences: 1,
            micros: 5.0,
        }]);
        assert_eq!((grouping.size(1), grouping.size(2)), (1, 2));
        assert_eq!(sizes(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert_eq!((sizes(1).collect::<Vec<_>>(), sizes(0).count()), (vec![1], 0));
    }

    /// It was tried again every 512 rounds: a batch of sixteen as sixteen calls, in the middle of sixteen people's answers.
    #[test]
    fn requests_are_no_experiment() {
        let grouping = timed(16, |size| 5000.0 + 100.0 * float(size));
        assert!((0..5000).all(|_| grouping.size(16) == 16));
    }
}
