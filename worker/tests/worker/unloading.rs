//! Unloads, quiesces and holds: what may be disturbed, and what may not.

use std::time::{Duration, Instant};

use muster_proto::{
    net,
    trust::Credentials,
    v1::{
        DescribeRequest, Hold, InstanceSpec, InstanceState, Quiesce, RefusedReason, Resume, SetAttributes,
        Unload, UnloadMode, command::Kind as Order, host_client::HostClient, outcome::Kind as Answer,
    },
};
use tokio::time::sleep;

use crate::{
    controller::Session,
    gateway::Gateway,
    rig::{Rig, alive, stub, wait_until},
};

const FOREVER: u32 = 1 << 19;

fn unload(mode: UnloadMode, if_touch_seq: u64) -> Order {
    Order::Unload(Unload {
        mode: mode.into(),
        if_touch_seq,
        drain_for: None,
    })
}

#[track_caller]
fn refusal(answer: &Answer) -> RefusedReason {
    let Answer::Refused(refused) = answer else {
        panic!("not refused: {answer:?}")
    };
    refused.reason()
}

#[tokio::test]
async fn an_idle_unload_is_refused_unless_nothing_happened_since() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let id = instance.instance_id.as_str();
    let ready = rig.session.state(id, InstanceState::Ready).await;
    let seen = ready.touch.unwrap().touch_seq;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", 40, 10).await;
    running.read(10).await;
    let answer = rig.session.command(id, unload(UnloadMode::IfIdle, seen)).await;
    assert_eq!(refusal(&answer), RefusedReason::Busy);
    gateway.credit(&running, 100).await;
    running.end().await.unwrap();
    let answer = rig.session.command(id, unload(UnloadMode::IfIdle, seen)).await;
    assert_eq!(refusal(&answer), RefusedReason::Touched);
    let Answer::Refused(refused) = answer else {
        panic!("done")
    };
    let hold = Hold {
        hold_id: "h".to_owned(),
        ttl: None,
        gateway_id: String::new(),
    };
    let answer = rig.session.command(id, Order::PlaceHold(hold)).await;
    assert!(matches!(answer, Answer::Done(_)));
    let answer = rig
        .session
        .command(id, unload(UnloadMode::IfIdle, refused.touch_seq))
        .await;
    assert_eq!(refusal(&answer), RefusedReason::Held);
    rig.session
        .command(id, Order::ReleaseHoldId("h".to_owned()))
        .await;
    let answer = rig
        .session
        .command(id, unload(UnloadMode::Unspecified, u64::MAX))
        .await;
    assert_eq!(refusal(&answer), RefusedReason::Invalid);
    let engine = rig.session.look(|view| view.instances[id].engine.clone());
    assert!(!engine.is_empty());
    let answer = rig
        .session
        .command(id, unload(UnloadMode::IfIdle, refused.touch_seq))
        .await;
    assert!(matches!(answer, Answer::Done(_)), "{answer:?}");
    rig.session.state(id, InstanceState::Gone).await;
    assert!(
        engine.iter().all(|process| !alive(process.pid)),
        "gone means gone"
    );
    // Unloading what is gone is done, and again.
    let answer = rig.session.command(id, unload(UnloadMode::Force, 0)).await;
    assert!(matches!(answer, Answer::Done(done) if done.state() == InstanceState::Gone));
    gateway
        .start(&instance, "b", 1, 1)
        .await
        .fails("stale_instance")
        .await;
}

#[tokio::test]
async fn a_hold_runs_out_when_controller_and_its_gateway_are_gone() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let id = instance.instance_id.as_str();
    let (mine, other) = (
        Gateway::named(&rig.worker.address, Some("gw-1")).await,
        Gateway::named(&rig.worker.address, Some("gw-2")).await,
    );
    for gateway in ["gw-1", "gw-2"] {
        let hold = Hold {
            hold_id: format!("of-{gateway}"),
            ttl: prost_types::Duration::try_from(Duration::from_millis(300)).ok(),
            gateway_id: gateway.to_owned(),
        };
        let answer = rig.session.command(id, Order::PlaceHold(hold)).await;
        assert!(matches!(answer, Answer::Done(_)));
    }
    let Rig {
        dir: _dir,
        worker,
        controller,
        session,
    } = rig;
    drop((session, controller));
    let mut host = HostClient::new(net::channel(&worker.address, &Credentials::none()).await.unwrap());
    let mut holds = async || {
        let described = host
            .describe(DescribeRequest { engines: false })
            .await
            .unwrap()
            .into_inner();
        described.instances[0].status.as_ref().unwrap().hold_ids.clone()
    };
    // Both gateways are there; a look now and then takes at most a second.
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(holds().await, ["of-gw-1", "of-gw-2"]);
    drop(mine);
    let deadline = Instant::now() + muster_fakes::LIMIT;
    while holds().await != ["of-gw-2"] {
        assert!(Instant::now() < deadline, "a hold without anybody stays");
        sleep(Duration::from_millis(20)).await;
    }
    drop(other);
}

