//! The order in which idle instances are evicted (I9).
//!
//! `lru` reads one thing: when an instance was last used.
//!
//! `cost_aware` asks what an eviction will cost: load time × frequency / bytes, in the manner of GreedyDual-Size-Frequency (Cherkasova 1998),
//! with two changes that real use calls for:
//!
//! * Who was used a moment ago is in the middle of a conversation: it is worth more than anyone who was not, and among its like the least
//!   recently used goes first. One conversation is one use, however many requests it has.
//! * Uses age by uses, not by time: after four further uses per known model (of whatever model) an old one counts half. So a quiet night
//!   changes nothing, and a change of taste shows within as many uses whatever the traffic.
//!
//! Frequencies outlive evictions, but not the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::api::{Bytes, ModelId, Moment};
use crate::config::Eviction;
use crate::state::{Instance, InstanceState};

/// So long after its last request a conversation is taken to go on.
const CONVERSATION: Duration = Duration::from_secs(90);

/// Uses per known model after which an old use counts half.
const HALF_LIFE: f64 = 4.0;

/// What a load that was never seen is taken to cost: so long, and a second for so many bytes.
const UNSEEN_LOAD: Duration = Duration::from_secs(3);
const UNSEEN_RATE: f64 = 2.0 * 1024.0 * 1024.0 * 1024.0;

/// What keeping an instance is worth, by the strategy: the least worth goes first. Comparable within one fleet only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Worth(u64);

impl Worth {
    /// Nothing: no eviction is cheaper.
    pub(crate) const NONE: Self = Self(0);

    /// Above all values of those that rest.
    const TALKING: u64 = 1 << 63;

    fn by_time(last_used: Moment) -> u64 {
        let nanos = u64::try_from(last_used.since(Moment::ZERO).as_nanos()).unwrap_or(u64::MAX);
        nanos.min(Self::TALKING - 1)
    }

    /// A logarithm as a fixed-point number; far from both ends for anything that is measured in seconds and bytes.
    fn by_log(log: f64) -> Self {
        const ZERO: f64 = 1024.0;
        const STEPS: f64 = 4_294_967_296.0;
        Self(whole((log + ZERO).max(0.0) * STEPS).min(Self::TALKING - 1))
    }
}

/// A float as the nearest whole number below; the largest there is if it is larger.
fn whole(value: f64) -> u64 {
    Duration::try_from_secs_f64(value).map_or(u64::MAX, |span| span.as_secs())
}

/// What is remembered of a model.
#[derive(Debug, Clone, Copy)]
struct Credit {
    /// Uses, older ones counting less, as of `at`.
    frequency: f64,
    /// The appraiser's clock when it was last counted.
    at: f64,
    last_used: Moment,
    /// A load began and has not ended.
    load_began: Option<Moment>,
    /// How long the last load took.
    load_time: Option<Duration>,
}

/// Judges what instances are worth.
#[derive(Debug)]
pub(crate) struct Appraiser {
    rule: Eviction,
    /// Half-lives that have passed.
    clock: f64,
    credits: BTreeMap<ModelId, Credit>,
}

impl Appraiser {
    pub(crate) fn new(rule: Eviction) -> Self {
        Self {
            rule,
            clock: 0.0,
            credits: BTreeMap::new(),
        }
    }

    /// An instance may have been used, or may have been loaded.
    pub(crate) fn notice(&mut self, instance: &Instance, now: Moment) {
        match self.rule {
            Eviction::Lru => return,
            Eviction::CostAware => {}
        }
        let used = instance.usage.last_used;
        let known = self.credits.contains_key(&instance.spec.model);
        let models = u32::try_from(self.credits.len() + usize::from(!known)).unwrap_or(u32::MAX);
        let credit = self.credits.entry(instance.spec.model.clone()).or_insert(Credit {
            frequency: 0.0,
            at: self.clock,
            last_used: Moment::ZERO,
            load_began: None,
            load_time: None,
        });
        if used > credit.last_used + CONVERSATION {
            self.clock += 1.0 / (HALF_LIFE * f64::from(models));
            credit.frequency = credit.frequency * (credit.at - self.clock).exp2() + 1.0;
            credit.at = self.clock;
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

    /// Forgets models that are no more.
    pub(crate) fn forget(&mut self, known: impl Fn(&ModelId) -> bool) {
        self.credits.retain(|model, _| known(model));
    }

    /// Models it remembers.
    pub(crate) fn len(&self) -> usize {
        self.credits.len()
    }

    /// What an instance is worth, and until when that is so if nothing happens.
    pub(crate) fn worth(&self, instance: &Instance, bytes: Bytes, now: Moment) -> (Worth, Option<Moment>) {
        let last_used = instance.usage.last_used;
        let recency = Worth::by_time(last_used);
        let rests_from = last_used + CONVERSATION;
        match self.rule {
            Eviction::Lru => (Worth(recency), None),
            Eviction::CostAware if now < rests_from => (Worth(Worth::TALKING | recency), Some(rests_from)),
            Eviction::CostAware => (Worth::by_log(self.log_of_value(instance, bytes)), None),
        }
    }

    /// The logarithm of load time × frequency / bytes, such that all of them age alike and so keep their order.
    fn log_of_value(&self, instance: &Instance, bytes: Bytes) -> f64 {
        let bytes = float(bytes.get()).max(1.0);
        let credit = self.credits.get(&instance.spec.model);
        let unseen = UNSEEN_LOAD.as_secs_f64() + bytes / UNSEEN_RATE;
        let load_time = credit
            .and_then(|credit| credit.load_time)
            .map_or(unseen, |time| time.as_secs_f64());
        let (frequency, at) = credit.map_or((1.0, 0.0), |credit| (credit.frequency, credit.at));
        at + (load_time.max(0.001) * frequency.max(f64::MIN_POSITIVE) / bytes).log2()
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
    fn values_keep_their_order_and_stay_below_conversations() {
        let logs = [-2000.0, -40.0, -39.9, 0.0, 1e4, 1e300];
        let worths: Vec<Worth> = logs.map(Worth::by_log).to_vec();
        assert!(worths.is_sorted(), "{worths:?}");
        assert!(worths[1] < worths[2]);
        assert_eq!(worths[0], Worth::NONE);
        assert!(worths[5] < Worth(Worth::TALKING | Worth::by_time(Moment::ZERO)));
    }

    #[test]
    fn floats_of_large_numbers_are_near_enough() {
        for number in [0, 7, 5_000_000_000, u64::MAX] {
            let exact = number.to_string().parse::<f64>().unwrap();
            assert!((float(number) - exact).abs() <= exact * 1e-12, "{number}");
        }
    }
}
