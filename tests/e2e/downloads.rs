//! Downloads that are interrupted, and hubs that are not well, through the real processes.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use muster_tests::{Hub, Role, Stack, StackBuilder, eventually, hub::Fault};
use serde_json::{Value, json};

const REPO: &str = "muster/large-GGUF";
const LIMIT: Duration = Duration::from_secs(60);
/// Pause of a slow hub after each 16 KiB.
const SLOW: Duration = Duration::from_millis(10);

/// A hub with a model of so many bytes, which nothing can load.
async fn hub(bytes: usize) -> (Hub, Vec<u8>) {
    let hub = Hub::start().await;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let content: Vec<u8> = (0..bytes)
        .map(|_| random(&mut state, 256).to_le_bytes()[0])
        .collect();
    hub.put(REPO, "large-Q8_0.gguf", content.clone());
    (hub, content)
}

/// A number below `end`.
fn random(state: &mut u64, end: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % end
}

fn stack(hub: &Hub) -> StackBuilder {
    let config = format!("[models.large]\nrecipe = \"llamacpp\"\ncheckpoint = \"{REPO}:Q8_0\"\n");
    Stack::with(config).worker_env(&[("HF_ENDPOINT", &hub.endpoint())])
}

fn pull(stack: &Stack) -> tokio::task::JoinHandle<Value> {
    let http = stack.http();
    tokio::spawn(async move {
        http.post("/api/v1/pull", &json!({"model_name": "large"}))
            .await
            .ok()
    })
}

async fn sent(hub: &Hub, bytes: u64) {
    let probe = async || {
        let sent = hub.sent();
        if sent >= bytes { Ok(()) } else { Err(sent) }
    };
    eventually("so much of the content is on its way", LIMIT, probe).await;
}

fn is_whole(stack: &Stack, content: &[u8]) {
    let repo = stack.path("hub/models--muster--large-GGUF");
    let file = repo.join(format!("snapshots/{}/large-Q8_0.gguf", muster_tests::hub::COMMIT));
    assert!(fs::read(file).unwrap() == content, "another content");
    let blobs = fs::read_dir(repo.join("blobs")).unwrap();
    assert_eq!(blobs.count(), 1, "nothing is left over");
}

#[tokio::test]
async fn a_download_goes_on_where_a_killed_worker_was() {
    let (hub, content) = hub(16 << 20).await;
    hub.fault(Fault::Slow(SLOW), u32::MAX);
    let mut stack = stack(&hub).start().await;
    let pulled = pull(&stack);
    sent(&hub, 8 << 20).await;
    stack.kill(Role::Worker(0));
    stack.start_process(Role::Worker(0)).await;
    assert_eq!(pulled.await.unwrap()["status"], "success");
    is_whole(&stack, &content);
    let sent = hub.sent();
    println!("{sent} bytes were sent of {}", content.len());
    assert!(sent <= content.len() as u64 * 11 / 10, "{sent} bytes were sent");
}

#[tokio::test]
async fn twenty_kills_at_any_time_end_in_the_right_file() {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let seed = (since.as_secs() << 30) | u64::from(since.subsec_nanos()) | 1;
    println!("seed {seed}");
    let (hub, content) = hub(32 << 20).await;
    hub.fault(Fault::Slow(SLOW), u32::MAX);
    let mut stack = stack(&hub).start().await;
    let pulled = pull(&stack);
    let mut state = seed;
    for _ in 0..20 {
        // Sometimes before the first byte.
        sent(&hub, hub.sent() + random(&mut state, 1_600_000)).await;
        stack.kill(Role::Worker(0));
        stack.start_process(Role::Worker(0)).await;
    }
    assert_eq!(pulled.await.unwrap()["status"], "success");
    is_whole(&stack, &content);
    let sent = hub.sent();
    println!("{sent} bytes were sent of {}", content.len());
    assert!(sent <= content.len() as u64 * 11 / 10, "{sent} bytes were sent");
}

