//! Where a model's files are decides where it may run (PROTOCOL.md 15).

use muster_core::{Bytes, Code, DeviceKind, ModelType, Runtime};
use muster_policy::{FailureClass, LoadError, ModelSpec, ModelState};

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
        Some(Code::ModelFailed)
    );
    let mut spec = model("a", ModelType::Llm, 10);
    spec.workers = ["w2".into()].into();
    sim.add_model(spec);
    assert!(matches!(sim.states["a"], ModelState::Failed(_)));
    let now = sim.open("a");
    sim.finish_loads();
    assert!(sim.streams[&now].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_queued_load_goes_to_a_host_that_got_its_files_meanwhile() {
    let mut sim = two_hosts();
    let mut spec = model("a", ModelType::Llm, 10);
    spec.workers = ["w1".into()].into();
    sim.add_model(spec.clone());
    sim.leave(&"w1".into());
    let hold = sim.open("a");
    sim.deliver_all();
    assert!(sim.loading().is_empty(), "w2 does not have them");
    spec.workers = ["w2".into()].into();
    sim.add_model(spec);
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_queued_load_runs_on_the_runtime_that_is_found_for_it_meanwhile() {
    let mut sim = two_hosts();
    let before = ModelSpec {
        runtime: Runtime::LlamaCpp,
        ..model("a", ModelType::Llm, 10)
    };
    sim.add_model(before);
    let hold = sim.open("a");
    sim.deliver_all();
    assert!(sim.loading().is_empty(), "no worker has that runtime");
    sim.add_model(model("a", ModelType::Llm, 10));
    sim.finish_loads();
    assert!(sim.streams[&hold].ready().is_some(), "{}", sim.tail());
}

#[test]
fn a_model_that_is_too_large_is_refused_with_the_numbers_of_hosts_that_have_its_files() {
    let mut sim = two_hosts();
    sim.join(facts("w3", "h3", vec![device("gpu", DeviceKind::Gpu, 250)]));
    let mut spec = model("a", ModelType::Llm, 300);
    spec.workers = ["w1".into()].into();
    sim.add_model(spec);
    let hold = sim.open("a");
    let Some(LoadError::InsufficientMemory { possible, device, .. }) = sim.streams[&hold].failed() else {
        panic!("{:?}", sim.streams[&hold].last())
    };
    assert_eq!(*possible, Bytes::new(100));
    assert_eq!(device.as_ref().map(|device| device.host.as_str()), Some("h1"));
}
