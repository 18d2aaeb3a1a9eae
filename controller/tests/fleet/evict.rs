//! Evictions: a compare-and-set at the worker.

use muster_core::Code;
use muster_proto::v1;

use crate::{
    Rig, TWO_MODELS,
    worker::{DEVICE, Worker, device},
};

#[tokio::test]
async fn a_second_model_takes_the_place_of_an_idle_one() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let mut first = client.ensure("a").await;
    let old = first.ready().await.instance.unwrap().instance_id;
    drop(first);
    let mut second = client.ensure("b").await;
    second.ready().await;
    assert_eq!(worker.count("load"), 2);
    assert_eq!(worker.count("unload if idle"), 1);
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
    assert_eq!(client.model("b").await.status(), v1::ModelStatus::Loaded);
    assert_eq!(client.stats().await.evictions, 1);
    client.routes().await.until(&old, |route| route.is_none()).await;
}

#[tokio::test]
async fn a_touched_victim_is_planned_anew() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.memory.lock().unwrap().touch_before_unload = 2;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    client.ensure("b").await.ready().await;
    assert_eq!(worker.count("unload if idle"), 3, "{:?}", worker.kinds());
    let seqs: Vec<u64> = worker
        .memory
        .lock()
        .unwrap()
        .commands
        .iter()
        .filter_map(|command| match command.kind.as_ref().unwrap() {
            v1::command::Kind::Unload(unload) => Some(unload.if_touch_seq),
            _ => None,
        })
        .collect();
    assert_eq!(seqs, [2, 3, 4], "each try carries what policy saw last");
}

#[tokio::test]
async fn a_held_model_is_not_evicted_until_its_wish_ends() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let mut first = client.ensure("a").await;
    first.ready().await;
    let mut second = client.ensure("b").await;
    let waiting = second.next().await.unwrap();
    assert!(
        matches!(
            waiting,
            v1::ensure_loaded_event::Kind::Queued(_) | v1::ensure_loaded_event::Kind::Evicting(_)
        ),
        "{waiting:?}"
    );
    assert_eq!(worker.count("load"), 1);
    drop(first);
    second.ready().await;
    assert_eq!(worker.count("unload if idle"), 1);
}

#[tokio::test]
async fn only_pinned_models_in_the_way_are_said_so() {
    let config = format!("{TWO_MODELS}\n[models.p]\nruntime = 'stub'\npinned = true\n");
    let rig = Rig::start(&config).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("p").await.unwrap();
    let failure = client.ensure("a").await.failed().await;
    assert_eq!(failure.code, Code::SlotsPinned);
    assert_eq!(failure.details["pinned"], "p");
}

#[tokio::test]
async fn the_fleet_s_limit_evicts_on_another_host() {
    let limits = "[policy]\nmax_loaded_models = -1\nmax_loaded_models_fleet = 1";
    let rig = Rig::start(&TWO_MODELS.replace("[policy]", limits)).await;
    let mut one = Worker::new("one");
    one.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let mut two = Worker::new("two");
    two.host = "larger".to_owned();
    two.devices = vec![device(DEVICE, v1::DeviceKind::Cpu, 2 << 30)];
    two.join(&rig.address()).await;
    client.load("b").await.unwrap();
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
    assert_eq!(client.model("b").await.status(), v1::ModelStatus::Loaded);
    assert_eq!((one.count("load"), two.count("load")), (1, 1));
    assert_eq!((one.count("unload if idle"), two.count("unload if idle")), (1, 0));
}
