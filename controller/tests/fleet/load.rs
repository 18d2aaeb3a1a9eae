//! Loads: one for all who want it, their life, their ends.

use muster_core::Code;
use muster_proto::v1;

use crate::{
    Rig, TWO_MODELS,
    worker::{Loads, Worker, become_ready},
};

#[tokio::test]
async fn a_hundred_wishes_cause_one_load() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.memory.lock().unwrap().loads = Loads::Stay;
    worker.join(&rig.address()).await;
    let client = rig.client().await;
    let mut wishes = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let mut client = client.clone();
        wishes.spawn(async move {
            let mut ensure = client.ensure("a").await;
            (ensure.ready().await, ensure)
        });
    }
    worker
        .until("the load", |memory| !memory.instances.is_empty())
        .await;
    let mut operator = rig.client().await;
    while operator.stats().await.ensures < 100 {
        tokio::task::yield_now().await;
    }
    let instance = worker.instance("a");
    worker.change(&instance, become_ready).await;
    let mut open = Vec::new();
    while let Some(wish) = wishes.join_next().await {
        let (route, ensure) = wish.unwrap();
        assert_eq!(route.instance.unwrap().instance_id, instance);
        assert_eq!(route.addresses, ["unix:/w"]);
        assert_eq!((route.target_inflight, route.queue_limit), (4, 128));
        assert_eq!(route.capabilities.unwrap().context_length, 512);
        open.push(ensure);
    }
    assert_eq!(worker.count("load"), 1);
    let gateways: Vec<String> = {
        let memory = worker.memory.lock().unwrap();
        let orders = memory.commands.iter().filter_map(|command| command.kind.clone());
        let holds = orders.flat_map(|order| match order {
            v1::command::Kind::Load(load) => load.holds,
            v1::command::Kind::PlaceHold(hold) => vec![hold],
            _ => Vec::new(),
        });
        holds.map(|hold| hold.gateway_id).collect()
    };
    assert_eq!(gateways, ["gateway"; 100], "holds name their gateway");
    let held = worker.memory.lock().unwrap().instances[&instance].hold_ids.len();
    assert_eq!(held, 100, "ready is said only once the hold is in place");
    drop(open);
    worker
        .until("all holds released", |memory| {
            memory.instances[&instance].hold_ids.is_empty()
        })
        .await;
    assert_eq!(worker.count("load"), 1);
}

#[tokio::test]
async fn two_gateways_hold_each_for_itself() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let (mut one, mut two) = (rig.client().await, rig.client().await);
    let mut first = one.ensure_as("first", "a").await;
    first.ready().await;
    let mut second = two.ensure_as("second", "a").await;
    second.ready().await;
    let instance = worker.instance("a");
    drop(first);
    worker
        .until("one hold", |memory| {
            memory.instances[&instance].hold_ids == ["second"]
        })
        .await;
    drop(second);
    worker
        .until("no hold", |memory| {
            memory.instances[&instance].hold_ids.is_empty()
        })
        .await;
    assert_eq!(worker.count("load"), 1);
}

#[tokio::test]
async fn a_reopened_wish_keeps_its_hold() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let mut old = client.ensure_as("same", "a").await;
    old.ready().await;
    let mut new = client.ensure_as("same", "a").await;
    new.ready().await;
    assert!(old.next().await.is_none(), "the older stream ends");
    drop(old);
    // A command that was answered later shows that the end of the old stream has been dealt with.
    client.ensure_as("other", "a").await.ready().await;
    assert_eq!(worker.count("release"), 0);
    assert_eq!(worker.count("load"), 1);
}

