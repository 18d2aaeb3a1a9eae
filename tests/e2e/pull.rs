//! Models that come from a hub: pulled, served, deleted (seed 000), through the real gateway, controller, worker and engine. The hub is this
//! test's own.

use std::{fs, path::PathBuf, process::Command, time::Duration};

use muster_tests::{Hub, Stack, StackBuilder, engines, eventually};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use crate::clients::run;

const REPO: &str = "muster/tiny-GGUF";
const LIMIT: Duration = Duration::from_secs(30);

/// A hub with a model that can chat, in one file and as one of two.
async fn hub() -> Hub {
    let hub = Hub::start().await;
    let model = fs::read(engines::test_model("tiny-chat")).unwrap();
    hub.put(REPO, "tiny-Q8_0.gguf", model);
    hub.put(REPO, "tiny-Q4_0.gguf", vec![7; 100_000]);
    hub.put(REPO, "README.md", "tiny");
    hub
}

/// A stack that pulls from `hub`, with `config` and a model `built-in` of it.
fn stack(hub: &Hub, config: &str) -> StackBuilder {
    let built_in = format!(
        "[models.built-in]\nrecipe = \"llamacpp\"\ncheckpoint = \"{REPO}:Q8_0\"\nctx_size = 256\nthreads = 1\n{config}"
    );
    Stack::with(built_in).worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
}

fn repo_dir(stack: &Stack) -> PathBuf {
    stack.path("hub/models--muster--tiny-GGUF")
}

async fn row(stack: &Stack, id: &str) -> Value {
    stack.http().get(&format!("/api/v1/models/{id}")).await.ok()
}

async fn downloaded(stack: &Stack, id: &str, wanted: bool) {
    let what = format!("{id} is shown as downloaded: {wanted}");
    let probe = async || {
        let row = row(stack, id).await;
        if row["downloaded"] == wanted {
            Ok(())
        } else {
            Err(row)
        }
    };
    eventually(&what, LIMIT, probe).await;
}

