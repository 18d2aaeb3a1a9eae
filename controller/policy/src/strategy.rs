//! The order in which idle instances are evicted (I9).
//!
//! `lru` reads one thing: when an instance was last used.
//!
//! `cost_aware` asks what an eviction will cost: cost of a load × frequency / bytes, in the manner of GreedyDual-Size-Frequency (Cherkasova
//! 1998), adapted to what models are used for:
//!
//! * A load costs the time it takes, and half a minute because somebody has to wait at all: so both loads and seconds are saved.
//! * A conversation is one use, however many requests it has. While it may go on the model is worth more: a pause twice as long is ended by a
//!   request a quarter as often, so that the advantage falls with the square of the pause ([`CONVERSATION`]).
//! * Uses age by uses, not by time: a quiet night changes nothing. How fast they age is learned ([`Habits`]): old uses count for long while
//!   the same models stay popular, and are forgotten soon once taste changes.
//! * Where several must go for one load, places are compared by what all of them are worth together.
//!
//! Frequencies outlive evictions, so that they serve as the ghost list of ARC or S3-FIFO: who comes back is known, who came once goes first.
//! They do not outlive the controller. Per model a few numbers are kept.

mod habits;

use std::collections::BTreeMap;
use std::time::Duration;

use smallvec::SmallVec;

use crate::api::Moment;
use crate::state::{Instance, InstanceState};
use habits::{Habits, Tally};
use muster_core::{Bytes, ModelId};

/// Which idle instance goes first when a load needs room (I9). Busy instances go only if no idle one is left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The least recently used. For a slot: of the full type. For memory: of the type that is loaded, then of other types.
    #[default]
    Lru,
    /// The one whose next load costs least for the bytes that its end frees: (load time + 30 s) × frequency / bytes, and more while a
    /// conversation may go on. The faster the popularity of models changes, the faster old uses are forgotten.
    CostAware,
}

impl Eviction {
    /// All strategies.
    pub const ALL: [Self; 2] = [Self::Lru, Self::CostAware];

    /// Its name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::CostAware => "cost_aware",
        }
    }

    /// Whether models of the type that is loaded go before others where memory is short.
    pub(crate) const fn own_type_first(self) -> bool {
        match self {
            Self::Lru => true,
            Self::CostAware => false,
        }
    }

    /// Whether only an instance's own last use counts.
    pub(crate) const fn by_last_use(self) -> bool {
        match self {
            Self::Lru => true,
            Self::CostAware => false,
        }
    }
}

/// A longer pause ends a conversation, and the next request counts as a new use. After a pause of this length a model is worth its own
/// popularity plus the average one.
const CONVERSATION: Duration = Duration::from_secs(90);

/// The cost of a load in addition to its time: somebody waits.
const WAIT: Duration = Duration::from_secs(30);

/// The assumed time of a load that was never seen: this, plus a second per `UNSEEN_RATE` bytes.
const UNSEEN_LOAD: Duration = Duration::from_secs(3);
const UNSEEN_RATE: f64 = 2.0 * 1024.0 * 1024.0 * 1024.0;

/// What keeping an instance is worth. The instance with the least worth goes first. Values of different fleets do not compare.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth(u64);

impl Worth {
    /// Worth nothing: no eviction is cheaper.
    pub(crate) const NONE: Self = Self(0);

    /// The number that stands for 1.0 of a logarithm (32 bits after the point).
    const ONE: f64 = 4_294_967_296.0;

