//! The worker as an operator sees it: `Host`, health and reflection.

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    net::{self, Channel},
    trust::Credentials,
    v1::{
        DescribeRequest, DrainRequest, HostUnloadRequest, InstanceState, TokenizeCall, UnloadMode,
        host_client::HostClient,
    },
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    v1alpha,
};

use crate::{
    gateway::{Gateway, client},
    rig::{Rig, stub},
};

const FOREVER: u32 = 1 << 19;

async fn channel(rig: &Rig) -> Channel {
    net::channel(&rig.worker.address, &Credentials::none())
        .await
        .unwrap()
}

#[tokio::test]
async fn describe_shows_queues_and_engines() {
    let rig = Rig::start(&["--device", "cpu", "--device", "sim:a:1GiB"]).await;
    let instance = rig
        .load(stub("m", |settings, _| settings.target_inflight = 1))
        .await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", FOREVER, 10).await;
    running.read(10).await;
    let mut waiting = gateway.start(&instance, "b", 5, 10).await;
    waiting.admitted().await;
    let mut host = HostClient::new(channel(&rig).await);
    let described = host
        .describe(DescribeRequest { engines: true })
        .await
        .unwrap()
        .into_inner();
    assert!(described.joined && !described.draining);
    assert_eq!(described.devices.len(), 2);
    assert!(described.runtimes.iter().any(|runtime| runtime.name == "stub"));
    assert_eq!(described.addresses, [rig.worker.address.to_string()]);
    let [described] = described.instances.as_slice() else {
        panic!("{described:?}")
    };
    let status = described.status.as_ref().unwrap();
    assert_eq!((status.running, status.queued), (1, 1));
    assert!(!described.engine.as_ref().unwrap().sequences.is_empty());
}

#[tokio::test]
async fn an_operator_drains_and_unloads() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |_, _| {})).await;
    let gateway = Gateway::connect(&rig.worker.address).await;
    let mut running = gateway.start(&instance, "a", 50, 10).await;
    running.read(10).await;
    let mut host = HostClient::new(channel(&rig).await);
    let timeout = prost_types::Duration::try_from(std::time::Duration::from_millis(50)).ok();
    let drained = host.drain(DrainRequest { timeout }).await.unwrap().into_inner();
    assert_eq!(drained.running, 1);
    let mut unload = HostUnloadRequest {
        model: "m".to_owned(),
        ..HostUnloadRequest::default()
    };
    unload.set_mode(UnloadMode::IfIdle);
    let refused = host.unload(unload).await.unwrap_err();
    assert_eq!(Error::from_status(&refused).code, Code::InstanceBusy);
    rig.session
        .until("draining", |view| view.draining.then_some(()))
        .await;
    gateway
        .start(&instance, "b", 5, 10)
        .await
        .fails("stale_instance")
        .await;
    gateway.credit(&running, 100).await;
    running.end().await.unwrap();
    let drained = host
        .drain(DrainRequest { timeout: None })
        .await
        .unwrap()
        .into_inner();
    assert_eq!(drained.running, 0);
    let mut unload = HostUnloadRequest {
        model: "m".to_owned(),
        ..HostUnloadRequest::default()
    };
    host.unload(unload.clone()).await.expect_err("no mode");
    unload.set_mode(UnloadMode::IfIdle);
    let unloaded = host.unload(unload).await.unwrap().into_inner();
    assert_eq!(unloaded.instance_ids, [instance.instance_id.as_str()]);
    rig.session
        .state(&instance.instance_id, InstanceState::Gone)
        .await;
}

#[tokio::test]
async fn calls_beside_the_session_reach_the_engine() {
    let rig = Rig::start(&["--io-threads", "2"]).await;
    rig.load(stub("m", |_, _| {})).await;
    let mut client = client(&rig.worker.address).await;
    let call = TokenizeCall {
        model: "m".to_owned(),
        content: crate::gateway::prompt("one two"),
        ..TokenizeCall::default()
    };
    assert!(
        !client
            .tokenize(call)
            .await
            .unwrap()
            .into_inner()
            .tokens
            .is_empty()
    );
}

#[tokio::test]
async fn health_and_reflection_of_both_versions() {
    let rig = Rig::start(&[]).await;
    let mut health = HealthClient::new(channel(&rig).await);
    for service in ["", "muster.v1.Inference", "muster.v1.Host"] {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let status = health.check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let list = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(channel(&rig).await);
    let mut answers = reflection
        .server_reflection_info(tokio_stream::once(list))
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(services)) =
        answers.message().await.unwrap().unwrap().message_response
    else {
        panic!("no list")
    };
    let names: Vec<_> = services
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    assert!(
        names.contains(&"muster.v1.Host") && names.contains(&"muster.v1.Inference"),
        "{names:?}"
    );
    let list = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut reflection = v1alpha::server_reflection_client::ServerReflectionClient::new(channel(&rig).await);
    let mut answers = reflection
        .server_reflection_info(tokio_stream::once(list))
        .await
        .unwrap()
        .into_inner();
    assert!(answers.message().await.unwrap().is_some());
}
