//! The `muster` command against a running fleet.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use muster_tests::{Engine, Role, Stack, binaries, engines::required};
use serde_json::Value;

struct Cli<'a>(&'a Stack);

impl Cli<'_> {
    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binaries::find("muster"));
        command
            .env("MUSTER_CONTROLLER", self.0.socket().to_string())
            .args(args)
            .stdin(Stdio::null());
        command
    }

    async fn run(&self, args: &[&str]) -> Output {
        let mut command = self.command(args);
        tokio::task::spawn_blocking(move || command.output().unwrap())
            .await
            .unwrap()
    }

    async fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    async fn json(&self, args: &[&str]) -> Vec<Value> {
        let mut all = args.to_vec();
        all.push("--json");
        self.ok(&all)
            .await
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

async fn stack() -> Stack {
    Stack::with(format!(
        "{}{}",
        Engine::Stub.model("m", 2, ""),
        Engine::Stub.model("n", 1, "")
    ))
    .start()
    .await
}

#[tokio::test]
async fn a_load_replaces_what_is_loaded_elsewhere_if_it_is_told_to() {
    let config = Engine::Stub.model("m", 1, "");
    let stack = Stack::with(config).devices(&["sim:a:4GiB", "sim:b:4GiB"]);
    let stack = stack.start().await;
    let cli = Cli(&stack);
    cli.ok(&["load", "m", "--device", "sim:a"]).await;
    let refused = cli.run(&["load", "m", "--device", "sim:b"]).await;
    assert!(!refused.status.success());
    let place = async || {
        let model = stack.model("m").await;
        let status = model.instances[0].status.clone().unwrap();
        status.spec.unwrap().reservations[0].device_id.clone()
    };
    assert_eq!(place().await, "sim:a");
    cli.ok(&["load", "m", "--device", "sim:b", "--replace"]).await;
    assert_eq!(place().await, "sim:b");
    let loads = stack.stats().await.loads_started;
    cli.ok(&["load", "m", "--device", "sim:b", "--replace"]).await;
    assert_eq!(stack.stats().await.loads_started, loads, "nothing to do");
    let refused = cli.run(&["load", "m", "--replicas", "99", "--replace"]).await;
    assert!(!refused.status.success());
    assert_eq!(place().await, "sim:b");
    assert_eq!(stack.stats().await.loads_started, loads, "it was not unloaded");
}

#[tokio::test]
async fn models_load_and_unload() {
    let stack = stack().await;
    let cli = Cli(&stack);
    let table = cli.ok(&["models"]).await;
    let row = table.lines().find(|line| line.starts_with("m ")).expect("a row");
    assert!(
        row.contains("unloaded") && row.contains("stub") && row.contains("llm"),
        "{table}"
    );
    assert!(cli.ok(&["ps"]).await.contains("nothing is loaded"));

    assert!(cli.ok(&["load", "m"]).await.contains("m is loaded"));
    let table = cli.ok(&["ps"]).await;
    assert!(
        table.lines().any(|line| line.starts_with("m ")
            && line.contains("ready")
            && line.contains("w0")
            && line.contains("cpu")),
        "{table}"
    );

    let listed = &cli.json(&["models"]).await[0];
    assert_eq!(listed["models"][0]["id"], "m");
    assert_eq!(listed["models"][0]["status"], "MODEL_STATUS_LOADED");
    assert_eq!(listed["models"][1]["status"], "MODEL_STATUS_UNLOADED");
    let running = &cli.json(&["ps"]).await[0];
    assert_eq!(running["models"].as_array().unwrap().len(), 1);

    assert!(cli.ok(&["unload", "m"]).await.contains("m is unloaded"));
    let events = cli.json(&["load", "n"]).await;
    assert_eq!(events.last().unwrap()["loaded"]["id"], "n", "{events:?}");
    let unloaded = &cli.json(&["unload", "n", "--force"]).await[0];
    assert_eq!(unloaded["model"]["status"], "MODEL_STATUS_UNLOADED");
}

#[tokio::test]
async fn a_chat_answers_once_from_a_flag_or_standard_input() {
    let stack = stack().await;
    let cli = Cli(&stack);
    let said = cli.ok(&["chat", "m", "-m", "Hello", "--max-tokens", "8"]).await;
    assert!(said.trim().len() > 1, "{said:?}");
    let answer = &cli.json(&["chat", "m", "-m", "Hello", "--max-tokens", "8"]).await[0];
    assert_eq!(answer["content"].as_str().unwrap().trim(), said.trim());
    assert_eq!(answer["usage"]["completion_tokens"], 8);

    let mut child = cli
        .command(&["chat", "m", "--max-tokens", "8"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"Hello\n").unwrap();
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap())
        .await
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), said);
}

#[tokio::test]
async fn a_chat_on_a_terminal_survives_ctrl_c() {
    let model = Engine::Stub.model("m", 1, "stub.tokens_per_second = 20\nstub.tokens = 10000");
    let stack = Stack::with(model).start().await;
    let mut command = Command::new(required("MUSTER_TEST_PYTHON"));
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/e2e/chat_terminal.py"));
    command
        .arg(binaries::find("muster"))
        .arg(stack.socket().to_string())
        .arg("m");
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let idle = async || match stack.instance(0, "m").await.running {
        0 => Ok(()),
        running => Err(running),
    };
    muster_tests::eventually(
        "the cancelled answer is gone",
        std::time::Duration::from_millis(500),
        idle,
    )
    .await;
}

