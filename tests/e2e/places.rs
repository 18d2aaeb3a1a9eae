//! Where models go: over several devices, several times, and before anybody asks (proto/README.md, idea 6; PROTOCOL.md 1 and 14).

use std::{collections::BTreeSet, time::Duration};

use muster_core::{Code, Error};
use muster_proto::{
    StatusExt as _,
    v1::{InstanceState, ListDevicesRequest, LoadModelRequest, Model, ModelStatus},
};
use muster_tests::{Engine, Stack, engines, eventually, http, processes};
use serde_json::json;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(30);
const POLICY: &str = "[policy]\nmax_loaded_models = -1\nmargin_mib = 0\n";

fn stub(id: &str, more: &str) -> String {
    Engine::Stub.model(id, 2, more)
}

/// Bytes reserved on each device.
async fn reserved(stack: &Stack) -> Vec<(String, u64)> {
    let request = ListDevicesRequest::default();
    let devices = stack.control().list_devices(request).await.unwrap().into_inner();
    let figures = devices.devices.into_iter().map(|status| {
        let id = status.device.unwrap_or_default().device_id;
        (id, status.reserved_bytes / MIB)
    });
    figures.collect()
}

fn figures(expected: [u64; 2]) -> Vec<(String, u64)> {
    let names = ["sim:one", "sim:two"].map(str::to_owned);
    names.into_iter().zip(expected).collect()
}

/// Loads as an operator does; the answer when it is over.
async fn load(stack: &Stack, model: &str) -> Result<(), tonic::Status> {
    let request = LoadModelRequest {
        model: model.to_owned(),
        ..LoadModelRequest::default()
    };
    let mut events = stack.control().load_model(request).await?.into_inner();
    while events.message().await?.is_some() {}
    Ok(())
}