async fn listed(stack: &Stack) -> Vec<String> {
    let list = stack.http().get("/api/v1/models").await.ok();
    let ids = list["data"].as_array().unwrap().iter();
    ids.map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn ollamas_client_pulls_from_the_hub_copies_and_deletes() {
    let hub = hub().await;
    let stack = Stack::with("")
        .worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
        .start()
        .await;
    let mut command = Command::new(engines::required("MUSTER_TEST_PYTHON"));
    command
        .arg(format!("{}/e2e/sdk/ollama_client.py", env!("CARGO_MANIFEST_DIR")))
        .arg(format!("http://{}", stack.gateway_address()))
        .arg(format!("hf.co/{REPO}:Q8_0"));
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Hugging Face's own library, on the cache of a stack; what it does, the revision, and for `fill` the hub.
pub(crate) async fn huggingface_hub(stack: &Stack, arguments: &[&str]) {
    let mut command = Command::new(engines::required("MUSTER_TEST_PYTHON"));
    command.arg(format!("{}/e2e/sdk/hub_client.py", env!("CARGO_MANIFEST_DIR")));
    let (what, hub) = arguments.split_first().unwrap();
    command
        .arg(what)
        .arg(stack.path("hub"))
        .args([REPO, "tiny-Q8_0.gguf"])
        .args(hub);
    // Nothing of the account and the cache of whoever runs the tests.
    command
        .env("HF_HOME", stack.path("home"))
        .env("NO_PROXY", "127.0.0.1");
    let output = run(command).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[tokio::test]
async fn hugging_faces_library_reads_what_was_pulled() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let pull = json!({"model_name": "built-in"});
    stack.http().post("/api/v1/pull", &pull).await.ok();
    huggingface_hub(&stack, &["read", "main"]).await;
}

#[tokio::test]
async fn what_hugging_faces_library_downloaded_needs_no_pull() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    huggingface_hub(&stack, &["fill", "main", &hub.endpoint()]).await;
    let before = hub.downloads();
    downloaded(&stack, "built-in", true).await;
    let body =
        json!({"model": "built-in", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    stack.http().post("/v1/chat/completions", &body).await.ok();
    assert_eq!(hub.downloads(), before);
}

#[tokio::test]
async fn a_built_in_model_is_pulled_chatted_with_and_deleted() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let http = stack.http();
    assert!(listed(&stack).await.is_empty());
    let all = http.get("/api/v1/models?show_all=true").await.ok();
    let own = all["data"].as_array().unwrap().iter();
    let own: Vec<&Value> = own.filter(|row| row["id"] == "built-in").collect();
    assert_eq!((own.len(), &own[0]["downloaded"]), (1, &json!(false)));
    // An operator's load on the admin API never downloads (gateway/README.md, Autoload).
    let error = http
        .post("/v1/admin/models/built-in/load", &json!({}))
        .await
        .error(500);
    assert_eq!(error["code"], "file_not_found");
    let done = http
        .post("/api/v1/pull", &json!({"model_name": "built-in"}))
        .await
        .ok();
    assert_eq!(
        done,
        json!({"status": "success", "message": "Installed model: built-in"})
    );
    assert_eq!(hub.downloads(), 1);
    let link = repo_dir(&stack).join(format!("snapshots/{}/tiny-Q8_0.gguf", muster_tests::hub::COMMIT));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    downloaded(&stack, "built-in", true).await;
    assert_eq!(listed(&stack).await, ["built-in"]);
    // Nothing is fetched twice.
    http.post("/api/v1/pull", &json!({"model_name": "built-in"}))
        .await
        .ok();
    assert_eq!(hub.downloads(), 1);
    let answer = http.chat("built-in", json!({"max_tokens": 8})).await;
    assert!(!answer.chat_text().is_empty());
    let done = http
        .post("/api/v1/delete", &json!({"model_name": "built-in"}))
        .await
        .ok();
    assert_eq!(
        done,
        json!({"status": "success", "message": "Deleted model: built-in"})
    );
    assert!(!repo_dir(&stack).exists());
    downloaded(&stack, "built-in", false).await;
    assert_eq!(stack.model("built-in").await.instances.len(), 0);
    let error = http
        .post("/api/v1/delete", &json!({"model_name": "nobody"}))
        .await;
    assert_eq!(error.status, 422);
    assert_eq!(error.json()["message"], "Model not found: nobody");
}

#[tokio::test]
async fn a_request_downloads_what_is_missing_and_so_does_a_load() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let http = stack.http();
    let chat = || http.chat("built-in", json!({"max_tokens": 4}));
    let (one, two) = tokio::join!(chat(), chat());
    assert!(!one.chat_text().is_empty() && !two.chat_text().is_empty());
    assert_eq!(hub.downloads(), 1);
    stack
        .http()
        .post("/api/v1/delete", &json!({"model_name": "built-in"}))
        .await
        .ok();
    let loaded = stack
        .http()
        .post("/api/v1/load", &json!({"model_name": "built-in"}))
        .await
        .ok();
    assert_eq!(loaded["message"], "Loaded model: built-in");
    assert_eq!(hub.downloads(), 2);
}

#[tokio::test]
async fn a_streamed_pull_registers_a_model_that_outlives_restarts() {
    let hub = hub().await;
    let mut stack = stack(&hub, "").start().await;
    let body = json!({
        "model_name": "user.tiny", "checkpoint": format!("{REPO}:Q8_0"), "recipe": "llamacpp",
        "reasoning": true, "stream": true
    });
    hub.hold(true);
    let mut stream = stack.http().stream("/api/v1/pull", &body).await;
    let first = stream.next().await.unwrap();
    assert_eq!(first.kind, "progress");
    let progress: Value = serde_json::from_str(&first.data).unwrap();
    assert_eq!(
        (
            &progress["file"],
            &progress["file_index"],
            &progress["total_files"],
            &progress["percent"]
        ),
        (&json!("tiny-Q8_0.gguf"), &json!(1), &json!(1), &json!(0))
    );
    // It is registered before its files are there, and a caller that leaves does not stop the download.
    assert_eq!(row(&stack, "user.tiny").await["downloaded"], false);
    drop(stream);
    let mut stream = stack.http().stream("/api/v1/pull", &body).await;
    hub.hold(false);
    let mut last = None;
    while let Some(event) = stream.next().await {
        assert!(last.is_none(), "something after the end: {event:?}");
        if event.kind != "progress" {
            last = Some(event);
        }
    }
    let last = last.unwrap();
    assert_eq!(last.kind, "complete");
    let complete: Value = serde_json::from_str(&last.data).unwrap();
    assert_eq!(
        complete,
        json!({"file_index": 1, "total_files": 1, "percent": 100})
    );
    assert_eq!(hub.downloads(), 1);
    stack.stop(muster_tests::Role::Controller, LIMIT).await;
    stack.start_process(muster_tests::Role::Controller).await;
    downloaded(&stack, "user.tiny", true).await;
    assert_eq!(row(&stack, "user.tiny").await["labels"], json!(["reasoning"]));
    let kept: Value =
        serde_json::from_slice(&fs::read(stack.path("state/user_models.json")).unwrap()).unwrap();
    assert_eq!(kept["models"]["tiny"]["checkpoint"], format!("{REPO}:Q8_0"));
    let answer = stack.http().chat("user.tiny", json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
    // The built-in model is the same files: they stay with it.
    stack
        .http()
        .post("/api/v1/delete", &json!({"model_name": "user.tiny"}))
        .await
        .ok();
    let gone = async || {
        let reply = stack.http().get("/api/v1/models/user.tiny").await;
        if reply.status == 404 {
            Ok(())
        } else {
            Err(reply.text)
        }
    };
    eventually("user.tiny is gone", LIMIT, gone).await;
    downloaded(&stack, "built-in", true).await;
    assert!(repo_dir(&stack).exists());
}

#[tokio::test]
async fn a_registered_model_is_replaced_once_the_new_files_are_there() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let define =
        |checkpoint: &str| json!({"model_name": "user.tiny", "checkpoint": checkpoint, "recipe": "llamacpp"});
    let reply = stack
        .http()
        .post("/api/v1/models/register", &define(&format!("{REPO}:Q4_0")))
        .await
        .ok();
    assert_eq!(reply["model"]["downloaded"], false);
    assert_eq!(hub.downloads(), 0);
    // What cannot be had leaves things as they were.
    let error = stack
        .http()
        .post("/api/v1/pull", &define(&format!("{REPO}:Q5_K_M")))
        .await
        .error(404);
    assert_eq!(error["code"], "checkpoint_not_found");
    assert_eq!(
        row(&stack, "user.tiny").await["checkpoint"],
        format!("{REPO}:Q4_0")
    );
    stack
        .http()
        .post("/api/v1/pull", &define(&format!("{REPO}:Q8_0")))
        .await
        .ok();
    let replaced = async || {
        let row = row(&stack, "user.tiny").await;
        if row["checkpoint"] == format!("{REPO}:Q8_0") {
            Ok(())
        } else {
            Err(row)
        }
    };
    eventually("the new checkpoint", LIMIT, replaced).await;
    for (body, param) in [
        (
            json!({"model_name": "mine", "checkpoint": "o/n:Q4_0", "recipe": "llamacpp"}),
            "model_name",
        ),
        (
            json!({"model_name": "user.x", "recipe": "llamacpp"}),
            "checkpoint",
        ),
        (
            json!({"model_name": "user.x", "checkpoint": "o/n:Q4_0"}),
            "recipe",
        ),
        (
            json!({"model_name": "user.x", "checkpoint": "o/n:Q4_0", "recipe": "abacus"}),
            "recipe",
        ),
        (
            json!({"model_name": "user.x", "checkpoint": "../n.gguf", "recipe": "llamacpp"}),
            "checkpoint",
        ),
    ] {
        let reply = stack.http().post("/api/v1/pull", &body).await;
        assert_eq!(reply.json()["status"], "error", "{body}");
        assert_eq!(reply.error(400)["param"], param, "{body}");
    }
}

#[tokio::test]
async fn what_the_hub_does_not_have_is_said_at_once_and_in_the_stream() {
    let hub = hub().await;
    let config = "[models.nowhere]\nrecipe = \"llamacpp\"\ncheckpoint = \"muster/absent:Q8_0\"\n";
    let stack = stack(&hub, config).start().await;
    let error = stack
        .http()
        .post("/api/v1/pull", &json!({"model_name": "nowhere"}))
        .await;
    assert_eq!(error.json()["status"], "error");
    assert_eq!(error.error(403)["code"], "checkpoint_forbidden");
    let error = stack.http().chat("nowhere", json!({})).await.error(403);
    assert_eq!(error["code"], "checkpoint_forbidden");
    let unknown = stack
        .http()
        .post("/api/v1/pull", &json!({"model_name": "nobody"}))
        .await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.json()["message"]),
        (404, &json!("Model not found: nobody"))
    );
    let variants = stack
        .http()
        .get(&format!("/api/v1/pull/variants?checkpoint={REPO}"))
        .await
        .ok();
    assert_eq!(variants["suggested_name"], "tiny-GGUF");
    assert_eq!(variants["variants"][0]["name"], "Q8_0");
    assert_eq!(variants["variants"][1]["primary_file"], "tiny-Q4_0.gguf");
    stack
        .http()
        .get("/api/v1/pull/variants?checkpoint=x")
        .await
        .error(400);
    stack.http().get("/api/v1/pull/variants").await.error(400);
}