#[tokio::test]
async fn load_and_unload_as_an_operator_sees_them() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
    let loaded = client.load("a").await.unwrap();
    assert_eq!(loaded.status(), v1::ModelStatus::Loaded);
    assert_eq!(loaded.instances.len(), 1);
    assert_eq!(loaded.instances[0].host_id, "host");
    let spec = loaded.instances[0].status.clone().unwrap().spec.unwrap();
    assert_eq!(spec.origin(), v1::Origin::Admin);
    assert_eq!(spec.settings, loaded.settings);
    let again = client.load("a").await.unwrap();
    assert_eq!(
        again.instances[0].r#ref, loaded.instances[0].r#ref,
        "a loaded model is not loaded again"
    );
    let gone = client.unload("a", false).await.unwrap();
    assert_eq!(gone.status(), v1::ModelStatus::Unloaded);
    assert!(gone.instances.is_empty());
    assert_eq!(
        client.unload("a", false).await.unwrap().status(),
        v1::ModelStatus::Unloaded
    );
    worker
        .until("the tombstone acknowledged", |memory| memory.instances.is_empty())
        .await;
    assert_eq!(worker.kinds(), ["load", "unload drain", "ack"]);
    let stats = client.stats().await;
    assert_eq!(
        (
            stats.loads_started,
            stats.loads_done,
            stats.loads_failed,
            stats.workers
        ),
        (1, 1, 0, 1)
    );
}

#[tokio::test]
async fn a_load_shows_its_progress_and_survives_its_caller() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.memory.lock().unwrap().loads = Loads::Stay;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let request = v1::LoadModelRequest {
        model: "a".to_owned(),
        ..v1::LoadModelRequest::default()
    };
    let mut events = client.0.load_model(request).await.unwrap().into_inner();
    worker
        .until("the load", |memory| !memory.instances.is_empty())
        .await;
    let instance = worker.instance("a");
    worker
        .change(&instance, |status| {
            status.progress = Some(v1::LoadProgress {
                phase: v1::LoadPhase::Weights.into(),
                fraction: 0.5,
                elapsed: None,
            });
        })
        .await;
    loop {
        match events.message().await.unwrap().unwrap().kind.unwrap() {
            v1::load_model_event::Kind::Loading(loading) => {
                assert_eq!(loading.instance.unwrap().worker_boot_id, worker.boot);
                if loading.progress.unwrap().phase() == v1::LoadPhase::Weights {
                    break;
                }
            }
            v1::load_model_event::Kind::Loaded(model) => panic!("{model:?}"),
            v1::load_model_event::Kind::Queued(_) | v1::load_model_event::Kind::Evicting(_) => {}
        }
    }
    assert_eq!(
        client.model("a").await.progress.unwrap().phase(),
        v1::LoadPhase::Weights
    );
    drop(events);
    worker.change(&instance, become_ready).await;
    client.until("a", v1::ModelStatus::Loaded).await;
}

#[tokio::test]
async fn a_failed_load_says_why_and_is_refused_for_a_while() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    let error = Code::FileNotFound.error("no such file").with_detail("path", "/x");
    worker.memory.lock().unwrap().loads = Loads::Fail(error);
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let failure = client.ensure("a").await.failed().await;
    assert_eq!(failure.code, Code::FileNotFound);
    assert_eq!(failure.details["path"], "/x");
    let model = client.model("a").await;
    assert_eq!(model.status(), v1::ModelStatus::Failed);
    assert_eq!(model.last_error.unwrap().code, Code::FileNotFound.as_str());
    let again = client.ensure("a").await.failed().await;
    assert_eq!(again.code, Code::ModelFailed);
    assert!(again.retry_after.is_some());
    assert_eq!(worker.count("load"), 1);
    worker.memory.lock().unwrap().loads = Loads::Ready;
    assert_eq!(
        client.load("a").await.unwrap().status(),
        v1::ModelStatus::Loaded,
        "an operator ignores the backoff"
    );
}

#[tokio::test]
async fn without_a_worker_a_wish_fails_after_a_while() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut client = rig.client().await;
    let failure = client.ensure("a").await.failed().await;
    assert_eq!(failure.code, Code::NoWorker);
}

#[tokio::test]
async fn a_wait_budget_ends_the_wait() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.memory.lock().unwrap().loads = Loads::Stay;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let request = v1::EnsureLoadedRequest {
        ensure_id: "e".to_owned(),
        model_id: "a".to_owned(),
        wait_budget: Some(prost_types::Duration {
            seconds: 0,
            nanos: 50_000_000,
        }),
        ..v1::EnsureLoadedRequest::default()
    };
    let stream = client.0.ensure_loaded(request).await.unwrap().into_inner();
    let failure = crate::Ensure(stream).failed().await;
    assert!(
        matches!(failure.code, Code::ModelLoading | Code::EvictionTimeout),
        "{failure:?}"
    );
}
