//! What the controller shows without any worker, and its other services.

use muster_core::{Code, Error};
use muster_proto::{StatusExt as _, net::channel, trust::Credentials, v1};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{Rig, TWO_MODELS, worker::Worker};

#[tokio::test]
async fn models_are_listed_with_what_is_configured() {
    let config = format!(
        "{TWO_MODELS}\n[models.file]\ncheckpoint = 'x.gguf'\nlabels = ['embedding']\nctx_size = 512\n[models.absent]\ncheckpoint = 'y.gguf'\n"
    );
    let rig = Rig::start(&config).await;
    std::fs::write(rig.path("x.gguf"), vec![0; 1000]).unwrap();
    let mut client = rig.client().await;
    let models = client
        .0
        .list_models(v1::ListModelsRequest::default())
        .await
        .unwrap()
        .into_inner()
        .models;
    let ids: Vec<&str> = models.iter().map(|model| model.id.as_str()).collect();
    assert_eq!(ids, ["a", "absent", "b", "file"]);
    let file = &models[3];
    assert_eq!(
        (file.size_bytes, file.downloaded, file.r#type()),
        (1000, true, v1::ModelType::Embedding)
    );
    assert_eq!(file.estimate_source(), v1::EstimateSource::Artifact);
    assert!(file.estimate_bytes > 1000);
    assert_eq!((models[1].size_bytes, models[1].downloaded), (0, false));
    let loaded = client
        .0
        .list_models(v1::ListModelsRequest {
            loaded_only: true,
            suggested: false,
        })
        .await
        .unwrap()
        .into_inner();
    assert!(loaded.models.is_empty());
}

#[tokio::test]
async fn an_unknown_model_is_not_found_with_typed_details() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let get = client
        .0
        .get_model(v1::GetModelRequest {
            model: "x".to_owned(),
        })
        .await
        .unwrap_err();
    let load = client.load("x").await.unwrap_err();
    let unload = client.unload("x", false).await.unwrap_err();
    for status in [get, load, unload] {
        assert_eq!(status.code(), tonic::Code::NotFound);
        let error = Error::from_status(&status);
        assert_eq!(error.code, Code::UnknownModel);
        assert_eq!(error.details["model"], "x");
    }
    assert_eq!(client.ensure("x").await.failed().await.code, Code::UnknownModel);
    let empty = client
        .0
        .get_model(v1::GetModelRequest::default())
        .await
        .unwrap_err();
    assert_eq!(Error::from_status(&empty).param.unwrap_or_default(), "model");
}

#[tokio::test]
async fn enabled_models_are_loaded_at_start_and_a_failure_is_only_shown() {
    let config = format!("{TWO_MODELS}\n[models.on]\nruntime = 'stub'\nenabled = true\n");
    let rig = Rig::start(&config).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    let model = client.until("on", v1::ModelStatus::Loaded).await;
    let spec = model.instances[0].status.clone().unwrap().spec.unwrap();
    assert_eq!(spec.origin(), v1::Origin::Preload);
    assert_eq!(worker.count("load"), 1);

    let mut other = Worker::new("w");
    let error = Code::ModelLoadFailed.error("bad");
    other.memory.lock().unwrap().loads = crate::worker::Loads::Fail(error);
    let rig = Rig::start(&config).await;
    other.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.until("on", v1::ModelStatus::Failed).await;
    other.memory.lock().unwrap().loads = crate::worker::Loads::Ready;
    assert_eq!(client.load("a").await.unwrap().status(), v1::ModelStatus::Loaded);
}

#[tokio::test]
async fn what_engines_use_is_learned_and_kept() {
    let mut rig = Rig::start(&format!(
        "{TWO_MODELS}\n[models.f]\nruntime = 'stub'\nmemory_mib = 3\n"
    ))
    .await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.load("a").await.unwrap();
    let instance = worker.instance("a");
    let hash = client.model("a").await.instances[0]
        .status
        .clone()
        .unwrap()
        .spec
        .unwrap()
        .spec_hash;
    worker
        .change(&instance, |status| {
            let device_id = crate::worker::DEVICE.to_owned();
            status.observed = vec![v1::Reservation {
                device_id,
                bytes: 77 << 20,
            }];
        })
        .await;
    // The report is behind nothing else in the session, so a command's answer shows that it was heard.
    client.unload("a", false).await.unwrap();
    rig.stop().await;
    let kept = std::fs::read_to_string(rig.path("state/observed.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept["version"], 1);
    assert_eq!(kept["memory"][hash]["bytes"]["cpu"], 77_u64 << 20);
    rig.restart().await;
    assert_eq!(
        rig.client().await.model("f").await.estimate_bytes,
        3 << 20,
        "what is configured wins"
    );
}

/// The controller once served such a model while gateways, which had never heard of it, answered that it does not exist.
#[tokio::test]
async fn a_model_that_left_the_catalogue_is_unknown_to_all_that_ask_though_it_is_loaded() {
    let mut rig = Rig::start(TWO_MODELS).await;
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    rig.client().await.load("a").await.unwrap();
    // Idle, it would go by itself.
    let instance = worker.instance("a");
    worker.change(&instance, |status| status.running = 1).await;
    worker.cut().await;
    let without = TWO_MODELS.replace("[models.a]\nruntime = 'stub'\n", "");
    std::fs::write(rig.path("config.toml"), without).unwrap();
    rig.restart().await;
    worker.join(&rig.address()).await;
    let mut client = rig.client().await;
    client.until("a", v1::ModelStatus::Loaded).await;
    assert_eq!(client.ensure("a").await.failed().await.code, Code::UnknownModel);
    let snapshot = client.routes().await.next().await;
    let Some(v1::route_update::Kind::Snapshot(part)) = snapshot.kind else {
        panic!("{snapshot:?}")
    };
    let shown: Vec<&str> = part.models.iter().map(|model| model.id.as_str()).collect();
    assert_eq!(shown, ["b"], "gateways say the same");
    worker.change(&instance, |status| status.running = 0).await;
    worker
        .until("it goes once it is idle", |memory| memory.instances.is_empty())
        .await;
}

#[tokio::test]
async fn health_and_reflection_are_served() {
    let rig = Rig::start(TWO_MODELS).await;
    let channel = channel(&rig.address(), &Credentials::none()).await.unwrap();
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "muster.v1.Control", "muster.v1.Fleet"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let request = ServerReflectionRequest {
        message_request: Some(MessageRequest::ListServices(String::new())),
        ..ServerReflectionRequest::default()
    };
    let mut answers = ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!()
    };
    let names: Vec<String> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"muster.v1.Control".to_owned()), "{names:?}");
}

#[tokio::test]
async fn events_say_what_was_decided() {
    let rig = Rig::start(TWO_MODELS).await;
    let mut client = rig.client().await;
    let request = v1::WatchEventsRequest {
        model: "b".to_owned(),
    };
    let mut events = client.0.watch_events(request).await.unwrap().into_inner();
    let mut worker = Worker::new("w");
    worker.join(&rig.address()).await;
    client.load("a").await.unwrap();
    client.load("b").await.unwrap();
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|kind| kind != "loaded") {
        let event = tokio::time::timeout(crate::LIMIT, events.message())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(event.model, "b");
        kinds.push(event.kind);
    }
    assert_eq!(kinds, ["load_queued", "load_started", "loaded"]);
}