#[tokio::test]
async fn what_another_program_downloaded_counts() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let snapshot = repo_dir(&stack).join("snapshots/c1");
    fs::create_dir_all(&snapshot).unwrap();
    fs::copy(engines::test_model("tiny-chat"), snapshot.join("tiny-Q8_0.gguf")).unwrap();
    let answer = stack.http().chat("built-in", json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
    assert_eq!(hub.downloads(), 0);
}

#[tokio::test]
async fn the_engine_that_is_llama_cpps_own_server_gets_the_files_too() {
    let hub = hub().await;
    let config = format!(
        "[models.server]\nruntime = \"llama_server\"\ncheckpoint = \"{REPO}:Q8_0\"\nctx_size = 256\nthreads = 1\n"
    );
    let stack = stack(&hub, &config).start().await;
    let answer = stack.http().chat("server", json!({"max_tokens": 4})).await;
    assert!(!answer.chat_text().is_empty());
}

#[tokio::test]
async fn saved_options_hold_for_later_loads_and_a_loads_own_win() {
    let hub = hub().await;
    let mut stack = stack(&hub, "").start().await;
    let path = "/api/v1/models/built-in/options";
    let shown = stack.http().post(path, &json!({"ctx_size": 384})).await.ok();
    assert_eq!(shown["saved"], json!({"ctx_size": 384}));
    assert_eq!(
        (&shown["effective"]["ctx_size"], &shown["defaults"]["ctx_size"]),
        (&json!(384), &json!(256))
    );
    let preview = stack
        .http()
        .post(path, &json!({"ctx_size": 512, "dry_run": true}))
        .await
        .ok();
    assert_eq!(preview["saved"], json!({"ctx_size": 384}));
    stack.http().post(path, &json!({"ctx_size": 0})).await.error(400);
    stack.http().post(path, &json!({"pinned": true})).await.error(400);
    stack.stop(muster_tests::Role::Controller, LIMIT).await;
    stack.start_process(muster_tests::Role::Controller).await;
    let http = stack.http();
    let n_ctx = async || {
        let props = http.get("/props?model=built-in").await.ok();
        props["default_generation_settings"]["n_ctx"].clone()
    };
    http.chat("built-in", json!({"max_tokens": 2})).await.ok();
    assert_eq!(n_ctx().await, 384);
    http.post(
        "/api/v1/load",
        &json!({"model_name": "built-in", "ctx_size": 512}),
    )
    .await
    .ok();
    assert_eq!(n_ctx().await, 512);
    let reset = http.send(reqwest::Method::DELETE, path, String::new()).await.ok();
    assert_eq!(reset["saved"], json!({}));
    http.post("/api/v1/load", &json!({"model_name": "built-in"}))
        .await
        .ok();
    assert_eq!(n_ctx().await, 256);
    http.get("/api/v1/models/nobody/options").await.error(404);
    // A load may save what it was asked for.
    let body =
        json!({"model_name": "built-in", "ctx_size": 320, "llamacpp_backend": "cpu", "save_options": true});
    http.post("/api/v1/load", &body).await.ok();
    let saved = http.get(path).await.ok()["saved"].clone();
    assert_eq!(saved, json!({"ctx_size": 320, "llamacpp_backend": "cpu"}));
}

