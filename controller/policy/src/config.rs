//! What an operator can set. Values are valid by construction; the controller's config module parses and reports problems.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::api::{Exclusivity, IdleTtl};
use crate::strategy::Eviction;
use muster_core::{Bytes, DeviceKind, ModelType};

/// How many models of one type a host, or the fleet, may have loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No limit (`-1`).
    Unlimited,
    /// At most so many.
    AtMost(NonZeroU32),
}

impl Limit {
    /// One, the default.
    pub const ONE: Self = Self::AtMost(NonZeroU32::MIN);

    /// Whether `count` models are within the limit.
    #[must_use]
    pub fn allows(self, count: usize) -> bool {
        match self {
            Self::Unlimited => true,
            Self::AtMost(limit) => count <= usize::try_from(limit.get()).unwrap_or(usize::MAX),
        }
    }
}

/// `--max-loaded-models`, per type (I2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// In the order of [`ModelType::ALL`].
    pub per_type: [Limit; 5],
}

impl Limits {
    /// The same limit for every type.
    #[must_use]
    pub const fn all(limit: Limit) -> Self {
        Self { per_type: [limit; 5] }
    }

    /// The limit of a type.
    #[must_use]
    pub const fn of(&self, kind: ModelType) -> Limit {
        let [llm, embedding, reranking, audio, image] = self.per_type;
        match kind {
            ModelType::Llm => llm,
            ModelType::Embedding => embedding,
            ModelType::Reranking => reranking,
            ModelType::Audio => audio,
            ModelType::Image => image,
        }
    }
}

/// Where to put a model when several places are equally good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Where most memory is left.
    Spread,
    /// Where least memory is left.
    Pack,
}

/// All settings of policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Type limits per host (I2).
    pub limits: Limits,
    /// Type limits over all hosts together, beside those of each host (I2). Unlimited by default.
    pub fleet_limits: Limits,
    /// Loads that may run at once per host (I5).
    pub max_concurrent_loads: NonZeroU32,
    /// Memory kept free per device (I4).
    pub margin: Bytes,
    /// Ignore memory: load even what does not fit (I4).
    pub overcommit: bool,
    /// How many models devices of a kind may host, where that is something else than their workers say (I3).
    pub exclusivity: BTreeMap<DeviceKind, Exclusivity>,
    /// Spread or pack.
    pub placement: Placement,
    /// Who goes first when room is needed.
    pub eviction: Eviction,
    /// How long to wait for the roster after a start (PROTOCOL 2).
    pub settle: Duration,
    /// How long a load waits for a capable worker (PROTOCOL 2), or for what a ghost holds.
    pub worker_wait: Duration,
    /// How long a load waits for busy victims before they take no new work, finish what they have and go (PROTOCOL 11). None = as long
    /// as it takes (the seed's rule).
    pub max_eviction_wait: Option<Duration>,
    /// How long victims may take to finish their work once they take no more; then the load that waits fails and they are ready again.
    /// It bounds operators' unloads too. None = no limit.
    pub max_drain: Option<Duration>,
    /// How long an instance stays at least once it is loaded.
    pub min_residency: Duration,
    /// How long a model may be idle before it is unloaded, where the model does not say. None = for ever.
    pub idle_ttl: Option<Duration>,
    /// How long an absent worker still counts as one the model may fit on (PROTOCOL 2).
    pub absent_counts: Duration,
    /// How long a running load that nobody waits for is spared (I8).
    pub abandon_grace: Duration,
    /// The longest that an instance must have been quiet to count as idle: while its requests follow each other within short pauses, or
    /// after a refused eviction. Longer than touches are coalesced (PROTOCOL 19).
    pub quiet: Duration,
    /// How long to wait for a memory sample newer than the last start or exit before deciding without (I4).
    pub sample_wait: Duration,
    /// First and longest time for which automatic loads of a failed model are refused (I7); doubles in between.
    pub backoff: Backoff,
    /// How long an unknown outcome may stay unexplained while its worker is connected, before a full report is asked for.
    pub unknown_wait: Duration,
    /// How long holds of streams that this controller never saw are kept after a restart, for gateways to come back (PROTOCOL 9).
    pub stranger_holds: Duration,
    /// Loads lost with their worker before the model counts as failed.
    pub max_lost_loads: u32,
}

/// A doubling delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub first: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Backoff {
    /// The delay after so many failures in a row (from 1).
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.longest)
    }
}

impl Config {
    /// How long a model may be idle before it is unloaded; none = for ever.
    #[must_use]
    pub fn ttl(&self, ttl: IdleTtl) -> Option<Duration> {
        match ttl {
            IdleTtl::Default => self.idle_ttl,
            IdleTtl::Never => None,
            IdleTtl::After(ttl) => Some(ttl),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits::all(Limit::ONE),
            fleet_limits: Limits::all(Limit::Unlimited),
            max_concurrent_loads: NonZeroU32::MIN,
            margin: Bytes::mib(64),
            overcommit: false,
            exclusivity: BTreeMap::new(),
            placement: Placement::Spread,
            eviction: Eviction::Lru,
            settle: Duration::from_secs(2),
            worker_wait: Duration::from_secs(30),
            max_eviction_wait: None,
            max_drain: None,
            min_residency: Duration::ZERO,
            idle_ttl: None,
            absent_counts: Duration::from_secs(600),
            abandon_grace: Duration::from_secs(10),
            quiet: Duration::from_millis(250),
            sample_wait: Duration::from_secs(1),
            backoff: Backoff {
                first: Duration::from_secs(5),
                longest: Duration::from_secs(300),
            },
            unknown_wait: Duration::from_secs(5),
            stranger_holds: Duration::from_secs(10),
            max_lost_loads: 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_count_models() {
        assert!(Limit::ONE.allows(1) && !Limit::ONE.allows(2));
        assert!(Limit::Unlimited.allows(usize::MAX));
    }

    #[test]
    fn the_backoff_doubles_up_to_its_longest() {
        let backoff = Config::default().backoff;
        let seconds: Vec<u64> = (1..=8)
            .map(|failures| backoff.after(failures).as_secs())
            .collect();
        assert_eq!(seconds, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.after(u32::MAX), backoff.longest);
    }
}
