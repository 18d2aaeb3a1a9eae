//! Answers that get lost in a session that goes on: every command has a deadline (PROTOCOL.md 3).

use std::time::Duration;

use muster_proto::v1;

use crate::{
    Rig, TWO_MODELS,
    worker::{Loads, Worker, become_ready},
};

/// Times for which a deadline and a doubt need not be waited long.
fn impatient() -> String {
    TWO_MODELS
        .replace(
            "ping_wait = '150ms'",
            "ping_wait = '150ms'\ncommand_wait = '200ms'",
        )
        .replace(
            "worker_wait = '600ms'",
            "worker_wait = '10s'\nunknown_wait = '100ms'",
        )
}

async fn rig() -> (Rig, Worker) {
    let rig = Rig::start(&impatient()).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    (rig, worker)
}

/// A load that was never answered once held its host's load slot for as long as its worker lived.
#[tokio::test]
async fn a_load_that_a_living_worker_never_answers_frees_its_slot_and_is_begun_anew() {
    let (rig, mut worker) = rig().await;
    worker.memory.lock().unwrap().loses = vec!["load"];
    let mut client = rig.client().await;
    let (mut first, mut second) = (client.ensure("a").await, client.ensure("b").await);
    // Nobody knows what became of it: the session is begun anew, and tells.
    worker.ended().await;
    worker.join(&rig.address()).await;
    first.ready().await;
    // There is room for one of them only.
    drop(first);
    second.ready().await;
    assert_eq!(worker.count("load"), 3);
}

#[tokio::test]
async fn a_cancellation_that_gets_lost_is_asked_again() {
    let (rig, mut worker) = rig().await;
    worker.memory.lock().unwrap().loads = Loads::Stay;
    worker.memory.lock().unwrap().loses = vec!["cancel"];
    let mut client = rig.client().await;
    let load = client.0.load_model(crate::Client::load_of("a")).await.unwrap();
    worker
        .until("it loads", |memory| !memory.instances.is_empty())
        .await;
    let request = v1::UnloadModelRequest {
        model: "a".to_owned(),
        cancel_load: true,
        ..v1::UnloadModelRequest::default()
    };
    let mut other = client.clone();
    let unload = tokio::spawn(async move { other.0.unload_model(request).await });
    worker.ended().await;
    worker.join(&rig.address()).await;
    tokio::time::timeout(crate::LIMIT, unload)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    worker
        .until("it is cancelled after all", |memory| memory.instances.is_empty())
        .await;
    assert_eq!(worker.count("cancel"), 2);
    client.until("a", v1::ModelStatus::Unloaded).await;
    drop(load);
}

#[tokio::test]
async fn a_hold_whose_answer_gets_lost_is_placed_all_the_same() {
    let (rig, mut worker) = rig().await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    worker.memory.lock().unwrap().loses = vec!["hold"];
    let mut wish = client.ensure("a").await;
    worker.ended().await;
    worker.join(&rig.address()).await;
    wish.ready().await;
}

/// What a load takes is its own business; its answer only says that it was taken.
#[tokio::test]
async fn a_load_that_is_long_outlives_its_answer_that_got_lost() {
    let (rig, worker) = rig().await;
    worker.memory.lock().unwrap().loads = Loads::Stay;
    worker.memory.lock().unwrap().answers_lost = vec!["load"];
    let mut client = rig.client().await;
    let mut wish = client.ensure("a").await;
    worker
        .until("it loads", |memory| !memory.instances.is_empty())
        .await;
    let session = worker.session();
    // Several deadlines and doubts long: nothing is heard of it meanwhile.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let instance = worker.instance("a");
    worker.change(&instance, become_ready).await;
    assert_eq!(wish.ready().await.instance.unwrap().instance_id, instance);
    assert_eq!((worker.session(), worker.count("load")), (session, 1));
    let stats = client.stats().await;
    assert_eq!((stats.workers, stats.loads_started), (1, 1));
}