#[tokio::test]
async fn an_alias_is_a_model_under_another_name() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let http = stack.http();
    let alias = |model: &str| json!({"alias": "gpt-4o", "model_name": model});
    http.post("/internal/aliases", &alias("nobody")).await.error(404);
    http.post(
        "/internal/aliases",
        &json!({"alias": "built-in", "model_name": "built-in"}),
    )
    .await
    .error(400);
    http.post("/internal/aliases", &alias("built-in")).await.ok();
    assert_eq!(
        http.get("/internal/aliases").await.ok()["aliases"],
        json!({"gpt-4o": "built-in"})
    );
    let known = async || {
        let reply = http.get("/v1/models/gpt-4o").await;
        if reply.status == 200 {
            Ok(())
        } else {
            Err(reply.text)
        }
    };
    eventually("the gateway knows the alias", LIMIT, known).await;
    // Cold, then loaded.
    for _ in 0..2 {
        let answer = http.chat("gpt-4o", json!({"max_tokens": 2})).await;
        assert!(!answer.chat_text().is_empty());
    }
    assert_eq!(row(&stack, "gpt-4o").await["id"], "built-in");
    http.send(reqwest::Method::DELETE, "/internal/aliases/gpt-4o", String::new())
        .await
        .ok();
    http.send(reqwest::Method::DELETE, "/internal/aliases/gpt-4o", String::new())
        .await
        .error(404);
}