#[tokio::test]
async fn a_hub_that_refuses_for_a_while_is_asked_again() {
    let (hub, content) = hub(3 << 20).await;
    hub.fault(Fault::Refuse(429, Some(1)), 1);
    hub.fault(Fault::Refuse(503, None), 1);
    hub.fault(Fault::Break(100_000), 2);
    let stack = stack(&hub).start().await;
    assert_eq!(pull(&stack).await.unwrap()["status"], "success");
    is_whole(&stack, &content);
}

#[tokio::test]
async fn a_gated_model_says_what_to_do() {
    let (hub, _) = hub(1000).await;
    hub.fault(Fault::Token("of-the-owner"), u32::MAX);
    let stack = stack(&hub).start().await;
    let body = json!({"model_name": "large"});
    let error = stack.http().post("/api/v1/pull", &body).await.error(403);
    assert_eq!(error["code"], "checkpoint_forbidden");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("accept its terms") && message.contains("HF_TOKEN"),
        "{message}"
    );
}

#[tokio::test]
async fn a_proxy_of_the_environment_is_used() {
    let (hub, content) = hub(3 << 20).await;
    let proxy = hub.endpoint();
    let stack = stack(&hub)
        .worker_env(&[
            ("HF_ENDPOINT", "http://hub.invalid"),
            ("HTTP_PROXY", &proxy),
            ("http_proxy", &proxy),
        ])
        .start()
        .await;
    assert_eq!(pull(&stack).await.unwrap()["status"], "success");
    is_whole(&stack, &content);
}

async fn download(stack: &Stack) -> Value {
    let listed = stack.http().get("/api/v1/downloads").await.ok();
    listed["downloads"].get(0).cloned().unwrap_or_default()
}

async fn status(stack: &Stack, wanted: &str) -> Value {
    let probe = async || {
        let shown = download(stack).await;
        if shown["status"] == wanted {
            Ok(shown)
        } else {
            Err(shown)
        }
    };
    eventually(&format!("the download is {wanted}"), LIMIT, probe)
        .await
        .0
}

