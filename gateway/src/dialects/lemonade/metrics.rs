//! The `lemonade_*` series of `GET /metrics`, under today's Lemonade's names and labels, so that its dashboards work. Beside them stand our own
//! (`gateway/src/metrics.rs`). What Muster does not measure (use of processor, GPU, NPU) is left out, as Lemonade leaves out what it cannot.

use std::collections::BTreeMap;

use muster_core::ModelType;
use muster_proto::v1::{self, ModelSummary};
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry, core::Collector, proto::MetricFamily};

use super::health::limits_by_type;
use crate::{
    fleet::table::{Table, is_loaded},
    stats::{Figures, Totals},
};

/// Labels of all series about a model.
const MODEL: [&str; 5] = ["model_name", "checkpoint", "type", "device", "recipe"];

/// What the series tell.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    pub(crate) table: &'a Table,
    /// Figures of the requests to each model.
    pub(crate) models: &'a BTreeMap<String, Figures>,
    /// Figures of all requests.
    pub(crate) all: Totals,
    /// The figures of single requests too: who asks may see those of others.
    pub(crate) latest: bool,
    /// Limits by type as the controller tells them; none while it is away.
    pub(crate) limits: Option<&'a [i32]>,
}

/// All series with their current values.
pub(crate) fn read(sources: &Sources<'_>) -> Vec<MetricFamily> {
    let registry = Registry::new();
    server(&registry, sources);
    let mut series = Series::of(&registry);
    for summary in sources.table.models() {
        let figures = sources.models.get(&summary.id);
        if figures.is_some() || is_loaded(summary) {
            series.model(summary, figures, sources.latest);
        }
    }
    registry.gather()
}

fn server(registry: &Registry, sources: &Sources<'_>) {
    let set = |name: &str, help: &str, value: f64| {
        gauge(registry, name, help, &[])
            .with_label_values::<&str>(&[])
            .set(value);
    };
    set("lemonade_server_up", "Whether the server is running.", 1.0);
    gauge(
        registry,
        "lemonade_server_info",
        "Version of the server, which is Muster's.",
        &["version"],
    )
    .with_label_values(&[muster_proto::VERSION])
    .set(1.0);
    let loaded = sources
        .table
        .models()
        .filter(|summary| is_loaded(summary))
        .count();
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^52 models")]
    set(
        "lemonade_loaded_models",
        "Number of models that are loaded.",
        loaded as f64,
    );
    if let Some(limits) = sources.limits {
        let name = "lemonade_max_loaded_models";
        let limit = gauge(
            registry,
            name,
            "Models of a type that may be loaded at once on a host; -1 = no limit.",
            &["type"],
        );
        for (kind, most) in limits_by_type(limits) {
            limit.with_label_values(&[kind]).set(most.into());
        }
    }
    for (what, help, total) in totals(&sources.all) {
        counter(registry, &format!("lemonade_{what}_total"), help, &[])
            .with_label_values::<&str>(&[])
            .inc_by(total);
    }
}

/// Lemonade's totals: the middle of their names, what they are, and their values.
fn totals(totals: &Totals) -> [(&'static str, &'static str, u64); 5] {
    [
        (
            "requests",
            "Answers of models that ended well.",
            totals.request_count_total,
        ),
        (
            "input_tokens",
            "Tokens of prompts that were evaluated.",
            totals.input_tokens_total,
        ),
        ("output_tokens", "Tokens generated.", totals.output_tokens_total),
        (
            "prompt_tokens",
            "Tokens of prompts, cached ones included.",
            totals.prompt_tokens_total,
        ),
        (
            "cache_tokens",
            "Tokens of prompts that came from a cache.",
            totals.cache_tokens_total,
        ),
    ]
}

/// Series about models.
struct Series {
    info: GaugeVec,
    loaded: GaugeVec,
    /// Of the last request, in the order of [`latest`].
    latest: [GaugeVec; 6],
    /// In the order of [`totals`].
    totals: [IntCounterVec; 5],
}

impl Series {
    fn of(registry: &Registry) -> Self {
        let gauge = |name: &str, help: &str| gauge(registry, &format!("lemonade_model_{name}"), help, &MODEL);
        Self {
            info: gauge("info", "1 for each model that is loaded or was asked here."),
            loaded: gauge("loaded", "Whether the model is loaded."),
            latest: latest(&Figures::default()).map(|(name, help, _)| gauge(name, help)),
            totals: totals(&Totals::default()).map(|(what, help, _)| {
                counter(registry, &format!("lemonade_model_{what}_total"), help, &MODEL)
            }),
        }
    }

