//! Processes that hang (SIGSTOP): nothing else does because of them, and health says so (issue "firm", 0).

use std::time::Duration;

use muster_proto::v1::{
    EnsureLoadedEvent, EnsureLoadedRequest, ListWorkersRequest, ensure_loaded_event::Kind as Stage,
};
use muster_tests::{Engine, Role, Stack, eventually, processes, within};
use rustix::process::Signal;
use serde_json::json;
use tonic::Streaming;

pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// Opens a wish as a gateway does.
pub(crate) async fn ensure(stack: &Stack, id: &str, model: &str) -> Streaming<EnsureLoadedEvent> {
    let request = EnsureLoadedRequest {
        ensure_id: id.to_owned(),
        gateway_id: "test".to_owned(),
        model_id: model.to_owned(),
        ..EnsureLoadedRequest::default()
    };
    let opened = stack.control().ensure_loaded(request).await;
    opened.expect("the controller takes wishes").into_inner()
}

pub(crate) async fn ready(wish: &mut Streaming<EnsureLoadedEvent>) {
    let ready = async {
        while let Some(event) = wish.message().await.expect("the wish goes on") {
            if let Some(Stage::Ready(_)) = event.kind {
                return;
            }
        }
        panic!("the wish ended");
    };
    within("the model is ready", LIMIT, ready).await;
}

/// The controller answers, and knows that the worker is gone, or that it is back.
pub(crate) async fn worker_is(stack: &Stack, connected: bool) {
    let probe = async || {
        let mut control = stack.control();
        let asked = within(
            "the controller answers",
            LIMIT,
            control.list_workers(ListWorkersRequest {}),
        );
        let workers = asked.await.expect("the controller answers").into_inner().workers;
        if workers.iter().any(|worker| worker.connected) == connected {
            Ok(())
        } else {
            Err(workers)
        }
    };
    let what = format!("the worker is connected: {connected}");
    eventually(&what, LIMIT, probe).await;
}

pub(crate) async fn answers(stack: &Stack) {
    let answer = async || {
        let reply = stack.http().chat("m", json!({"max_tokens": 2})).await;
        if reply.status == 200 {
            Ok(())
        } else {
            Err(reply.text)
        }
    };
    eventually("the model answers", LIMIT, answer).await;
}

fn pid(stack: &mut Stack, role: Role) -> u32 {
    stack.process(role).pid()
}

/// Three of three times the controller then ran at full speed for ever, answered nobody and ignored SIGTERM.
#[tokio::test]
async fn callers_of_a_cold_model_who_give_up_on_a_hung_worker_do_not_freeze_the_controller() {
    let config = Engine::Stub.model("m", 1, "stub.load_time_ms = 1500");
    let mut stack = Stack::with(config).start().await;
    let worker = pid(&mut stack, Role::Worker(0));
    let http = stack.http();
    let asked = http.chat("m", json!({"max_tokens": 2}));
    let loading = async {
        let begun = async || {
            if stack.stats().await.loads_started > 0 {
                Ok(())
            } else {
                Err("not yet")
            }
        };
        eventually("the load begins", LIMIT, begun).await;
        processes::signal(worker, Signal::STOP);
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    // The caller gives up then.
    tokio::select! {
        reply = asked => panic!("a hung worker answered: {reply:?}"),
        () = loading => {}
    }
    worker_is(&stack, false).await;
    processes::signal(worker, Signal::CONT);
    worker_is(&stack, true).await;
    answers(&stack).await;
    let controller = stack.process(Role::Controller);
    controller.terminate();
    assert!(controller.ended(LIMIT).await.success());
}

/// Five of five times, in the same way.
#[tokio::test]
async fn a_hold_that_a_hung_worker_does_not_release_does_not_freeze_the_controller() {
    let mut stack = Stack::with(Engine::Stub.model("m", 1, "")).start().await;
    let worker = pid(&mut stack, Role::Worker(0));
    let mut wish = ensure(&stack, "one", "m").await;
    ready(&mut wish).await;
    processes::signal(worker, Signal::STOP);
    drop(wish);
    worker_is(&stack, false).await;
    processes::signal(worker, Signal::CONT);
    worker_is(&stack, true).await;
    answers(&stack).await;
}

/// Two of fifteen times, in the same way.
#[tokio::test]
async fn a_worker_that_is_killed_as_a_wish_ends_does_not_freeze_the_controller() {
    let mut stack = Stack::with(Engine::Stub.model("m", 1, "")).start().await;
    for round in 0..8 {
        let mut wish = ensure(&stack, &format!("round {round}"), "m").await;
        ready(&mut wish).await;
        drop(wish);
        stack.kill(Role::Worker(0));
        worker_is(&stack, false).await;
        stack.start_process(Role::Worker(0)).await;
    }
    answers(&stack).await;
}

/// Health said that all was well while the controller was stopped.
#[tokio::test]
async fn health_names_a_controller_that_does_not_answer_and_loaded_models_are_served() {
    let mut stack = Stack::with(Engine::Stub.model("m", 1, "")).start().await;
    let health = async |stack: &Stack, want: &str| {
        let probe = async || {
            let own = stack.http().get("/health").await.ok();
            let lemonade = stack.http().get("/api/v1/health").await.ok();
            assert_eq!(
                (&own["status"], &lemonade["status"]),
                (&json!("ok"), &json!("ok"))
            );
            if own["controller"] == want && lemonade["controller"] == want {
                Ok(())
            } else {
                Err((own, lemonade))
            }
        };
        eventually(&format!("health says {want}"), LIMIT, probe).await;
    };
    health(&stack, "ok").await;
    answers(&stack).await;
    let controller = pid(&mut stack, Role::Controller);
    processes::signal(controller, Signal::STOP);
    health(&stack, "not_answering").await;
    answers(&stack).await;
    processes::signal(controller, Signal::CONT);
    health(&stack, "ok").await;
    stack.kill(Role::Controller);
    health(&stack, "unreachable").await;
}
