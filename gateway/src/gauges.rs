//! Gauges that are read from the route table at each `GET /metrics`.

use muster_proto::v1::ModelStatus;
use prometheus::{IntGaugeVec, Opts, Registry, proto::MetricFamily};

use crate::fleet::{Contact, table::Table};

/// All gauges with their current values. `contact`: whether the controller answers; `troubles`: how many troubles it reports.
pub(crate) fn read(table: &Table, (contact, troubles): (Contact, usize)) -> Vec<MetricFamily> {
    let registry = Registry::new();
    let gauge = |name: &str, help: &str, labels: &[&str]| gauge(&registry, name, help, labels);

    let models = gauge("muster_models", "Models of the catalogue by state.", &["state"]);
    for (word, status) in [
        ("unloaded", ModelStatus::Unloaded),
        ("loading", ModelStatus::Loading),
        ("loaded", ModelStatus::Loaded),
        ("unloading", ModelStatus::Unloading),
        ("failed", ModelStatus::Failed),
    ] {
        let count = table.models().filter(|model| model.status() == status).count();
        set(&models, &[word], count);
    }
    let running = gauge(
        "muster_instance_requests",
        "Requests of this gateway at an instance.",
        &["model", "instance"],
    );
    let queued = gauge(
        "muster_instance_queued_requests",
        "Requests of anybody that wait at an instance, as its worker said last.",
        &["model", "instance"],
    );
    for target in table.all_targets() {
        let labels = [target.route.model.as_str(), target.instance_id().as_str()];
        set(&running, &labels, target.gauge.inflight());
        set(&queued, &labels, target.gauge.queued());
    }
    let answers = gauge(
        "muster_controller_answers",
        "1 if the controller answers; loaded models are served without it.",
        &[],
    );
    set(&answers, &[], u8::from(contact == Contact::Ok));
    let trouble = gauge(
        "muster_controller_troubles",
        "Number of things that the controller cannot do at the moment; `/health` lists them.",
        &[],
    );
    set(&trouble, &[], troubles);
    registry.gather()
}

#[allow(
    clippy::expect_used,
    reason = "constant names and labels, each made once; a test makes them all"
)]
fn gauge(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    let gauge = IntGaugeVec::new(Opts::new(name, help), labels).expect("a valid name");
    registry
        .register(Box::new(gauge.clone()))
        .expect("a name of its own");
    gauge
}

fn set(gauge: &IntGaugeVec, labels: &[&str], value: impl TryInto<i64>) {
    gauge
        .with_label_values(labels)
        .set(value.try_into().unwrap_or(i64::MAX));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gauge_is_there_for_an_empty_table() {
        let families = read(&Table::default(), (Contact::Ok, 0));
        let names: Vec<&str> = families.iter().map(MetricFamily::name).collect();
        assert_eq!(
            names,
            [
                "muster_controller_answers",
                "muster_controller_troubles",
                "muster_models"
            ]
        );
    }
}
