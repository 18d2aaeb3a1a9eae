//! The stub's own promises: failure points, pace, memory.

use std::time::{Duration, Instant};

use muster_core::Code;
use muster_proto::v1::{ModelSettings, StubSettings};
use tokio::time::timeout;

use crate::{
    harness::{Bench, PATIENCE, Talk, alive, load, prompt},
    kit::{Subject, streams_stay_separate, tokens},
};

fn settings(stub: StubSettings) -> ModelSettings {
    ModelSettings {
        stub: Some(stub),
        ..Default::default()
    }
}

fn fail(point: &str) -> ModelSettings {
    settings(StubSettings {
        fail: point.into(),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_failed_load_says_why_and_leaves_nothing() {
    let bench = Bench::new();
    for (point, code) in [
        ("load", "model_load_failed"),
        ("abort_load", "model_load_failed"),
        ("nonsense", "invalid_load_request"),
    ] {
        let mut load = load(fail(point));
        let error = bench.runtime("stub").launch(load.launch).await.unwrap_err();
        assert_eq!(error.info.code.as_str(), code, "{point}");
        let process = load
            .process
            .borrow_and_update()
            .clone()
            .expect("the process was announced");
        assert_eq!(process.tree(), []);
        if point == "abort_load" {
            assert_eq!(error.info.details["exit"], "signal 6");
        }
    }
}

#[tokio::test]
async fn a_cancelled_or_dropped_load_ends_its_engine() {
    let bench = Bench::new();
    for cancel in [true, false] {
        let mut load = load(fail("hang_load"));
        let mut launch = Box::pin(bench.runtime("stub").launch(load.launch));
        tokio::select! {
            _ = &mut launch => panic!("it hangs"),
            // Known as soon as its keeper is; told again once it runs.
            process = load.process.wait_for(|process| process.as_ref().is_some_and(|process| !process.tree().is_empty())) => drop(process.unwrap()),
        }
        let process = load.process.borrow().clone().unwrap();
        let pid = process.tree()[0].pid;
        if cancel {
            load.cancel.cancel();
            assert_eq!(launch.await.unwrap_err().info.code, Code::LoadCancelled);
            assert_eq!(process.tree(), []);
        } else {
            drop(launch);
            timeout(PATIENCE, process.gone()).await.unwrap();
        }
        assert!(!alive(pid));
    }
}

#[tokio::test]
async fn loads_take_their_time_and_their_memory() {
    let bench = Bench::new();
    let stub = StubSettings {
        load_time_ms: 100,
        memory_mib: 50,
        ..Default::default()
    };
    let load = load(settings(stub));
    let begin = Instant::now();
    let engine = bench.runtime("stub").launch(load.launch).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(100));
    assert!(load.progress.borrow().fraction > 0.0);
    let pid = engine.process.tree()[0].pid;
    let pss = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let kib: u64 = pss
        .lines()
        .find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse().ok())
        .unwrap();
    assert!((50 << 10..90 << 10).contains(&kib), "{kib} KiB");
    Talk::new(engine).unload().await;
}

#[tokio::test]
async fn tokens_come_at_the_pace_asked_for() {
    let bench = Bench::new();
    let stub = StubSettings {
        tokens_per_second: 100,
        tokens: 11,
        prompt_us_per_word: 10_000,
        ..Default::default()
    };
    let mut talk = Talk::new(bench.launch("stub", settings(stub)).await.unwrap());
    let begin = Instant::now();
    let handle = talk.generate(prompt("one two three"), 100).await;
    talk.finish(handle).await;
    assert!(
        (130..400).contains(&begin.elapsed().as_millis()),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn lost_ticks_end_the_engine() {
    let bench = Bench::new();
    let mut talk = Talk::new(bench.launch("stub", fail("gap_after_tokens:5")).await.unwrap());
    talk.generate(prompt("x"), 1000).await;
    while talk.step().await {}
    timeout(PATIENCE, talk.engine.process.gone()).await.unwrap();
}

#[tokio::test]
async fn a_stalled_engine_still_says_that_it_lives_and_is_busy() {
    use muster_proto::v1::session_message::Kind;
    let bench = Bench::new();
    let mut engine = bench.launch("stub", fail("stall_after_tokens:5")).await.unwrap();
    let start = muster_proto::v1::Start {
        handle: 1,
        credit: 1000,
        work: Some(muster_proto::v1::start::Work::Generate(prompt("x"))),
        ..Default::default()
    };
    let kind = Some(muster_proto::v1::session_command::Kind::Start(start));
    engine
        .link
        .commands
        .send(muster_proto::v1::SessionCommand { kind })
        .await
        .unwrap();
    loop {
        let message = timeout(PATIENCE, engine.link.messages.recv())
            .await
            .unwrap()
            .expect("it lives");
        if let Some(Kind::Alive(alive)) = message.kind
            && alive.busy_for.is_some()
        {
            break;
        }
    }
}

const STUB: Subject = Subject {
    runtime: "stub",
    settings: plain,
    bound: Duration::from_millis(200),
};

fn plain() -> ModelSettings {
    ModelSettings {
        ctx_size: 4096,
        ..settings(StubSettings {
            tokens_per_second: 500,
            ..Default::default()
        })
    }
}

fn many() -> ModelSettings {
    ModelSettings {
        sequences: 64,
        ..settings(StubSettings::default())
    }
}

crate::kit::conforms!(STUB);

#[tokio::test]
async fn streams_of_many_stay_separate() {
    let ask = |i: u32| tokens(&format!("stream {i}"), 500);
    let bench = Bench::new();
    let mut talk = Subject {
        settings: many,
        ..STUB
    }
    .talk(&bench)
    .await;
    let mut alone = Vec::new();
    for i in 0..65 {
        let handle = talk.generate(ask(i), 1000).await;
        alone.push(talk.finish(handle).await.text());
    }
    let own = |i: u32, text: &str| alone[usize::try_from(i).unwrap()] == text;
    streams_stay_separate(
        Subject {
            settings: many,
            ..STUB
        },
        ask,
        own,
    )
    .await;
}
