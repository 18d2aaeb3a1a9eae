//! Clients of llama.cpp's server: its own tests' in Python (`sdk/llama_cpp_client.py`), against a single model and against several.

use std::{fs, process::Command};

use muster_proto::net::Address;
use muster_tests::{
    Engine, Hub, Stack,
    engines::{required, test_model},
};

use crate::{clients::run, up::Up};

async fn client(words: &[&str], at: &Address, more: &[&str]) {
    let mut command = Command::new(required("MUSTER_TEST_PYTHON"));
    command
        .arg(format!(
            "{}/e2e/sdk/llama_cpp_client.py",
            env!("CARGO_MANIFEST_DIR")
        ))
        .args(words)
        .arg(format!("http://{at}"))
        .args(more);
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn llama_cpps_client_names_no_model() {
    let model = test_model("tiny-chat");
    let up = Up::start("", &["--model", model.to_str().unwrap()]).await;
    client(&["native"], &up.http, &[]).await;
}

#[tokio::test]
async fn llama_cpps_client_downloads_loads_and_deletes_through_the_router() {
    const REPO: &str = "muster/tiny-GGUF";
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", fs::read(test_model("tiny-chat")).unwrap());
    let others = ["a", "b"].map(|id| Engine::Stub.model(id, 1, "")).concat();
    let stack = Stack::with(others)
        .worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
        .start()
        .await;
    let model = format!("{REPO}:Q8_0");
    client(&["router"], stack.gateway_address(), &[&model]).await;
}
