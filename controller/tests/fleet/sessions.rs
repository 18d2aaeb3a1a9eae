//! Sessions: fencing, loss, restarts of both sides.

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    trust::Credentials,
    v1::{self, RouteState, route_update, worker_message::Kind as Up},
};

use crate::{
    Rig, TWO_MODELS,
    worker::{Loads, Memory, Worker},
};

#[tokio::test]
async fn a_restarted_controller_rebuilds_and_loads_nothing() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let before = client.stats().await.epoch;
    let instance = worker.instance("a");
    rig.restart().await;
    worker.ended().await;
    let mut client = rig.client().await;
    assert!(client.stats().await.epoch > before);
    assert!(
        !client
            .0
            .list_models(v1::ListModelsRequest::default())
            .await
            .unwrap()
            .into_inner()
            .settled
    );
    let mut routes = client.routes().await;
    let snapshot = routes.next().await;
    let Some(route_update::Kind::Snapshot(part)) = snapshot.kind else {
        panic!("{snapshot:?}")
    };
    assert!(!part.settled && part.last && part.routes.is_empty());
    assert_eq!(part.models.len(), 2);
    // A wish before the worker is back waits and does not load elsewhere or anew.
    let mut wish = client.ensure("a").await;
    worker.join(&rig.address()).await;
    assert_eq!(wish.ready().await.instance.unwrap().instance_id, instance);
    routes
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Ready)
        })
        .await;
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Loaded);
    assert_eq!(worker.count("load"), 1);
    let listed = client
        .0
        .list_models(v1::ListModelsRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(listed.settled, "the whole roster has joined");
}

#[tokio::test]
async fn an_unsettled_controller_settles_without_its_roster_in_time() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    worker.cut().await;
    rig.restart().await;
    let mut client = rig.client().await;
    let mut routes = client.routes().await;
    loop {
        match routes.next().await.kind.unwrap() {
            route_update::Kind::Delta(delta) if delta.settled => break,
            route_update::Kind::Snapshot(part) => assert!(!part.settled),
            route_update::Kind::Delta(_) | route_update::Kind::Heartbeat(_) => {}
        }
    }
}

