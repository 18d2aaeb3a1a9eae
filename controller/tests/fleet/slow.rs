//! Watchers that do not keep up: they hear that they missed something, and nobody waits for them (PROTOCOL.md 21).

use muster_proto::v1::{self, control_client::ControlClient, route_update::Kind};
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

use crate::{LIMIT, Rig, TWO_MODELS, worker::Worker};

/// More than the rings hold, and than the small window below.
const MANY: u32 = 1500;

/// A worker that is busy with so much is not lost.
fn patient() -> String {
    TWO_MODELS.replace("lost_after = '400ms'", "lost_after = '60s'")
}

/// A client whose connection takes next to nothing that it does not read.
async fn slow(rig: &Rig) -> ControlClient<Channel> {
    let endpoint = Endpoint::from_shared(rig.address().to_string()).unwrap();
    let channel = endpoint.initial_stream_window_size(1024).connect().await.unwrap();
    ControlClient::new(channel)
}

#[tokio::test]
async fn a_slow_reader_of_events_hears_how_many_it_missed() {
    let config = format!("{}\n[models.p]\nruntime = 'stub'\npinned = true\n", patient());
    let rig = Rig::start(&config).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("p").await.unwrap();
    let request = v1::WatchEventsRequest::default();
    let mut events = slow(&rig).await.watch_events(request).await.unwrap().into_inner();
    // Each is refused at once, and that is an event.
    for _ in 0..MANY {
        client.ensure("a").await.failed().await;
    }
    let mut heard = 0_u64;
    let missed = loop {
        let event = timeout(LIMIT, events.message())
            .await
            .unwrap()
            .unwrap()
            .expect("the stream ended");
        if event.lagged > 0 {
            assert!(
                event.kind.is_empty() && event.model.is_empty() && event.at.is_none(),
                "{event:?}"
            );
            break event.lagged;
        }
        heard += 1;
    };
    assert!(
        missed > 0 && heard < u64::from(MANY),
        "{missed} missed, {heard} heard"
    );
    // It goes on with what is still there, up to now.
    client.unload("p", false).await.unwrap();
    loop {
        let event = timeout(LIMIT, events.message()).await.unwrap().unwrap().unwrap();
        assert_eq!(event.lagged, 0);
        if event.kind == "unloaded" {
            break;
        }
    }
}

#[tokio::test]
async fn a_slow_watcher_of_routes_gets_a_new_snapshot() {
    let rig = Rig::start(&patient()).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let request = v1::WatchRoutesRequest::default();
    let mut routes = slow(&rig).await.watch_routes(request).await.unwrap().into_inner();
    let shows =
        |models: &[v1::ModelSummary], url: &str| models.iter().any(|model| model.backend_urls == [url]);
    let mut quick = client.routes().await;
    // Each is told by itself: changes that come together are.
    for number in 1..=MANY {
        let url = format!("unix:{number}");
        let change = |status: &mut v1::InstanceStatus| status.backend_url.clone_from(&url);
        worker.change(&instance, change).await;
        loop {
            let told = match quick.next().await.kind.unwrap() {
                Kind::Snapshot(part) => shows(&part.models, &url),
                Kind::Delta(delta) => shows(&delta.models, &url),
                Kind::Heartbeat(_) => false,
            };
            if told {
                break;
            }
        }
    }
    let url = format!("unix:{MANY}");
    let current = |models: &[v1::ModelSummary]| shows(models, &url);
    let (mut snapshots, mut deltas, mut at) = (0, 0, 0);
    loop {
        let update = timeout(LIMIT, routes.message()).await.unwrap().unwrap().unwrap();
        assert!(update.version >= at, "versions never go back");
        at = update.version;
        let told = match update.kind.unwrap() {
            Kind::Snapshot(part) => {
                snapshots += 1;
                assert!(part.last && part.settled);
                current(&part.models)
            }
            Kind::Delta(delta) => {
                deltas += 1;
                current(&delta.models)
            }
            Kind::Heartbeat(_) => false,
        };
        if told {
            break;
        }
    }
    assert!(
        snapshots == 2 && deltas < MANY,
        "{snapshots} snapshots, {deltas} deltas"
    );
    // And from there on, deltas.
    client.unload("a", false).await.unwrap();
    let gone = async {
        loop {
            if let Kind::Delta(delta) = routes.message().await.unwrap().unwrap().kind.unwrap()
                && delta.removed_instances == [instance.as_str()]
            {
                break;
            }
        }
    };
    timeout(LIMIT, gone).await.unwrap();
}

/// Files were once looked at before anything else began, and whenever a model was registered: a mount that hung kept the controller from starting,
/// and lost it all its workers.
#[tokio::test]
async fn a_disk_that_hangs_keeps_the_controller_neither_from_starting_nor_from_its_workers() {
    let dir = tempfile::tempdir().unwrap();
    // Whoever opens it to read waits for somebody who writes, as whoever reads from a mount that hangs.
    let hung = dir.path().join("hung.gguf");
    let made = std::process::Command::new("mkfifo").arg(&hung).status().unwrap();
    assert!(made.success());
    let config = format!(
        "{TWO_MODELS}\n[models.h]\nruntime = 'llama_cpp'\ncheckpoint = '{}'\nmemory_mib = 1\n",
        hung.display()
    );
    let rig = timeout(LIMIT, Rig::start(&config)).await.expect("it starts");
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let work = async {
        client.load("a").await.unwrap();
        assert_eq!(client.model("h").await.status(), v1::ModelStatus::Unloaded);
        client.ensure("b").await.ready().await;
    };
    timeout(LIMIT, work).await.expect("everything else goes on");
    // Ends the look, which the runtime would wait for, and lets no other begin to hang.
    let writer = std::fs::OpenOptions::new().write(true).open(&hung).unwrap();
    std::fs::remove_file(&hung).unwrap();
    drop(writer);
}
