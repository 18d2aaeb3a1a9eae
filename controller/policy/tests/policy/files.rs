//! Where a model's files are decides where it may run (PROTOCOL.md 15).

use muster_policy::{DeviceKind, FailureClass, LoadError, ModelState, ModelType};

use crate::sim::{Sim, config, device, facts, model};

fn two_hosts() -> Sim {
    let mut sim = Sim::new(config());
    for (worker, host) in [("w1", "h1"), ("w2", "h2")] {
        sim.join(facts(worker, host, vec![device("gpu", DeviceKind::Gpu, 100)]));
    }
    sim
}

#[test]
fn a_model_is_loaded_only_where_its_files_are() {
    for worker in ["w1", "w2"] {
        let mut sim = two_hosts();
        let mut spec = model("a", ModelType::Llm, 10);
        spec.workers = [worker.into()].into();
        sim.add_model(spec);
        sim.open("a");
        sim.deliver_all();
        let loading = sim.loading();
        assert_eq!(loading.len(), 1, "{}", sim.tail());
        assert_eq!(loading[0].0, worker.into());
    }
}

#[test]
fn a_failure_is_old_news_once_the_files_are_there() {
    let mut sim = two_hosts();
    sim.add_model(model("a", ModelType::Llm, 10));
    let hold = sim.open("a");
    let (worker, instance) = sim.loading().remove(0);
    sim.fail_load(&worker, &instance, FailureClass::BeforeEngine);
    assert!(sim.streams[&hold].failed().is_some());
    let late = sim.open("a");
    assert_eq!(
        sim.streams[&late].failed().map(LoadError::code),
        Some("model_failed")
    );
    let mut spec = model("a", ModelType::Llm, 10);
    spec.workers = ["w2".into()].into();
    sim.add_model(spec);
    assert!(matches!(sim.states[&"a".into()], ModelState::Failed(_)));
    let now = sim.open("a");
    sim.finish_loads();
    assert!(sim.streams[&now].ready().is_some(), "{}", sim.tail());
}