/// The time was once up while workers were about to join: what they hosted was dropped everywhere, and loaded anew.
#[tokio::test]
async fn settling_takes_the_joins_that_wait_before_its_time_is_up() {
    let config = TWO_MODELS
        .replace("settle = '300ms'", "settle = '2s'")
        .replace("worker_wait = '600ms'", "worker_wait = '60s'");
    let mut rig = Rig::start(&config).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    rig.restart().await;
    let join = worker.begin_to_join(&rig.address()).await;
    let mut client = rig.client().await;
    let settled = async |client: &mut crate::Client| {
        let request = v1::ListModelsRequest::default();
        client.0.list_models(request).await.unwrap().into_inner().settled
    };
    // Longer than the fleet settles.
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert!(!settled(&mut client).await, "a worker is about to join");
    // One that nobody knew of is not left aside either.
    let stranger = Worker::new("x").begin_to_join(&rig.address()).await;
    let welcome = join().await.kind;
    assert!(
        matches!(welcome, Some(v1::controller_message::Kind::Welcome(_))),
        "{welcome:?}"
    );
    let shown = client.model("a").await;
    assert_eq!(shown.instances[0].r#ref.as_ref().unwrap().instance_id, instance);
    assert!(!settled(&mut client).await, "another is about to join");
    let welcome = stranger().await.kind;
    assert!(
        matches!(welcome, Some(v1::controller_message::Kind::Welcome(_))),
        "{welcome:?}"
    );
    assert!(settled(&mut client).await);
}

/// Each controller restart once waited its whole settle time for workers that had been stopped in order long ago.
#[tokio::test]
async fn a_worker_that_left_in_order_is_not_waited_for() {
    let mut rig = Rig::start(&TWO_MODELS.replace("settle = '300ms'", "settle = '60s'")).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let reason = "stopped".to_owned();
    let session = worker.session();
    worker
        .send_as(&session, Up::Goodbye(v1::Goodbye { reason }))
        .await;
    worker.ended().await;
    rig.restart().await;
    let mut client = rig.client().await;
    let Some(route_update::Kind::Snapshot(part)) = client.routes().await.next().await.kind else {
        panic!("no snapshot")
    };
    assert!(part.settled);
    let request = v1::ListWorkersRequest::default();
    let workers = client.0.list_workers(request).await.unwrap().into_inner().workers;
    assert_eq!(
        (workers.len(), workers[0].connected),
        (1, false),
        "it is still known"
    );
    // One that is lost is: its engines may run.
    worker.join(&rig.address()).await;
    rig.restart().await;
    let Some(route_update::Kind::Snapshot(part)) = rig.client().await.routes().await.next().await.kind else {
        panic!("no snapshot")
    };
    assert!(!part.settled);
}

#[tokio::test]
async fn a_controller_without_a_roster_is_settled_from_the_start() {
    let rig = Rig::start(TWO_MODELS).await;
    let snapshot = rig.client().await.routes().await.next().await;
    let Some(route_update::Kind::Snapshot(part)) = snapshot.kind else {
        panic!("{snapshot:?}")
    };
    assert!(part.settled);
}

#[tokio::test]
async fn a_lost_worker_is_suspect_and_back_when_it_rejoins() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let mut routes = client.routes().await;
    routes
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Ready)
        })
        .await;
    worker.cut().await;
    routes
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Suspect)
        })
        .await;
    let model = client.model("a").await;
    assert!(model.instances[0].suspect);
    let devices = client
        .0
        .list_devices(v1::ListDevicesRequest {})
        .await
        .unwrap()
        .into_inner()
        .devices;
    assert!(devices[0].ghost_bytes > 0, "{devices:?}");
    let workers = client
        .0
        .list_workers(v1::ListWorkersRequest {})
        .await
        .unwrap()
        .into_inner()
        .workers;
    assert!(!workers[0].connected);
    worker.join(&rig.address()).await;
    routes
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Ready)
        })
        .await;
    assert_eq!(worker.count("load"), 1);
}

#[tokio::test]
async fn a_silent_worker_is_lost_in_time() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let _open = worker.fall_silent();
    client
        .routes()
        .await
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Suspect)
        })
        .await;
}

