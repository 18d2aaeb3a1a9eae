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
        Self(whole((log + Self::ZERO).max(0.0) * Self::STEPS).min(Self::TALKING - 1))
    }

    const ZERO: f64 = 1024.0;
    const STEPS: f64 = 4_294_967_296.0;

    /// The logarithm; none of who is in a conversation.
    fn log(self) -> Option<f64> {
        (self.0 < Self::TALKING).then(|| float(self.0) / Self::STEPS - Self::ZERO)
    }

    /// What it costs to evict all of these, each given as what it costs alone. By `lru`, as much as the most recently used of them; else
    /// the sum, unless somebody is in a conversation, who then counts alone.
    pub(crate) fn of_all(rule: Eviction, losses: impl Iterator<Item = Self> + Clone) -> Self {
        let most = losses.clone().max().unwrap_or(Self::NONE);
        match (rule, most.log()) {
            (Eviction::Lru, _) | (Eviction::CostAware, None) => most,
            (Eviction::CostAware, Some(_)) if most == Self::NONE => most,
            (Eviction::CostAware, Some(log)) => {
                let shares = losses.filter_map(Self::log).map(|other| (other - log).exp2());
                Self::by_log(log + shares.sum::<f64>().log2()).max(most)
            }
        }
    }
}

/// What is lost with an instance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Appraisal {
    /// For the bytes it frees: the order of eviction on a device.
    pub(crate) worth: Worth,
    /// In all: what tells one place from another.
    pub(crate) loss: Worth,
    /// When this changes though nothing happens.
    pub(crate) until: Option<Moment>,
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

    /// What an instance is worth now.
    pub(crate) fn appraise(&self, instance: &Instance, bytes: Bytes, now: Moment) -> Appraisal {
        let last_used = instance.usage.last_used;
        let recency = Worth::by_time(last_used);
        let same = |worth: Worth, until: Option<Moment>| Appraisal {
            worth,
            loss: worth,
            until,
        };
        let rests_from = last_used + CONVERSATION;
        match self.rule {
            Eviction::Lru => same(Worth(recency), None),
            Eviction::CostAware if now < rests_from => {
                same(Worth(Worth::TALKING | recency), Some(rests_from))
            }
            Eviction::CostAware => {
                let bytes = float(bytes.get()).max(1.0);
                let loss = self.log_of_loss(instance, bytes);
                Appraisal {
                    worth: Worth::by_log(loss - bytes.log2()),
                    loss: Worth::by_log(loss),
                    until: None,
                }
            }
        }
    }

    /// The logarithm of load time × frequency, such that all of them age alike and so keep their order.
    fn log_of_loss(&self, instance: &Instance, bytes: f64) -> f64 {
        let credit = self.credits.get(&instance.spec.model);
        let unseen = UNSEEN_LOAD.as_secs_f64() + bytes / UNSEEN_RATE;
        let load_time = credit
            .and_then(|credit| credit.load_time)
            .map_or(unseen, |time| time.as_secs_f64());
        let (frequency, at) = credit.map_or((1.0, 0.0), |credit| (credit.frequency, credit.at));
        at + (load_time.max(0.001) * frequency.max(f64::MIN_POSITIVE)).log2()
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
    fn together_they_cost_what_each_costs_alone() {
        let [three, five, eight] = [3.0_f64, 5.0, 8.0].map(|cost| Worth::by_log(cost.log2()));
        let sum = Worth::of_all(Eviction::CostAware, [three, five].into_iter());
        assert!(sum.0.abs_diff(eight.0) < 1_000, "{sum:?} {eight:?}");
        assert_eq!(Worth::of_all(Eviction::Lru, [three, five].into_iter()), five);
    }

    #[test]
    fn a_conversation_counts_alone_and_for_more_than_everything_else() {
        let talking = Worth(Worth::TALKING | 7);
        let rests = Worth::by_log(1e6);
        assert_eq!(
            Worth::of_all(Eviction::CostAware, [rests, talking].into_iter()),
            talking
        );
        assert!(Worth::of_all(Eviction::CostAware, [rests, rests].into_iter()) < talking);
    }

    #[test]
    fn nobody_is_worth_nothing() {
        for rule in [Eviction::Lru, Eviction::CostAware] {
            assert_eq!(Worth::of_all(rule, std::iter::empty()), Worth::NONE);
        }
    }
}