#[tokio::test]
async fn the_command_pulls_and_deletes() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    let muster = async |words: &[&str]| {
        let mut command = tokio::process::Command::new(muster_tests::binaries::find("muster"));
        command
            .args(["--controller", &stack.socket().to_string()])
            .args(words);
        let output = command.output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (
            output.status.code().unwrap(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    let checkpoint = format!("{REPO}:Q4_0");
    let (code, out, err) = muster(&[
        "pull",
        "user.mine",
        "--checkpoint",
        &checkpoint,
        "--label",
        "reasoning",
    ])
    .await;
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("user.mine is here: 97.66 KiB"), "{out}");
    assert_eq!(stack.model("user.mine").await.labels, ["reasoning"]);
    let (code, out, err) = muster(&["--json", "delete", "user.mine"]).await;
    assert_eq!(code, 0, "{err}");
    let response: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(response["model"], Value::Null);
    assert_eq!(response["freed_bytes"], 100_000, "{out}");
    let (code, _, err) = muster(&["pull", "nobody"]).await;
    assert_eq!(code, 4, "{err}");
}

/// Runs the command behind it on a terminal of its own.
const ON_A_TERMINAL: &str =
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// A terminal showed the percentage only.
#[tokio::test]
async fn a_pull_on_a_terminal_shows_a_bar_with_its_speed() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    hub.hold(true);
    let mut child = tokio::process::Command::new(engines::required("MUSTER_TEST_PYTHON"))
        .args(["-c", ON_A_TERMINAL])
        .arg(muster_tests::binaries::find("muster"))
        .args(["--controller", &stack.socket().to_string(), "pull", "built-in"])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut terminal = child.stdout.take().unwrap();
    let mut seen = String::new();
    let bar = async {
        while !["B/s", "file 1 of ", "░"].iter().all(|part| seen.contains(part)) {
            let mut some = [0; 4096];
            let length = terminal.read(&mut some).await.unwrap();
            assert_ne!(length, 0, "{seen}");
            seen.push_str(&String::from_utf8_lossy(&some[..length]));
        }
    };
    tokio::time::timeout(LIMIT, bar).await.expect("a bar");
    hub.hold(false);
    let mut rest = String::new();
    terminal.read_to_string(&mut rest).await.unwrap();
    assert!(child.wait().await.unwrap().success(), "{rest}");
    let (_, result) = rest.rsplit_once('\x1b').unwrap_or(("", &rest));
    assert!(
        result.contains("built-in is here"),
        "the bar is gone from the last line: {rest:?}"
    );
}

#[tokio::test]
async fn a_pull_survives_the_death_of_its_worker_and_leaves_no_half_a_file() {
    let hub = hub().await;
    let mut stack = stack(&hub, "").start().await;
    hub.hold(true);
    let http = stack.http();
    let pull = tokio::spawn(async move {
        http.post("/api/v1/pull", &json!({"model_name": "built-in"}))
            .await
            .ok()
    });
    let asked = async || {
        if hub.downloads() == 1 {
            Ok(())
        } else {
            Err(hub.downloads())
        }
    };
    eventually("the download has begun", LIMIT, asked).await;
    stack.kill(muster_tests::Role::Worker(0));
    hub.hold(false);
    stack.start_process(muster_tests::Role::Worker(0)).await;
    assert_eq!(pull.await.unwrap()["status"], "success");
    let blobs = fs::read_dir(repo_dir(&stack).join("blobs")).unwrap();
    let names: Vec<String> = blobs
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.iter().all(|name| !name.ends_with(".incomplete")),
        "{names:?}"
    );
    assert!(
        !stack
            .http()
            .chat("built-in", json!({"max_tokens": 2}))
            .await
            .chat_text()
            .is_empty()
    );
}

#[tokio::test]
async fn a_model_deleted_while_it_comes_is_not_there_afterwards() {
    let hub = hub().await;
    let stack = stack(&hub, "").start().await;
    hub.hold(true);
    let http = stack.http();
    let pull = tokio::spawn(async move {
        http.post("/api/v1/pull", &json!({"model_name": "built-in"}))
            .await
    });
    let asked = async || {
        if hub.downloads() == 1 {
            Ok(())
        } else {
            Err(hub.downloads())
        }
    };
    eventually("the download has begun", LIMIT, asked).await;
    stack
        .http()
        .post("/api/v1/delete", &json!({"model_name": "built-in"}))
        .await
        .ok();
    assert_eq!(pull.await.unwrap().error(409)["code"], "download_cancelled");
    hub.hold(false);
    downloaded(&stack, "built-in", false).await;
    stack
        .http()
        .post("/api/v1/pull", &json!({"model_name": "built-in"}))
        .await
        .ok();
    downloaded(&stack, "built-in", true).await;
}
