//! The session with the controller: who speaks, what is told, what survives its loss.

use std::time::Duration;

use muster_proto::{
    net,
    trust::Credentials,
    v1::{
        AckTombstone, CancelLoad, EngineHttpCall, InstanceState, Load, RefusedReason, command::Kind as Order,
        inference_client::InferenceClient, outcome::Kind as Answer,
    },
};
use tokio::time::{Instant, sleep};

use crate::{
    controller::Controller,
    gateway::Gateway,
    rig::{Rig, stub},
};

#[tokio::test]
async fn a_load_survives_the_loss_of_its_session_and_is_echoed_whole() {
    let mut rig = Rig::start(&[]).await;
    let spec = rig.here(stub("m", |settings, behaviour| {
        settings.chat_template = "template".to_owned();
        behaviour.load_time_ms = 300;
    }));
    let instance = rig.begin_load(spec.clone(), &["ensure-1"]).await;
    drop(rig.session);
    rig.session = rig.controller.session().await;
    let full = rig.session.hello.full.as_ref().unwrap();
    assert_eq!(full.instances.len(), 1);
    assert_eq!(full.instances[0].spec.as_ref(), Some(&spec));
    assert_eq!(full.instances[0].hold_ids, ["ensure-1"]);
    let ready = rig
        .session
        .state(&instance.instance_id, InstanceState::Ready)
        .await;
    assert!(ready.capabilities.is_some() && ready.load_time.is_some());
    assert_eq!(ready.queue_limit, 128);
    // A known instance attaches.
    let load = Load {
        spec: Some(spec),
        holds: Vec::new(),
    };
    let answer = rig
        .session
        .command(&instance.instance_id, Order::Load(load))
        .await;
    assert!(matches!(answer, Answer::Done(done) if done.state() == InstanceState::Ready));
}

#[tokio::test]
async fn an_old_controller_is_refused_and_streams_go_on_without_one() {
    let Rig {
        dir: _dir,
        worker,
        controller,
        session,
    } = Rig::start(&[]).await;
    let address = controller.address.clone();
    drop((session, controller));
    let mut controller = Controller::start(&address, 5).await;
    let session = controller.session().await;
    assert_eq!(session.hello.highest_epoch_seen, 1);
    drop((session, controller));
    let mut old = Controller::start(&address, 4).await;
    let session = old.session().await;
    assert_eq!(session.hello.highest_epoch_seen, 5);
    session.until("the end", |view| view.ended.then_some(())).await;
    drop(worker);
}

#[tokio::test]
async fn commands_are_obeyed_once() {
    let rig = Rig::start(&[]).await;
    let spec = stub("m", |_, behaviour| behaviour.fail = "hang_load".to_owned());
    let instance = rig.begin_load(spec, &[]).await;
    let id = instance.instance_id.as_str();
    let cancel = || Order::Cancel(CancelLoad {});
    let answer = rig.session.command_as("c", id, cancel()).await;
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    rig.session.state(id, InstanceState::Gone).await;
    let again = rig.session.command_as("c", id, cancel()).await;
    assert_eq!(answer, again, "from memory");
    let late = rig.session.command_as("d", id, cancel()).await;
    assert!(matches!(late, Answer::Refused(refused) if refused.reason() == RefusedReason::NotLoading));
    rig.session.command(id, Order::Ack(AckTombstone {})).await;
    let load = Order::Load(Load::default());
    let answer = rig.session.command("x", load).await;
    assert!(matches!(answer, Answer::Refused(refused) if refused.reason() == RefusedReason::Invalid));
}

#[tokio::test]
async fn causes_before_the_spawn_are_typed() {
    let rig = Rig::start(&[]).await;
    let missing = stub("m", |settings, _| {
        settings.checkpoint = "/nowhere/model.gguf".to_owned()
    });
    let mut runtime = stub("m", |_, _| {});
    runtime.runtime = "none".to_owned();
    let mut device = stub("m", |_, _| {});
    device.reservations[0].device_id = "cuda:9".to_owned();
    for (spec, code) in [
        (missing, "file_not_found"),
        (runtime, "invalid_load_request"),
        (device, "invalid_load_request"),
    ] {
        let instance = rig.begin_load(spec, &[]).await;
        let failed = rig
            .session
            .state(&instance.instance_id, InstanceState::Failed)
            .await;
        assert_eq!(failed.failure.unwrap().code, code);
        assert!(failed.engine.is_empty());
    }
}

#[tokio::test]
async fn a_hung_load_is_ended() {
    let rig = Rig::start(&["--load-stall", "0.5"]).await;
    let spec = stub("m", |_, behaviour| behaviour.fail = "hang_load".to_owned());
    let instance = rig.begin_load(spec, &[]).await;
    let failed = rig
        .session
        .state(&instance.instance_id, InstanceState::Failed)
        .await;
    assert_eq!(failed.failure.unwrap().code, "load_stalled");
}

