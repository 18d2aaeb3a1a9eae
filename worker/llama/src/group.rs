//! How many sequences to decode in one call. Pure, from times measured at load.
//!
//! On most machines one call for all is best: the weights are read once. On CPUs with small models it need not be: a matrix product of a few rows
//! can cost more than as many products of one row. So the engine measures, and splits where that is quicker.

use std::time::Duration;

/// Gain below which a split is not worth its risk of being noise.
const GAIN: f64 = 0.85;

/// Best sizes of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grouping {
    /// For n ready sequences, at index n: the size of each call; absent = all.
    sizes: Vec<usize>,
}

/// Numbers of sequences worth measuring, up to `most`.
pub(crate) fn probes(most: usize) -> Vec<usize> {
    [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
        .into_iter()
        .filter(|n| *n <= most)
        .collect()
}

impl Grouping {
    /// From measured times of one call for so many sequences, ascending and beginning with one.
    pub(crate) fn new(measured: &[(usize, Duration)]) -> Self {
        let most = measured.last().map_or(0, |last| last.0);
        let cost = |n: usize| -> f64 {
            // between two measured points: in proportion
            let after = measured.iter().position(|probe| probe.0 >= n).unwrap_or(0);
            let (n2, t2) = measured[after];
            if n2 == n || after == 0 {
                return t2.as_secs_f64();
            }
            let (n1, t1) = measured[after - 1];
            let share = ratio(n - n1, n2 - n1);
            t1.as_secs_f64() * (1.0 - share) + t2.as_secs_f64() * share
        };
        let total = |n: usize, size: usize| -> f64 {
            let whole = ratio(n / size, 1) * cost(size);
            if n.is_multiple_of(size) {
                whole
            } else {
                whole + cost(n % size)
            }
        };
        let mut sizes = vec![0; most + 1];
        for (n, slot) in sizes.iter_mut().enumerate().skip(1) {
            let best = (1..n)
                .map(|size| (total(n, size), size))
                .min_by(|a, b| a.0.total_cmp(&b.0));
            *slot = match best {
                Some((time, size)) if time < cost(n) * GAIN => size,
                Some(_) | None => n,
            };
        }
        Self { sizes }
    }

    /// Size of each call for `n` ready sequences.
    pub(crate) fn size(&self, n: usize) -> usize {
        self.sizes.get(n).copied().unwrap_or(n).max(1)
    }
}

#[expect(clippy::cast_precision_loss, reason = "numbers of sequences")]
fn ratio(a: usize, b: usize) -> f64 {
    a as f64 / b as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(micros: &[(usize, u64)]) -> Vec<(usize, Duration)> {
        micros
            .iter()
            .map(|(n, t)| (*n, Duration::from_micros(*t)))
            .collect()
    }

    #[test]
    fn where_calls_cost_about_the_same_there_is_one() {
        let grouping = Grouping::new(&times(&[(1, 10_000), (2, 10_100), (4, 10_300), (8, 11_000)]));
        assert!((1..=8).all(|n| grouping.size(n) == n));
        assert_eq!(grouping.size(100), 100, "beyond what was measured: all");
        assert_eq!(Grouping::default().size(7), 7);
    }

    #[test]
    fn where_small_calls_are_dear_they_are_split() {
        let grouping = Grouping::new(&times(&[
            (1, 1300),
            (2, 5000),
            (4, 9400),
            (8, 12_000),
            (16, 17_800),
        ]));
        assert_eq!(grouping.size(1), 1);
        assert_eq!(grouping.size(2), 1);
        assert_eq!(grouping.size(4), 1);
        assert_eq!(grouping.size(16), 16);
    }
}
