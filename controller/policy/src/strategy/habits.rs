//! How often models are used, and for how long a use counts.
//!
//! Two memories count the uses of every model, a short and a long one. Before a use is counted each is asked how likely it was; whichever
//! has foretold better of late says how fast the frequencies age that instances are judged by:
//!
//! ```text
//!   a use ──► foretold better by ──► the long memory: 16 uses per known model, and an old use counts half
//!                                └─► the short one:    2 uses per known model
//! ```
//!
//! All frequencies age alike, whoever says how fast, and so keep their order until one is counted again.

/// Uses per known model after which an old use counts half: in the short memory, and in the long one.
const HALF_LIVES: [f64; 2] = [2.0, 16.0];

/// Uses per known model after which a forecast counts half.
const LESSON: f64 = 4.0;

/// A memory is followed once it made the uses of late so much likelier than the other; a natural logarithm.
const SURE: f64 = 2.0;

/// What a model that was never seen counts, so that no use is impossible (Krichevsky and Trofimov 1981).
const PRIOR: f64 = 0.5;

/// Which memory is followed.
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
    /// Uses, older ones counting less, as of `at`.
    pub(super) frequency: f64,
    /// The clock when it was last counted, in half-lives.
    pub(super) at: f64,
    /// What the frequency of all models was then, on average.
    pub(super) average: f64,
    /// Uses as each memory has them, as of `turn`.
    counts: [f64; 2],
    turn: f64,
}

/// The uses of all models.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// Half-lives that have passed, each as long as the memory had it that was followed.
    clock: f64,
    /// Uses per known model that have passed.
    turn: f64,
    /// All frequencies, as of `clock`.
    total: f64,
    /// All counts of each memory, as of `turn`.
    totals: [f64; 2],
    followed: Memory,
    /// How much likelier the long memory made the uses of late; a natural logarithm.
    lead: f64,
}

impl Habits {
    /// Counts a use of one of so many models.
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

    /// A use was so much likelier by the long memory.
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
