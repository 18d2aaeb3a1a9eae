//! `muster up`: starts the real processes, keeps them running, and leaves none behind.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use muster_proto::net::Address;
use muster_tests::{Engine, Http, Running, binaries, engines::test_model, eventually, processes};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);
/// A busy test machine may take longer than the half second that `tests/bench` reports.
const READY_WITHIN: Duration = Duration::from_secs(5);

pub(crate) struct Up {
    pub(crate) running: Running,
    pub(crate) http: Address,
    pub(crate) state: PathBuf,
    pub(crate) directory: tempfile::TempDir,
}

impl Up {
    pub(crate) async fn start(config: &str, args: &[&str]) -> Self {
        Self::start_as(config, args, &[]).await
    }

    /// With this environment too.
    pub(crate) async fn start_as(config: &str, args: &[&str], environment: &[(&str, &str)]) -> Self {
        let directory = tempfile::Builder::new().prefix("mu").tempdir().unwrap();
        let file = directory.path().join("muster.toml");
        fs::write(&file, config).unwrap();
        let state = directory.path().join("s");
        let mut command = command(&state, &file, args);
        command.envs(environment.iter().copied());
        let mut running = Running::start("up", command, directory.path());
        let started = Instant::now();
        let http = running.ready().await;
        let took = started.elapsed();
        println!("ready after {took:?}");
        assert!(took < READY_WITHIN, "ready after {took:?}");
        Self {
            running,
            http,
            state,
            directory,
        }
    }

    /// What it said of itself when it was ready.
    pub(crate) fn greeting(&self) -> Value {
        let said = self.running.log();
        let line = said.lines().find(|line| line.starts_with('{'));
        serde_json::from_str(line.expect("a line of JSON")).unwrap()
    }

    fn http(&self) -> Http {
        Http::new(&self.http)
    }

    /// The child whose command line has this word.
    fn child(&self, word: &str) -> u32 {
        let mut all = processes::descendants(self.running.pid()).into_iter();
        all.find(|pid| processes::command_line(*pid).contains(word))
            .unwrap_or_else(|| panic!("no {word} runs"))
    }
}

pub(crate) fn command(state: &Path, config: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binaries::find("muster"));
    command.args([
        "up",
        "--http",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
        "--device",
        "cpu",
        "--json",
        "--state-dir",
    ]);
    command.arg(state).arg("--config").arg(config).args(args);
    command
}

async fn all_gone(pids: &[u32]) {
    let probe = async || {
        let left: Vec<_> = pids
            .iter()
            .filter(|pid| processes::alive(**pid))
            .map(|pid| processes::command_line(*pid))
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    };
    eventually("no process is left", Duration::from_secs(3), probe).await;
}

#[tokio::test]
async fn it_answers_and_sigterm_leaves_no_child() {
    let mut up = Up::start(&Engine::Stub.model("m", 1, ""), &[]).await;
    up.http().chat("m", json!({"max_tokens": 2})).await.ok();
    let greeting = up.greeting();
    assert_eq!(greeting["http"], up.http.to_string());
    assert_eq!(greeting["models"], json!(["m"]));
    let tree = processes::descendants(up.running.pid());
    assert!(tree.len() >= 4, "controller, worker, gateway, engine: {tree:?}");
    up.running.terminate();
    let status = up.running.ended(LIMIT).await;
    assert!(status.success(), "{status}");
    all_gone(&tree).await;
}

#[tokio::test]
async fn ctrl_c_lets_running_streams_finish() {
    let mut up = Up::start(&Engine::Stub.model("m", 1, "stub.tokens_per_second = 100"), &[]).await;
    let mut stream = up.http().chat_stream("m", json!({"max_tokens": 60})).await;
    let mut chat = muster_tests::Chat::default();
    stream.chunks(&mut chat, 2).await;
    processes::signal(up.running.pid(), Signal::INT);
    let whole = stream.chat().await;
    assert!(whole.error.is_none() && whole.done, "{:?}", whole.error);
    assert!(up.running.ended(LIMIT).await.success());
}

/// As coreutils' `timeout` does: the process, and then its group.
#[tokio::test]
async fn a_signal_that_comes_twice_at_once_is_one() {
    let mut up = Up::start(&Engine::Stub.model("m", 1, "stub.tokens_per_second = 100"), &[]).await;
    let mut stream = up.http().chat_stream("m", json!({"max_tokens": 60})).await;
    let mut chat = muster_tests::Chat::default();
    stream.chunks(&mut chat, 2).await;
    processes::signal(up.running.pid(), Signal::TERM);
    processes::signal(up.running.pid(), Signal::INT);
    let whole = stream.chat().await;
    assert!(whole.error.is_none() && whole.done, "{:?}", whole.error);
    assert!(up.running.ended(LIMIT).await.success());
}