    fn model(&mut self, summary: &ModelSummary, figures: Option<&Figures>, with_latest: bool) {
        let kind = v1::ModelType::try_from(summary.r#type).unwrap_or_default();
        let labels = [
            summary.id.as_str(),
            &summary.checkpoint,
            ModelType::try_from(kind).unwrap_or(ModelType::Llm).name(),
            &summary.device_kinds.join(" "),
            &summary.recipe,
        ];
        self.info.with_label_values(&labels).set(1.0);
        let loaded = f64::from(u8::from(is_loaded(summary)));
        self.loaded.with_label_values(&labels).set(loaded);
        let all = figures.map(|figures| figures.totals).unwrap_or_default();
        for (series, (_, _, total)) in self.totals.iter().zip(totals(&all)) {
            series.with_label_values(&labels).inc_by(total);
        }
        // One that generated nothing has no last figures.
        let generated = figures.filter(|figures| with_latest && figures.last.output_tokens > 0);
        for (series, (_, _, value)) in generated
            .iter()
            .flat_map(|figures| self.latest.iter().zip(latest(figures)))
        {
            series.with_label_values(&labels).set(value);
        }
    }
}

/// Figures of the last request: the ends of their names, what they are, and their values.
fn latest(figures: &Figures) -> [(&'static str, &'static str, f64); 6] {
    let last = &figures.last;
    [
        (
            "input_tokens",
            "Tokens of the last prompt that were evaluated.",
            last.input_tokens.into(),
        ),
        (
            "output_tokens",
            "Tokens generated by the last request.",
            last.output_tokens.into(),
        ),
        (
            "prompt_tokens",
            "Tokens of the last prompt, cached ones included.",
            last.prompt_tokens.into(),
        ),
        (
            "cache_tokens",
            "Tokens of the last prompt that came from a cache.",
            last.cache_tokens.into(),
        ),
        (
            "time_to_first_token_seconds",
            "Time to the first token of the last request.",
            last.time_to_first_token,
        ),
        (
            "tokens_per_second",
            "Speed of the last request.",
            last.tokens_per_second,
        ),
    ]
}

#[allow(
    clippy::expect_used,
    reason = "constant names and labels; a test makes them all"
)]
fn gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> GaugeVec {
    register(
        registry,
        GaugeVec::new(Opts::new(name, help), labels).expect("a valid name"),
    )
}

#[allow(
    clippy::expect_used,
    reason = "constant names and labels; a test makes them all"
)]
fn counter(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    register(
        registry,
        IntCounterVec::new(Opts::new(name, help), labels).expect("a valid name"),
    )
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

#[cfg(test)]
mod tests {
    use muster_proto::v1::{ModelStatus, RouteUpdate, SnapshotPart, route_update::Kind};

    use super::*;
    use crate::{fleet::table::Tracker, stats::Last};

    /// A table with `m`, which is loaded, and `cold`.
    fn table() -> Table {
        let summary = |id: &str, status: ModelStatus| ModelSummary {
            id: id.into(),
            r#type: v1::ModelType::Llm.into(),
            status: status.into(),
            checkpoint: "o/n:Q4_0".into(),
            recipe: "llamacpp".into(),
            device_kinds: vec!["gpu".into(), "npu".into()],
            ..ModelSummary::default()
        };
        let part = SnapshotPart {
            models: vec![
                summary("m", ModelStatus::Loaded),
                summary("cold", ModelStatus::Unloaded),
                summary("was", ModelStatus::Unloaded),
            ],
            last: true,
            settled: true,
            ..SnapshotPart::default()
        };
        let mut tracker = Tracker::resume(&Table::default());
        let update = RouteUpdate {
            epoch: 1,
            version: 1,
            kind: Some(Kind::Snapshot(part)),
        };
        assert!(tracker.apply(update).is_ok());
        tracker.table().clone()
    }

    fn text(latest: bool, limits: Option<&[i32]>) -> String {
        let figures = Figures {
            last: Last {
                time_to_first_token: 0.5,
                tokens_per_second: 20.0,
                input_tokens: 5,
                output_tokens: 7,
                prompt_tokens: 9,
                cache_tokens: 4,
                ..Last::default()
            },
            totals: Totals {
                request_count_total: 2,
                input_tokens_total: 14,
                output_tokens_total: 15,
                prompt_tokens_total: 18,
                cache_tokens_total: 4,
            },
        };
        let models = BTreeMap::from([("was".to_owned(), figures.clone())]);
        let sources = Sources {
            table: &table(),
            models: &models,
            all: figures.totals,
            latest,
            limits,
        };
        crate::metrics::text(&read(&sources))
    }

    fn labels(model: &str) -> String {
        format!(
            "{{checkpoint=\"o/n:Q4_0\",device=\"gpu npu\",model_name=\"{model}\",recipe=\"llamacpp\",type=\"llm\"}}"
        )
    }

    #[test]
    fn todays_lemonades_series_are_there_with_its_labels() {
        let text = text(true, Some(&[3, 2, 1, -1, 0]));
        let (loaded, was) = (labels("m"), labels("was"));
        for line in [
            "lemonade_server_up 1".to_owned(),
            format!("lemonade_server_info{{version=\"{}\"}} 1", muster_proto::VERSION),
            "lemonade_loaded_models 1".to_owned(),
            "lemonade_max_loaded_models{type=\"llm\"} 3".to_owned(),
            "lemonade_max_loaded_models{type=\"tts\"} -1".to_owned(),
            "lemonade_requests_total 2".to_owned(),
            "lemonade_cache_tokens_total 4".to_owned(),
            format!("lemonade_model_info{loaded} 1"),
            format!("lemonade_model_loaded{loaded} 1"),
            format!("lemonade_model_requests_total{loaded} 0"),
            format!("lemonade_model_loaded{was} 0"),
            format!("lemonade_model_output_tokens_total{was} 15"),
            format!("lemonade_model_prompt_tokens{was} 9"),
            format!("lemonade_model_time_to_first_token_seconds{was} 0.5"),
            format!("lemonade_model_tokens_per_second{was} 20"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(!text.contains(&format!("lemonade_model_tokens_per_second{loaded}")));
        assert!(!text.contains("model_name=\"cold\""), "{text}");
    }

    /// As in `/stats`, nobody is shown the figures of another's request.
    #[test]
    fn who_may_not_see_others_sees_totals_only() {
        let text = text(false, None);
        assert!(text.contains("lemonade_model_requests_total"));
        for name in ["lemonade_model_tokens_per_second", "lemonade_model_input_tokens{"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        assert!(
            !text.contains("lemonade_max_loaded_models"),
            "unknown without the controller"
        );
    }
}