#[tokio::test]
async fn the_fleet_is_shown() {
    let stack = stack().await;
    let cli = Cli(&stack);
    let workers = cli.ok(&["workers"]).await;
    assert!(
        workers
            .lines()
            .any(|line| line.starts_with("w0 ") && line.contains("connected") && line.contains("stub")),
        "{workers}"
    );
    assert_eq!(cli.json(&["workers"]).await[0]["workers"][0]["worker_id"], "w0");
    let devices = cli.ok(&["devices"]).await;
    assert!(
        devices
            .lines()
            .any(|line| line.starts_with("cpu ") && line.contains("GiB")),
        "{devices}"
    );
    assert!(cli.json(&["devices"]).await[0]["devices"][0]["device"]["capacity_bytes"].as_u64() > Some(0));
}

#[tokio::test]
async fn a_pinned_model_stays_until_it_is_unpinned() {
    let stack = stack().await;
    let cli = Cli(&stack);
    cli.ok(&["load", "m"]).await;
    assert!(cli.ok(&["pin", "m"]).await.contains("m is pinned"));
    let table = cli.ok(&["ps"]).await;
    let (head, row) = table.split_once('\n').unwrap();
    let column = |name: &str| {
        let start = head.find(name).unwrap();
        row[start..].split_whitespace().next().unwrap()
    };
    assert_eq!(
        (column("PINNED"), column("DEVICE"), column("WORKER")),
        ("yes", "cpu", "w0"),
        "{table}"
    );
    assert_ne!(column("RESERVED"), "-", "{table}");
    let why = cli.ok(&["explain", "n"]).await;
    assert!(
        why.contains("slots_pinned") && why.contains("m are pinned (I6)"),
        "{why}"
    );
    let refused = cli.run(&["load", "n"]).await;
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("slots_pinned") && said.contains("muster unpin"),
        "{said}"
    );
    let unpinned = &cli.json(&["unpin", "m"]).await[0];
    assert_eq!(unpinned["model"]["pinned"], false);
    let plan = &cli.json(&["explain", "n"]).await[0];
    assert_eq!(plan["verdict"], "LOAD_VERDICT_EVICT");
    assert_eq!(plan["places"][0]["victims"][0]["model"], "m");
    let why = cli.ok(&["explain", "n"]).await;
    assert!(
        why.contains("after evicting m") && why.contains("m would go, type slot (I2): idle"),
        "{why}"
    );
    cli.ok(&["load", "n"]).await;
    assert_eq!(cli.run(&["pin", "nobody"]).await.status.code(), Some(4));
}

#[tokio::test]
async fn a_lost_worker_is_forgotten() {
    let mut stack = stack().await;
    cli_refuses_to_forget_what_is_connected(&stack).await;
    stack.kill(Role::Worker(0));
    let cli = Cli(&stack);
    let forgotten = async || {
        let output = cli.run(&["forget", "w0"]).await;
        if output.status.success() {
            Ok(String::from_utf8(output.stdout).unwrap())
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into_owned())
        }
    };
    let limit = std::time::Duration::from_secs(20);
    let (said, _) = muster_tests::eventually("w0 is forgotten", limit, forgotten).await;
    assert!(said.contains("w0 is forgotten"), "{said}");
    assert!(cli.ok(&["workers"]).await.contains("no worker has joined"));
}

async fn cli_refuses_to_forget_what_is_connected(stack: &Stack) {
    let refused = Cli(stack).run(&["forget", "w0"]).await;
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("worker_not_lost"), "{said}");
}

#[tokio::test]
async fn events_are_followed_until_ctrl_c() {
    let stack = stack().await;
    let cli = Cli(&stack);
    let mut command = cli.command(&["events", "--model", "m", "--json"]);
    let log = stack.path("events.out");
    let mut child = command
        .stdout(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let kinds = || {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines
            .map(|event| event["kind"].as_str().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let seen = async || {
        // The watch may open after the first load, so there are several.
        cli.ok(&["load", "m"]).await;
        cli.ok(&["unload", "m"]).await;
        let kinds = kinds();
        if kinds.iter().any(|kind| kind == "loaded") && kinds.iter().any(|kind| kind == "unloaded") {
            Ok(())
        } else {
            Err(kinds)
        }
    };
    muster_tests::eventually("events are shown", std::time::Duration::from_secs(20), seen).await;
    muster_tests::processes::signal(child.id(), rustix::process::Signal::INT);
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap())
        .await
        .unwrap();
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn failures_have_words_and_exit_codes() {
    let stack = stack().await;
    let cli = Cli(&stack);
    let unknown = cli.run(&["load", "nobody"]).await;
    assert_eq!(unknown.status.code(), Some(4));
    let said = String::from_utf8_lossy(&unknown.stderr);
    assert!(
        said.contains("unknown_model") && said.contains("muster models"),
        "{said}"
    );
    assert_eq!(
        cli.run(&["chat", "nobody", "-m", "x"]).await.status.code(),
        Some(4)
    );
    assert_eq!(
        cli.run(&["--controller", "nonsense", "ps"]).await.status.code(),
        Some(2)
    );
    let nobody = cli.run(&["--controller", "127.0.0.1:1", "ps"]).await;
    assert_eq!(nobody.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("muster up"));
    let gateway = stack.gateway_address().to_string();
    let http = cli.run(&["--controller", &gateway, "models"]).await;
    let said = String::from_utf8_lossy(&http.stderr);
    assert!(
        http.status.code() == Some(1) && said.contains("is not the controller") && said.contains(":8100"),
        "{said}"
    );
}

#[tokio::test]
async fn completions_are_printed() {
    let output = Command::new(binaries::find("muster"))
        .args(["completions", "bash"])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stdout).contains("_muster"));
}
