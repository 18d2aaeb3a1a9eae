//! The rules of the policy as users see them, over several workers of one host (seed 002, I1 to I10).

use std::time::Duration;

use muster_core::Error;
use muster_proto::{
    StatusExt as _,
    v1::{FleetEvent, Model, ModelStatus, WatchEventsRequest},
};
use muster_tests::{Engine, Stack, eventually, http};
use serde_json::json;

crate::for_each_runtime!(a_full_slot_evicts_the_least_recently_used_of_its_type);

const LIMIT: Duration = Duration::from_secs(30);

/// Everything that is decided from now on.
pub(crate) struct Events(tonic::Streaming<FleetEvent>);

impl Events {
    pub(crate) async fn of(stack: &Stack) -> Self {
        let request = WatchEventsRequest::default();
        Self(stack.control().watch_events(request).await.unwrap().into_inner())
    }

    /// Reads up to the next event of this kind.
    pub(crate) async fn next(&mut self, kind: &str) -> FleetEvent {
        let next = async {
            loop {
                let event = self.0.message().await.unwrap().expect("the stream goes on");
                if event.kind == kind {
                    return event;
                }
            }
        };
        muster_tests::within(kind, LIMIT, next).await
    }
}

async fn status(stack: &Stack, model: &str) -> ModelStatus {
    stack.model(model).await.status()
}

async fn answers(stack: &Stack, model: &str) {
    let reply = stack.http().chat(model, json!({"max_tokens": 2})).await;
    assert!(!reply.chat_text().is_empty(), "{model}");
}

/// Loads as an operator does.
async fn load(stack: &Stack, model: &str) -> Result<Model, tonic::Status> {
    use muster_proto::v1::{LoadModelRequest, load_model_event::Kind};
    let request = LoadModelRequest {
        model: model.to_owned(),
        ..LoadModelRequest::default()
    };
    let mut events = stack.control().load_model(request).await?.into_inner();
    while let Some(event) = events.message().await? {
        if let Some(Kind::Loaded(model)) = event.kind {
            return Ok(model);
        }
    }
    panic!("no last word on the load of {model}")
}

/// A stub on a declared device.
fn on(device: &str, id: &str, more: &str) -> String {
    Engine::Stub.model(
        id,
        2,
        &format!("device = '{device}'\nstub.memory_mib = 8\n{more}"),
    )
}

fn embedder(device: &str, id: &str) -> String {
    on(device, id, "labels = ['embeddings']")
}

const DEVICES: [&str; 3] = ["cpu", "sim:gpu:1GiB", "sim:npu:1GiB"];
const EXCLUSIVE: &str = "[devices.'sim:npu']\nexclusive = true\n";

async fn a_full_slot_evicts_the_least_recently_used_of_its_type(engine: Engine) {
    let models: String = ["a", "b", "c"].map(|id| engine.model(id, 1, "")).concat();
    let other = embedder("sim:gpu", "other");
    let stack = Stack::with(format!("[policy]\nmax_loaded_models = [2, 1]\n{models}{other}"))
        .devices(&DEVICES)
        .start()
        .await;
    load(&stack, "other").await.unwrap();
    for id in ["a", "b", "a"] {
        answers(&stack, id).await;
    }
    let mut events = Events::of(&stack).await;
    answers(&stack, "c").await;
    let evicted = events.next("evicting").await;
    assert_eq!(evicted.model, "b", "{evicted:?}");
    assert!(
        evicted.reason.contains("'c'") && evicted.reason.contains("type slot (I2)"),
        "{evicted:?}"
    );
    stack.model_is("b", ModelStatus::Unloaded, LIMIT).await;
    for id in ["a", "c", "other"] {
        assert_eq!(status(&stack, id).await, ModelStatus::Loaded, "{id}");
    }
}

#[tokio::test]
async fn an_exclusive_device_takes_one_model_whatever_its_type_and_the_limits() {
    let config = format!(
        "[policy]\nmax_loaded_models = -1\n{EXCLUSIVE}{}{}{}{}",
        on("sim:npu", "npu-chat", ""),
        embedder("sim:npu", "npu-embed"),
        on("sim:gpu", "gpu-chat", ""),
        Engine::LlamaCpp.model("cpu-chat", 1, "device = 'cpu'"),
    );
    let stack = Stack::with(config).devices(&DEVICES).start().await;
    for id in ["gpu-chat", "cpu-chat", "npu-chat"] {
        answers(&stack, id).await;
    }
    let mut events = Events::of(&stack).await;
    load(&stack, "npu-embed").await.unwrap();
    let evicted = events.next("evicting").await;
    assert_eq!(evicted.model, "npu-chat");
    assert!(evicted.reason.contains("exclusive device (I3)"), "{evicted:?}");
    assert_eq!(status(&stack, "npu-chat").await, ModelStatus::Unloaded);
    answers(&stack, "npu-chat").await;
    assert_eq!(status(&stack, "npu-embed").await, ModelStatus::Unloaded);
    for id in ["gpu-chat", "cpu-chat"] {
        assert_eq!(status(&stack, id).await, ModelStatus::Loaded, "{id}");
    }
    assert_eq!(stack.stats().await.evictions, 2);
}