/// The workers that a model's instances in `state` run on.
fn workers(model: &Model, state: InstanceState) -> Vec<String> {
    let instances = model.instances.iter().filter(|instance| {
        let status = instance.status.as_ref();
        status.is_some_and(|status| status.state() == state)
    });
    let place = instances.filter_map(|instance| instance.r#ref.as_ref());
    place.map(|place| place.worker_id.clone()).collect()
}

#[tokio::test]
async fn a_model_over_two_devices_shares_them_with_workers_that_own_one() {
    let config = format!(
        "{POLICY}{}{}{}",
        stub(
            "small",
            "device = 'sim:one'\nstub.memory_mib = 30\nstub.tokens_per_second = 40"
        ),
        stub("other", "device = 'sim:two'\nstub.memory_mib = 20"),
        stub("large", "stub.memory_mib = 160"),
    );
    let stack = Stack::with(config)
        .devices(&[
            "sim:one:100MiB",
            "sim:two:100MiB",
            "sim:one:100MiB,sim:two:100MiB",
        ])
        .start()
        .await;
    load(&stack, "other").await.unwrap();
    let mut stream = stack
        .http()
        .chat_stream("small", json!({"max_tokens": 100_000}))
        .await;
    stream.chunks(&mut http::Chat::default(), 2).await;
    assert_eq!(reserved(&stack).await, figures([30, 20]));
    // Both are there once, whoever owns them: one that is busy keeps the large model waiting, and one that is idle stays, as it fits.
    let http = stack.http();
    let large = http.chat("large", json!({"max_tokens": 2}));
    let meanwhile = async {
        stack.model_is("large", ModelStatus::Loading, LIMIT).await;
        assert_eq!(reserved(&stack).await, figures([30, 20]));
        drop(stream);
    };
    let (large, ()) = tokio::join!(large, meanwhile);
    assert!(!large.chat_text().is_empty());
    let model = stack.model("large").await;
    assert_eq!(workers(&model, InstanceState::Ready), ["w2"]);
    assert_eq!(reserved(&stack).await, figures([80, 100]));
    assert_eq!(stack.model("small").await.status(), ModelStatus::Unloaded);
    // A model of a worker that owns one of them takes the large one's place.
    assert!(
        !http
            .chat("small", json!({"max_tokens": 2}))
            .await
            .chat_text()
            .is_empty()
    );
    assert_eq!(reserved(&stack).await, figures([30, 20]));
}

/// Two devices with one worker each, and a model that is to be on both.
async fn replicated(more: &str) -> Stack {
    let config = format!("{POLICY}{}", stub("twice", &format!("replicas = 2\n{more}")));
    let devices = ["sim:one:100MiB", "sim:two:100MiB"];
    Stack::with(config).devices(&devices).start().await
}

#[tokio::test]
async fn replicas_take_requests_together_and_a_crashed_one_is_replaced() {
    let mut stack = replicated("stub.memory_mib = 20\nstub.tokens_per_second = 50").await;
    load(&stack, "twice").await.unwrap();
    let model = stack.model("twice").await;
    let both: BTreeSet<String> = workers(&model, InstanceState::Ready).into_iter().collect();
    assert_eq!(both, ["w0", "w1"].map(str::to_owned).into());
    let http = stack.http();
    let answers = http::all(16, |n| {
        let http = http.clone();
        async move {
            http.chat("twice", json!({"max_tokens": 10, "user": n.to_string()}))
                .await
        }
    })
    .await;
    assert!(answers.into_iter().all(|reply| !reply.chat_text().is_empty()));
    let touched = async || {
        let seqs = [0, 1].map(|worker| stack.instance(worker, "twice"));
        let [one, two] = seqs;
        [one.await, two.await].map(|status| status.touch.unwrap_or_default().touch_seq)
    };
    let counts = touched().await;
    assert!(
        counts.iter().all(|seq| *seq > 2),
        "one of them was left alone: {counts:?}"
    );

    let engine = processes::descendants(stack.process(muster_tests::Role::Worker(0)).pid());
    for pid in engine {
        processes::kill(pid);
    }
    let one = async || {
        let model = stack.model("twice").await;
        let ready = workers(&model, InstanceState::Ready);
        if ready == ["w1"] { Ok(()) } else { Err(model) }
    };
    eventually("one is lost", LIMIT, one).await;
    assert!(
        !http
            .chat("twice", json!({"max_tokens": 2}))
            .await
            .chat_text()
            .is_empty()
    );
    let two = async || {
        let model = stack.model("twice").await;
        let ready = workers(&model, InstanceState::Ready);
        if ready.len() == 2 { Ok(()) } else { Err(model) }
    };
    eventually("it is replaced", LIMIT, two).await;
}

/// 24 equal conversations once landed on four idle replicas as 12, 7, 5 and 0.
#[tokio::test]
async fn a_conversation_returns_to_its_replica_and_different_ones_spread() {
    let more = "replicas = 4\nstub.memory_mib = 20\nstub.tokens_per_second = 500";
    let devices = [
        "sim:one:30MiB",
        "sim:two:30MiB",
        "sim:three:30MiB",
        "sim:four:30MiB",
    ];
    let stack = Stack::with(format!("{POLICY}{}", stub("four", more)))
        .devices(&devices)
        .start()
        .await;
    load(&stack, "four").await.unwrap();
    let http = stack.http();
    let say = async |text: String| {
        let messages = json!([{"role": "user", "content": text}]);
        let more = json!({"max_tokens": 2, "messages": messages});
        assert!(!http.chat("four", more).await.chat_text().is_empty());
    };
    let touches = async || {
        let mut counts = Vec::new();
        for worker in 0..devices.len() {
            let touch = stack.instance(worker, "four").await.touch;
            counts.push(touch.unwrap_or_default().touch_seq);
        }
        counts
    };
    // How many of them took requests since `before`.
    let used =
        |before: &[u64], after: &[u64]| before.iter().zip(after).filter(|(one, two)| one != two).count();
    let begun = touches().await;
    for _ in 0..12 {
        say("always the same".to_owned()).await;
    }
    let same = touches().await;
    assert_eq!(used(&begun, &same), 1, "{begun:?} {same:?}");
    for number in 0..24 {
        say(format!("number {number}")).await;
    }
    let different = touches().await;
    assert!(used(&same, &different) >= 3, "{same:?} {different:?}");
}

#[tokio::test]
async fn replicas_that_cannot_all_be_there_are_not_loaded_at_all() {
    let stack = replicated("stub.memory_mib = 20\nstub.load_time_ms = 1500").await;
    // The second one's engine dies while it loads, and so does the second attempt.
    let wish = load(&stack, "twice");
    let sabotage = async {
        let mut killed = BTreeSet::new();
        while killed.len() < 2 {
            let second = async || {
                let model = stack.model("twice").await;
                let ready = workers(&model, InstanceState::Ready);
                let statuses = model
                    .instances
                    .iter()
                    .filter_map(|instance| instance.status.as_ref());
                let mut loading = statuses.filter(|status| {
                    status.state() == InstanceState::Loading
                        && !status.engine.is_empty()
                        && !killed.contains(&status.instance_id)
                });
                match loading.next() {
                    Some(status) if ready.len() == 1 || !killed.is_empty() => Ok(status.clone()),
                    _ => Err(model.clone()),
                }
            };
            let (status, _) = eventually("the second one loads", LIMIT, second).await;
            for process in &status.engine {
                processes::kill(process.pid);
            }
            killed.insert(status.instance_id);
        }
    };
    let (answer, ()) = tokio::join!(wish, sabotage);
    let error = Error::from_status(&answer.unwrap_err());
    assert_eq!(error.code, Code::ModelLoadFailed, "{error:?}");
    let torn_down = async || {
        let model = stack.model("twice").await;
        let gone =
            reserved(&stack).await == figures([0, 0]) && workers(&model, InstanceState::Ready).is_empty();
        if gone && model.status() == ModelStatus::Failed {
            Ok(())
        } else {
            Err(model)
        }
    };
    eventually("nothing of it stays", LIMIT, torn_down).await;
}

#[tokio::test]
async fn replicas_without_room_for_all_are_refused_before_any_is_loaded() {
    let stack = replicated("stub.memory_mib = 70\ndevice = 'sim:one'").await;
    let error = Error::from_status(&load(&stack, "twice").await.unwrap_err());
    assert_eq!(error.code, Code::InsufficientMemory, "{error:?}");
    assert_eq!(stack.stats().await.loads_started, 0);
}

#[tokio::test]
async fn models_enabled_at_start_are_loaded_in_the_order_of_the_file_until_it_is_full() {
    let models = ["zebra", "mule", "ant"].map(|id| stub(id, "enabled = true\nstub.memory_mib = 4"));
    let stack = Stack::with(format!("[policy]\nmax_loaded_models = 2\n{}", models.concat()))
        .devices(&["sim:one:100MiB"])
        .start()
        .await;
    for id in ["zebra", "mule"] {
        stack.model_is(id, ModelStatus::Loaded, LIMIT).await;
    }
    let settled = async || {
        let model = stack.model("ant").await;
        if model.queue_position == 0 && model.status() != ModelStatus::Loading {
            Ok(())
        } else {
            Err(model)
        }
    };
    eventually("the third is given up", LIMIT, settled).await;
    let stats = stack.stats().await;
    assert_eq!((stats.loads_started, stats.evictions), (2, 0));
    // It is not out of reach: who asks for it gets it.
    assert!(
        !stack
            .http()
            .chat("ant", json!({"max_tokens": 2}))
            .await
            .chat_text()
            .is_empty()
    );
    assert_eq!(stack.model("zebra").await.status(), ModelStatus::Unloaded);
}

/// controller/README.md, Settings: what our engine cannot honour goes to llama.cpp's server, unless the entry insists on ours.
#[tokio::test]
async fn a_flag_beyond_our_engine_goes_to_llama_cpps_server() {
    let entry = |id: &str, more: &str| {
        let file = engines::test_model("tiny-chat");
        format!(
            "[models.{id}]\ncheckpoint = {file:?}\nrecipe = 'llamacpp'\nthreads = 1\nllamacpp_args = '--poll 0'\n{more}\n"
        )
    };
    let config = entry("open", "") + &entry("insists", "runtime = 'llama_cpp'");
    let stack = Stack::with(config).start().await;
    let reply = stack.http().chat("open", json!({"max_tokens": 4})).await;
    assert!(!reply.chat_text().is_empty());
    assert_eq!(stack.model("open").await.runtime, "llama_server");
    let refused = stack.http().chat("insists", json!({"max_tokens": 4})).await;
    let error = refused.error(400);
    assert_eq!(error["code"], "invalid_load_request", "{error}");
    assert!(error["message"].as_str().unwrap().contains("--poll"), "{error}");
}
