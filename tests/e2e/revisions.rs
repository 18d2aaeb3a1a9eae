//! Revisions of the hub's repositories: pinned ones, and newer commits of those that are not.

use std::{fs, path::PathBuf, time::Duration};

use muster_proto::v1::ModelStatus;
use muster_tests::{Hub, Stack, StackBuilder, engines, hub::Fault};
use reqwest::Method;
use serde_json::{Value, json};

use crate::pull::huggingface_hub;

const REPO: &str = "muster/tiny-GGUF";
const LIMIT: Duration = Duration::from_secs(60);
const PINNED: &str = "1111111111111111111111111111111111111111";
const NEWER: &str = "2222222222222222222222222222222222222222";

fn chatty() -> Vec<u8> {
    fs::read(engines::test_model("tiny-chat")).unwrap()
}

fn stack(hub: &Hub, config: &str) -> StackBuilder {
    Stack::with(config).worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
}

fn model(id: &str, more: &str) -> String {
    format!(
        "[models.{id}]\nrecipe = \"llamacpp\"\ncheckpoint = \"{REPO}:Q8_0\"\nctx_size = 256\nthreads = 1\n{more}\n"
    )
}

fn cache(stack: &Stack, below: &str) -> PathBuf {
    stack.path(&format!("hub/models--muster--tiny-GGUF/{below}"))
}

async fn downloaded(stack: &Stack, id: &str) -> Value {
    stack.http().get(&format!("/api/v1/models/{id}")).await.ok()["downloaded"].clone()
}

/// Runs the operators' command; its exit code and all that it says.
async fn muster(stack: &Stack, words: &[&str]) -> (i32, String) {
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

/// A tag is for Hugging Face's own library what it is for Muster, whichever of the two downloaded it.
#[tokio::test]
async fn hugging_faces_library_has_the_same_revisions() {
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", vec![7; 100_000]);
    hub.publish(REPO, "v1", PINNED, &[("tiny-Q8_0.gguf", &chatty())]);
    let config = model("tag", "revision = \"v1\"") + &model("main", "");
    for arguments in [&["read", "v1"][..], &["fill", "v1", &hub.endpoint()]] {
        let stack = stack(&hub, &config).start().await;
        if arguments[0] == "read" {
            pull(&stack, &["tag"]).await;
        }
        huggingface_hub(&stack, arguments).await;
        let before = hub.downloads();
        let answer = stack.http().chat("tag", json!({"max_tokens": 4})).await;
        assert!(!answer.chat_text().is_empty());
        assert_eq!(hub.downloads(), before);
        assert_eq!(downloaded(&stack, "main").await, false);
    }
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

/// Asks about all models that were downloaded.
async fn check(stack: &Stack) -> Value {
    let http = stack.http();
    let asked = http.send(Method::POST, "/api/v1/models/check-updates", String::new());
    asked.await.ok()
}

/// Asks about these models.
async fn check_these(stack: &Stack, models: &[&str]) -> Value {
    let body = json!({"models": models});
    stack.http().post("/v1/models/check-updates", &body).await.ok()
}

/// `MODEL is STATUS` of each model that was checked.
fn said(answer: &Value) -> Vec<String> {
    let checked = answer["checked"].as_array().unwrap().iter();
    let one = |one: &Value| {
        format!(
            "{} is {}",
            one["model_name"].as_str().unwrap(),
            one["status"].as_str().unwrap()
        )
    };
    checked.map(one).collect()
}

async fn pull(stack: &Stack, models: &[&str]) {
    for model in models {
        let body = json!({"model_name": model});
        stack.http().post("/api/v1/pull", &body).await.ok();
    }
}

/// `muster check-updates MODEL…` or over HTTP; nothing is downloaded before somebody pulls.
#[tokio::test]
async fn newer_files_are_told_of_and_come_with_a_pull() {
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", chatty());
    hub.publish(REPO, "v1", PINNED, &[("tiny-Q8_0.gguf", &chatty())]);
    let config = model("m", "")
        + &model("pinned", &format!("revision = \"{PINNED}\""))
        + &model("tag", "revision = \"v1\"")
        + "[models.local]\nruntime = \"stub\"\n";
    let stack = stack(&hub, &config).start().await;
    assert_eq!(
        check(&stack).await["checked"],
        json!([]),
        "nothing is downloaded yet"
    );
    pull(&stack, &["m", "pinned"]).await;
    let all = check(&stack).await;
    assert_eq!(said(&all), ["m is current", "pinned is pinned"]);
    assert_eq!(
        (&all["status"], &all["updates_available"]),
        (&json!("success"), &json!(0))
    );
    let downloads = hub.downloads();
    // A README makes no update; another file does.
    let read_me = ("README.md", &b"new words"[..]);
    hub.publish(REPO, "main", "c2", &[("tiny-Q8_0.gguf", &chatty()), read_me]);
    assert_eq!(said(&check(&stack).await), ["m is current", "pinned is pinned"]);
    let mut newer = chatty();
    newer.push(0);
    hub.publish(REPO, "main", NEWER, &[("tiny-Q8_0.gguf", &newer)]);
    let all = check(&stack).await;
    assert_eq!(said(&all), ["m is outdated", "pinned is pinned"]);
    assert_eq!(
        (&all["models"], &all["updates_available"]),
        (&json!(["m"]), &json!(1))
    );
    let named = check_these(&stack, &["tag", "local"]).await;
    assert_eq!(said(&named), ["local is local", "tag is not_downloaded"]);
    assert_eq!(hub.downloads(), downloads, "a check downloads nothing");
    let (code, out) = muster(&stack, &["check-updates", "m"]).await;
    assert!(
        code == 0 && out.contains("outdated") && out.contains("tiny-Q8_0.gguf"),
        "{out}"
    );
    let (code, out) = muster(&stack, &["pull", "m"]).await;
    assert_eq!(code, 0, "{out}");
    assert_eq!(said(&check_these(&stack, &["m"]).await), ["m is current"]);
    let nobody = json!({"models": ["nobody"]});
    let refused = stack.http().post("/v1/models/check-updates", &nobody).await;
    refused.error(404);
    let (code, out) = muster(&stack, &["check-updates", "nobody"]).await;
    assert_eq!(code, 4, "{out}");
}

/// A hub that refuses, or has a model no longer, fails that model, and not the others.
#[tokio::test]
async fn each_model_that_is_checked_answers_for_itself() {
    let hub = Hub::start().await;
    hub.put(REPO, "tiny-Q8_0.gguf", chatty());
    hub.put("muster/gone-GGUF", "m-Q8_0.gguf", vec![7; 1000]);
    let gone = "[models.gone]\nrecipe = \"llamacpp\"\ncheckpoint = \"muster/gone-GGUF:Q8_0\"\n";
    let stack = stack(&hub, &(model("m", "") + gone)).start().await;
    pull(&stack, &["m", "gone"]).await;
    hub.publish("muster/gone-GGUF", "main", NEWER, &[]);
    let all = check(&stack).await;
    assert_eq!(said(&all), ["gone is not_found", "m is current"]);
    assert_eq!(all["status"], "failed");
    assert!(all["failed_models"]["gone"].is_string(), "{all}");
    hub.fault(Fault::Token("secret"), 1000);
    assert_eq!(
        said(&check(&stack).await),
        ["gone is forbidden", "m is forbidden"]
    );
    drop(hub);
    let all = check(&stack).await;
    assert_eq!(said(&all), ["gone is unreachable", "m is unreachable"]);
    // What is here stays of use.
    pull(&stack, &["m"]).await;
    let answer = stack.http().chat("m", json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
}
