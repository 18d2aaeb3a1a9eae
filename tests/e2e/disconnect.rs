//! Clients that go away: the sequence is free within 200 ms (issue "a model answers", Must show 4).

use std::time::Duration;

use muster_proto::v1::{DescribeResponse, SequencePhase};
use muster_tests::{Engine, Stack, eventually, http};
use serde_json::{Value, json};

crate::for_each_runtime!(
    a_client_that_leaves_in_decode_frees_the_sequence,
    a_client_that_leaves_the_queue_is_forgotten,
    a_client_that_leaves_a_whole_answer_frees_the_sequence,
);

const FREE_WITHIN: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(20);

fn model(engine: Engine, sequences: u32) -> String {
    let more = if engine == Engine::Stub {
        "stub.tokens_per_second = 100"
    } else {
        "ctx_size = 8192"
    };
    engine.model("m", sequences, more)
}

fn endless() -> Value {
    json!({"max_tokens": 20000, "ignore_eos": true})
}

/// (running, queued, sequences at work) of the one instance of `m`; nothing while there is none.
fn load(description: &DescribeResponse) -> (u32, u32, usize) {
    let mut instances = description.instances.iter();
    let live = instances.find_map(|instance| {
        let status = instance
            .status
            .as_ref()
            .filter(|status| status.failure.is_none())?;
        let sequences = instance.engine.iter().flat_map(|engine| &engine.sequences);
        let busy = sequences
            .filter(|sequence| sequence.phase() != SequencePhase::Idle)
            .count();
        Some((status.running, status.queued, busy))
    });
    live.unwrap_or_default()
}

async fn becomes(stack: &Stack, what: &str, limit: Duration, wanted: (u32, u32)) {
    let probe = async || {
        let (running, queued, busy) = load(&stack.describe(0).await);
        let quiet = wanted.0 > 0 || busy == 0;
        if (running, queued) == wanted && quiet {
            Ok(())
        } else {
            Err((running, queued, busy))
        }
    };
    let ((), took) = eventually(what, limit, probe).await;
    println!("{what}: {took:?}");
}

async fn a_client_that_leaves_in_decode_frees_the_sequence(engine: Engine) {
    let stack = Stack::with(model(engine, 2)).start().await;
    let mut stream = stack.http().chat_stream("m", endless()).await;
    stream.chunks(&mut http::Chat::default(), 3).await;
    assert_eq!(load(&stack.describe(0).await).0, 1);
    drop(stream);
    becomes(&stack, "free after decode", FREE_WITHIN, (0, 0)).await;
    assert!(
        !stack
            .http()
            .chat("m", json!({"max_tokens": 2}))
            .await
            .chat_text()
            .is_empty()
    );
}

async fn a_client_that_leaves_the_queue_is_forgotten(engine: Engine) {
    let stack = Stack::with(model(engine, 1)).start().await;
    let mut stream = stack.http().chat_stream("m", endless()).await;
    stream.chunks(&mut http::Chat::default(), 1).await;
    let http = stack.http();
    let waiting = tokio::spawn(async move { http.chat_stream("m", endless()).await });
    becomes(&stack, "queued", LIMIT, (1, 1)).await;
    waiting.abort();
    becomes(&stack, "forgotten in the queue", FREE_WITHIN, (1, 0)).await;
    drop(stream);
    becomes(&stack, "free", FREE_WITHIN, (0, 0)).await;
}

async fn a_client_that_leaves_a_whole_answer_frees_the_sequence(engine: Engine) {
    let stack = Stack::with(model(engine, 1)).start().await;
    stack.http().chat("m", json!({"max_tokens": 1})).await.ok();
    let http = stack.http();
    let waiting = tokio::spawn(async move { http.chat("m", endless()).await });
    becomes(&stack, "running", LIMIT, (1, 0)).await;
    waiting.abort();
    becomes(&stack, "free after a whole answer", FREE_WITHIN, (0, 0)).await;
}

/// Prompts of the tiny model are read in no time, so the stub takes its time instead.
#[tokio::test]
async fn a_client_that_leaves_in_prefill_frees_the_sequence() {
    let stack = Stack::with(Engine::Stub.model("m", 1, "stub.prompt_us_per_word = 50000"))
        .start()
        .await;
    let http = stack.http();
    let long = "word ".repeat(400);
    let waiting = tokio::spawn(async move {
        http.chat_stream("m", json!({"messages": [{"role": "user", "content": long}]}))
            .await
    });
    becomes(&stack, "running", LIMIT, (1, 0)).await;
    waiting.abort();
    becomes(&stack, "free after prefill", FREE_WITHIN, (0, 0)).await;
}

/// The same on the real engine, with the largest of the generated models and a prompt of thousands of tokens.
#[tokio::test]
async fn a_client_that_leaves_in_prefill_frees_the_sequence_of_llama_cpp() {
    let checkpoint = muster_tests::engines::test_model("bench-chat");
    let config = format!(
        "[models.m]\nruntime = 'llama_cpp'\ncheckpoint = {checkpoint:?}\nparallel = 1\nthreads = 1\nctx_size = 32768\n"
    );
    let stack = Stack::with(config).start().await;
    stack.http().chat("m", json!({"max_tokens": 1})).await.ok();
    let http = stack.http();
    let long = "the sea and the ships ".repeat(2500);
    let waiting = tokio::spawn(async move {
        http.chat_stream("m", json!({"messages": [{"role": "user", "content": long}]}))
            .await
    });
    let probe = async || {
        let description = stack.describe(0).await;
        let phases: Vec<_> = description
            .instances
            .iter()
            .filter_map(|instance| instance.engine.as_ref())
            .flat_map(|engine| &engine.sequences)
            .map(|sequence| sequence.phase())
            .collect();
        if phases.contains(&SequencePhase::Prefill) {
            Ok(())
        } else {
            Err(phases)
        }
    };
    eventually("the prompt is being read", LIMIT, probe).await;
    waiting.abort();
    becomes(&stack, "free after prefill", FREE_WITHIN, (0, 0)).await;
}

#[tokio::test]
async fn clients_that_leave_a_loading_model_leave_nothing_behind() {
    let stack = Stack::with(Engine::Stub.model("m", 1, "stub.load_time_ms = 500"))
        .start()
        .await;
    let http = stack.http();
    let waiting = tokio::spawn(async move { http.chat("m", endless()).await });
    let started = async || {
        if stack.stats().await.loads_started == 1 {
            Ok(())
        } else {
            Err("not started")
        }
    };
    eventually("the load begins", LIMIT, started).await;
    waiting.abort();
    // A running load finishes; nothing runs on it.
    stack
        .model_is("m", muster_proto::v1::ModelStatus::Loaded, LIMIT)
        .await;
    becomes(&stack, "idle", LIMIT, (0, 0)).await;
    let released = async || {
        let holds = stack.instance(0, "m").await.hold_ids;
        if holds.is_empty() { Ok(()) } else { Err(holds) }
    };
    eventually("the hold is released", LIMIT, released).await;
}
