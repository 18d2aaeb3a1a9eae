//! Requests on their way through the worker: separate, in order, cancelled wherever they are.

use std::time::Duration;

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{GenerateCall, InstanceRef, Start, event::Kind},
};

use crate::{
    gateway::{Gateway, client, generate, request},
    rig::{Rig, stub},
};

/// As many tokens as nobody waits for.
const FOREVER: u32 = 1 << 19;

#[tokio::test]
async fn sixty_four_streams_stay_separate() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |settings, _| settings.sequences = 64)).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut alone = Vec::new();
    for index in 0..4 {
        let mut stream = gateway
            .start(&instance, &format!("prompt {index}"), 200, 1000)
            .await;
        stream.end().await.unwrap();
        alone.push(stream.text);
    }
    let mut streams = Vec::new();
    for index in 0..64 {
        streams.push(
            gateway
                .start(&instance, &format!("prompt {}", index % 4), 200, 16)
                .await,
        );
    }
    let read = streams.into_iter().enumerate().map(|(index, mut stream)| {
        let (gateway, alone) = (&gateway, &alone);
        async move {
            stream.admitted().await;
            let finished = loop {
                let kind = stream.next().await.unwrap();
                if matches!(kind, Kind::Delta(_)) {
                    gateway.credit(&stream, 1).await;
                } else if let Kind::Finished(finished) = kind {
                    break finished;
                } else {
                    assert!(matches!(kind, Kind::ChoiceFinished(_)), "{kind:?}");
                }
            };
            assert_eq!(stream.text, alone[index % 4]);
            assert_eq!(stream.deltas, 200);
            assert_eq!(finished.usage.unwrap().completion_tokens, 200);
        }
    });
    futures::future::join_all(read).await;
}

#[tokio::test]
async fn the_queue_is_bounded_and_says_so() {
    let rig = Rig::start(&[]).await;
    let spec = stub("m", |settings, _| {
        (settings.target_inflight, settings.queue_limit) = (1, 2)
    });
    let instance = rig.load(spec).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut first = gateway.start(&instance, "a", FOREVER, 4).await;
    assert_eq!(first.admitted().await, 0);
    let mut second = gateway.start(&instance, "b", 3, 10).await;
    assert_eq!(second.admitted().await, 1);
    let mut third = gateway.start(&instance, "c", 3, 10).await;
    assert_eq!(third.admitted().await, 2);
    let mut fourth = gateway.start(&instance, "d", 3, 10).await;
    let error = fourth.fails("queue_full").await;
    assert!(error.retry_after.is_some());
    // Cancelled in the queue: it ends at once, and the others move up.
    gateway.cancel(&second).await;
    second.fails("cancelled").await;
    first.read(4).await;
    gateway.cancel(&first).await;
    first.fails("cancelled").await;
    let finished = third.end().await.unwrap();
    assert!(finished.timings.unwrap().queue_ms > 0.0);
}

#[tokio::test]
async fn cancelled_in_prefill_and_in_decode() {
    let rig = Rig::start(&[]).await;
    let spec = stub("m", |settings, behaviour| {
        settings.sequences = 1;
        behaviour.prompt_us_per_word = 10_000_000;
    });
    let slow = rig.load(spec).await;
    let fast = rig.load(stub("n", |settings, _| settings.sequences = 1)).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut prefill = gateway.start(&slow, "one two three", 10, 10).await;
    prefill.admitted().await;
    gateway.cancel(&prefill).await;
    prefill.fails("cancelled").await;
    let mut decode = gateway.start(&fast, "x", FOREVER, 100).await;
    decode.read(50).await;
    gateway.cancel(&decode).await;
    decode.fails("cancelled").await;
    // The sequence is free again.
    gateway.start(&fast, "y", 5, 10).await.end().await.unwrap();
}

