//! In the place of llama.cpp's server: requests as its clients send them, without a model or with any name, against what a real `llama-server`
//! answered (`fixtures/llama_server.json`, written by `tests/tools/record_llama_server.py`). Statuses are equal, and no field is missing; ours may
//! have more.

use std::collections::BTreeSet;

use muster_tests::{
    Http,
    engines::{required, test_model},
};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::up::Up;

#[derive(Deserialize)]
struct Recorded {
    method: String,
    path: String,
    body: Value,
    status: u16,
    shape: BTreeSet<String>,
}

/// Each path of a value with the type that stands there; of a list, what its first item has.
fn shape(value: &Value, path: &str, out: &mut BTreeSet<String>) {
    let leaf = |kind: &str| format!("{path}: {kind}");
    match value {
        Value::Object(fields) => {
            for (key, inner) in fields {
                shape(inner, &format!("{path}/{key}"), out);
            }
        }
        Value::Array(items) => {
            out.insert(format!("{path}[]"));
            if let Some(first) = items.first() {
                shape(first, &format!("{path}[]"), out);
            }
        }
        Value::Null => drop(out.insert(leaf("null"))),
        Value::Bool(_) => drop(out.insert(leaf("boolean"))),
        Value::Number(_) => drop(out.insert(leaf("number"))),
        Value::String(_) => drop(out.insert(leaf("string"))),
    }
}

/// The first, the second and the last event of a stream.
fn events(text: &str) -> Value {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = lines
        .filter(|event| *event != "[DONE]")
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    json!({"first": events[0], "second": events[1], "last": events[events.len() - 1]})
}

/// What is lacking in an answer.
async fn lacking(http: &Http, recorded: &Recorded) -> Vec<String> {
    let method = Method::from_bytes(recorded.method.as_bytes()).unwrap();
    let body = if recorded.body.is_null() {
        String::new()
    } else {
        recorded.body.to_string()
    };
    let reply = http.send(method, &recorded.path, body).await;
    if reply.status.as_u16() != recorded.status {
        return vec![format!(
            "status {} instead of {}: {}",
            reply.status, recorded.status, reply.text
        )];
    }
    let answer = if recorded.body["stream"] == json!(true) && recorded.status == 200 {
        events(&reply.text)
    } else {
        reply.json()
    };
    let mut ours = BTreeSet::new();
    shape(&answer, "", &mut ours);
    if recorded.path == "/slots" {
        // Seed 004 has one object where today's llama.cpp has a list of one.
        ours.extend(
            recorded
                .shape
                .iter()
                .filter(|path| path.contains("next_token"))
                .cloned(),
        );
    }
    if recorded.path.starts_with("/v1/") && recorded.status != 200 {
        // OpenAI's code of an error is a word.
        ours.insert("/error/code: number".to_owned());
    }
    // Which tokens mark calls and thoughts in an answer is told by no engine of ours.
    let marks = recorded
        .shape
        .iter()
        .filter(|path| path.ends_with("/preserved_tokens[]: number"));
    ours.extend(marks.cloned());
    // Other names than its own a model has none; llama.cpp lists its own among them.
    ours.insert("/data[]/aliases[]: string".to_owned());
    if answer["status"] == "incomplete" {
        // OpenAI's responses that were cut were never completed; llama.cpp calls them so.
        ours.insert("/completed_at: number".to_owned());
    }
    if recorded.body["return_progress"] == json!(true) {
        // Beside progress llama.cpp shows a token 0, which nobody generated.
        ours.extend(["first", "second"].map(|event| format!("/{event}/tokens[]: number")));
    }
    recorded.shape.difference(&ours).cloned().collect()
}

#[tokio::test]
async fn nothing_that_clients_of_llama_server_read_is_missing() {
    let up = Up::start(
        "",
        &[
            "--model",
            test_model("tiny-chat").to_str().unwrap(),
            "--ctx-size",
            "512",
            "--llamacpp-args",
            "--slots",
        ],
    )
    .await;
    let http = Http::new(&up.http);
    let turns = json!([{"role": "user", "content": "hi"}]);
    http.post(
        "/v1/chat/completions",
        &json!({"messages": turns, "max_tokens": 1}),
    )
    .await
    .ok();
    let started = http.get("/metrics").await.headers["process-start-time-unix"].clone();
    assert!(started.to_str().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
    let listed = &http.get("/v1/models").await.ok()["data"][0];
    assert!(
        listed["context_length"].is_u64() && listed["max_context_window"].is_u64(),
        "{listed}"
    );
    let recorded: Vec<Recorded> = serde_json::from_str(include_str!("fixtures/llama_server.json")).unwrap();
    assert!(recorded.len() > 25);
    let mut wrong = Vec::new();
    for one in &recorded {
        let lacking = lacking(&http, one).await;
        if !lacking.is_empty() {
            wrong.push(format!("{} {} {}: {lacking:?}", one.method, one.path, one.body));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A flag that only llama.cpp's own server has: the first load, which begins with the start, is already one of that server.
#[tokio::test]
async fn a_flag_of_llama_server_holds_for_the_load_at_the_start() {
    let model = test_model("tiny-chat");
    let server = required("MUSTER_TEST_LLAMA_SERVER");
    let up = Up::start(
        "",
        &[
            "--model",
            model.to_str().unwrap(),
            "--ctx-size",
            "512",
            "--llamacpp-args",
            "--metrics --no-cont-batching",
            "--llama-server",
            &server,
        ],
    )
    .await;
    let http = Http::new(&up.http);
    http.post("/completion", &json!({"prompt": "hi", "n_predict": 1}))
        .await
        .ok();
    let metrics = http.get("/metrics?model=tiny-chat").await;
    assert!(metrics.text.contains("llamacpp:"), "{metrics:?}");
    assert!(!up.running.log().contains("load_failed"), "{}", up.running.log());
}
