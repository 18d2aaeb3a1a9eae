//! The comparison, printed and held against what is promised.

use muster_policy::{Config, Eviction, Placement};

use crate::outcome::{HEAD, Outcome};
use crate::scenario::{self, Scenario};
use crate::{drifting, others, world};

/// The policy under both of its orders, the second one with models packed closely too. Every invariant holds on the way, or the run ends
/// there.
fn ours(scenario: &Scenario) -> Vec<Outcome> {
    let orders = [
        ("`lru`", Eviction::Lru, Placement::Spread),
        ("`cost_aware`, `pack`", Eviction::CostAware, Placement::Pack),
        ("`cost_aware`", Eviction::CostAware, Placement::Spread),
    ];
    let run = |(name, eviction, placement): (&str, Eviction, Placement)| {
        let config = Config {
            eviction,
            placement,
            ..Config::default()
        };
        let mut out = world::run(scenario, config);
        out.policy = format!("Muster, {name}");
        out
    };
    orders.into_iter().map(run).collect()
}

/// Prints the table of a scenario and checks what is promised: nobody starves, both orders load less than any baseline, and
/// `cost_aware` stays within the scenario's share of the offline bound.
fn compare(scenario: &Scenario) {
    let ours = ours(scenario);
    let others = others::all(scenario);
    let offline = others.offline.loads;
    println!(
        "\n{} ({} requests)\n\n{HEAD}",
        scenario.name,
        scenario.requests.len()
    );
    let lru = ours.first().map_or(0, |out| out.loads);
    let bounds = others.popular.iter().chain([&others.offline]);
    for out in ours.iter().chain(&others.baselines).chain(bounds) {
        println!("{}", out.row(lru, offline));
    }
    for out in &ours {
        everybody_is_served(out);
        for baseline in &others.baselines {
            assert!(
                out.loads < baseline.loads,
                "{}: {} needs {} loads, {} needs {}",
                scenario.name,
                out.policy,
                out.loads,
                baseline.policy,
                baseline.loads
            );
        }
        assert!(out.loads >= offline, "{} beats who knows the future", out.policy);
    }
    let cost_aware = ours.last().map_or(0, |out| out.loads);
    let most = offline * scenario.most_percent / 100;
    assert!(
        cost_aware <= most,
        "{}: {cost_aware} loads, {most} are allowed",
        scenario.name
    );
}

fn everybody_is_served(out: &Outcome) {
    assert_eq!((out.failed, out.starved), (0, 0), "{}", out.policy);
    let served = out.hits + u64::try_from(out.waits.len()).unwrap();
    assert_eq!(served, out.requests, "{}", out.policy);
}

#[test]
fn a_small_box_loads_less_than_any_baseline() {
    compare(&scenario::small());
}

#[test]
fn hosts_that_fall_over_leave_nobody_waiting() {
    for out in ours(&scenario::crowded()) {
        everybody_is_served(&out);
        assert!(out.waits.len() > 100, "the fleet is crowded");
    }
}

#[test]
#[ignore = "minutes; run by its command"]
fn workstations() {
    for scenario in scenario::workstations() {
        compare(&scenario);
    }
}

#[test]
#[ignore = "minutes; run by its command"]
fn drifting_workstations() {
    for scenario in drifting::drifting() {
        compare(&scenario);
    }
}

#[test]
#[ignore = "minutes; run by its command"]
fn a_cluster() {
    compare(&scenario::cluster());
}
