//! A worker that stands still (SIGSTOP) at any point of a load, a hold, an unload or a swap: the controller answers meanwhile and rests afterwards, and the
//! worker that goes on (SIGCONT) is back and serves.

use std::time::{Duration, Instant};

use muster_proto::{
    net::Channel,
    v1::{ListModelsRequest, UnloadModelRequest, control_client::ControlClient},
};
use muster_tests::{Engine, Role, Stack, processes, within};
use rustix::process::Signal;
use serde_json::json;

use crate::frozen::{LIMIT, answers, ensure, ready, worker_is};

/// What each answer takes on a quiet machine, and what half of them take on any.
const PROMPT: Duration = Duration::from_millis(100);
/// What no answer takes, however busy the machine is.
const LONGEST: Duration = Duration::from_secs(5);
/// How long the controller is watched at rest, and what it may use then: one that spins uses all that it gets.
const REST: Duration = Duration::from_millis(500);
const AT_REST: Duration = Duration::from_millis(100);
const PAUSE: Duration = Duration::from_millis(10);

/// Two models, of which one is loaded at a time, for a third of a second; sessions that are lost soon.
async fn stack() -> Stack {
    let model = |id| Engine::Stub.model(id, 2, "stub.load_time_ms = 300\nstub.tokens_per_second = 100");
    let sessions = "[sessions]\nheartbeat_every = \"100ms\"\nlost_after = \"800ms\"\n";
    let config = format!("{sessions}{}{}", model("m"), model("n"));
    Stack::with(config).start().await
}

async fn rests(stack: &mut Stack) {
    let controller = stack.process(Role::Controller).pid();
    let before = processes::cpu(controller);
    tokio::time::sleep(REST).await;
    let used = processes::cpu(controller).saturating_sub(before);
    assert!(
        used < AT_REST,
        "the controller used {used:?} in {REST:?}, with nothing to do"
    );
}

/// Asks for the models, again and again, while something else goes on.
async fn answered_during<T>(mut control: ControlClient<Channel>, other: impl Future<Output = T>) -> T {
    let mut times = Vec::new();
    let asking = async {
        loop {
            let begun = Instant::now();
            let asked = control.list_models(ListModelsRequest::default());
            let answer = within("the controller answers", LONGEST, asked).await;
            answer.expect("the controller answers");
            times.push(begun.elapsed());
            tokio::time::sleep(PAUSE).await;
        }
    };
    let done = tokio::select! {
        never = asking => never,
        done = other => done,
    };
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    assert!(
        median <= PROMPT,
        "half of {} answers took over {median:?}",
        times.len()
    );
    done
}

/// The worker stands still after a while, is lost, comes back and `serves`.
async fn stands_still(stack: &mut Stack, after: u64, serves: impl AsyncFnOnce(&Stack)) {
    let control = stack.control();
    let worker = stack.process(Role::Worker(0)).pid();
    let lost = async {
        tokio::time::sleep(Duration::from_millis(after)).await;
        processes::signal(worker, Signal::STOP);
        worker_is(stack, false).await;
    };
    answered_during(control.clone(), lost).await;
    rests(stack).await;
    let back = async {
        processes::signal(worker, Signal::CONT);
        worker_is(stack, true).await;
        serves(stack).await;
    };
    answered_during(control, back).await;
    rests(stack).await;
}

async fn unload(mut control: ControlClient<Channel>, force: bool) -> bool {
    let request = UnloadModelRequest {
        model: "m".to_owned(),
        force,
        ..UnloadModelRequest::default()
    };
    within("an unload ends", LIMIT, control.unload_model(request))
        .await
        .is_ok()
}

#[tokio::test]
async fn a_worker_may_stand_still_at_any_point_of_a_load() {
    let mut stack = stack().await;
    for after in [0, 20, 100, 250, 320] {
        let wish = ensure(&stack, &format!("load {after}"), "m").await;
        stands_still(&mut stack, after, answers).await;
        drop(wish);
        assert!(unload(stack.control(), true).await, "it is cold again");
    }
}

#[tokio::test]
async fn a_worker_may_stand_still_at_any_point_of_a_hold() {
    let mut stack = stack().await;
    answers(&stack).await;
    for after in [0, 2, 10] {
        // While the hold is placed.
        let wish = ensure(&stack, &format!("hold {after}"), "m").await;
        stands_still(&mut stack, after, answers).await;
        drop(wish);
        // While it is released.
        let mut wish = ensure(&stack, &format!("release {after}"), "m").await;
        ready(&mut wish).await;
        drop(wish);
        stands_still(&mut stack, after, answers).await;
    }
}

#[tokio::test]
async fn a_worker_may_stand_still_at_any_point_of_an_unload() {
    let mut stack = stack().await;
    for (after, tokens) in [(0, 0), (2, 0), (20, 0), (100, 0), (50, 100)] {
        answers(&stack).await;
        // Something that must be drained first, once.
        let stream = match tokens {
            0 => None,
            tokens => Some(stack.http().chat_stream("m", json!({"max_tokens": tokens})).await),
        };
        let unloading = tokio::spawn(unload(stack.control(), false));
        stands_still(&mut stack, after, answers).await;
        drop(stream);
        // Done, or in doubt when the worker was lost: it ends either way.
        within("the unload ends", LIMIT, unloading)
            .await
            .expect("it ends");
    }
}

#[tokio::test]
async fn a_worker_may_stand_still_at_any_point_of_a_swap() {
    let mut stack = stack().await;
    for after in [0, 5, 50, 150, 280, 350] {
        answers(&stack).await;
        let wish = ensure(&stack, &format!("swap {after}"), "n").await;
        let wished = async |_: &Stack| {
            let mut wish = wish;
            ready(&mut wish).await;
        };
        stands_still(&mut stack, after, wished).await;
    }
}