#[tokio::test]
async fn a_launch_that_never_ends_can_be_cancelled() {
    // A llama-server that does not even show its flags.
    let dir = tempfile::tempdir().unwrap();
    let server = dir.path().join("llama-server");
    // Not written by this process: another test's child could have the file open for a moment, and it could not be started.
    let write = r#"printf '#!/bin/sh\nexec sleep 600\n' >"$0" && chmod 755 "$0""#;
    let written = std::process::Command::new("sh")
        .args(["-c", write])
        .arg(&server)
        .status();
    assert!(written.unwrap().success());
    let checkpoint = dir.path().join("model.gguf");
    std::fs::write(&checkpoint, "GGUF").unwrap();
    let rig = Rig::start(&["--llama-server", server.to_str().unwrap()]).await;
    let mut spec = stub("m", |settings, _| {
        settings.checkpoint = checkpoint.display().to_string();
        settings.args = vec!["--flag".to_owned()];
    });
    spec.runtime = "llama_server".to_owned();
    let instance = rig.begin_load(spec, &[]).await;
    let id = instance.instance_id.as_str();
    rig.session.state(id, InstanceState::Loading).await;
    let began = Instant::now();
    let answer = rig.session.command(id, Order::Cancel(CancelLoad {})).await;
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    rig.session.state(id, InstanceState::Gone).await;
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "its own time limit did not end it"
    );
}

#[tokio::test]
async fn a_declared_device_shows_reservations_and_gives_them_back() {
    let rig = Rig::start(&["--device", "sim:gpu0:1GiB"]).await;
    let device = &rig.session.hello.devices[0];
    assert_eq!(
        (device.device_id.as_str(), device.capacity_bytes),
        ("sim:gpu0", 1 << 30)
    );
    let mut spec = stub("m", |_, _| {});
    spec.reservations[0].device_id = "sim:gpu0".to_owned();
    spec.reservations[0].bytes = 300 << 20;
    let instance = rig.load(spec).await;
    let sample = |view: &crate::controller::View| view.samples.get("sim:gpu0").copied_free();
    let (free, lifecycle) = rig
        .session
        .until("a sample after the start", |view| {
            sample(view).filter(|one| one.1 == 1)
        })
        .await;
    assert_eq!(free, (1 << 30) - (300 << 20));
    let observed = rig
        .session
        .until("memory", |view| {
            view.instances[&instance.instance_id].observed.first().cloned()
        })
        .await;
    assert_eq!((observed.bytes, lifecycle), (300 << 20, 1));
    let force = muster_proto::v1::Unload {
        mode: muster_proto::v1::UnloadMode::Force.into(),
        ..Default::default()
    };
    rig.session
        .command(&instance.instance_id, Order::Unload(force))
        .await;
    rig.session
        .state(&instance.instance_id, InstanceState::Gone)
        .await;
    // In the same report as the end.
    assert_eq!(rig.session.look(sample), Some((1 << 30, 2)));
}

trait CopiedFree {
    fn copied_free(self) -> Option<(u64, u64)>;
}

impl CopiedFree for Option<&muster_proto::v1::DeviceSample> {
    fn copied_free(self) -> Option<(u64, u64)> {
        self.map(|sample| (sample.free_bytes, sample.lifecycle_seq))
    }
}

#[tokio::test]
async fn work_beside_the_sessions_touches_and_a_look_does_not() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let mut client = InferenceClient::new(
        net::channel(&rig.worker.address, &Credentials::none())
            .await
            .unwrap(),
    );
    let mut ask = async |work| {
        let call = EngineHttpCall {
            instance: Some(instance.clone()),
            method: "POST".into(),
            path: "/v1/audio/transcriptions".into(),
            work,
            ..EngineHttpCall::default()
        };
        // The stub speaks no HTTP: it was asked all the same.
        client.engine_http(call).await.unwrap_err();
    };
    for work in [false, false, true] {
        ask(work).await;
    }
    // Beginning and end of the load, and of the one piece of work.
    let seen = |view: &crate::controller::View| {
        let touch = view.instances[&instance.instance_id].touch.as_ref()?.touch_seq;
        (touch >= 4).then_some(touch)
    };
    assert_eq!(rig.session.until("the last touch", seen).await, 4);
}

#[tokio::test]
async fn touches_are_few_and_idleness_is_told_soon() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let before = rig.session.look(|view| view.reports);
    let begun = Instant::now();
    for _ in 0..200 {
        gateway.start(&instance, "p", 1, 1).await.end().await.unwrap();
    }
    let done = |view: &crate::controller::View| {
        let status = &view.instances[&instance.instance_id];
        (status.touch.as_ref().unwrap().touch_seq == 402 && status.running == 0).then_some(())
    };
    rig.session.until("the last touch", done).await;
    sleep(Duration::from_millis(1)).await;
    let reports = rig.session.look(|view| view.reports) - before;
    // On a machine so slow that each request is told by itself there is nothing to coalesce.
    let slow = begun.elapsed() > Duration::from_secs(1);
    assert!(
        reports < 200 || (slow && reports <= 400),
        "{reports} reports for 200 requests"
    );
}
