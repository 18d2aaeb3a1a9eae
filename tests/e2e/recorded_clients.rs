//! What Open WebUI and Continue send, and what they read from the answers (`fixtures/clients.json`, written from their sources, each case with its
//! source): a client is not here, its requests are.

use std::{collections::BTreeMap, time::Duration};

use muster_tests::{Engine, Http, Stack, engines::test_model};
use reqwest::Method;
use serde::Deserialize;
use serde_json::Value;

/// A request of a client.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    client: String,
    source: String,
    /// What the client wants with it.
    asks: String,
    method: String,
    path: String,
    headers: BTreeMap<String, String>,
    body: Value,
    form: Form,
    /// What it reads from the body.
    #[serde(default)]
    reads: Reads,
    /// What it reads from a stream, each in at least one of its parts.
    #[serde(default)]
    some: Reads,
    /// What it reads from the last part of a stream.
    #[serde(default)]
    last: Reads,
}

/// JSON pointers, each with what must be there.
type Reads = BTreeMap<String, String>;

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Form {
    /// One JSON value.
    Body,
    /// One JSON value in each line, as Ollama streams.
    Lines,
    /// Server-sent events, as OpenAI streams.
    Events,
}

/// Whether a value is what a client takes it for.
fn fits(value: Option<&Value>, wanted: &str) -> bool {
    let Some(value) = value else { return false };
    let text = value.as_str();
    match wanted {
        "string" => text.is_some(),
        "text" => text.is_some_and(|text| !text.is_empty()),
        "number" => value.is_number(),
        "list" => value.is_array(),
        "object" => value.is_object(),
        // Python's `datetime.fromisoformat`, and a version of numbers.
        "time" => text.is_some_and(|text| text.parse::<jiff::Timestamp>().is_ok()),
        "version" => text.is_some_and(|text| text.split('.').all(|part| part.parse::<u32>().is_ok())),
        literal => {
            let literal = literal.strip_prefix('=').expect("a kind of value");
            serde_json::from_str::<Value>(literal).unwrap() == *value
        }
    }
}

fn missing(value: &Value, reads: &Reads) -> Vec<String> {
    let wrong = reads
        .iter()
        .filter(|(at, wanted)| !fits(value.pointer(at), wanted));
    wrong.map(|(at, wanted)| format!("{at} is no {wanted}")).collect()
}

/// The parts of a stream.
fn parts(form: Form, text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| !line.is_empty());
    let of_stream = lines.filter_map(|line| match form {
        Form::Events => line.strip_prefix("data: "),
        Form::Lines | Form::Body => Some(line),
    });
    let parts = of_stream.filter(|part| *part != "[DONE]");
    parts.map(|part| serde_json::from_str(part).unwrap()).collect()
}

/// What the client would stumble over.
async fn stumbles(client: &reqwest::Client, base: &str, case: &Case) -> Vec<String> {
    let method = Method::from_bytes(case.method.as_bytes()).unwrap();
    let mut request = client
        .request(method, format!("{base}{}", case.path))
        .timeout(Duration::from_secs(60));
    for (name, value) in &case.headers {
        request = request.header(name, value);
    }
    if !case.body.is_null() {
        request = request.body(case.body.to_string());
    }
    let answer = request.send().await.unwrap();
    let status = answer.status();
    let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let text = answer.text().await.unwrap();
    if status != 200 {
        return vec![format!("{status} {text}")];
    }
    let expected = match case.form {
        Form::Body => "application/json",
        Form::Lines => "application/x-ndjson",
        Form::Events => "text/event-stream",
    };
    let mut wrong = Vec::new();
    if !kind.starts_with(expected) {
        wrong.push(format!("its type is {kind}"));
    }
    if case.form == Form::Body {
        wrong.extend(missing(&serde_json::from_str(&text).unwrap(), &case.reads));
    } else {
        let parts = parts(case.form, &text);
        wrong.extend(missing(parts.last().unwrap(), &case.last));
        let nowhere = case
            .some
            .iter()
            .filter(|(at, wanted)| !parts.iter().any(|part| fits(part.pointer(at), wanted)));
        wrong.extend(nowhere.map(|(at, wanted)| format!("{at} is nowhere {wanted}")));
    }
    if !wrong.is_empty() {
        wrong.push(text);
    }
    wrong
}

async fn replay(engine: Engine) {
    // In the order of their names: the first is the one that lists begin with.
    let chat = test_model("tiny-chat");
    let models = engine.serving(&test_model("tiny-embed"), "e", 1, "labels = [\"embeddings\"]")
        + &engine.serving(&test_model("tiny-infill"), "f", 1, "")
        + &engine.serving(&test_model("tiny-rerank"), "r", 1, "labels = [\"reranking\"]")
        + &engine.serving(&chat, "m", 2, "")
        + &engine.serving(&chat, "u", 1, "");
    let stack = Stack::with("[policy]\nmax_loaded_models = -1\n".to_owned() + &models)
        .start()
        .await;
    let cases: Vec<Case> = serde_json::from_str(include_str!("fixtures/clients.json")).unwrap();
    let (client, base) = (
        muster_tests::http::client(),
        Http::new(stack.gateway_address()).base().to_owned(),
    );
    let mut wrong = Vec::new();
    for case in &cases {
        let stumbles = stumbles(&client, &base, case).await;
        if !stumbles.is_empty() {
            let Case {
                client,
                asks,
                path,
                source,
                ..
            } = case;
            wrong.push(format!(
                "{client} {asks} ({path}; {source}): {}",
                stumbles.join("; ")
            ));
        }
    }
    assert!(wrong.is_empty(), "{engine:?}\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn open_webui_and_continue_stumble_over_nothing_of_llama_cpp() {
    replay(Engine::LlamaCpp).await;
}

#[tokio::test]
async fn open_webui_and_continue_stumble_over_nothing_of_llama_server() {
    replay(Engine::LlamaServer).await;
}