#[tokio::test]
async fn a_second_ctrl_c_does_not_wait() {
    let mut up = Up::start(&Engine::Stub.model("m", 1, "stub.tokens_per_second = 1"), &[]).await;
    let mut stream = up.http().chat_stream("m", json!({"max_tokens": 600})).await;
    stream.chunks(&mut muster_tests::Chat::default(), 1).await;
    let tree = processes::descendants(up.running.pid());
    processes::signal(up.running.pid(), Signal::INT);
    let said = async || {
        if up.running.log().contains("asked to stop") {
            Ok(())
        } else {
            Err("not yet")
        }
    };
    eventually("it drains", LIMIT, said).await;
    // Not so close behind the first that both are one.
    tokio::time::sleep(Duration::from_millis(400)).await;
    processes::signal(up.running.pid(), Signal::INT);
    up.running.ended(Duration::from_secs(5)).await;
    all_gone(&tree).await;
}

/// All parts shared one deadline: a gateway whose streams took long got the workers killed.
#[tokio::test]
async fn a_drain_that_takes_long_gets_nobody_killed() {
    let mut up = Up::start(
        &Engine::Stub.model("m", 1, "stub.tokens_per_second = 1"),
        &["--drain-timeout", "1"],
    )
    .await;
    let mut stream = up.http().chat_stream("m", json!({"max_tokens": 600})).await;
    stream.chunks(&mut muster_tests::Chat::default(), 1).await;
    let tree = processes::descendants(up.running.pid());
    up.running.terminate();
    assert!(up.running.ended(LIMIT).await.success());
    all_gone(&tree).await;
    let said = up.running.log();
    assert!(
        !said.contains("killing what still runs"),
        "each part had its own time"
    );
}

/// What a bare file is for, its header says.
#[tokio::test]
async fn a_bare_embedding_model_gives_vectors_and_is_not_suggested_for_a_chat() {
    let file = |name: &str| test_model(name).display().to_string();
    let (embed, chat) = (file("tiny-embed"), file("tiny-chat"));
    let up = Up::start("", &["--model", &embed, "--model", &chat]).await;
    let http = up.http();
    let vectors = http
        .post(
            "/v1/embeddings",
            &json!({"model": "tiny-embed", "input": "hello"}),
        )
        .await
        .ok();
    assert!(
        vectors["data"][0]["embedding"]
            .as_array()
            .is_some_and(|vector| vector.len() > 8)
    );
    let row = http.get("/api/v1/models/tiny-embed").await.ok();
    assert_eq!(row["labels"], json!(["embeddings"]));
    let unloaded = http.get("/api/v1/models/tiny-chat").await.ok();
    assert!(unloaded["max_context_window"].is_u64(), "{unloaded}");
    let error = http.chat("tiny-embed", json!({})).await.error(400);
    assert!(
        error["message"].as_str().unwrap().contains("tiny-embed"),
        "{error}"
    );
}

#[tokio::test]
async fn even_kill_9_leaves_no_child() {
    let mut up = Up::start(&Engine::Stub.model("m", 1, ""), &[]).await;
    up.http().chat("m", json!({"max_tokens": 2})).await.ok();
    let tree = processes::descendants(up.running.pid());
    up.running.kill();
    all_gone(&tree).await;
}

#[tokio::test]
async fn a_crashed_child_comes_back_where_it_was() {
    let up = Up::start(&Engine::Stub.model("m", 1, ""), &[]).await;
    up.http().chat("m", json!({"max_tokens": 2})).await.ok();
    for binary in ["muster-gateway", "muster-controller", "muster-worker"] {
        processes::kill(up.child(binary));
        // A fresh client each time: the old connections died with the gateway.
        let answers = async || {
            let again = up.http().base().to_owned();
            let client = muster_tests::http::client();
            let body = muster_tests::http::chat_body("m", false, json!({"max_tokens": 2})).to_string();
            let response = client
                .post(format!("{again}/v1/chat/completions"))
                .header("content-type", "application/json")
                .body(body)
                .send()
                .await;
            match response {
                Ok(response) if response.status() == 200 => Ok(()),
                Ok(response) => Err(response.text().await.unwrap_or_default()),
                Err(error) => Err(error.to_string()),
            }
        };
        let ((), took) = eventually(&format!("an answer after {binary} died"), LIMIT, answers).await;
        println!("{binary}: answers again after {took:?}");
    }
}

