//! What an operator can set for policy. Values are valid by construction: the controller's config module parses them and reports problems.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use crate::api::{Exclusivity, IdleTtl};
use crate::strategy::Eviction;
use muster_core::{Bytes, DeviceKind, ModelType};

/// How many models of one type may be loaded on a host, or in the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// No limit (`-1`).
    Unlimited,
    /// At most this many.
    AtMost(NonZeroU32),
}

impl Limit {
    /// One model, the default.
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

/// Limits on loaded models per type (I2), `--max-loaded-models`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// One limit per type, in the order of [`ModelType::ALL`].
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

/// Where to put a model if several places are equally good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// The place with the most memory left.
    Spread,
    /// The place with the least memory left.
    Pack,
}

/// All settings of policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Limits per type on each host (I2).
    pub limits: Limits,
    /// Limits per type on the whole fleet, in addition to those of each host (I2). Unlimited by default.
    pub fleet_limits: Limits,
    /// Loads that may run on a host at the same time (I5).
    pub max_concurrent_loads: NonZeroU32,
    /// Memory that loads leave free on each device (I4).
    pub margin: Bytes,
    /// Load a model even if it does not fit into memory (I4).
    pub overcommit: bool,
    /// How many models a device of a kind may host, where that differs from what its worker reports (I3).
    pub exclusivity: BTreeMap<DeviceKind, Exclusivity>,
    pub placement: Placement,
    /// Which idle instance goes first when a load needs room.
    pub eviction: Eviction,
    /// How long the controller waits after its start for known workers to join (PROTOCOL 2).
    pub settle: Duration,
    /// How long a load waits for a worker that can host it (PROTOCOL 2), or for memory that a lost worker's instance holds.
    pub worker_wait: Duration,
    /// How long a load waits for busy instances before they stop taking requests, finish those they have and go (PROTOCOL 11). None =
    /// without limit.
    pub max_eviction_wait: Option<Duration>,
    /// How long instances may take to finish their requests after they stopped taking new ones. Then the waiting load fails and they take
    /// requests again. It also limits operators' unloads. None = no limit.
    pub max_drain: Option<Duration>,
    /// How long an instance stays loaded at least, before a load may evict it.
    pub min_residency: Duration,
    /// Idle time before a model is unloaded, for models that set none. None = never.
    pub idle_ttl: Option<Duration>,
    /// How long an absent worker counts as a place where a model might fit (PROTOCOL 2).
    pub absent_counts: Duration,
    /// How long a running load goes on although nobody waits for it any more (I8).
    pub abandon_grace: Duration,
    /// The longest pause for which an instance counts as busy after a request: it applies while requests follow each other closely, and
    /// after a refused eviction. Longer than the time over which workers coalesce touches (PROTOCOL 19).
    pub quiet: Duration,
    /// How long a load waits for a memory sample newer than the last engine start or exit on a device; after that it goes by reservations
    /// alone (I4).
    pub sample_wait: Duration,
    /// How long a failed model is not loaded for requests (I7): the first pause and the longest.
    pub backoff: Backoff,
    /// How long the outcome of a command to a connected worker may stay unknown before the controller asks for a full report.
    pub unknown_wait: Duration,
    /// How long, after a restart, the controller keeps holds whose streams it does not know, so that gateways can come back (PROTOCOL 9).
    pub stranger_holds: Duration,
    /// Number of times a load may be lost with its worker before the model counts as failed.
    pub max_lost_loads: u32,
}

/// A delay that doubles up to a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    pub longest: Duration,
}

impl Backoff {
    /// The delay after `failures` failures in a row (1 or more).
    #[must_use]
    pub fn after(&self, failures: u32) -> Duration {
        let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first.saturating_mul(factor).min(self.longest)
    }
}

impl Config {
    /// The idle time before a model is unloaded; none = never.
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
