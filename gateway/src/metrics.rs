//! The gateway's counters, in Prometheus' text form (`GET /metrics`). No label has a request's id.
//!
//! The counters belong to the process: its I/O threads share them. `gauges.rs` reads gauges from the route table at each request.

use std::{sync::LazyLock, time::Duration};

use muster_core::Missing;
use muster_proto::v1::Usage;
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder, core::Collector,
    proto::MetricFamily,
};

/// Bucket limits in seconds, from a stub's first token to a load from a slow disk.
const BUCKETS: [f64; 15] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0,
];

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

#[derive(Debug)]
struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    response: HistogramVec,
    answers: IntCounterVec,
    first_token: HistogramVec,
    prompt_tokens: IntCounterVec,
    cached_tokens: IntCounterVec,
    generated_tokens: IntCounterVec,
    waits: HistogramVec,
    malformed: IntCounterVec,
}

impl Metrics {
    #[allow(
        clippy::expect_used,
        reason = "constant names and labels; a test makes them all"
    )]
    fn new() -> Self {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels).expect("a valid name");
            register(&registry, counter)
        };
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let options = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
            register(
                &registry,
                HistogramVec::new(options, labels).expect("a valid name"),
            )
        };
        Self {
            requests: counter(
                "muster_http_requests_total",
                "Requests that were answered.",
                &["method", "route", "status"],
            ),
            response: histogram(
                "muster_http_response_seconds",
                "Time until an answer began, which for a whole body is when it was complete.",
                &["route"],
            ),
            answers: counter(
                "muster_answers_total",
                "Answers of models that ended.",
                &["model", "outcome"],
            ),
            first_token: histogram(
                "muster_time_to_first_token_seconds",
                "Time from the whole request to the first piece of its output.",
                &["model"],
            ),
            prompt_tokens: counter(
                "muster_prompt_tokens_total",
                "Tokens of prompts, cached ones included.",
                &["model"],
            ),
            cached_tokens: counter(
                "muster_cached_prompt_tokens_total",
                "Tokens of prompts that came from a cache.",
                &["model"],
            ),
            generated_tokens: counter("muster_generated_tokens_total", "Tokens generated.", &["model"]),
            waits: histogram(
                "muster_model_wait_seconds",
                "Time that requests waited for a model that was not loaded.",
                &["model", "outcome"],
            ),
            malformed: counter(
                "muster_malformed_messages_total",
                "Messages of the controller that were left out, since a required field was missing.",
                &["about"],
            ),
            registry,
        }
    }
}

#[allow(
    clippy::expect_used,
    reason = "each name is registered once; a test registers them all"
)]
fn register<T: Collector + Clone + 'static>(registry: &Registry, collector: T) -> T {
    registry
        .register(Box::new(collector.clone()))
        .expect("a name of its own");
    collector
}

/// The label for success or failure.
fn outcome(ok: bool) -> &'static str {
    if ok { "ok" } else { "failed" }
}

/// Counts a message of the controller that lacks a required field.
pub(crate) fn malformed(about: &'static str, missing: Missing) {
    tracing::error!(about, %missing, "what the controller sent is left out");
    METRICS.malformed.with_label_values(&[about]).inc();
}

/// Counts an answered HTTP request. `route` is the route's pattern, not its path.
pub(crate) fn answered(method: &str, route: &str, status: u16, took: Duration) {
    let status = status.to_string();
    METRICS
        .requests
        .with_label_values(&[method, route, &status])
        .inc();
    METRICS
        .response
        .with_label_values(&[route])
        .observe(took.as_secs_f64());
}

/// Records the time to the first output of an answer.
pub(crate) fn first_token(model: &str, took: Duration) {
    METRICS
        .first_token
        .with_label_values(&[model])
        .observe(took.as_secs_f64());
}

/// Counts the tokens of an answer that ended; none = it failed.
pub(crate) fn ended(model: &str, usage: Option<&Usage>) {
    METRICS
        .answers
        .with_label_values(&[model, outcome(usage.is_some())])
        .inc();
    let Some(usage) = usage else { return };
    for (counter, tokens) in [
        (&METRICS.prompt_tokens, usage.prompt_tokens),
        (&METRICS.cached_tokens, usage.cached_tokens),
        (&METRICS.generated_tokens, usage.completion_tokens),
    ] {
        counter.with_label_values(&[model]).inc_by(tokens.into());
    }
}

/// Records how long a request waited for its model.
pub(crate) fn waited(model: &str, ok: bool, took: Duration) {
    METRICS
        .waits
        .with_label_values(&[model, outcome(ok)])
        .observe(took.as_secs_f64());
}

/// The counters and the given gauges as text.
pub(crate) fn text(gauges: &[MetricFamily]) -> String {
    let mut out = Vec::new();
    for families in [&METRICS.registry.gather()[..], gauges] {
        if let Err(error) = TextEncoder::new().encode(families, &mut out) {
            tracing::error!(%error, "could not write metrics");
        }
    }
    String::from_utf8(out).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Contact, table::Table};

    #[test]
    fn all_names_can_be_made_and_follow_the_rules() {
        answered("POST", "/v1/x", 200, Duration::from_millis(3));
        first_token("names", Duration::from_millis(30));
        let usage = Usage {
            prompt_tokens: 9,
            cached_tokens: 4,
            completion_tokens: 5,
            ..Usage::default()
        };
        ended("names", Some(&usage));
        ended("names", None);
        waited("names", true, Duration::from_secs(2));
        let text = text(&crate::gauges::read(
            &Table::default(),
            (Contact::NotAnswering, 1),
        ));
        let controller = ["muster_controller_answers 0", "muster_controller_troubles 1"];
        assert!(
            controller
                .iter()
                .all(|line| text.lines().any(|found| found == *line)),
            "{text}"
        );
        for wanted in [
            "muster_prompt_tokens_total{model=\"names\"} 9\n",
            "muster_cached_prompt_tokens_total{model=\"names\"} 4\n",
            "muster_generated_tokens_total{model=\"names\"} 5\n",
            "muster_answers_total{model=\"names\",outcome=\"failed\"} 1\n",
            "muster_model_wait_seconds_count{model=\"names\",outcome=\"ok\"} 1\n",
            "muster_models{state=\"loaded\"} 0\n",
        ] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
        for name in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = name.split_once(' ').unwrap();
            assert!(name.starts_with("muster_"), "{name}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
            assert_eq!(
                kind == "histogram",
                name.ends_with("_seconds"),
                "{name} is a {kind}"
            );
        }
    }
}
