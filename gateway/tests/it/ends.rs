//! How requests end when somebody goes: the client, the worker, the controller, the gateway.

use std::time::Duration;

use futures::StreamExt as _;
use muster_proto::v1::{FinishReason, session_command};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::{
    gateway::{Gateway, chat, content, events},
    within,
    worker::{Worker, admitted, ended, finished, says, text},
};

#[tokio::test]
async fn a_client_that_goes_before_the_first_token_cancels() {
    for stream in [true, false] {
        // Silent = not admitted yet; admitted = in the worker's queue or in prefill.
        for ticks in [Vec::new(), vec![(vec![admitted()], false)]] {
            let worker = Worker::start(move |_| ticks.clone()).await;
            let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
            let body = chat(json!({"stream": stream}));
            let request = gateway
                .client
                .post(format!("{}/v1/chat/completions", gateway.url))
                .json(&body);
            let caller = tokio::spawn(request.send());
            worker.first_start().await;
            caller.abort();
            worker.cancelled().await;
        }
    }
}

#[tokio::test]
async fn a_client_that_goes_in_the_middle_cancels() {
    let worker = Worker::start(|_| vec![(vec![admitted(), text(0, "a")], false)]).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let mut body = gateway.chat(json!({"stream": true})).await.bytes_stream();
    within(body.next()).await.unwrap().unwrap();
    drop(body);
    worker.cancelled().await;
}

#[tokio::test]
async fn a_lone_token_does_not_wait_and_what_is_ready_together_comes_together() {
    let worker = Worker::start(|_| vec![(vec![admitted(), text(0, "a"), text(0, "b")], false)]).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let mut body = gateway.chat(json!({"stream": true})).await.bytes_stream();
    let chunk = within(body.next()).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&chunk).matches("data: ").count(), 3);
    let at = worker.first_start().await;
    for word in ["c", "d"] {
        worker.send(at, vec![text(0, word)], false);
        let chunk = within(body.next()).await.unwrap().unwrap();
        assert_eq!(String::from_utf8_lossy(&chunk).matches("data: ").count(), 1);
    }
}

#[tokio::test]
async fn a_worker_that_dies_ends_its_streams_with_one_error() {
    let worker = Worker::start(|_| vec![(vec![admitted(), text(0, "a")], false)]).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let response = gateway.chat(json!({"stream": true})).await;
    worker.first_start().await;
    worker.kill();
    let events = events(response).await;
    assert_eq!(content(&events), "a");
    assert_eq!(events.last().unwrap()["error"]["code"], "worker_lost");
    assert_eq!(
        events.iter().filter(|event| event.get("error").is_some()).count(),
        1
    );
}

#[tokio::test]
async fn without_its_controller_a_gateway_goes_on_with_old_and_new_requests() {
    let worker = Worker::start(|start| match start.handle {
        1 => vec![(vec![admitted(), text(0, "a")], false)],
        _ => says(&["new"]),
    })
    .await;
    let (gateway, controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let old = gateway.chat(json!({"stream": true})).await;
    let at = worker.first_start().await;
    controller.kill();
    // Sessions count their handles alone, so the other thread's first request is held, too: ask until one is answered.
    let body = chat(json!({}));
    let new = async {
        loop {
            let request = gateway
                .client
                .post(format!("{}/v1/chat/completions", gateway.url))
                .json(&body);
            let request = request.timeout(Duration::from_millis(500));
            if let Ok(response) = request.send().await {
                return response;
            }
        }
    };
    assert_eq!(within(new).await.status(), 200);
    worker.send(
        at,
        vec![text(0, "b"), ended(0, FinishReason::Stop), finished()],
        true,
    );
    assert_eq!(content(&events(old).await), "ab");
}

#[tokio::test]
async fn a_slow_reader_gets_no_more_credit() {
    let worker = Worker::start(|_| vec![(vec![admitted()], false)]).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let mut caller = tokio::spawn({
        let request = gateway
            .client
            .post(format!("{}/v1/chat/completions", gateway.url));
        request.json(&chat(json!({"stream": true}))).send()
    });
    let at = worker.first_start().await;
    let granted = |got: &[crate::worker::Got]| -> u32 {
        let credit = |got: &crate::worker::Got| match &got.kind {
            session_command::Kind::Credit(credit) => credit.events,
            session_command::Kind::Start(start) => start.credit,
            session_command::Kind::Cancel(_) => 0,
        };
        got.iter().map(credit).sum()
    };
    // A worker that spends all its credit on large events, until no more is granted for a while.
    let large = "x".repeat(20_000);
    let mut sent = 0;
    let mut response = None;
    loop {
        let credit = granted(&worker.got());
        while sent < credit {
            worker.send(at, vec![text(0, &large)], false);
            sent += 1;
        }
        if response.is_none() {
            response = Some(within(&mut caller).await.unwrap().unwrap());
        }
        let more = worker.gets(|got| granted(got) > credit);
        if tokio::time::timeout(Duration::from_secs(1), more).await.is_err() {
            break;
        }
    }
    assert!(
        sent < 20_000,
        "a reader that reads nothing was granted {sent} events"
    );
    // Once it reads, credit flows again.
    let mut body = response.unwrap().bytes_stream();
    let credit = granted(&worker.got());
    let read = async { while body.next().await.is_some() {} };
    tokio::select! {
        () = read => panic!("the stream ended"),
        got = worker.gets(|got| granted(got) > credit) => drop(got),
    }
}

#[tokio::test]
async fn a_gateway_listens_on_a_unix_socket_and_removes_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("http.sock");
    let nowhere = "127.0.0.1:9".parse().unwrap();
    let gateway = Gateway::start_at(&format!("unix:{}", path.display()), &nowhere).await;
    let mut socket = tokio::net::UnixStream::connect(&path).await.unwrap();
    let request = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    socket.write_all(request).await.unwrap();
    let mut answer = String::new();
    within(socket.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    gateway.terminate();
    assert!(gateway.ended().await);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_gateway_that_is_told_to_end_finishes_its_streams() {
    let worker = Worker::start(|_| vec![(vec![admitted(), text(0, "a")], false)]).await;
    let (gateway, _controller) = Gateway::with(vec![worker.route("m", "i")]).await;
    let response = gateway.chat(json!({"stream": true})).await;
    let at = worker.first_start().await;
    gateway.terminate();
    let refused = async {
        loop {
            // New connections are refused; kept ones are closed after their request.
            if tokio::net::TcpStream::connect(gateway.url.trim_start_matches("http://"))
                .await
                .is_err()
            {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    within(refused).await;
    worker.send(
        at,
        vec![text(0, "b"), ended(0, FinishReason::Stop), finished()],
        true,
    );
    assert_eq!(content(&events(response).await), "ab");
    assert!(gateway.ended().await);
}