    fn by_time(last_used: Moment) -> Self {
        let nanos = last_used.since(Moment::ZERO).as_nanos();
        Self(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// A logarithm as a fixed-point number. The range is ample for anything measured in seconds and bytes.
    fn by_log(log: f64) -> Self {
        const ZERO: f64 = 1024.0;
        Self(whole((log + ZERO).max(0.0) * Self::ONE))
    }

    /// The worth of several instances together: by `lru` that of the latest use, by `cost_aware` their sum. Never less than that of any of
    /// them.
    pub(crate) fn together(rule: Eviction, losses: impl Iterator<Item = Self>) -> Self {
        let losses: SmallVec<[Self; 8]> = losses.collect();
        let Some(most) = losses.iter().max() else {
            return Self::NONE;
        };
        match rule {
            Eviction::Lru => *most,
            Eviction::CostAware => {
                let shares = losses
                    .iter()
                    .map(|loss| (-float(most.0 - loss.0) / Self::ONE).exp2());
                let more = whole(shares.sum::<f64>().max(1.0).log2() * Self::ONE);
                Self(most.0.saturating_add(more))
            }
        }
    }
}

/// What keeping an instance is worth, per byte and as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Appraisal {
    /// Worth per byte: where memory is short the least goes first.
    pub(crate) worth: Worth,
    /// Worth of the whole instance: the cost of evicting it.
    pub(crate) loss: Worth,
    /// The moment at which the value changes if the instance stays unused; none = never.
    pub(crate) until: Option<Moment>,
}

/// The value rounded down; `u64::MAX` if it is larger.
fn whole(value: f64) -> u64 {
    Duration::try_from_secs_f64(value).map_or(u64::MAX, |span| span.as_secs())
}

/// What a conversation is worth that has paused this long and may go on, as a multiple of an average model's popularity; and the pause up
/// to which this value holds. The value falls in steps because the ledger reads each step; each step is exact in its middle.
fn conversation(pause: Duration) -> (f64, Option<Duration>) {
    let (mut until, mut value) = (CONVERSATION / 4, 32.0);
    while pause >= until {
        if value < 0.05 {
            return (0.0, None);
        }
        until *= 2;
        value /= 4.0;
    }
    (value, Some(until))
}

/// What is known of a model's uses and loads.
#[derive(Debug, Clone, Copy, Default)]
struct Credit {
    tally: Tally,
    last_used: Moment,
    /// When the load began that has not ended yet.
    load_began: Option<Moment>,
    /// How long the last load took.
    load_time: Option<Duration>,
}

/// Computes what instances are worth.
#[derive(Debug)]
pub(crate) struct Appraiser {
    rule: Eviction,
    habits: Habits,
    credits: BTreeMap<ModelId, Credit>,
}

impl Appraiser {
    pub(crate) fn new(rule: Eviction) -> Self {
        Self {
            rule,
            habits: Habits::default(),
            credits: BTreeMap::new(),
        }
    }

    /// Records a use or a load of an instance, if there was one since the last call.
    pub(crate) fn notice(&mut self, instance: &Instance, now: Moment) {
        match self.rule {
            Eviction::Lru => return,
            Eviction::CostAware => {}
        }
        let used = instance.usage.last_used;
        let models = self.credits.len();
        let known = self.credits.get(&instance.spec.model);
        let counted = match known {
            Some(known) if used <= known.last_used + CONVERSATION => None,
            Some(known) => Some(self.habits.count(Some(known.tally), models)),
            None => Some(self.habits.count(None, models + 1)),
        };
        let credit = self.credits.entry(instance.spec.model.clone()).or_default();
        if let Some(tally) = counted {
            credit.tally = tally;
        }
        credit.last_used = credit.last_used.max(used);
        match &instance.state {
            InstanceState::Loading { .. } => {
                credit.load_began.get_or_insert(now);
            }
            InstanceState::Ready => {
                if let Some(began) = credit.load_began.take() {
                    credit.load_time = Some(now.since(began));
                }
            }
            InstanceState::Cancelling { .. }
            | InstanceState::Evicting { .. }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Leaving(_)
            | InstanceState::Lost(_)
            | InstanceState::Opaque => credit.load_began = None,
        }
    }

    /// Forgets models that are no longer known.
    pub(crate) fn forget(&mut self, known: impl Fn(&ModelId) -> bool) {
        self.credits.retain(|model, _| known(model));
    }

