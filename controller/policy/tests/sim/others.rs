//! All the rules on one scenario, with the limits that suit them best.

use crate::baselines::{Rule, run};
use crate::outcome::Outcome;
use crate::scenario::{SECOND, Scenario};

/// The largest limit with which a rule never runs out of memory; none if even one model per limit is too much.
fn largest(scenario: &Scenario, rule: impl Fn(usize) -> Rule) -> Option<Outcome> {
    let mut best = None;
    for limit in 1..=scenario.models.len() {
        let mut out = run(scenario, rule(limit));
        if out.out_of_memory > 0 {
            break;
        }
        out.policy = format!("at most {limit}");
        best = Some(out);
    }
    best
}

/// What others do, and what bounds all.
pub(crate) struct Others {
    /// With the limits that suit them best.
    pub(crate) baselines: Vec<Outcome>,
    /// See [`Rule::Popular`]: GPU by GPU, where one host has several, and in one pool.
    pub(crate) popular: Vec<Outcome>,
    /// The better of Belady's rule and its variant by bytes.
    pub(crate) offline: Outcome,
}

/// Runs all of them.
pub(crate) fn all(scenario: &Scenario) -> Others {
    let mut baselines = Vec::new();
    let counted = [
        ("count per type (Lemonade)", largest(scenario, Rule::CountPerType)),
        ("count (llama.cpp router)", largest(scenario, Rule::Count)),
    ];
    for (name, found) in counted {
        if let Some(mut out) = found {
            out.policy = format!("{name}, {}", out.policy);
            baselines.push(out);
        }
    }
    for (name, span) in [
        ("keep-alive 5 min (Ollama)", Some(300 * SECOND)),
        ("keep-alive for ever (Ollama)", None),
    ] {
        let mut out = run(scenario, Rule::KeepAlive(span));
        out.policy = name.to_owned();
        baselines.push(out);
    }
    let bound = |rule, name: &str| {
        let mut out = run(scenario, rule);
        name.clone_into(&mut out.policy);
        out
    };
    let [plain, sized] = [false, true].map(|sized| {
        let rule = Rule::Offline { sized };
        bound(rule, "offline bound (Belady, by bytes)")
    });
    let several = scenario.hosts == 1 && scenario.gpus.len() > 1;
    let by_gpu = several.then(|| bound(Rule::Popular { pooled: false }, "GPU by GPU, popularity known"));
    let pooled = bound(Rule::Popular { pooled: true }, "one pool, popularity known");
    let popular = by_gpu.into_iter().chain([pooled]).collect();
    Others {
        baselines,
        popular,
        offline: if sized.loads <= plain.loads { sized } else { plain },
    }
}
