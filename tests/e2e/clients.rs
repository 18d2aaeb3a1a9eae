//! Other people's clients: the real `grpcurl` without any proto file, the packages of OpenAI (Python and JavaScript), Anthropic and Ollama, and
//! LangChain.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use muster_tests::{
    Engine, Hub, Stack,
    engines::{required, test_model},
};
use serde_json::{Value, json};

pub(crate) async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().expect("it can be started"))
        .await
        .unwrap()
}

async fn grpcurl(stack: &Stack, worker: bool, before: &[&str], after: &[&str]) -> String {
    let address = if worker {
        stack.worker_address(0)
    } else {
        stack.controller_address()
    };
    let mut command = Command::new(required("MUSTER_TEST_GRPCURL"));
    command
        .arg("-plaintext")
        .args(before)
        .arg(address.to_string())
        .args(after);
    let output = run(command).await;
    assert!(
        output.status.success(),
        "{after:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// grpcurl prints messages one after the other.
fn messages(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap()
}

#[tokio::test]
async fn grpcurl_finds_its_way_by_reflection() {
    let stack = Stack::with(Engine::Stub.model("tiny", 1, "stub.load_time_ms = 100"))
        .start()
        .await;
    let services = grpcurl(&stack, false, &[], &["list"]).await;
    // What operators are served, and nothing that the processes say to each other.
    let served = ["grpc.health.v1.Health", "muster.v1.Control", "muster.v1.Models"];
    assert_eq!(services.lines().collect::<Vec<_>>(), served);
    let described = grpcurl(&stack, false, &[], &["describe", "muster.v1.Control"]).await;
    assert!(described.contains("rpc LoadModel"), "{described}");

    let listed = &messages(&grpcurl(&stack, false, &[], &["muster.v1.Control/ListModels"]).await)[0];
    assert_eq!(listed["models"][0]["id"], "tiny");
    let load = grpcurl(
        &stack,
        false,
        &["-d", r#"{"model":"tiny"}"#],
        &["muster.v1.Control/LoadModel"],
    )
    .await;
    let events = messages(&load);
    assert!(events.len() >= 2, "progress before the end: {load}");
    assert_eq!(events.last().unwrap()["loaded"]["status"], "MODEL_STATUS_LOADED");
    let health = grpcurl(&stack, false, &[], &["grpc.health.v1.Health/Check"]).await;
    assert!(health.contains("SERVING"), "{health}");

    let services = grpcurl(&stack, true, &[], &["list"]).await;
    let served = [
        "grpc.health.v1.Health",
        "muster.v1.Host",
        "muster.v1.Inference",
        "muster.v1.Uploads",
    ];
    assert_eq!(services.lines().collect::<Vec<_>>(), served);
    let call = r#"{"model":"tiny","request":{"chat":{"messages":[{"role":"user","parts":[{"text":"hi"}]}]},"max_tokens":4}}"#;
    let generated = messages(&grpcurl(&stack, true, &["-d", call], &["muster.v1.Inference/Generate"]).await);
    assert!(
        generated.first().unwrap().get("admitted").is_some(),
        "{generated:?}"
    );
    assert!(
        generated.last().unwrap().get("finished").is_some(),
        "{generated:?}"
    );
}

#[tokio::test]
async fn grpcurl_shows_errors_with_their_code() {
    let stack = Stack::with(Engine::Stub.model("tiny", 1, "")).start().await;
    let mut command = Command::new(required("MUSTER_TEST_GRPCURL"));
    command.args([
        "-plaintext",
        "-d",
        r#"{"model":"nobody"}"#,
        &stack.controller_address().to_string(),
        "muster.v1.Control/GetModel",
    ]);
    let output = run(command).await;
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("NotFound") && said.contains("unknown_model"),
        "{said}"
    );
}

/// Runs these clients one after the other, each through its own script, against a chat model and an embedding model of one engine.
async fn sdks(engine: Engine, name: &str) {
    let embed = engine.serving(
        &test_model("tiny-embed"),
        "tiny-embed",
        1,
        "labels = [\"embeddings\"]",
    );
    let stack = Stack::with(engine.model("tiny-chat", 2, "") + &embed)
        .start()
        .await;
    for client in [
        "openai_client.py",
        "anthropic_client.py",
        "ollama_client.py",
        "langchain_client.py",
        "openai_client.js",
    ] {
        let script = format!("{}/e2e/sdk/{client}", env!("CARGO_MANIFEST_DIR"));
        let mut command = if client.ends_with(".js") {
            Command::new("node")
        } else {
            Command::new(required("MUSTER_TEST_PYTHON"))
        };
        command
            .env("NODE_PATH", required("MUSTER_TEST_NODE_MODULES"))
            .arg(script)
            .arg(format!("http://{}", stack.gateway_address()))
            .arg(name);
        let output = run(command).await;
        assert!(
            output.status.success(),
            "{client}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[tokio::test]
async fn official_clients_talk_to_the_stub() {
    sdks(Engine::Stub, "stub").await;
}

#[tokio::test]
async fn official_clients_talk_to_llama_cpp() {
    sdks(Engine::LlamaCpp, "llama_cpp").await;
}

#[tokio::test]
async fn official_clients_talk_to_llama_server() {
    sdks(Engine::LlamaServer, "llama_server").await;
}

/// Ollama's package with the model that ships, which calls tools of its own accord.
#[tokio::test]
async fn ollamas_client_receives_calls_of_tools() {
    let stack = crate::demo::stack(Engine::LlamaCpp).await;
    let mut command = Command::new(required("MUSTER_TEST_PYTHON"));
    command
        .arg(format!("{}/e2e/sdk/ollama_client.py", env!("CARGO_MANIFEST_DIR")))
        .arg(format!("http://{}", stack.gateway_address()))
        .arg("demo");
    let output = run(command).await;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `reasoning_tokens` once was 0 however long a model thought.
#[tokio::test]
async fn thinking_is_counted() {
    let stack = crate::demo::stack(Engine::LlamaCpp).await;
    let question = "What is the capital of France?";
    let chat = json!({"messages": [{"role": "user", "content": question}], "enable_thinking": true, "temperature": 0});
    let chat = stack.http().chat("muster-demo", chat).await.ok();
    let usage = &chat["usage"];
    let thought = usage["completion_tokens_details"]["reasoning_tokens"]
        .as_u64()
        .unwrap();
    assert!(
        0 < thought && thought < usage["completion_tokens"].as_u64().unwrap(),
        "{chat}"
    );
    let body = json!({"model": "muster-demo", "input": question, "thinking": "enabled", "temperature": 0});
    let response = stack.http().post("/v1/responses", &body).await.ok();
    assert_eq!(response["output"][0]["type"], "reasoning");
    assert_eq!(
        response["usage"]["output_tokens_details"]["reasoning_tokens"], thought,
        "{response}"
    );
}

/// Questions stand for themselves: what one made or saved is not taken up by the next, whose answers would depend on the order of all (a pull waits
/// half a minute for a device that an earlier question saved for its model).
const SCHEMATHESIS: &str = "
[phases.coverage]
extra-data-sources.responses = false
[phases.fuzzing]
extra-data-sources.responses = false
# What llama.cpp's routes answer where a model or a runtime cannot (seed 004).
[checks.not_a_server_error]
expected-statuses = [\"2xx\", \"3xx\", \"4xx\", \"501\"]
";

/// Questions made from the gateway's own OpenAPI document, good and bad ones: none may be answered with a server's error, or in a form that
/// the document does not know.
#[tokio::test]
async fn schemathesis_finds_nothing_that_the_document_does_not_say() {
    // The document's example of a pull is made as it stands.
    let hub = Hub::start().await;
    let file = fs::read(test_model("tiny-chat")).unwrap();
    hub.put(
        "unsloth/Phi-4-mini-instruct-GGUF",
        "Phi-4-mini-instruct-Q4_K_M.gguf",
        file,
    );
    let stack = Stack::with(Engine::Stub.model("tiny-chat", 2, ""))
        .worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
        .start()
        .await;
    let python = PathBuf::from(required("MUSTER_TEST_PYTHON"));
    fs::write(stack.directory().join("questions.toml"), SCHEMATHESIS).unwrap();
    let mut command = Command::new(python.with_file_name("schemathesis"));
    command
        .current_dir(stack.directory())
        .args(["--config-file", "questions.toml", "--no-color", "run"])
        .arg(format!("http://{}/openapi.json", stack.gateway_address()))
        .args(["--phases", "coverage,fuzzing", "--max-examples", "8", "--max-time", "60"])
        .args(["--generation-deterministic", "--no-shrink", "--request-timeout", "20"])
        // Its 503 for a model that is not loaded is llama.cpp's own and no failure (seed 004, `GET /health`).
        .args(["--exclude-path", "/health"])
        .arg("--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance");
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
}
