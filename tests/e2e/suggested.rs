//! Well-known models that nobody configured: listed where all are asked for, pulled by name, deleted again (seed 000).

use std::{fs, time::Duration};

use muster_tests::{Hub, Stack, engines, eventually};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);
const ID: &str = "Qwen3-0.6B-GGUF";
const REPO: &str = "unsloth/Qwen3-0.6B-GGUF";

async fn hub() -> Hub {
    let hub = Hub::start().await;
    let model = fs::read(engines::test_model("tiny-chat")).unwrap();
    hub.put(REPO, "Qwen3-0.6B-Q4_0.gguf", model);
    hub
}

async fn start(hub: &Hub, config: &str) -> Stack {
    let stack = Stack::with(config).worker_env(&[("HF_ENDPOINT", &hub.endpoint())]);
    stack.start().await
}

async fn ids(stack: &Stack, query: &str) -> Vec<String> {
    let list = stack.http().get(&format!("/api/v1/models{query}")).await.ok();
    let rows = list["data"].as_array().unwrap().iter();
    rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_well_known_model_is_pulled_by_name_used_and_deleted() {
    let hub = hub().await;
    let stack = start(&hub, "").await;
    let http = stack.http();
    assert!(ids(&stack, "").await.is_empty());
    let all = ids(&stack, "?show_all=true").await;
    assert!(all.len() >= 40 && all.is_sorted(), "{all:?}");
    let row = http.get(&format!("/api/v1/models/{ID}")).await.ok();
    for (key, value) in [
        ("checkpoint", json!(format!("{REPO}:Q4_0"))),
        ("recipe", json!("llamacpp")),
        ("size", json!(0.38)),
        ("downloaded", json!(false)),
        ("suggested", json!(true)),
        ("labels", json!(["reasoning", "suggested"])),
    ] {
        assert_eq!(row[key], value, "{key}");
    }
    // Nobody but an operator begins such a download.
    let error = http.chat(ID, json!({})).await.error(404);
    assert_eq!(error["code"], "unknown_model", "{error}");
    assert_eq!(hub.requests(), 0);
    let body = json!({"model_name": ID});
    http.post("/api/v1/pull", &body).await.ok();
    let here = async || {
        let here = ids(&stack, "").await;
        if here == [ID] { Ok(()) } else { Err(here) }
    };
    eventually("it is here", LIMIT, here).await;
    assert_eq!(ids(&stack, "?show_all=true").await, all);
    let answer = http.chat(ID, json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
    http.post("/api/v1/delete", &body).await.ok();
    let gone = async || {
        let row = http.get(&format!("/api/v1/models/{ID}")).await.ok();
        if row["downloaded"] == false && ids(&stack, "").await.is_empty() {
            Ok(())
        } else {
            Err(row)
        }
    };
    eventually("it is a suggestion again", LIMIT, gone).await;
    // A load downloads too; what cannot be had stays a suggestion.
    http.post("/api/v1/load", &body).await.ok();
    let error = http
        .post("/api/v1/pull", &json!({"model_name": "Qwen3-4B-GGUF"}))
        .await;
    assert_eq!(error.error(403)["code"], "checkpoint_forbidden");
    assert_eq!(ids(&stack, "").await, [ID]);
}

#[tokio::test]
async fn what_is_in_the_cache_already_is_found_over_restarts() {
    let hub = hub().await;
    let mut stack = start(&hub, "").await;
    let snapshot = stack.path("hub/models--unsloth--Qwen3-0.6B-GGUF/snapshots/c1");
    fs::create_dir_all(&snapshot).unwrap();
    let model = engines::test_model("tiny-chat");
    fs::copy(model, snapshot.join("Qwen3-0.6B-Q4_0.gguf")).unwrap();
    stack.stop(muster_tests::Role::Controller, LIMIT).await;
    stack.start_process(muster_tests::Role::Controller).await;
    let here = async || {
        let here = ids(&stack, "").await;
        if here == [ID] { Ok(()) } else { Err(here) }
    };
    eventually("it is found", LIMIT, here).await;
    let answer = stack.http().chat(ID, json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
    assert_eq!(hub.requests(), 0);
}

#[tokio::test]
async fn the_configuration_replaces_one_and_may_want_none() {
    let hub = hub().await;
    let own = format!("[models.\"{ID}\"]\nrecipe = \"llamacpp\"\ncheckpoint = \"muster/own-GGUF:Q8_0\"\n");
    let stack = start(&hub, &own).await;
    let list = stack.http().get("/api/v1/models?show_all=true").await.ok();
    let rows: Vec<&Value> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["id"] == ID)
        .collect();
    assert_eq!(
        (rows.len(), &rows[0]["checkpoint"]),
        (1, &json!("muster/own-GGUF:Q8_0"))
    );
    let none = start(&hub, &format!("[catalogue]\nbuiltin = false\n{own}")).await;
    assert_eq!(ids(&none, "?show_all=true").await, [ID]);
}
