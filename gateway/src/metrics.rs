//! What this gateway counts, in Prometheus' text form (`GET /metrics`). All names are here; none carries a request's id.
//!
//! Counters belong to the process: its I/O threads share them. Gauges are read from the route table when somebody asks.

use std::{fmt::Write as _, sync::LazyLock, time::Duration};

use muster_core::Missing;
use muster_proto::v1::{ModelStatus, Usage};
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder, core::Collector,
};

use crate::fleet::{Contact, table::Table};

/// Seconds; from a stub's first token to a load from a slow disk.
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
                "AnswerEvents of models that ended.",
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
                "Messages of the controller that lacked what they must have and were left out.",
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

/// Whether something ended well.
fn outcome(ok: bool) -> &'static str {
    if ok { "ok" } else { "failed" }
}

/// The controller told of something without what it must have.
pub(crate) fn malformed(about: &'static str, missing: Missing) {
    tracing::error!(about, %missing, "what the controller sent is left out");
    METRICS.malformed.with_label_values(&[about]).inc();
}

/// An HTTP request was answered. `route` is its pattern, not its path.
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

/// The first piece of an answer's output came.
pub(crate) fn first_token(model: &str, took: Duration) {
    METRICS
        .first_token
        .with_label_values(&[model])
        .observe(took.as_secs_f64());
}

/// An answer ended; none = it failed.
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

/// A request waited for its model.
pub(crate) fn waited(model: &str, ok: bool, took: Duration) {
    METRICS
        .waits
        .with_label_values(&[model, outcome(ok)])
        .observe(took.as_secs_f64());
}

/// Everything, as text.
pub(crate) fn text(table: &Table, health: (Contact, usize)) -> String {
    let mut out = Vec::new();
    if let Err(error) = TextEncoder::new().encode(&METRICS.registry.gather(), &mut out) {
        tracing::error!(%error, "could not write metrics");
    }
    let mut out = String::from_utf8(out).unwrap_or_default();
    gauges(table, &mut out);
    controller(health, &mut out);
    out
}

fn controller((contact, troubles): (Contact, usize), out: &mut String) {
    let name = "muster_controller_answers";
    head(
        out,
        name,
        "1 if the controller speaks; loaded models are served without it.",
    );
    line(out, name, &[], u8::from(contact == Contact::Ok));
    let name = "muster_controller_troubles";
    head(
        out,
        name,
        "What the controller cannot do at the moment; `/health` says what.",
    );
    line(out, name, &[], troubles);
}

fn gauges(table: &Table, out: &mut String) {
    head(out, "muster_models", "Models of the catalogue by state.");
    for (word, status) in [
        ("unloaded", ModelStatus::Unloaded),
        ("loading", ModelStatus::Loading),
        ("loaded", ModelStatus::Loaded),
        ("unloading", ModelStatus::Unloading),
        ("failed", ModelStatus::Failed),
    ] {
        let count = table.models().filter(|model| model.status() == status).count();
        line(out, "muster_models", &[("state", word)], count);
    }
    let targets: Vec<_> = table.all_targets().collect();
    head(
        out,
        "muster_instance_requests",
        "Requests of this gateway at an instance.",
    );
    for target in &targets {
        let labels = [
            ("model", target.route.model.as_str()),
            ("instance", target.instance_id().as_str()),
        ];
        line(out, "muster_instance_requests", &labels, target.gauge.inflight());
    }
    head(
        out,
        "muster_instance_queued_requests",
        "Requests of anybody that wait at an instance, as its worker said last.",
    );
    for target in &targets {
        let labels = [
            ("model", target.route.model.as_str()),
            ("instance", target.instance_id().as_str()),
        ];
        line(
            out,
            "muster_instance_queued_requests",
            &labels,
            target.gauge.queued(),
        );
    }
}

fn head(out: &mut String, name: &str, help: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
}

fn line(out: &mut String, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
    out.push_str(name);
    if labels.is_empty() {
        let _ = writeln!(out, " {value}");
        return;
    }
    for (index, (key, label)) in labels.iter().enumerate() {
        out.push(if index == 0 { '{' } else { ',' });
        out.push_str(key);
        out.push_str("=\"");
        for char in label.chars() {
            match char {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                char => out.push(char),
            }
        }
        out.push('"');
    }
    let _ = writeln!(out, "}} {value}");
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let text = text(&Table::default(), (Contact::NotAnswering, 1));
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

    #[test]
    fn labels_are_escaped() {
        let mut out = String::new();
        line(&mut out, "x", &[("model", "a\"b\\c\nd")], 1);
        assert_eq!(out, "x{model=\"a\\\"b\\\\c\\nd\"} 1\n");
    }
}
