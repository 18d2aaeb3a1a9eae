//! SIGTERM ends each process in order: what runs finishes, nothing is left behind.

use std::time::Duration;

use muster_proto::v1::ModelStatus;
use muster_tests::{Engine, Role, Stack, eventually, http, processes};
use serde_json::json;

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_stopped_gateway_finishes_its_streams() {
    let mut stack = Stack::with(Engine::Stub.model("m", 2, "stub.tokens_per_second = 100"))
        .start()
        .await;
    let mut stream = stack.http().chat_stream("m", json!({"max_tokens": 60})).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    stack.process(Role::Gateway).terminate();
    let whole = stream.chat().await;
    assert!(whole.error.is_none() && whole.done, "{:?}", whole.error);
    let status = stack.process(Role::Gateway).ended(LIMIT).await;
    assert!(status.success(), "{status}");
}

/// Many streams run when a gateway is told to stop: each ends whole, and who comes meanwhile is served by the next gateway on that port.
#[tokio::test]
async fn a_gateway_that_is_replaced_cuts_no_stream() {
    const STREAMS: usize = 24;
    let mut stack = Stack::with(Engine::Stub.model("m", 32, "stub.tokens_per_second = 50"))
        .start()
        .await;
    stack.http().chat("m", json!({"max_tokens": 1})).await.ok();
    let http = stack.http();
    let streams = http::all(STREAMS, |_| async {
        let mut stream = http.chat_stream("m", json!({"max_tokens": 150})).await;
        let mut chat = http::Chat::default();
        stream.chunks(&mut chat, 2).await;
        stream
    })
    .await;
    let mut old = stack.detach(Role::Gateway);
    old.terminate();
    stack.start_process(Role::Gateway).await;
    let fresh = stack.http().chat("m", json!({"max_tokens": 2})).await;
    assert!(!fresh.chat_text().is_empty());
    assert!(processes::alive(old.pid()), "the old one still has its streams");
    for stream in streams {
        stream.chat().await.whole();
    }
    let status = old.ended(LIMIT).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_stream_that_outlasts_the_drain_is_told_so() {
    let mut stack = Stack::with(Engine::Stub.model("m", 2, "stub.tokens_per_second = 10"))
        .gateway_args(&["--drain-seconds", "1"])
        .start()
        .await;
    let mut stream = stack.http().chat_stream("m", json!({"max_tokens": 600})).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    stack.process(Role::Gateway).terminate();
    let cut = stream.chat().await;
    assert!(cut.error.is_some(), "cut without a word");
    let status = stack.process(Role::Gateway).ended(LIMIT).await;
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_stopped_worker_finishes_its_streams_and_leaves_no_engine() {
    let mut stack = Stack::with(Engine::Stub.model("m", 2, "stub.tokens_per_second = 100"))
        .start()
        .await;
    let mut stream = stack.http().chat_stream("m", json!({"max_tokens": 60})).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    let tree = processes::descendants(stack.process(Role::Worker(0)).pid());
    assert!(!tree.is_empty());
    stack.process(Role::Worker(0)).terminate();
    let whole = stream.chat().await;
    assert!(whole.error.is_none() && whole.done, "{:?}", whole.error);
    let status = stack.process(Role::Worker(0)).ended(LIMIT).await;
    assert!(status.success(), "{status}");
    let left: Vec<_> = tree
        .into_iter()
        .filter(|pid| processes::alive(*pid))
        .map(processes::command_line)
        .collect();
    assert!(left.is_empty(), "{left:?}");
    stack.model_is("m", ModelStatus::Unloaded, LIMIT).await;
}

#[tokio::test]
async fn an_unload_finishes_what_runs_and_refuses_what_waits() {
    let stack = Stack::with(Engine::Stub.model("m", 1, "stub.tokens_per_second = 100"))
        .start()
        .await;
    let mut stream = stack.http().chat_stream("m", json!({"max_tokens": 60})).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    let http = stack.http();
    let waiting = tokio::spawn(async move { http.chat("m", json!({"max_tokens": 2})).await });
    let queued = async || match stack.instance(0, "m").await.queued {
        1 => Ok(()),
        other => Err(other),
    };
    eventually("one waits", LIMIT, queued).await;
    let mut control = stack.control();
    let request = muster_proto::v1::UnloadModelRequest {
        model: "m".into(),
        ..muster_proto::v1::UnloadModelRequest::default()
    };
    let (unloaded, whole) = tokio::join!(control.unload_model(request), stream.chat());
    assert!(whole.error.is_none() && whole.done, "{:?}", whole.error);
    assert_eq!(
        unloaded.unwrap().into_inner().model.unwrap().status(),
        ModelStatus::Unloaded
    );
    let refused = waiting.await.unwrap();
    assert_eq!(refused.error(409)["code"], "model_unloading");
}