/// Once the controller then asked for the same command for ever, at full speed, and did nothing else any more: the session had ended before
/// policy heard so, and each command that found none was due again at once.
#[tokio::test]
async fn a_worker_that_hangs_with_commands_outstanding_does_not_freeze_the_controller() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    let mut client = rig.client().await;
    for (loads, model) in [(Loads::Ready, "a"), (Loads::Stay, "b")] {
        worker.join(&rig.address()).await;
        worker.memory.lock().unwrap().loads = loads.clone();
        let mut wish = client.ensure(model).await;
        let begun = |memory: &Memory| {
            let mut specs = memory
                .instances
                .values()
                .filter_map(|status| status.spec.as_ref());
            specs.any(|spec| spec.model_id == model)
        };
        worker.until("it loads", begun).await;
        if matches!(loads, Loads::Ready) {
            wish.ready().await;
        }
        let instance = worker.instance(model);
        let open = worker.fall_silent();
        // The caller gives up: its hold is to be released, by a worker that answers nothing any more.
        drop(wish);
        let lost = async |mut client: crate::Client| {
            loop {
                let workers = client
                    .0
                    .list_workers(v1::ListWorkersRequest {})
                    .await
                    .unwrap()
                    .into_inner()
                    .workers;
                if workers.iter().all(|worker| !worker.connected) {
                    return;
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(crate::LIMIT, lost(client.clone()))
            .await
            .expect("the controller answers, and tells that the worker is lost");
        drop(open);
        // What was outstanding is asked for again once it is back.
        worker.join(&rig.address()).await;
        let released = |memory: &Memory| memory.instances[&instance].hold_ids.is_empty();
        worker.until("the hold is released after all", released).await;
        worker.cut().await;
    }
}

#[tokio::test]
async fn a_new_session_of_the_same_process_fences_the_old_one() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut old = Worker::new("w");
    old.join(&rig.address()).await;
    let mut new = Worker::new("w");
    new.boot.clone_from(&old.boot);
    let stale = old.session();
    new.join(&rig.address()).await;
    old.ended().await;
    assert_ne!(stale, new.session());
    // What still comes in the name of the old session does not count.
    let report = v1::WorkerReport {
        draining: Some(true),
        ..v1::WorkerReport::default()
    };
    new.send_as(&stale, Up::Report(report)).await;
    let mut client = rig.client().await;
    assert_eq!(client.load("a").await.unwrap().status(), v1::ModelStatus::Loaded);
    assert_eq!(client.stats().await.workers, 1);
}

#[tokio::test]
async fn another_process_waits_until_the_old_session_is_over() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut old = Worker::new("w");
    old.join(&rig.address()).await;
    let mut new = Worker::new("w");
    let refusal = new.try_join(&rig.address()).await.unwrap_err();
    let Some(v1::controller_message::Kind::Rejected(error)) = refusal.kind else {
        panic!("{refusal:?}")
    };
    assert!(error.retry_after.is_some());
    let _open = old.fall_silent();
    new.join(&rig.address()).await;
    let mut client = rig.client().await;
    let workers = client
        .0
        .list_workers(v1::ListWorkersRequest {})
        .await
        .unwrap()
        .into_inner()
        .workers;
    assert_eq!(workers.len(), 1);
    assert_eq!(workers[0].boot_id, new.boot);
}

/// One hello with 2^64 - 1 once ended all fencing for good.
#[tokio::test]
async fn a_worker_with_an_absurd_epoch_is_refused_and_poisons_nothing() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.memory.lock().unwrap().highest_epoch = u64::MAX;
    let refusal = worker.try_join(&rig.address()).await.unwrap_err();
    let Some(v1::controller_message::Kind::Rejected(error)) = refusal.kind else {
        panic!("{refusal:?}")
    };
    assert!(error.message.contains("restart the worker"), "{error}");
    assert_eq!(rig.client().await.stats().await.epoch, 1);
    worker.memory.lock().unwrap().highest_epoch = 0;
    worker.join(&rig.address()).await;
    rig.restart().await;
    assert_eq!(rig.client().await.stats().await.epoch, 2);
}

#[tokio::test]
async fn a_worker_that_saw_a_newer_controller_raises_the_epoch() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut client = rig.client().await;
    let mut routes = client.routes().await;
    routes.next().await;
    let mut worker = Worker::new("w");
    worker.memory.lock().unwrap().highest_epoch = 40;
    worker.join(&rig.address()).await;
    assert_eq!(worker.memory.lock().unwrap().highest_epoch, 41);
    assert_eq!(client.stats().await.epoch, 41);
    while routes.next().await.epoch != 41 {}
    rig.restart().await;
    assert_eq!(rig.client().await.stats().await.epoch, 42);
}

#[tokio::test]
async fn a_lost_worker_can_be_forgotten_and_a_connected_one_not() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let forget = v1::ForgetWorkerRequest {
        worker_id: "w".to_owned(),
    };
    let refusal = client.0.forget_worker(forget.clone()).await.unwrap_err();
    assert_eq!(refusal.code(), tonic::Code::FailedPrecondition);
    worker.cut().await;
    let mut routes = client.routes().await;
    routes
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Suspect)
        })
        .await;
    let forgotten = client.0.forget_worker(forget).await.unwrap().into_inner();
    assert_eq!(forgotten.instance_ids, std::slice::from_ref(&instance));
    routes.until(&instance, |route| route.is_none()).await;
    let devices = client
        .0
        .list_devices(v1::ListDevicesRequest {})
        .await
        .unwrap()
        .into_inner()
        .devices;
    assert!(
        devices.iter().all(|device| device.reserved_bytes == 0),
        "{devices:?}"
    );
}