#[tokio::test]
async fn a_slow_reader_is_cancelled_and_others_are_not() {
    let rig = Rig::start(&["--slow-reader", "0.3"]).await;
    let instance = rig
        .load(stub("m", |_, behaviour| behaviour.tokens_per_second = 20))
        .await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut slow = gateway.start(&instance, "a", FOREVER, 2).await;
    let mut other = gateway.start(&instance, "b", 12, 100).await;
    slow.fails("slow_reader").await;
    assert_eq!(slow.deltas, 2);
    other.end().await.unwrap();
}

#[tokio::test]
async fn a_duplicate_request_id_takes_the_place_of_the_older() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |settings, _| settings.sequences = 2)).await;
    let gateways = [
        Gateway::connect(&rig.worker.address).await,
        Gateway::connect(&rig.worker.address).await,
    ];
    let start = |tokens| Start {
        request_id: "r".to_owned(),
        ..generate(&instance, "p", tokens, 4)
    };
    let mut older = gateways[0].start_with(start(FOREVER)).await;
    older.read(4).await;
    let mut newer = gateways[1].start_with(start(4)).await;
    older.fails("superseded").await;
    newer.end().await.unwrap();
}

#[tokio::test]
async fn a_broken_session_cancels_its_requests() {
    let rig = Rig::start(&[]).await;
    let instance = rig
        .load(stub("m", |settings, _| settings.target_inflight = 1))
        .await;
    let (broken, other) = (
        Gateway::connect(&rig.worker.address).await,
        Gateway::connect(&rig.worker.address).await,
    );
    let mut running = broken.start(&instance, "a", FOREVER, 10).await;
    running.read(10).await;
    let mut waiting = other.start(&instance, "b", 5, 10).await;
    assert_eq!(waiting.admitted().await, 1);
    broken.abort();
    waiting.end().await.unwrap();
}

#[tokio::test]
async fn other_instances_boots_and_workers_are_stale() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let other = |change: fn(&mut InstanceRef)| {
        let mut other = instance.clone();
        change(&mut other);
        other
    };
    for named in [
        other(|named| named.instance_id = "0".to_owned()),
        other(|named| named.worker_boot_id = "0".to_owned()),
        other(|named| named.worker_id = "0".to_owned()),
    ] {
        gateway
            .start(&named, "p", 1, 1)
            .await
            .fails("stale_instance")
            .await;
    }
    gateway.start(&instance, "p", 1, 1).await.end().await.unwrap();
}

#[tokio::test]
async fn generate_is_a_plain_stream_beside_the_session() {
    let rig = Rig::start(&[]).await;
    rig.load(stub("m", |_, _| {})).await;
    let mut client = client(&rig.worker.address).await;
    let call = |model: &str, tokens| GenerateCall {
        model: model.to_owned(),
        request: Some(request("p", tokens)),
        ..GenerateCall::default()
    };
    let status = client.generate(call("unknown", 1)).await.unwrap_err();
    assert_eq!(Error::from_status(&status).code, Code::ModelNotLoaded);
    let mut events = client.generate(call("m", 500)).await.unwrap().into_inner();
    let (mut deltas, mut last) = (0, None);
    while let Some(event) = events.message().await.unwrap() {
        deltas += usize::from(matches!(event.kind, Some(Kind::Delta(_))));
        last = event.kind;
    }
    assert_eq!(deltas, 500);
    assert!(matches!(last, Some(Kind::Finished(_))));
    // Dropping the stream cancels it.
    let mut endless = client.generate(call("m", FOREVER)).await.unwrap().into_inner();
    endless.message().await.unwrap();
    drop(endless);
    let idle = |view: &crate::controller::View| {
        view.instances
            .values()
            .all(|status| status.running == 0 && status.touch.as_ref().unwrap().touch_seq >= 6)
    };
    rig.session.until("idle", |view| idle(view).then_some(())).await;
    tokio::time::timeout(Duration::from_secs(5), client.generate(call("m", 1)))
        .await
        .unwrap()
        .unwrap();
}
