//! Revisions of the hub's repositories: pinned ones, and newer commits of those that are not.

use std::{fs, path::PathBuf, time::Duration};

use muster_proto::v1::ModelStatus;
use muster_tests::{Hub, Stack, StackBuilder, engines};
use serde_json::{Value, json};

pub(crate) const REPO: &str = "muster/tiny-GGUF";
const LIMIT: Duration = Duration::from_secs(60);
const PINNED: &str = "1111111111111111111111111111111111111111";
pub(crate) const NEWER: &str = "2222222222222222222222222222222222222222";

pub(crate) fn chatty() -> Vec<u8> {
    fs::read(engines::test_model("tiny-chat")).unwrap()
}

pub(crate) fn stack(hub: &Hub, config: &str) -> StackBuilder {
    Stack::with(config).worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
}

pub(crate) fn model(id: &str, more: &str) -> String {
    format!(
        "[models.{id}]\nrecipe = \"llamacpp\"\ncheckpoint = \"{REPO}:Q8_0\"\nctx_size = 256\nthreads = 1\n{more}\n"
    )
}

pub(crate) fn cache(stack: &Stack, below: &str) -> PathBuf {
    stack.path(&format!("hub/models--muster--tiny-GGUF/{below}"))
}

async fn downloaded(stack: &Stack, id: &str) -> Value {
    stack.http().get(&format!("/api/v1/models/{id}")).await.ok()["downloaded"].clone()
}

/// Runs the operators' command; its exit code and all that it says.
pub(crate) async fn muster(stack: &Stack, words: &[&str]) -> (i32, String) {
    let mut command = tokio::process::Command::new(muster_tests::binaries::find("muster"));
    command
        .args(["--controller", &stack.socket().to_string()])
        .args(words);
    let output = command.output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (
        output.status.code().unwrap(),
        text(&output.stdout) + &text(&output.stderr),
    )
}

#[tokio::test]
async fn a_model_is_of_the_revision_that_it_names() {
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", vec![7; 100_000]);
    hub.publish(REPO, "v1", PINNED, &[("tiny-Q8_0.gguf", &chatty())]);
    let config = model("pinned", "revision = \"v1\"") + &model("main", "");
    let stack = stack(&hub, &config).start().await;
    let answer = stack.http().chat("pinned", json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
    assert_eq!(fs::read_to_string(cache(&stack, "refs/v1")).unwrap(), PINNED);
    assert!(cache(&stack, &format!("snapshots/{PINNED}/tiny-Q8_0.gguf")).exists());
    assert_eq!(downloaded(&stack, "main").await, false, "it is another revision");
    // Every door takes the name.
    let http = stack.http();
    let lemonade = |id: &str, revision: &str| json!({"model_name": id, "checkpoint": format!("{REPO}:Q8_0"), "recipe": "llamacpp", "revision": revision});
    http.post("/api/v1/pull", &lemonade("user.lemonade", PINNED))
        .await
        .ok();
    let named = json!({"model": format!("{REPO}:Q8_0"), "revision": "v1"});
    http.post("/models", &named).await.ok();
    let words = [
        "pull",
        "user.command",
        "--checkpoint",
        "muster/tiny-GGUF:Q8_0",
        "--revision",
        PINNED,
    ];
    let (code, said) = muster(&stack, &words).await;
    assert_eq!(code, 0, "{said}");
    let router = format!("user.{REPO}:Q8_0");
    for (id, revision) in [
        ("user.lemonade", PINNED),
        ("user.command", PINNED),
        (&router, "v1"),
    ] {
        assert_eq!(stack.model(id).await.hub.unwrap().revision, revision, "{id}");
    }
    let answer = http.chat("user.lemonade", json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
    assert_eq!(hub.downloads(), 1, "the files are the same");
    // What is in the catalogue has a revision already.
    let error = http
        .post("/models", &json!({"model": "main", "revision": "v1"}))
        .await
        .json();
    assert!(error.to_string().contains("revision"), "{error}");
}

#[tokio::test]
async fn a_revision_that_cannot_be_is_refused() {
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", vec![7; 100_000]);
    let stack = stack(&hub, &model("nowhere", "revision = \"v9\"")).start().await;
    let http = stack.http();
    let register = |revision: &str| json!({"model_name": "user.m", "checkpoint": format!("{REPO}:Q8_0"), "recipe": "llamacpp", "revision": revision});
    for route in ["/api/v1/pull", "/api/v1/models/register"] {
        let error = http.post(route, &register("../x")).await.error(400);
        assert_eq!(error["param"], "revision", "{error}");
        let alone = json!({"model_name": "user.m", "revision": "v1"});
        assert_eq!(http.post(route, &alone).await.error(400)["param"], "checkpoint");
    }
    let error = http.post("/api/v1/pull", &register("v9")).await.error(404);
    assert_eq!(error["code"], "checkpoint_not_found");
    let error = http
        .post("/api/v1/pull", &json!({"model_name": "nowhere"}))
        .await
        .error(404);
    assert!(error["message"].as_str().unwrap().contains("revision"), "{error}");
    http.chat("nowhere", json!({})).await.error(404);
}

#[tokio::test]
async fn a_pull_fetches_newer_files_and_what_is_loaded_goes_on_with_the_old_ones() {
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", chatty());
    let stack = stack(&hub, &model("m", "")).start().await;
    let http = stack.http();
    assert!(
        !http
            .chat("m", json!({"max_tokens": 4}))
            .await
            .chat_text()
            .is_empty()
    );
    let before = stack.instance(0, "m").await;
    let mut newer = chatty();
    newer.push(0);
    hub.publish(REPO, "main", NEWER, &[("tiny-Q8_0.gguf", &newer)]);
    let (code, said) = muster(&stack, &["pull", "m"]).await;
    assert_eq!(code, 0, "{said}");
    assert_eq!(hub.downloads(), 2);
    assert_eq!(fs::read_to_string(cache(&stack, "refs/main")).unwrap(), NEWER);
    assert!(
        !http
            .chat("m", json!({"max_tokens": 4}))
            .await
            .chat_text()
            .is_empty()
    );
    assert_eq!(stack.instance(0, "m").await.instance_id, before.instance_id);
    // Nothing newer is there: nothing comes.
    http.post("/api/v1/pull", &json!({"model_name": "m"})).await.ok();
    assert_eq!(hub.downloads(), 2);
    // Its next load is of the new files.
    http.post("/api/v1/unload", &json!({"model_name": "m"}))
        .await
        .ok();
    http.post("/api/v1/load", &json!({"model_name": "m"})).await.ok();
    let model = stack.model_is("m", ModelStatus::Loaded, LIMIT).await;
    assert_eq!(model.size_bytes, newer.len() as u64);
    let after = stack.instance(0, "m").await;
    let maps = fs::read_to_string(format!("/proc/{}/maps", after.engine[0].pid)).unwrap();
    let blob = fs::canonicalize(cache(&stack, "snapshots").join(NEWER).join("tiny-Q8_0.gguf")).unwrap();
    assert!(maps.contains(&blob.display().to_string()), "{maps}");
}
