//! Many clients over more models than fit: everybody is answered, no rule of the policy is broken, and nothing is left behind.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use muster_proto::v1::{InstanceState, ListModelsRequest};
use muster_tests::{Engine, Role, Stack, eventually, http, processes};
use serde_json::json;

const CLIENTS: usize = 50;
const SLOTS: usize = 2;
const LIMIT: Duration = Duration::from_secs(30);

/// How long clients keep asking: `MUSTER_TEST_CROWD_SECONDS`, else a minute.
fn span() -> Duration {
    let seconds = std::env::var("MUSTER_TEST_CROWD_SECONDS").map_or(60, |text| text.parse().unwrap());
    Duration::from_secs(seconds)
}

/// Instances with an engine, or about to have one.
async fn hosted(stack: &Stack) -> usize {
    let request = ListModelsRequest {
        loaded_only: true,
        suggested: false,
    };
    let models = stack
        .control()
        .list_models(request)
        .await
        .unwrap()
        .into_inner()
        .models;
    let statuses = models
        .iter()
        .flat_map(|model| &model.instances)
        .filter_map(|instance| instance.status.as_ref());
    statuses
        .filter(|status| !matches!(status.state(), InstanceState::Gone | InstanceState::Failed))
        .count()
}

#[tokio::test]
async fn fifty_clients_over_five_models_with_two_slots_are_all_answered() {
    let stubs = ["a", "b", "c"].map(|id| {
        let more = "stub.load_time_ms = 20\nstub.memory_mib = 4\nstub.tokens_per_second = 200";
        Engine::Stub.model(id, 4, more)
    });
    let config = format!(
        "[policy]\nmax_loaded_models = {SLOTS}\n{}{}{}",
        stubs.concat(),
        Engine::LlamaCpp.model("d", 4, ""),
        Engine::LlamaServer.model("e", 4, "")
    );
    let mut stack = Stack::with(config)
        .devices(&["cpu", "sim:one:64MiB", "sim:two:64MiB"])
        .start()
        .await;
    let workers: Vec<u32> = (0..3)
        .map(|number| stack.process(Role::Worker(number)).pid())
        .collect();
    let until = Instant::now() + span();
    let http = stack.http();
    let clients = http::all(CLIENTS, |client| {
        let http = http.clone();
        async move {
            let models = ["a", "b", "c", "d", "e"];
            let (mut answered, mut slowest) = (0_u32, Duration::ZERO);
            for round in 0.. {
                if Instant::now() >= until {
                    break;
                }
                let asked = Instant::now();
                let model = models[(client + round * 3) % models.len()];
                let reply = http.chat(model, json!({"max_tokens": 4})).await;
                assert!(!reply.chat_text().is_empty(), "{model}");
                slowest = slowest.max(asked.elapsed());
                answered += 1;
            }
            (answered, slowest)
        }
    });
    let watch = async {
        let mut seen = (0, BTreeSet::new());
        while Instant::now() < until {
            seen.0 = seen.0.max(hosted(&stack).await);
            for worker in &workers {
                seen.1.extend(processes::descendants(*worker));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        seen
    };
    let (clients, (most, engines)) = tokio::join!(clients, watch);
    let answered: u32 = clients.iter().map(|(answered, _)| answered).sum();
    let slowest = clients
        .iter()
        .map(|(_, slowest)| *slowest)
        .max()
        .unwrap_or_default();
    let stats = stack.stats().await;
    println!(
        "{answered} answers in {:?}, the slowest after {slowest:?}; {} loads, {} evictions",
        span(),
        stats.loads_started,
        stats.evictions
    );
    assert!(
        clients.iter().all(|(answered, _)| *answered > 0),
        "somebody starved"
    );
    assert!(
        most <= SLOTS,
        "{most} models at once on a host with {SLOTS} slots"
    );
    assert!(stats.evictions > 2 && stats.loads_failed == 0, "{stats:?}");
    assert!(engines.len() > SLOTS, "engines were seen: {engines:?}");
    let log = stack.process(Role::Controller).log();
    assert!(
        !log.contains("invariant"),
        "a rule of the policy was broken: see the controller's log"
    );
    for worker in 0..3 {
        stack.stop(Role::Worker(worker), LIMIT).await;
    }
    let gone = async || {
        let left: Vec<u32> = engines
            .iter()
            .copied()
            .filter(|pid| processes::alive(*pid))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    };
    eventually("no engine outlives its worker", Duration::from_secs(2), gone).await;
}