    /// The number of models it remembers.
    pub(crate) fn len(&self) -> usize {
        self.credits.len()
    }

    /// What an instance is worth now.
    pub(crate) fn appraise(&self, instance: &Instance, bytes: Bytes, now: Moment) -> Appraisal {
        let last_used = instance.usage.last_used;
        match self.rule {
            Eviction::Lru => Appraisal {
                worth: Worth::by_time(last_used),
                loss: Worth::by_time(last_used),
                until: None,
            },
            Eviction::CostAware => {
                let (value, until) = conversation(now.since(last_used));
                let log = self.log_of_loss(instance, bytes, value);
                Appraisal {
                    worth: Worth::by_log(log - float(bytes.get()).max(1.0).log2()),
                    loss: Worth::by_log(log),
                    until: until.map(|pause| last_used + pause),
                }
            }
        }
    }

    /// The logarithm of (cost of a load × frequency). All models age alike, so their order stays the same. `conversation`: the extra worth
    /// of a conversation that may go on, as a multiple of an average model's popularity.
    fn log_of_loss(&self, instance: &Instance, bytes: Bytes, conversation: f64) -> f64 {
        let credit = self.credits.get(&instance.spec.model);
        let unseen = UNSEEN_LOAD.as_secs_f64() + float(bytes.get()) / UNSEEN_RATE;
        let load_time = credit
            .and_then(|credit| credit.load_time)
            .map_or(unseen, |time| time.as_secs_f64());
        let tally = credit.map(|credit| credit.tally).unwrap_or_default();
        let frequency = tally.frequency + tally.average * conversation;
        tally.at + (frequency.max(f64::MIN_POSITIVE) * (load_time + WAIT.as_secs_f64())).log2()
    }
}

fn float(number: u64) -> f64 {
    let half = |bits: u64| f64::from(u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(u32::MAX));
    half(number >> 32) * 4_294_967_296.0 + half(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_order() {
        let logs = [-2000.0, -40.0, -39.9, 0.0, 1e4, 1e300];
        let worths: Vec<Worth> = logs.map(Worth::by_log).to_vec();
        assert!(worths.is_sorted(), "{worths:?}");
        assert!(worths[1] < worths[2]);
        assert_eq!(worths[0], Worth::NONE);
    }

    #[test]
    fn losses_add_up_and_one_alone_stays_what_it_is() {
        let together =
            |logs: &[f64]| Worth::together(Eviction::CostAware, logs.iter().copied().map(Worth::by_log));
        assert_eq!(together(&[]), Worth::NONE);
        assert_eq!(together(&[-20.25]), Worth::by_log(-20.25));
        assert_eq!(together(&[3.0, 3.0]), Worth::by_log(4.0));
        assert_eq!(together(&[5.0, 3.0, 3.0, 4.0]), Worth::by_log(6.0));
        let by_use = [7, 9].map(|secs| Worth::by_time(Moment::after_start(Duration::from_secs(secs))));
        assert_eq!(Worth::together(Eviction::Lru, by_use.into_iter()), by_use[1]);
    }

    #[test]
    fn a_pause_twice_as_long_leaves_a_quarter_until_nothing_is_left() {
        let after = |secs| conversation(Duration::from_secs(secs)).0;
        assert_eq!(
            [0, 22, 23, 89, 90, 179, 719, 720].map(after),
            [32.0, 32.0, 8.0, 2.0, 0.5, 0.5, 0.03125, 0.0]
        );
        assert_eq!(conversation(Duration::from_secs(90)).1, Some(CONVERSATION * 2));
        assert_eq!(conversation(Duration::from_secs(720)).1, None);
    }

    #[test]
    fn floats_of_large_numbers_are_near_enough() {
        for number in [0, 7, 5_000_000_000, u64::MAX] {
            let exact = number.to_string().parse::<f64>().unwrap();
            assert!((float(number) - exact).abs() <= exact * 1e-12, "{number}");
        }
    }
}