#[tokio::test]
async fn a_busy_model_is_protected_while_loads_queue_behind_it() {
    let config = format!(
        "{}{}{}{}",
        on("sim:gpu", "busy", "stub.tokens_per_second = 40"),
        on("sim:gpu", "second", ""),
        Engine::LlamaCpp.model("third", 1, ""),
        embedder("sim:npu", "embed"),
    );
    let stack = Stack::with(config).devices(&DEVICES).start().await;
    let mut stream = stack
        .http()
        .chat_stream("busy", json!({"max_tokens": 100_000}))
        .await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    let http = stack.http();
    let queued = async {
        // One after the other, so that their places are known.
        let (second, third) = (http.chat("second", json!({"max_tokens": 2})), async {
            let waits = async || match stack.model("second").await.queue_position {
                1 => Ok(()),
                place => Err(place),
            };
            eventually("second waits", LIMIT, waits).await;
            http.chat("third", json!({"max_tokens": 2})).await
        });
        tokio::join!(second, third)
    };
    let meanwhile = async {
        let waits = async || match stack.model("third").await {
            model if model.queue_position == 2 && model.status() == ModelStatus::Loading => Ok(()),
            model => Err(model),
        };
        eventually("third waits behind second", LIMIT, waits).await;
        // Another type has room of its own and does not wait for them.
        load(&stack, "embed").await.unwrap();
        assert_eq!(stack.model("third").await.queue_position, 2);
        assert_eq!(status(&stack, "busy").await, ModelStatus::Loaded);
        stream.chunks(&mut chat, 1).await;
        // Its client goes away: it is idle.
        drop(stream);
    };
    let ((second, third), ()) = tokio::join!(queued, meanwhile);
    assert!(!second.chat_text().is_empty() && !third.chat_text().is_empty());
    assert_eq!(status(&stack, "embed").await, ModelStatus::Loaded);
    assert_eq!(stack.stats().await.loads_started, 4);
}

#[tokio::test]
async fn a_failed_load_evicts_everything_idle_and_unpinned_and_is_tried_once_more() {
    let config = format!(
        "[policy]\nmax_loaded_models = -1\n{}{}{}{}",
        on("sim:gpu", "broken", "stub.fail = 'load'"),
        on("sim:gpu", "pinned", "pinned = true"),
        embedder("sim:npu", "embed"),
        Engine::LlamaCpp.model("idle", 1, ""),
    );
    let stack = Stack::with(config).devices(&DEVICES).start().await;
    for id in ["pinned", "embed", "idle"] {
        load(&stack, id).await.unwrap();
    }
    let mut events = Events::of(&stack).await;
    let refused = load(&stack, "broken").await.unwrap_err();
    let retry = events.next("load_retry").await;
    assert!(
        retry.model == "broken" && retry.reason.contains("(I7)"),
        "{retry:?}"
    );
    let again = events.next("load_started").await;
    assert!(
        again.reason.starts_with("attempt 2 begins with 8 MiB on sim:gpu"),
        "{again:?}"
    );
    let model = stack.model("broken").await;
    assert_eq!(model.status(), ModelStatus::Failed);
    let why = model.last_error.expect("it says why");
    assert_eq!(why.code, "model_load_failed");
    assert_eq!(Error::from_status(&refused).message, why.message);
    for id in ["embed", "idle"] {
        assert_eq!(status(&stack, id).await, ModelStatus::Unloaded, "{id}");
    }
    assert_eq!(status(&stack, "pinned").await, ModelStatus::Loaded);
    let stats = stack.stats().await;
    assert_eq!(
        (stats.loads_started, stats.loads_failed, stats.evictions),
        (5, 2, 2)
    );
    // While it counts as failed, requests are refused at once and disturb nobody.
    load(&stack, "idle").await.unwrap();
    let reply = stack.http().chat("broken", json!({})).await;
    assert_eq!(reply.error(409)["code"], "model_failed");
    assert_eq!(status(&stack, "idle").await, ModelStatus::Loaded);
}

#[tokio::test]
async fn a_request_waits_no_longer_than_the_operator_says() {
    let config = format!(
        "{}{}",
        on("sim:gpu", "busy", "stub.tokens_per_second = 10"),
        on("sim:gpu", "other", "")
    );
    let stack = Stack::with(config)
        .devices(&DEVICES)
        .gateway_args(&["--load-wait-seconds", "1"])
        .start()
        .await;
    let mut stream = stack.http().chat_stream("busy", json!({"max_tokens": 200})).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 2).await;
    let reply = stack.http().chat("other", json!({})).await;
    let error = reply.error(503);
    assert_eq!(error["code"], "eviction_timeout");
    assert!(reply.headers.contains_key("retry-after"), "{:?}", reply.headers);
    // Nobody waits for it any more.
    stack.model_is("other", ModelStatus::Unloaded, LIMIT).await;
    assert_eq!(status(&stack, "busy").await, ModelStatus::Loaded);
}