/// A process that hangs ended nothing and restarted nothing: only one that died did.
#[tokio::test]
async fn a_child_that_shows_no_sign_of_life_is_killed_and_started_again() {
    let up = Up::start(&Engine::Stub.model("m", 1, ""), &["--watchdog", "4"]).await;
    up.http().chat("m", json!({"max_tokens": 2})).await.ok();
    for binary in ["muster-controller", "muster-worker", "muster-gateway"] {
        let stopped = up.child(binary);
        processes::signal(stopped, Signal::STOP);
        let again = async || {
            let tree = processes::descendants(up.running.pid());
            let other = |pid: &&u32| **pid != stopped && processes::command_line(**pid).contains(binary);
            if !processes::alive(stopped) && tree.iter().any(|pid| other(&pid)) {
                Ok(())
            } else {
                Err("it is as it was")
            }
        };
        let ((), took) = eventually(&format!("another {binary}"), LIMIT, again).await;
        println!("{binary}: replaced after {took:?}");
    }
    let answers = async || {
        let reply = up.http().chat("m", json!({"max_tokens": 2})).await;
        let health = up.http().get("/health").await.ok();
        if reply.status == 200 && health["controller"] == "ok" {
            Ok(())
        } else {
            Err((reply.text, health))
        }
    };
    eventually("everything serves again", LIMIT, answers).await;
}

#[tokio::test]
async fn two_do_not_share_a_state_directory() {
    let up = Up::start("", &[]).await;
    let output = command(&up.state, &up.state.join("../muster.toml"), &[])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&up.running.pid().to_string()) && said.contains("state"),
        "{said}"
    );
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(binaries::find("muster"))
        .args(["up", "--http", &address, "--grpc", "127.0.0.1:0", "--state-dir"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&address) && said.contains("--http"), "{said}");
}

#[tokio::test]
async fn a_wrong_configuration_stops_everything_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("bad.toml");
    fs::write(&config, "[models.x]\nspeed = 'fast'\n").unwrap();
    let output = command(&directory.path().join("s"), &config, &[])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("models.x") && said.contains("controller"), "{said}");
}

#[tokio::test]
async fn a_bare_file_is_served_under_its_name_by_llama_cpp() {
    let model = test_model("tiny-chat");
    let up = Up::start("", &["--model", model.to_str().unwrap()]).await;
    let reply = up.http().chat("tiny-chat", json!({"max_tokens": 4})).await;
    assert!(!reply.chat_text().is_empty());
    // Clients of llama.cpp's server name no model, or one that they had elsewhere.
    let turns = json!([{"role": "user", "content": "hi"}]);
    for (path, mut body) in [
        ("/v1/chat/completions", json!({"messages": turns})),
        ("/chat/completions", json!({"messages": turns})),
        ("/v1/completions", json!({"prompt": "hi"})),
        ("/completion", json!({"prompt": "hi", "n_predict": 2})),
        ("/v1/responses", json!({"input": "hi", "max_output_tokens": 2})),
        ("/responses", json!({"input": "hi", "max_output_tokens": 2})),
        ("/v1/messages", json!({"messages": turns, "max_tokens": 2})),
        ("/v1/messages/count_tokens", json!({"messages": turns})),
        ("/tokenize", json!({"content": "hi"})),
        ("/detokenize", json!({"tokens": [5]})),
        ("/apply-template", json!({"messages": turns})),
        (
            "/api/chat",
            json!({"model": "llama3", "messages": turns, "stream": false}),
        ),
    ] {
        if body.get("max_tokens").is_none() && path.ends_with("completions") {
            body["max_tokens"] = json!(2);
        }
        for name in [
            body.get("model").cloned(),
            Some(json!("gpt-4o")),
            Some(json!("tiny-chat:latest")),
        ] {
            if let Some(name) = name {
                body["model"] = name;
            }
            up.http().post(path, &body).await.ok();
        }
    }
    let answer = up
        .http()
        .post(
            "/v1/chat/completions",
            &json!({"messages": turns, "max_tokens": 2}),
        )
        .await
        .ok();
    assert_eq!(answer["model"], "tiny-chat");
    // Any name asks the model; who changes or removes it must name it.
    let nobody = json!({"model": "gpt-4o", "model_name": "gpt-4o"});
    for (method, path) in [
        (Method::POST, "/v1/unload"),
        (Method::POST, "/v1/load"),
        (Method::POST, "/v1/delete"),
        (Method::POST, "/api/pull"),
        (Method::DELETE, "/api/delete"),
    ] {
        let reply = up.http().send(method, path, nobody.to_string()).await;
        assert!(
            matches!(reply.status.as_u16(), 404 | 422),
            "{path}: {}",
            reply.text
        );
    }
    assert_eq!(up.http().get("/health?model=tiny-chat").await.status, 200);
}
