//! `[policy]` and `[sessions]`.

use std::{num::NonZeroU32, time::Duration};

use muster_core::Bytes;
use muster_policy::{Backoff, Config, Eviction, Limit, Limits, Placement};

use super::{Timing, section::Section};

/// Reads `[policy]`.
pub(super) fn policy(section: Section<'_>) -> Config {
    let default = Config::default();
    let span = |key, default| section.duration(key).unwrap_or(default);
    let placement = match section.word("placement", &["spread", "pack"]) {
        Some(1) => Placement::Pack,
        Some(_) | None => Placement::Spread,
    };
    let eviction = section.word("eviction", &Eviction::ALL.map(Eviction::name));
    let eviction = eviction.map_or(default.eviction, |order| Eviction::ALL[order]);
    let config = Config {
        limits: section
            .leaf("max_loaded_models")
            .and_then(|value| limits(&section, "max_loaded_models", value, Limit::ONE))
            .unwrap_or(default.limits),
        fleet_limits: section
            .leaf("max_loaded_models_fleet")
            .and_then(|value| limits(&section, "max_loaded_models_fleet", value, Limit::Unlimited))
            .unwrap_or(default.fleet_limits),
        max_concurrent_loads: section
            .integer("max_concurrent_loads", 1)
            .and_then(NonZeroU32::new)
            .unwrap_or(default.max_concurrent_loads),
        margin: section
            .integer("margin_mib", 0)
            .map_or(default.margin, Bytes::mib),
        overcommit: section.boolean("overcommit").unwrap_or(default.overcommit),
        exclusivity: section
            .section("models_per_device")
            .map_or(default.exclusivity, super::classes::classes),
        placement,
        eviction,
        settle: span("settle", default.settle),
        worker_wait: span("worker_wait", default.worker_wait),
        max_eviction_wait: section
            .duration("max_eviction_wait")
            .or(default.max_eviction_wait),
        max_drain: section.duration("max_drain").or(default.max_drain),
        min_residency: span("min_residency", default.min_residency),
        idle_ttl: section
            .duration("idle_ttl")
            .filter(|ttl| !ttl.is_zero())
            .or(default.idle_ttl),
        absent_counts: span("absent_counts", default.absent_counts),
        abandon_grace: span("abandon_grace", default.abandon_grace),
        quiet: span("quiet", default.quiet),
        sample_wait: span("sample_wait", default.sample_wait),
        backoff: Backoff {
            first: span("backoff_first", default.backoff.first),
            longest: span("backoff_longest", default.backoff.longest),
        },
        unknown_wait: span("unknown_wait", default.unknown_wait),
        stranger_holds: span("stranger_holds", default.stranger_holds),
        max_lost_loads: section
            .integer("max_lost_loads", 1)
            .unwrap_or(default.max_lost_loads),
    };
    section.finish();
    config
}

/// Reads `[sessions]`.
pub(super) fn timing(section: Section<'_>) -> Timing {
    let default = Timing::default();
    let span = |key, default| section.duration(key).unwrap_or(default);
    let timing = Timing {
        heartbeat_every: span("heartbeat_every", default.heartbeat_every).max(Duration::from_millis(1)),
        lost_after: span("lost_after", default.lost_after),
        ping_wait: span("ping_wait", default.ping_wait),
        command_wait: span("command_wait", default.command_wait),
        hold_ttl: span("hold_ttl", default.hold_ttl),
        roster_ttl: span("roster_ttl", default.roster_ttl),
    };
    if timing.lost_after <= timing.heartbeat_every {
        section.problem("lost_after", "must be longer than heartbeat_every");
    }
    section.finish();
    timing
}

/// Reads one number for all types, or up to five for llm, embedding, reranking, audio, image. Types that are left out get `missing` (for a
/// host: 1, controller/policy/README.md, Decisions).
fn limits(section: &Section<'_>, key: &str, value: &toml::Value, missing: Limit) -> Option<Limits> {
    let numbers: Option<Vec<i64>> = match value.as_array() {
        Some(items) => items.iter().map(toml::Value::as_integer).collect(),
        None => value.as_integer().map(|number| vec![number]),
    };
    let Some(numbers) = numbers else {
        return section.wrong(key, "an integer or an array of one to five integers", value);
    };
    match limits_of(&numbers, missing) {
        Ok(limits) => Some(limits),
        Err(message) => {
            section.problem(key, message);
            None
        }
    }
}

/// The limits of `--max-loaded-models` (seed 002; controller/policy/README.md, Decisions).
pub(super) fn limits_of(numbers: &[i64], missing: Limit) -> Result<Limits, String> {
    let limit = |number: i64| match u32::try_from(number).ok().and_then(NonZeroU32::new) {
        Some(limit) => Ok(Limit::AtMost(limit)),
        None if number == -1 => Ok(Limit::Unlimited),
        None => Err(format!(
            "{number} is no limit: want at least 1, or -1 for unlimited"
        )),
    };
    match numbers {
        [all] => Ok(Limits::all(limit(*all)?)),
        [] => Err("want one to five limits".to_owned()),
        some if some.len() <= 5 => {
            let mut per_type = [missing; 5];
            for (slot, number) in per_type.iter_mut().zip(some) {
                *slot = limit(*number)?;
            }
            Ok(Limits { per_type })
        }
        more => Err(format!("want one to five limits, got {}", more.len())),
    }
}
