//! Pins: kept over restarts, stronger than the configuration, and heeded by policy.

use muster_proto::{Code, ErrorExt as _, v1};

use crate::{Client, Rig, TWO_MODELS, worker::Worker};

async fn pin(client: &mut Client, model: &str, pinned: bool) -> Result<v1::Model, tonic::Status> {
    let model = model.to_owned();
    let shown = if pinned {
        let answer = client.0.pin_model(v1::PinModelRequest { model }).await?;
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
    assert_eq!(kept, serde_json::json!({"a": true, "p": false}));
    rig.restart().await;
    let mut client = rig.client().await;
    let pinned = |model: v1::Model| (model.id, model.pinned);
    assert_eq!(pinned(client.model("a").await), ("a".to_owned(), true));
    assert_eq!(pinned(client.model("p").await), ("p".to_owned(), false));
    let unknown = pin(&mut client, "x", true).await.unwrap_err();
    assert_eq!(v1::ErrorInfo::from_status(&unknown).kind(), Code::UnknownModel);
    let empty = pin(&mut client, "", true).await.unwrap_err();
    assert_eq!(v1::ErrorInfo::from_status(&empty).param, "model");
}

#[tokio::test]
async fn a_model_pinned_while_loaded_is_not_evicted_until_it_is_unpinned() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    pin(&mut client, "a", true).await.unwrap();
    let refused = client.ensure("b").await.failed().await;
    assert_eq!(refused.kind(), Code::SlotsPinned);
    assert_eq!(refused.details["pinned"], "a");
    pin(&mut client, "a", false).await.unwrap();
    client.ensure("b").await.ready().await;
    assert_eq!(client.model("a").await.status(), v1::ModelStatus::Unloaded);
}
