//! Pins: kept over restarts, stronger than the configuration, and heeded by policy. Idle times: shown, and over one day.

use std::time::Duration;

use muster_core::{Code, Error};
use muster_proto::{StatusExt as _, v1};

use crate::{Client, Rig, TWO_MODELS, worker::Worker};

async fn pin(client: &mut Client, model: &str, pinned: bool) -> Result<v1::Model, tonic::Status> {
    let model = model.to_owned();
    let shown = if pinned {
        let answer = client
            .0
            .pin_model(v1::PinModelRequest {
                model,
                while_loaded: false,
            })
            .await?;
        answer.into_inner().model
    } else {
        let answer = client.0.unpin_model(v1::UnpinModelRequest { model }).await?;
        answer.into_inner().model
    };
    Ok(shown.unwrap())
}

#[tokio::test]
async fn a_pin_survives_a_restart_and_wins_over_the_configuration() {
    let config = format!("{TWO_MODELS}\n[models.p]\nruntime = 'stub'\npinned = true\n");
    let mut rig = Rig::start(&config).await;
    let mut client = rig.client().await;
    assert!(pin(&mut client, "a", true).await.unwrap().pinned);
    assert!(!pin(&mut client, "p", false).await.unwrap().pinned);
    // Killed, not stopped: what was answered is on disk.
    let kept = std::fs::read_to_string(rig.path("state/pins.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["pins"], serde_json::json!({"a": true, "p": false}));
    rig.restart().await;
    let mut client = rig.client().await;
    let pinned = |model: v1::Model| (model.id, model.pinned);
    assert_eq!(pinned(client.model("a").await), ("a".to_owned(), true));
    assert_eq!(pinned(client.model("p").await), ("p".to_owned(), false));
    let unknown = pin(&mut client, "x", true).await.unwrap_err();
    assert_eq!(Error::from_status(&unknown).code, Code::UnknownModel);
    let empty = pin(&mut client, "", true).await.unwrap_err();
    assert_eq!(Error::from_status(&empty).param.unwrap_or_default(), "model");
}

#[tokio::test]
async fn a_model_pinned_while_loaded_is_not_evicted_until_it_is_unpinned() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    pin(&mut client, "a", true).await.unwrap();
    let told = |pinned: bool| {
        move |memory: &crate::worker::Memory| {
            let spec = memory.instances.values().next().unwrap().spec.as_ref().unwrap();
            spec.pinned == pinned
        }
    };
    worker.until("the worker is told of the pin", told(true)).await;
    let refused = client.ensure("b").await.failed().await;
    assert_eq!(refused.code, Code::SlotsPinned);
    assert_eq!(refused.details["pinned"], "a");
    pin(&mut client, "a", false).await.unwrap();
    worker.until("the worker is told of its end", told(false)).await;
    assert_eq!(worker.count("set"), 2);
    client.ensure("b").await.ready().await;
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
}

/// Lemonade's `load` with `pinned`: the pin goes with the model, also if the controller was restarted meanwhile.
#[tokio::test]
async fn a_pin_for_as_long_as_a_model_is_loaded_goes_when_it_is_unloaded() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let while_loaded = |model: &str| v1::PinModelRequest {
        model: model.into(),
        while_loaded: true,
    };
    let shown = client.0.pin_model(while_loaded("a")).await.unwrap();
    assert!(shown.into_inner().model.unwrap().pinned);
    let refused = client.ensure("b").await.failed().await;
    assert_eq!(refused.code, Code::SlotsPinned);

    rig.restart().await;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    assert!(client.model("a").await.pinned);
    client.unload("a", false).await.unwrap();
    assert!(!client.model("a").await.pinned);
    let kept = || std::fs::read_to_string(rig.path("state/pins.json")).unwrap();
    let gone = async {
        while kept().contains("\"a\"") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(30), gone).await;
    gone.expect("the pin is gone from the disk too");
    client.ensure("b").await.ready().await;

    // An operator's word for good counts again afterwards.
    assert!(!pin(&mut client, "a", false).await.unwrap().pinned);
    client.unload("b", false).await.unwrap();
    client.load("a").await.unwrap();
    let again = client.0.pin_model(while_loaded("a")).await.unwrap();
    assert!(again.into_inner().model.unwrap().pinned);
    client.unload("a", false).await.unwrap();
    assert!(!client.model("a").await.pinned);
    client.ensure("b").await.ready().await;

    // One that is not loaded has nothing to be pinned for; one that is pinned for good stays so.
    client.0.pin_model(while_loaded("a")).await.unwrap();
    assert!(!client.model("a").await.pinned);
    pin(&mut client, "b", true).await.unwrap();
    client.0.pin_model(while_loaded("b")).await.unwrap();
    client.unload("b", false).await.unwrap();
    assert!(client.model("b").await.pinned);
}

#[tokio::test]
async fn an_idle_model_shows_the_time_it_has_left_and_goes_when_it_is_over() {
    let config = TWO_MODELS.replace("[models.a]", "[models.a]\nidle_ttl = '2s'");
    let config = config.replace("[policy]", "[policy]\nidle_ttl = '1h'\nmax_loaded_models = 2");
    let rig = Rig::start(&config).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let left = |model: &v1::Model| model.instances[0].ttl_left.map(|left| left.seconds);
    let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    client.load("a").await.unwrap();
    client.load("b").await.unwrap();
    let (a, b) = (client.model("a").await, client.model("b").await);
    assert_eq!((a.idle_ttl, b.idle_ttl), (seconds(2), seconds(3600)));
    assert!(left(&a).is_some_and(|left| left < 2), "{a:?}");
    assert!(left(&b).is_some_and(|left| (3590..3600).contains(&left)), "{b:?}");
    // Who holds it, uses it.
    let mut wish = client.ensure("b").await;
    wish.ready().await;
    assert_eq!(left(&client.model("b").await), None);
    let mut events = {
        let request = v1::WatchEventsRequest {
            model: "a".to_owned(),
        };
        client.0.watch_events(request).await.unwrap().into_inner()
    };
    loop {
        let event = tokio::time::timeout(crate::LIMIT, events.message()).await;
        if event.unwrap().unwrap().unwrap().kind == "idle_ttl" {
            break;
        }
    }
    client.until("a", v1::ModelStatus::Unloaded).await;
    assert_eq!(client.model("b").await.status(), v1::ModelStatus::Loaded);
}