async fn muster(stack: &Stack, words: &[&str]) -> String {
    let mut command = tokio::process::Command::new(muster_tests::binaries::find("muster"));
    command
        .args(["--controller", &stack.socket().to_string()])
        .args(words);
    let output = command.output().await.unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn a_download_is_listed_paused_resumed_and_cancelled() {
    let (hub, content) = hub(8 << 20).await;
    hub.fault(Fault::Slow(SLOW), u32::MAX);
    let stack = stack(&hub).start().await;
    let http = stack.http();
    let control = async |action: &str| {
        let body = json!({"id": "large", "action": action});
        http.post("/api/v1/downloads/control", &body).await
    };
    assert_eq!(http.get("/api/v1/downloads").await.ok(), json!({"downloads": []}));
    assert_eq!(control("pause").await.error(404)["code"], "no_such_download");
    let pulled = pull(&stack);
    sent(&hub, 2 << 20).await;
    let running = async || {
        let shown = download(&stack).await;
        let told = shown["eta_seconds"].is_u64() && shown["bytes_per_second"].as_u64() > Some(0);
        if told { Ok(shown) } else { Err(shown) }
    };
    let (shown, _) = eventually("speed and time left", LIMIT, running).await;
    assert_eq!(
        (&shown["id"], &shown["status"], &shown["bytes_total"]),
        (&json!("large"), &json!("downloading"), &json!(8 << 20))
    );
    assert_eq!(control("pause").await.ok()["status"], "paused");
    // A request that would wait for it is refused at once, as long as nobody wants it to go on.
    let error = http.chat("large", json!({})).await.error(409);
    assert_eq!(error["code"], "download_cancelled");
    control("dance").await.error(400);
    assert!(muster(&stack, &["downloads"]).await.contains("paused"));
    assert!(
        muster(&stack, &["downloads", "resume", "large"])
            .await
            .starts_with("large: ")
    );
    assert_eq!(pulled.await.unwrap()["status"], "success");
    is_whole(&stack, &content);
    let sent_all = hub.sent();
    println!("{sent_all} bytes were sent of {}", content.len());
    assert!(
        sent_all <= content.len() as u64 * 11 / 10,
        "{sent_all} bytes were sent"
    );
    assert_eq!(status(&stack, "completed").await["percent"], 100);
    // Cancelled, nothing of it stays.
    http.post("/api/v1/delete", &json!({"model_name": "large"}))
        .await
        .ok();
    let body = json!({"model_name": "large"});
    let again = stack.http();
    let pulled = tokio::spawn(async move { again.post("/api/v1/pull", &body).await });
    sent(&hub, sent_all + (1 << 20)).await;
    assert_eq!(control("cancel").await.ok()["status"], "cancelled");
    assert_eq!(pulled.await.unwrap().error(409)["code"], "download_cancelled");
    let gone = async || {
        let blobs = fs::read_dir(stack.path("hub/models--muster--large-GGUF/blobs"));
        let left = blobs.map_or(0, Iterator::count);
        if left == 0 { Ok(()) } else { Err(left) }
    };
    eventually("what came is gone", LIMIT, gone).await;
}

#[tokio::test]
async fn a_controller_that_restarts_goes_on_with_downloads_and_lets_paused_ones_be() {
    let (hub, content) = hub(8 << 20).await;
    hub.fault(Fault::Slow(SLOW), u32::MAX);
    let mut stack = stack(&hub).start().await;
    let restart = async |stack: &mut Stack| {
        stack.kill(Role::Controller);
        stack.start_process(Role::Controller).await;
    };
    let http = stack.http();
    let pulled =
        tokio::spawn(async move { http.post("/api/v1/pull", &json!({"model_name": "large"})).await });
    let comes = async || {
        let shown = download(&stack).await;
        if shown["bytes_downloaded"].as_u64() > Some(1 << 20) {
            Ok(())
        } else {
            Err(shown)
        }
    };
    eventually("some of it is there", LIMIT, comes).await;
    muster(&stack, &["downloads", "pause", "large"]).await;
    restart(&mut stack).await;
    // Whoever waited for it has lost the controller that it asked.
    assert_eq!(pulled.await.unwrap().error(503)["code"], "controller_unavailable");
    let shown = status(&stack, "paused").await;
    assert!(shown["bytes_downloaded"].as_u64() > Some(1 << 20), "{shown}");
    assert_eq!(shown["bytes_total"], 8 << 20);
    muster(&stack, &["downloads", "resume", "large"]).await;
    status(&stack, "downloading").await;
    // It goes on though nobody waits for it.
    restart(&mut stack).await;
    status(&stack, "completed").await;
    is_whole(&stack, &content);
    restart(&mut stack).await;
    let ended = stack.http().get("/api/v1/downloads").await.ok();
    assert_eq!(
        ended,
        json!({"downloads": []}),
        "what has ended is not begun again"
    );
}

/// A file system of its own with little room; none where this user may not mount.
struct Small<'a>(&'a Path);

impl<'a> Small<'a> {
    fn mount(path: &'a Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(path);
        let mounted = command.output().is_ok_and(|output| output.status.success());
        if !mounted {
            println!("not run: mounting a small disk takes root");
        }
        mounted.then_some(Self(path))
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        // Lazily: what still runs there ends with the test.
        drop(Command::new("umount").arg("--lazy").arg(self.0).status());
    }
}

#[tokio::test]
async fn what_has_no_room_is_refused_before_it_comes() {
    let (hub, _) = hub(3 << 20).await;
    let directory = tempfile::tempdir().unwrap();
    let Some(_small) = Small::mount(directory.path()) else {
        return;
    };
    let cache = directory.path().display().to_string();
    let stack = stack(&hub).worker_env(&[("HF_HUB_CACHE", &cache)]).start().await;
    let body = json!({"model_name": "large"});
    let error = stack.http().post("/api/v1/pull", &body).await.error(507);
    assert_eq!(error["code"], "insufficient_storage");
    assert!(
        error["message"].as_str().unwrap().contains("needs 3 MiB"),
        "{error}"
    );
    assert_eq!(hub.downloads(), 0);
}