#[tokio::test]
async fn attributes_are_set_and_echoed_in_the_spec() {
    let mut rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let id = instance.instance_id.as_str();
    let minute = prost_types::Duration {
        seconds: 60,
        nanos: 0,
    };
    let set = SetAttributes {
        pinned: Some(true),
        idle_ttl: Some(minute),
    };
    rig.session.command(id, Order::Set(set)).await;
    // Zero means never; what is absent stays.
    let never = SetAttributes {
        pinned: None,
        idle_ttl: Some(prost_types::Duration::default()),
    };
    let spec = async |session: &Session, what: &str, met: fn(&InstanceSpec) -> bool| {
        wait_until(what, muster_fakes::LIMIT, || {
            session.look(|view| view.instances[id].spec.as_ref().is_some_and(met))
        })
        .await;
    };
    spec(&rig.session, "both are told", |spec| {
        spec.pinned && spec.idle_ttl.is_some_and(|ttl| ttl.seconds == 60)
    })
    .await;
    rig.session.command(id, Order::Set(never)).await;
    spec(&rig.session, "the limit is gone", |spec| {
        spec.pinned && spec.idle_ttl.is_none()
    })
    .await;
    // A controller that comes anew reads them in the worker's spec.
    drop(rig.session);
    rig.session = rig.controller.session().await;
    let full = rig.session.hello.full.as_ref().unwrap();
    let echoed = full.instances[0].spec.as_ref().unwrap();
    assert!(echoed.pinned && echoed.idle_ttl.is_none());
}

#[tokio::test]
async fn a_drain_finishes_what_runs_and_refuses_what_waits() {
    let rig = Rig::start(&[]).await;
    let instance = rig
        .load(stub("m", |settings, _| settings.target_inflight = 1))
        .await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", 50, 10).await;
    running.read(10).await;
    let mut waiting = gateway.start(&instance, "b", 5, 10).await;
    assert_eq!(waiting.admitted().await, 1);
    rig.session
        .command(&instance.instance_id, unload(UnloadMode::Drain, 0))
        .await;
    waiting.fails("model_unloading").await;
    gateway
        .start(&instance, "c", 5, 10)
        .await
        .fails("stale_instance")
        .await;
    rig.session
        .state(&instance.instance_id, InstanceState::Draining)
        .await;
    gateway.credit(&running, 100).await;
    running.end().await.unwrap();
    assert_eq!(running.deltas, 50);
    rig.session
        .state(&instance.instance_id, InstanceState::Gone)
        .await;
}

#[tokio::test]
async fn a_drain_gives_up_and_force_does_not() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let id = instance.instance_id.as_str();
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", FOREVER, 10).await;
    running.read(10).await;
    let drain = Unload {
        mode: UnloadMode::Drain.into(),
        if_touch_seq: 0,
        drain_for: prost_types::Duration::try_from(Duration::from_millis(50)).ok(),
    };
    rig.session.command(id, Order::Unload(drain)).await;
    rig.session.state(id, InstanceState::Ready).await;
    let states = rig
        .session
        .look(|view| view.history.iter().map(|(_, state)| *state).collect::<Vec<_>>());
    assert!(states.contains(&InstanceState::Draining));
    gateway.start(&instance, "b", 5, 10).await.end().await.unwrap();
    rig.session.command(id, unload(UnloadMode::Force, 0)).await;
    running.fails("model_unloading").await;
    rig.session.state(id, InstanceState::Gone).await;
}

#[tokio::test]
async fn a_quiesce_is_reversible_and_ends_with_its_session() {
    let mut rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let id = instance.instance_id.as_str();
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", 50, 10).await;
    running.read(10).await;
    rig.session.command(id, Order::Quiesce(Quiesce {})).await;
    gateway
        .start(&instance, "b", 5, 10)
        .await
        .fails("stale_instance")
        .await;
    rig.session.command(id, Order::Resume(Resume {})).await;
    gateway.start(&instance, "b", 5, 10).await.end().await.unwrap();
    rig.session.command(id, Order::Quiesce(Quiesce {})).await;
    // The session is lost: nothing is cancelled, and the quiesce is over.
    drop(rig.session);
    rig.session = rig.controller.session().await;
    rig.session.state(id, InstanceState::Ready).await;
    gateway.start(&instance, "b", 5, 10).await.end().await.unwrap();
    gateway.credit(&running, 100).await;
    running.end().await.unwrap();
}
