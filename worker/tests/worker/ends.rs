//! Crashes and shutdowns: of engines, and of the worker.

use std::time::Duration;

use muster_proto::v1::InstanceState;
use rustix::process::{Signal, kill_process};
use tokio::time::sleep;

use crate::{
    gateway::Gateway,
    rig::{Rig, Worker, alive, pid, stub, wait_until},
};

const FOREVER: u32 = 1 << 19;

#[tokio::test]
async fn a_killed_engine_fails_its_streams_once_and_others_do_not_notice() {
    let rig = Rig::start(&[]).await;
    let spec = stub("m", |settings, _| settings.target_inflight = 2);
    let (lost, other) = (rig.load(spec).await, rig.load(stub("n", |_, _| {})).await);
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(gateway.start(&lost, "a", FOREVER, 10).await);
    }
    let mut running = gateway.start(&other, "b", 40, 10).await;
    streams[0].read(10).await;
    running.read(10).await;
    let engine = rig
        .session
        .look(|view| view.instances[&lost.instance_id].engine.clone());
    for process in &engine {
        kill_process(pid(process.pid), Signal::KILL).ok();
    }
    for stream in &mut streams {
        stream.fails("runtime_crashed").await;
    }
    let failed = rig.session.state(&lost.instance_id, InstanceState::Failed).await;
    let failure = failed.failure.unwrap();
    assert_eq!(failure.code, "runtime_crashed");
    assert!(failure.details.contains_key("log"));
    gateway
        .start(&lost, "c", 1, 1)
        .await
        .fails("stale_instance")
        .await;
    gateway.credit(&running, 100).await;
    running.end().await.unwrap();
    assert_eq!(running.deltas, 40);
}

#[tokio::test]
async fn lost_events_and_stuck_loops_end_the_engine() {
    let rig = Rig::start(&["--engine-stuck", "0.5"]).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    for fail in [
        "gap_after_tokens:20",
        "stall_after_tokens:20",
        "abort_after_tokens:20",
    ] {
        let instance = rig
            .load(stub("m", |_, behaviour| behaviour.fail = fail.to_owned()))
            .await;
        let mut stream = gateway.start(&instance, "a", FOREVER, 100).await;
        stream.fails("runtime_crashed").await;
        let failed = rig
            .session
            .state(&instance.instance_id, InstanceState::Failed)
            .await;
        assert_eq!(failed.failure.unwrap().code, "runtime_crashed", "{fail}");
    }
}

#[tokio::test]
async fn a_worker_that_was_stopped_keeps_its_engines() {
    let rig = Rig::start(&["--engine-silent", "2"]).await;
    let mut instances = Vec::new();
    for model in ["a", "b", "c", "d"] {
        instances.push(rig.load(stub(model, |_, _| {})).await);
    }
    rig.worker.signal(Signal::STOP);
    sleep(Duration::from_secs(3)).await;
    rig.worker.signal(Signal::CONT);
    let gateway = Gateway::connect(&rig.worker.address).await;
    for instance in &instances {
        let mut stream = gateway.start(instance, "a", 5, 10).await;
        stream.end().await.unwrap();
    }
}

#[tokio::test]
async fn a_killed_worker_leaves_no_engine() {
    let mut rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let engine = rig
        .session
        .look(|view| view.instances[&instance.instance_id].engine.clone());
    assert!(engine.iter().all(|process| alive(process.pid)));
    rig.worker.signal(Signal::KILL);
    let gone = || engine.iter().all(|process| !alive(process.pid));
    wait_until("the engine's end", Duration::from_secs(2), gone).await;
    // The next boot takes over the name.
    rig.worker.ended().await;
    let next = Worker::start(rig.dir.path(), &rig.controller.address, &[]).await;
    let session = rig.controller.session().await;
    assert_ne!(session.hello.boot_id, rig.session.hello.boot_id);
    assert!(session.hello.full.as_ref().unwrap().instances.is_empty());
    drop(next);
}

#[tokio::test]
async fn a_terminated_worker_finishes_what_it_admitted() {
    let mut rig = Rig::start(&[]).await;
    let instance = rig
        .load(stub("m", |settings, _| settings.target_inflight = 1))
        .await;
    let loading = stub("n", |_, behaviour| behaviour.fail = "hang_load".to_owned());
    let loading = rig.begin_load(loading, &[]).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", 50, 10).await;
    running.read(10).await;
    let mut waiting = gateway.start(&instance, "b", 5, 10).await;
    waiting.admitted().await;
    rig.worker.signal(Signal::TERM);
    rig.session
        .state(&instance.instance_id, InstanceState::Draining)
        .await;
    rig.session.state(&loading.instance_id, InstanceState::Gone).await;
    assert!(rig.session.look(|view| view.draining));
    gateway
        .start(&instance, "c", 5, 10)
        .await
        .fails("stale_instance")
        .await;
    gateway.credit(&running, 100).await;
    running.end().await.unwrap();
    waiting.end().await.unwrap();
    rig.session.until("goodbye", |view| view.goodbye.clone()).await;
    let states = rig
        .session
        .look(|view| view.instances[&instance.instance_id].state());
    assert_eq!(states, InstanceState::Gone);
    drop(rig.session);
    assert!(rig.worker.ended().await.success());
}

#[tokio::test]
async fn a_terminated_worker_does_not_wait_for_ever() {
    let mut rig = Rig::start(&["--drain-timeout", "0.2"]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", FOREVER, 10).await;
    running.read(10).await;
    rig.worker.signal(Signal::TERM);
    running.fails("model_unloading").await;
    assert!(rig.worker.ended().await.success());
}