#[tokio::test]
async fn a_worker_that_says_goodbye_leaves_nothing_behind() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let goodbye = v1::Goodbye {
        reason: "test".to_owned(),
    };
    worker.send_as(&worker.session(), Up::Goodbye(goodbye)).await;
    worker.ended().await;
    client
        .routes()
        .await
        .until(&instance, |route| route.is_none())
        .await;
    let workers = client
        .0
        .list_workers(v1::ListWorkersRequest {})
        .await
        .unwrap()
        .into_inner()
        .workers;
    assert!(workers.iter().all(|worker| !worker.connected));
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
    let devices = client
        .0
        .list_devices(v1::ListDevicesRequest {})
        .await
        .unwrap()
        .into_inner()
        .devices;
    assert!(
        devices
            .iter()
            .all(|device| device.reserved_bytes == 0 && device.ghost_bytes == 0),
        "{devices:?}"
    );
}

#[tokio::test]
async fn a_draining_worker_takes_no_loads() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let report = v1::WorkerReport {
        draining: Some(true),
        ..v1::WorkerReport::default()
    };
    worker.send_as(&worker.session(), Up::Report(report)).await;
    let failure = client.ensure("b").await.failed().await;
    assert_eq!(failure.code, Code::NoWorker);
    assert_eq!(worker.count("load"), 1);
}

/// A runtime that is nowhere is named, not only waited for.
#[tokio::test]
async fn a_runtime_that_no_worker_has_is_named() {
    let config = "
[policy]
settle = '100ms'
worker_wait = '200ms'
[models.x]
checkpoint = 'a.gguf'
runtime = 'llama_server'
";
    let rig = Rig::start(config).await;
    std::fs::write(rig.path("a.gguf"), b"x").unwrap();
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let failure = rig.client().await.ensure("x").await.failed().await;
    assert_eq!(failure.code, Code::NoWorker);
    let expected = "no worker that can host model 'x' joined within 200 ms; its runtime `llama_server` is on no worker that is here";
    assert_eq!(failure.message, expected);
    assert_eq!(failure.details["missing_runtime"], "llama_server");
}

#[tokio::test]
async fn a_hold_survives_the_controller_if_its_gateway_comes_back() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut wish = rig.client().await.ensure_as("wish", "a").await;
    wish.ready().await;
    let instance = worker.instance("a");
    rig.stop().await;
    let status = wish.0.message().await.unwrap_err();
    assert_eq!(Error::from_status(&status).code, Code::ShuttingDown);
    worker.ended().await;
    rig.restart().await;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let mut wish = client.ensure_as("wish", "a").await;
    wish.ready().await;
    let held = |hold: &'static str| {
        let instance = instance.clone();
        move |memory: &Memory| {
            memory.instances[&instance]
                .hold_ids
                .iter()
                .any(|known| known == hold)
        }
    };
    assert!(held("wish")(&worker.memory.lock().unwrap()));
    assert_eq!((worker.count("load"), worker.count("release")), (1, 0));
    drop((wish, client));
    let held = held("wish");
    worker.until("the release", |memory| !held(memory)).await;
}

#[tokio::test]
async fn a_dead_gateway_holds_nothing() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    // A runtime of its own, ended at once: its connection breaks without a word.
    let address = rig.address();
    let gateway = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let channel = muster_proto::net::channel(&address, &Credentials::none())
                .await
                .unwrap();
            let client = v1::control_client::ControlClient::new(channel);
            let mut wish = crate::Client(client).ensure_as("wish", "a").await;
            wish.ready().await;
            std::mem::forget(wish);
        });
        runtime.shutdown_background();
    });
    worker
        .until("the load", |memory| !memory.instances.is_empty())
        .await;
    let instance = worker.instance("a");
    worker
        .until("the release", |memory| {
            memory.instances[&instance].hold_ids.is_empty()
        })
        .await;
    gateway.join().unwrap();
}

