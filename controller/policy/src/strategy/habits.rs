//! How often models are used, and for how long a use counts.
//!
//! Two memories, a short and a long one, count the uses of every model. Before a use is counted, each memory tells how likely that use was.
//! The one that predicted recent uses better decides how fast the frequencies age by which instances are judged:
//!
//! ```text
//!   a use ──► foretold better by ──► the long memory: 16 uses per known model, and an old use counts half
//!                                └─► the short one:    2 uses per known model
//! ```
//!
//! All frequencies age at the same rate, whichever memory decides it, so their order changes only when a use is counted.

/// Uses per known model after which an old use counts half: first the short memory, then the long one.
const HALF_LIVES: [f64; 2] = [2.0, 16.0];

/// Uses per known model after which a prediction counts half.
const LESSON: f64 = 4.0;

/// The other memory takes over when it made recent uses more likely by this factor, as a natural logarithm.
const SURE: f64 = 2.0;

/// Count of a model that was never used, so that no use has probability zero (Krichevsky and Trofimov 1981).
const PRIOR: f64 = 0.5;

/// The memory that decides how fast uses age.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Memory {
    Short,
    #[default]
    Long,
}

impl Memory {
    fn half_life(self) -> f64 {
        let [short, long] = HALF_LIVES;
        match self {
            Self::Short => short,
            Self::Long => long,
        }
    }
}

/// The uses of one model.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Number of uses, older ones counting less, at the time `at`.
    pub(super) frequency: f64,
    /// Value of `Habits::clock` when the last use was counted.
    pub(super) at: f64,
    /// Average frequency of all models at the time `at`.
    pub(super) average: f64,
    /// Number of uses as each memory counts them, at the turn stored beside it.
    counts: [f64; 2],
    turn: f64,
}

/// The uses of all models.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// Half-lives that have passed. Their length follows the memory that decided at the time.
    clock: f64,
    /// Uses per known model so far.
    turn: f64,
    /// Sum of all models' frequencies at the time `clock`.
    total: f64,
    /// Sum of all models' counts in each memory at `turn`.
    totals: [f64; 2],
    followed: Memory,
    /// How much more likely the long memory made recent uses than the short one, as a natural logarithm.
    lead: f64,
}

impl Habits {
    /// Counts a use of one of `models` models.
    pub(super) fn count(&mut self, tally: Option<Tally>, models: usize) -> Tally {
        let tally = tally.unwrap_or_default();
        let models = f64::from(u32::try_from(models).unwrap_or(u32::MAX)).max(1.0);
        let past = self.turn - tally.turn;
        let mut counts = [0.0; 2];
        let mut likely = [0.0; 2];
        for (memory, half_life) in HALF_LIVES.into_iter().enumerate() {
            counts[memory] = tally.counts[memory] * (-past / half_life).exp2();
            likely[memory] = (counts[memory] + PRIOR) / (self.totals[memory] + PRIOR * models);
        }
        self.learn((likely[1] / likely[0]).ln(), models);

        self.turn += 1.0 / models;
        for (memory, half_life) in HALF_LIVES.into_iter().enumerate() {
            let fades = (-1.0 / (models * half_life)).exp2();
            self.totals[memory] = self.totals[memory] * fades + 1.0;
            counts[memory] = counts[memory] * fades + 1.0;
        }
        let step = 1.0 / (models * self.followed.half_life());
        self.clock += step;
        self.total = self.total * (-step).exp2() + 1.0;
        Tally {
            frequency: tally.frequency * (tally.at - self.clock).exp2() + 1.0,
            at: self.clock,
            average: self.total / models,
            counts,
            turn: self.turn,
        }
    }

    /// Updates `lead` with one use, and changes the memory if the other one is clearly better.
    fn learn(&mut self, lead: f64, models: f64) {
        self.lead = self.lead * (-1.0 / (models * LESSON)).exp2() + lead;
        if self.lead > SURE {
            self.followed = Memory::Long;
        } else if self.lead < -SURE {
            self.followed = Memory::Short;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses of models by number.
    fn count(habits: &mut Habits, tallies: &mut [Tally; 8], uses: impl Iterator<Item = usize>) {
        for model in uses {
            tallies[model] = habits.count(Some(tallies[model]), tallies.len());
        }
    }

    #[test]
    fn lasting_taste_is_remembered_for_long_and_changing_taste_is_not() {
        let mut habits = Habits::default();
        let mut tallies = [Tally::default(); 8];
        let lasting = |n: usize| [0, 1, 0, 2, 0, 3, 1, 4, 0, 5, 2, 6, 0, 1, 0, 7][n % 16];
        count(&mut habits, &mut tallies, (0..400).map(lasting));
        assert_eq!(habits.followed, Memory::Long);
        // Now two models are popular at a time, and others soon after.
        count(
            &mut habits,
            &mut tallies,
            (0..400).map(|n| (n / 40 * 2 + n % 2) % 8),
        );
        assert_eq!(habits.followed, Memory::Short);
        count(&mut habits, &mut tallies, (0..400).map(lasting));
        assert_eq!(habits.followed, Memory::Long);
    }

    #[test]
    fn the_average_is_that_of_all_frequencies() {
        let mut habits = Habits::default();
        let mut tallies = [Tally::default(); 8];
        count(&mut habits, &mut tallies, (0..1_000).map(|n| n * n % 8));
        let faded = tallies.map(|tally| tally.frequency * (tally.at - habits.clock).exp2());
        let average = faded.iter().sum::<f64>() / 8.0;
        assert!((habits.total / 8.0 - average).abs() < 1e-9);
    }
}
