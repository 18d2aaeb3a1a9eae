//! `kill -9` of each process while streams run (issue "a model answers", Must show 3).

use std::time::Duration;

use muster_proto::v1::{ModelStatus, ProcessId};
use muster_tests::{Engine, Role, Stack, eventually, http, processes};
use serde_json::json;

crate::for_each_runtime!(
    a_killed_controller_stops_nobody,
    a_killed_engine_ends_its_streams_only,
    a_killed_worker_takes_its_engines_along,
);

const LIMIT: Duration = Duration::from_secs(30);

/// A model that answers for a while: slow by settings in the stub, by length in the others.
fn long(engine: Engine, id: &str) -> String {
    let more = if engine == Engine::Stub {
        "stub.tokens_per_second = 200"
    } else {
        "ctx_size = 8192"
    };
    engine.model(id, 2, more)
}

fn ask(engine: Engine) -> serde_json::Value {
    let tokens = if engine == Engine::Stub { 300 } else { 3000 };
    json!({"max_tokens": tokens, "ignore_eos": true})
}

async fn a_killed_controller_stops_nobody(engine: Engine) {
    let mut stack = Stack::with(long(engine, "m")).start().await;
    let mut stream = stack.http().chat_stream("m", ask(engine)).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 3).await;
    let before = stack.instance(0, "m").await.instance_id;

    stack.kill(Role::Controller);
    let new = stack.http().chat("m", json!({"max_tokens": 4})).await;
    assert!(
        !new.chat_text().is_empty(),
        "a new request is answered without a controller"
    );
    let whole = stream.chat().await;
    assert!(
        whole.error.is_none() && whole.done,
        "the stream goes to its end: {:?}",
        whole.error
    );

    stack.start_process(Role::Controller).await;
    let model = stack.model_is("m", ModelStatus::Loaded, LIMIT).await;
    let now: Vec<_> = model
        .instances
        .iter()
        .filter_map(|instance| instance.status.as_ref())
        .collect();
    assert_eq!(now.len(), 1, "{now:?}");
    assert_eq!(now[0].instance_id, before, "nothing was loaded again");
    assert_eq!(stack.stats().await.loads_started, 0, "by this controller");
    assert!(
        !stack
            .http()
            .chat("m", json!({"max_tokens": 4}))
            .await
            .chat_text()
            .is_empty()
    );
}

async fn a_killed_engine_ends_its_streams_only(engine: Engine) {
    let config = format!(
        "[policy]\nmax_loaded_models = 2\n{}{}",
        long(engine, "m"),
        long(engine, "other")
    );
    let stack = Stack::with(config).start().await;
    // Both are loaded before the streams begin, so that these are still young when the engine dies.
    for id in ["m", "other"] {
        stack.http().chat(id, json!({"max_tokens": 1})).await.ok();
    }
    let killed = stack.instance(0, "m").await;
    let mut stream = stack.http().chat_stream("m", ask(engine)).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 3).await;
    let mut bystander = stack.http().chat_stream("other", ask(engine)).await;
    let mut noticed = http::Chat::default();
    bystander.chunks(&mut noticed, 3).await;

    for process in &killed.engine {
        processes::kill(process.pid);
    }
    let ended = stream.chat().await;
    let error = ended.error.expect("the stream ends with an error event");
    assert_eq!(error["code"], "runtime_crashed", "{error}");
    assert!(
        error["message"].as_str().is_some_and(|text| !text.is_empty()),
        "{error}"
    );

    let whole = bystander.chat().await;
    assert!(
        whole.error.is_none() && whole.done,
        "the other model does not notice: {:?}",
        whole.error
    );
    let again = stack.http().chat("m", json!({"max_tokens": 4})).await;
    assert!(
        !again.chat_text().is_empty(),
        "it loads again on the next request"
    );
    assert_ne!(stack.instance(0, "m").await.instance_id, killed.instance_id);
}

async fn a_killed_worker_takes_its_engines_along(engine: Engine) {
    let mut stack = Stack::with(long(engine, "m")).start().await;
    let mut stream = stack.http().chat_stream("m", ask(engine)).await;
    let mut chat = http::Chat::default();
    stream.chunks(&mut chat, 3).await;
    let engines: Vec<ProcessId> = stack.instance(0, "m").await.engine;
    assert!(!engines.is_empty(), "the worker knows its engine's processes");
    let tree = processes::descendants(stack.process(Role::Worker(0)).pid());
    assert!(engines.iter().all(|engine| processes::alive(engine.pid)));

    stack.kill(Role::Worker(0));
    let ended = stream.chat().await;
    let error = ended.error.expect("the stream ends with an error event");
    assert_eq!(error["code"], "worker_lost", "{error}");
    let gone = async || {
        let left: Vec<u32> = engines
            .iter()
            .map(|engine| engine.pid)
            .chain(tree.iter().copied())
            .filter(|pid| processes::alive(*pid))
            .collect();
        if left.is_empty() {
            Ok(())
        } else {
            Err(left.into_iter().map(processes::command_line).collect::<Vec<_>>())
        }
    };
    let ((), took) = eventually("the engines are gone", Duration::from_secs(2), gone).await;
    println!("{engine:?}: engines gone {took:?} after their worker");

    stack.start_process(Role::Worker(0)).await;
    let again = stack.http().chat("m", json!({"max_tokens": 4})).await;
    assert!(!again.chat_text().is_empty(), "it loads again after the restart");
}

#[tokio::test]
async fn a_killed_gateway_comes_back_to_warm_models() {
    let mut stack = Stack::with(Engine::Stub.model("m", 1, "")).start().await;
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    stack.kill(Role::Gateway);
    stack.start_process(Role::Gateway).await;
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    assert_eq!(stack.stats().await.loads_started, 1);
}

#[tokio::test]
async fn with_two_workers_the_model_loads_on_the_other_one() {
    let stack = Stack::with(Engine::Stub.model("m", 1, "stub.memory_mib = 8"));
    let mut stack = stack.devices(&["sim:a:4GiB", "sim:b:4GiB"]).start().await;
    stack.http().chat("m", json!({"max_tokens": 2})).await.ok();
    let model = stack.model("m").await;
    let place = model.instances[0].r#ref.clone().unwrap();
    let number: usize = place.worker_id.strip_prefix('w').unwrap().parse().unwrap();
    stack.kill(Role::Worker(number));
    let ask = async || {
        let reply = stack.http().chat("m", json!({"max_tokens": 2})).await;
        if reply.status == 200 {
            Ok(())
        } else {
            Err(reply.text)
        }
    };
    eventually("the other worker answers", LIMIT, ask).await;
    assert_eq!(stack.instance(1 - number, "m").await.running, 0);
}

#[tokio::test]
async fn a_request_for_a_cold_model_waits_for_the_controllers_return_or_says_so() {
    let mut stack = Stack::with(Engine::Stub.model("m", 1, "")).start().await;
    stack.kill(Role::Controller);
    let http = stack.http();
    let (reply, ()) = tokio::join!(
        http.chat("m", json!({"max_tokens": 2})),
        stack.start_process(Role::Controller)
    );
    assert!(!reply.chat_text().is_empty(), "the gateway asked again");
    stack.kill(Role::Controller);
    stack.kill(Role::Worker(0));
    let error = stack.http().chat("m", json!({"max_tokens": 2})).await;
    assert!(matches!(error.status.as_u16(), 502 | 503), "{error:?}");
}