#[tokio::test]
async fn a_model_that_left_the_catalogue_can_still_be_seen_and_unloaded() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    rig.client().await.load("a").await.unwrap();
    // Idle, it would go by itself.
    let instance = worker.instance("a");
    worker.change(&instance, |status| status.running = 1).await;
    std::fs::write(
        rig.path("config.toml"),
        TWO_MODELS.replace("[models.a]", "[models.c]"),
    )
    .unwrap();
    rig.restart().await;
    worker.ended().await;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let model = client.until("a", v1::ModelStatus::Loaded).await;
    assert_eq!(
        (model.status(), model.runtime.as_str(), model.instances.len()),
        (v1::ModelStatus::Loaded, "stub", 1)
    );
    let gone = client.unload("a", false).await.unwrap();
    assert_eq!(gone.status(), v1::ModelStatus::Unloaded);
    assert_eq!(client.load("a").await.unwrap_err().code(), tonic::Code::NotFound);
}

#[tokio::test]
async fn the_ghost_of_an_engine_that_is_seen_to_end_ends_with_it() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let mut engine = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", engine.id())).unwrap();
    let start_time = stat.split(' ').nth(21).unwrap().parse().unwrap();
    let process = v1::ProcessId {
        pid: engine.id(),
        start_time,
    };
    worker
        .change(&instance, |status| status.engine = vec![process])
        .await;
    let mut routes = client.routes().await;
    worker.cut().await;
    routes
        .until(&instance, |route| {
            route.is_some_and(|route| route.state() == RouteState::Suspect)
        })
        .await;
    assert!(
        client.model("a").await.instances[0].suspect,
        "an engine that runs is no ghost's end"
    );
    engine.kill().unwrap();
    routes.until(&instance, |route| route.is_none()).await;
    engine.wait().unwrap();
    let devices = client
        .0
        .list_devices(v1::ListDevicesRequest {})
        .await
        .unwrap()
        .into_inner()
        .devices;
    assert!(
        devices.iter().all(|device| device.ghost_bytes == 0),
        "{devices:?}"
    );
}

/// On another machine than the controller's only a worker there can tell that an engine has ended.
#[tokio::test]
async fn a_live_worker_of_the_host_tells_that_a_lost_ones_engine_is_gone() {
    let rig = Rig::start(TWO_MODELS).await;
    let (mut worker, mut other) = (Worker::new("w"), Worker::new("x"));
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    worker
        .change(&instance, |status| {
            // No process of this machine.
            status.engine = vec![v1::ProcessId {
                pid: u32::MAX,
                start_time: 1,
            }];
        })
        .await;
    other.memory.lock().unwrap().sees_engines = true;
    other.join(&rig.address()).await;
    let mut wish = client.ensure("a").await;
    wish.ready().await;
    worker.cut().await;
    other
        .until("it is asked again and again", |memory| {
            let asked = |command: &&v1::Command| {
                command.instance_id == instance && matches!(command.kind, Some(v1::command::Kind::LookAt(_)))
            };
            memory.commands.iter().filter(asked).count() > 2
        })
        .await;
    // The wish is fulfilled elsewhere; what is lost stays as long as it runs.
    assert_ne!(wish.ready().await.instance.unwrap().instance_id, instance);
    let lost = |model: v1::Model| model.instances.iter().any(|instance| instance.suspect);
    assert!(lost(client.model("a").await));
    other.memory.lock().unwrap().sees_engines = false;
    let mut routes = client.routes().await;
    while lost(client.model("a").await) {
        routes.next().await;
    }
    assert_eq!(client.model("a").await.instances.len(), 1);
}
