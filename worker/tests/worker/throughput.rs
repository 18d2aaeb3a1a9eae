//! What an event costs the worker: not a test but a measurement, `cargo test --release -p muster-worker --test worker -- --ignored --nocapture`.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use muster_proto::v1::{
    Credit, InstanceRef, SessionCommand, SessionMessage, Start, event::Kind,
    session_command::Kind as Command, session_message::Kind as Message,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    gateway::{client, generate},
    rig::{Rig, stub},
};

const CREDIT: u32 = 128;

/// Clock ticks of 10 ms that a process has used.
fn cpu(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: u64 = fields[11..13]
        .iter()
        .map(|field| field.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

async fn stream(rig: &Rig, instance: &InstanceRef, streams: u64, time: Duration) -> (u64, u64) {
    let (commands, outgoing) = mpsc::channel(1 << 12);
    let mut client = client(&rig.worker.address).await;
    let mut inbound = client
        .session(ReceiverStream::new(outgoing))
        .await
        .unwrap()
        .into_inner();
    let send = |kind| commands.send(SessionCommand { kind: Some(kind) });
    let start = |handle| {
        Command::Start(Start {
            handle,
            ..generate(instance, &format!("prompt {handle}"), 1 << 19, CREDIT)
        })
    };
    for handle in 1..=streams {
        send(start(handle)).await.unwrap();
    }
    let mut owed: HashMap<u64, u32> = HashMap::new();
    let (mut events, mut ticks) = (0, 0);
    let begin = Instant::now();
    while begin.elapsed() < time {
        let Some(SessionMessage {
            kind: Some(Message::Tick(tick)),
        }) = inbound.message().await.unwrap()
        else {
            continue;
        };
        ticks += 1;
        for sequence in tick.sequences {
            let taken = sequence
                .events
                .iter()
                .filter(|event| matches!(event.kind, Some(Kind::Delta(_))))
                .count();
            events += u64::try_from(taken).unwrap();
            if sequence.finished {
                send(start(sequence.handle + streams)).await.unwrap();
                continue;
            }
            let owed = owed.entry(sequence.handle).or_default();
            *owed += u32::try_from(taken).unwrap();
            if *owed >= CREDIT / 2 {
                let credit = Credit {
                    handle: sequence.handle,
                    events: *owed,
                };
                *owed = 0;
                send(Command::Credit(credit)).await.unwrap();
            }
        }
    }
    (events, ticks)
}

#[tokio::test]
#[ignore = "a measurement"]
async fn events() {
    let rig = Rig::start(&[]).await;
    let instance = rig.load(stub("m", |settings, _| settings.sequences = 256)).await;
    let status = rig
        .session
        .look(|view| view.instances[&instance.instance_id].clone());
    let engine = status.engine.last().unwrap().pid;
    for streams in [1, 16, 64, 256] {
        let before = (cpu(rig.worker.pid()), cpu(engine), cpu(std::process::id()));
        let begin = Instant::now();
        let (events, ticks) = stream(&rig, &instance, streams, Duration::from_secs(3)).await;
        let seconds = begin.elapsed().as_secs_f64();
        let after = (cpu(rig.worker.pid()), cpu(engine), cpu(std::process::id()));
        let per_event =
            |before: Duration, after: Duration| (after - before).as_secs_f64() * 1e6 / events as f64;
        println!(
            "{streams:4} streams: {:8.0} events/s, {:5.1} events/tick; per event: worker {:.2} µs, engine {:.2} µs, client {:.2} µs",
            events as f64 / seconds,
            events as f64 / ticks as f64,
            per_event(before.0, after.0),
            per_event(before.1, after.1),
            per_event(before.2, after.2),
        );
    }
}
