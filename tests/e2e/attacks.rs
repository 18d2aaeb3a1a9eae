//! What was done to the running product by people who should not have been able to: a user with an ordinary key, a web page in the operator's
//! browser, another user of the same machine. Each attack is a test that succeeds when it fails.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use muster_core::{Code, Error};
use muster_proto::StatusExt as _;
use muster_proto::v1::EngineHttpCall;
use muster_tests::{Engine, Http, Running, Stack, binaries, engines::required, eventually, processes};
use serde_json::{Value, json};

use crate::up::Up;

/// The uid and gid of `nobody`.
const NOBODY: u32 = 65534;
const USER: &str = "key-of-a-user-0123456789";
const ADMIN: &str = "key-of-an-admin-0123456789";
const HUB: &str = "token-of-the-hub-0123456789";
const KEYS: [(&str, &str); 3] = [
    ("MUSTER_API_KEY", USER),
    ("MUSTER_ADMIN_API_KEY", ADMIN),
    ("HF_TOKEN", HUB),
];

/// What the controller and the workers say to each other, and what only operators may.
const INSIDE: [(&str, &str, &str); 5] = [
    ("fleet", "muster.v1.Fleet/Join", "{}"),
    ("control", "muster.v1.Control/WatchRoutes", "{}"),
    (
        "control",
        "muster.v1.Control/EnsureLoaded",
        r#"{"ensureId":"x","gatewayId":"x","modelId":"m"}"#,
    ),
    (
        "inference",
        "muster.v1.Inference/EngineHttp",
        r#"{"model":"m","method":"POST","path":"/tools"}"#,
    ),
    ("host", "muster.v1.Host/Describe", "{}"),
];
const ORDERS: [(&str, &str, &str); 3] = [
    (
        "control",
        "muster.v1.Control/LoadModel",
        r#"{"model":"m","overrideJson":"{\"llamacpp_args\":\"--tools all\"}"}"#,
    ),
    ("control", "muster.v1.Control/ListModels", "{}"),
    ("models", "muster.v1.Models/DeleteModel", r#"{"model":"m"}"#),
];

/// Somebody with `grpcurl` and our proto files: it must not fail for want of reflection.
struct Stranger {
    directory: tempfile::TempDir,
    uid: Option<u32>,
}

impl Stranger {
    /// Another user of this machine; none, with a word about it, where this test may not become one.
    fn nobody() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("not attacked as another user: only root can become one");
            return None;
        }
        Some(Self::with(Some(NOBODY)))
    }

    /// The user of the tests.
    fn own() -> Self {
        Self::with(None)
    }

    fn with(uid: Option<u32>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        open(directory.path(), 0o755);
        // Not copied by this process: another test's child could have the file open for writing for a moment, and it could not be started.
        let copied = Command::new("install")
            .arg(required("MUSTER_TEST_GRPCURL"))
            .arg(directory.path().join("grpcurl"))
            .status();
        assert!(copied.unwrap().success());
        let protos = directory.path().join("muster/v1");
        fs::create_dir_all(&protos).unwrap();
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../proto/muster/v1");
        for file in fs::read_dir(ours).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), protos.join(file.file_name())).unwrap();
        }
        Self { directory, uid }
    }

    async fn grpcurl(&self, before: &[&str], after: &[&str]) -> (bool, String) {
        let mut command = Command::new(self.directory.path().join("grpcurl"));
        command
            .current_dir(self.directory.path())
            .args(["-plaintext", "-max-time", "20", "-connect-timeout", "5"])
            .args(before)
            .args(after);
        if let Some(uid) = self.uid {
            command.uid(uid).gid(uid);
        }
        let output = run(command).await;
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    /// Calls a method of ours.
    async fn call(&self, key: &str, at: &[&str], (file, method, body): (&str, &str, &str)) -> (bool, String) {
        let file = format!("muster/v1/{file}.proto");
        let header = format!("authorization: Bearer {key}");
        let mut before = vec!["-import-path", ".", "-proto", &file, "-d", body];
        if !key.is_empty() {
            before.extend(["-H", &header]);
        }
        self.grpcurl(&before, &[at, &[method]].concat()).await
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn open(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn run(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output().expect("it can be started"))
        .await
        .unwrap()
}

async fn muster(words: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(binaries::find("muster"));
    command.args(words).envs(environment.iter().copied());
    let output = run(command).await;
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// All processes of a `muster up`, and itself.
fn tree(up: &Up) -> Vec<u32> {
    let mut all = processes::descendants(up.running.pid());
    all.push(up.running.pid());
    all
}

/// The inodes of a process tree's open sockets.
fn inodes(tree: &[u32]) -> Vec<String> {
    let of = |pid: &u32| fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten();
    let links = tree
        .iter()
        .flat_map(of)
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let inode = |link: PathBuf| {
        Some(
            link.to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .to_owned(),
        )
    };
    links.filter_map(inode).collect()
}

/// Ports on which a process tree listens.
fn tcp_ports(tree: &[u32]) -> Vec<u16> {
    let inodes = inodes(tree);
    let mut ports = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for line in fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = fields[3] == "0A";
            if listens && inodes.iter().any(|inode| inode == fields[9]) {
                let (_, port) = fields[1].rsplit_once(':').unwrap();
                ports.push(u16::from_str_radix(port, 16).unwrap());
            }
        }
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Paths of the unix sockets on which a process tree takes streams.
fn unix_sockets(tree: &[u32]) -> Vec<String> {
    let inodes = inodes(tree);
    let listed = fs::read_to_string("/proc/net/unix").unwrap();
    let rows = listed
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    // Flags: it accepts; type: stream.
    let listens = |row: &Vec<&str>| row.len() == 8 && row[3] == "00010000" && row[4] == "0001";
    let ours = rows.filter(|row| listens(row) && inodes.iter().any(|inode| inode == row[6]));
    let mut paths: Vec<String> = ours.map(|row| row[7].to_owned()).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

fn port(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

/// uid `nobody` had a root shell: `LoadModel` with `--tools all`, then `Inference/EngineHttp` with `POST /tools` (issue 10, holes, 1).
#[tokio::test]
async fn another_user_reaches_neither_fleet_nor_inference_nor_loads() {
    let up = Up::start_as(&Engine::Stub.model("m", 1, ""), &[], &KEYS).await;
    let greeting = up.greeting();
    let grpc = text(&greeting["grpc"]);
    // The admin's own way is open, and a model is loaded.
    let own = Stranger::own();
    let (done, said) = own
        .call(
            ADMIN,
            &[grpc],
            ("control", "muster.v1.Control/LoadModel", r#"{"model":"m"}"#),
        )
        .await;
    assert!(done, "{said}");

    let all = tree(&up);
    let mut expected = [port(text(&greeting["http"])), port(grpc)];
    expected.sort_unstable();
    assert_eq!(tcp_ports(&all), expected, "everything else is on no port");

    let Some(nobody) = Stranger::nobody() else { return };
    for key in ["", USER, "guessed"] {
        for order in ORDERS {
            let (done, said) = nobody.call(key, &[grpc], order).await;
            let refused = said.contains("Unauthenticated") || said.contains("PermissionDenied");
            assert!(!done && refused, "{order:?} with {key:?}: {said}");
        }
    }
    for key in ["", USER, ADMIN] {
        for call in INSIDE {
            let (done, said) = nobody.call(key, &[grpc], call).await;
            assert!(
                !done && said.contains("PermissionDenied"),
                "{call:?} with {key:?}: {said}"
            );
        }
    }

    let sockets = unix_sockets(&all);
    assert!(sockets.len() >= 3, "controller, worker, engine: {sockets:?}");
    let private = |path: &&Path| mode(path) == 0o700;
    let directories = |socket| Path::new(socket).ancestors().skip(1).filter(private);
    for socket in &sockets {
        assert!(
            directories(socket).next().is_some(),
            "{socket}: in a directory of its own"
        );
    }
    // Even if somebody opens the directories and the files.
    let closed: BTreeSet<&Path> = sockets.iter().flat_map(|socket| directories(socket)).collect();
    closed.iter().for_each(|directory| open(directory, 0o755));
    for socket in &sockets {
        open(Path::new(socket), 0o777);
        let address = format!("unix://{socket}");
        let (done, said) = nobody.call("", &[&address], INSIDE[0]).await;
        // Before the service says that it has no such method, nobody is let in at all.
        assert!(!done && said.contains("Failed to dial"), "{socket}: {said}");
        let (_, said) = own.call("", &[&address], INSIDE[0]).await;
        assert!(
            !said.contains("Failed to dial"),
            "the owner is let in at {socket}: {said}"
        );
    }
}

/// Engine and keeper inherited all keys (issue 10, holes, 8).
#[tokio::test]
async fn no_key_is_on_a_command_line_or_with_an_engine() {
    let up = Up::start_as(&Engine::Stub.model("m", 1, ""), &[], &KEYS).await;
    let (done, said) = muster(
        &["load", "m"],
        &[("MUSTER_STATE_DIR", up.state.to_str().unwrap())],
    )
    .await;
    assert_eq!(done, Some(0), "{said}");
    let secrets = [USER, ADMIN, HUB];
    let mut kept = 0;
    for pid in tree(&up) {
        let line = processes::command_line(pid);
        for secret in secrets {
            assert!(!line.contains(secret), "{line}");
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        let environment = String::from_utf8_lossy(&environment).replace('\0', "\n");
        let may_know: &[&str] = if line.contains("keeper") || line.contains("stub-engine") {
            kept += 1;
            for name in ["MUSTER_API", "MUSTER_ADMIN", "MUSTER_KEY", "HF_", "CARGO"] {
                let inherited = environment.lines().find(|entry| entry.starts_with(name));
                assert_eq!(inherited, None, "{line}");
            }
            &[]
        } else if line.contains("muster-worker") {
            &[HUB]
        } else {
            &secrets
        };
        for secret in secrets {
            assert!(
                may_know.contains(&secret) || !environment.contains(secret),
                "{line}"
            );
        }
    }
    assert!(kept >= 2, "a keeper and an engine");
}

#[tokio::test]
async fn without_keys_operators_need_none_and_still_see_no_more_than_theirs() {
    let up = Up::start_as(&Engine::Stub.model("m", 1, ""), &[], &[]).await;
    let greeting = up.greeting();
    let grpc = text(&greeting["grpc"]);
    for stranger in [Some(Stranger::own()), Stranger::nobody()].into_iter().flatten() {
        let (done, said) = stranger.grpcurl(&[], &[grpc, "list"]).await;
        assert!(
            done && said.contains("muster.v1.Control") && said.contains("muster.v1.Models"),
            "{said}"
        );
        assert!(!said.contains("Fleet"), "{said}");
        let (done, said) = stranger.call("", &[grpc], ORDERS[1]).await;
        assert!(done && said.contains("\"m\""), "{said}");
        for call in INSIDE {
            let (done, said) = stranger.call("", &[grpc], call).await;
            assert!(!done && said.contains("PermissionDenied"), "{call:?}: {said}");
        }
        // A page that points its own name at this machine.
        let (done, said) = stranger
            .grpcurl(&["-authority", "evil.test:8100"], &[grpc, "list"])
            .await;
        assert!(!done && said.contains("only localhost"), "{said}");
    }
}

#[tokio::test]
async fn the_user_who_runs_it_needs_no_key_and_others_the_admins() {
    let up = Up::start_as(&Engine::Stub.model("m", 1, ""), &[], &KEYS).await;
    let state = ("MUSTER_STATE_DIR", up.state.to_str().unwrap());
    let (done, said) = muster(&["models"], &[state]).await;
    assert!(done == Some(0) && said.contains('m'), "{said}");
    let (done, said) = muster(&["chat", "m", "-m", "Hello", "--max-tokens", "2"], &[state]).await;
    assert_eq!(done, Some(0), "{said}");
    let greeting = up.greeting();
    let elsewhere = ["--controller", text(&greeting["grpc"]), "models"];
    for (key, expected) in [("", Some(1)), (USER, Some(1)), (ADMIN, Some(0))] {
        let (done, said) = muster(&elsewhere, &[("MUSTER_KEY", key)]).await;
        assert!(
            done == expected && (done == Some(0) || said.contains("--key-file")),
            "{key:?}: {said}"
        );
    }
    let file = up.directory.path().join("key");
    fs::write(&file, format!("{ADMIN}\n")).unwrap();
    let (done, said) = muster(&elsewhere, &[("MUSTER_KEY_FILE", file.to_str().unwrap())]).await;
    assert_eq!(done, Some(0), "{said}");
}

#[tokio::test]
async fn no_part_listens_for_others_without_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().to_str().unwrap();
    let socket = format!("unix:{state}/c.sock");
    let controller = ["--state-dir", state, "--operators", "none", "--listen"];
    let worker = ["--run-dir", state, "--controller", &socket, "--listen"];
    let operators = ["--state-dir", state, "--listen", &socket, "--operators"];
    let engine = ["stub-engine", "--listen"];
    for (program, flags, address, wanted) in [
        (
            "muster-controller",
            &controller[..],
            "127.0.0.1:0",
            "--token-file",
        ),
        ("muster-controller", &controller[..], "0.0.0.0:0", "--token-file"),
        (
            "muster-controller",
            &operators[..],
            "0.0.0.0:0",
            "--admin-api-key-file",
        ),
        ("muster-worker", &worker[..], "127.0.0.1:0", "--token-file"),
        ("muster-worker", &worker[..], "0.0.0.0:0", "--token-file"),
        // It says why to the log that its worker would read.
        ("muster-worker", &engine[..], "127.0.0.1:0", ""),
        ("muster-gateway", &["--listen"], "0.0.0.0:0", "--api-key"),
    ] {
        let mut command = Command::new(binaries::find(program));
        command.args(flags).arg(address);
        let output = tokio::time::timeout(Duration::from_secs(20), run(command));
        let output = output
            .await
            .unwrap_or_else(|_| panic!("{program} listens on {address}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && said.contains(wanted),
            "{program} {address}: {said}"
        );
    }
}

/// Processes of several machines, as far as one machine can show it: over TCP, with a token.
#[tokio::test]
async fn machines_that_share_a_token_work_together_and_others_stay_out() {
    let directory = tempfile::Builder::new().prefix("mk").tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (token, other) = (path("token"), path("other"));
    fs::write(&token, "a-token-of-many-characters\n").unwrap();
    fs::write(&other, "another-one-of-many-characters\n").unwrap();
    fs::write(path("muster.toml"), Engine::Stub.model("m", 1, "")).unwrap();
    let start = async |name: &str, program: &str, token: &str, more: &[&str]| {
        let mut command = Command::new(binaries::find(program));
        command
            .args(["--listen", "127.0.0.1:0", "--token-file", token])
            .args(more);
        let mut running = Running::start(name, command, directory.path());
        let address = running.ready().await;
        (running, address)
    };
    let (state, config, run) = (path("state"), path("muster.toml"), path("run"));
    let of_controller = ["--state-dir", &state, "--config", &config];
    let (_controller, at) = start("controller", "muster-controller", &token, &of_controller).await;
    let joins = ["--controller", &at.to_string()];
    let of_worker = ["--name", "w0", "--run-dir", &run];
    let (out, _) = start(
        "out",
        "muster-worker",
        &other,
        &[joins, ["--name", "w1"], ["--run-dir", &path("out")]].concat(),
    )
    .await;
    let refused = async || {
        if out.log().contains("does not let this worker join") {
            Ok(())
        } else {
            Err(out.log())
        }
    };
    eventually(
        "the wrong token is refused, and said to be",
        Duration::from_secs(20),
        refused,
    )
    .await;
    let (_worker, worker) = start(
        "worker",
        "muster-worker",
        &token,
        &[&joins[..], &of_worker[..]].concat(),
    )
    .await;
    let (_gateway, http) = start("gateway", "muster-gateway", &token, &joins).await;
    let answer = Http::new(&http).chat("m", json!({"max_tokens": 2})).await;
    assert!(!answer.chat_text().is_empty());

    let own = Stranger::own();
    for (address, call) in [(&worker, INSIDE[4]), (&at, INSIDE[0]), (&at, ORDERS[1])] {
        for (key, lets) in [
            ("", false),
            ("another-one-of-many-characters", false),
            ("a-token-of-many-characters", true),
        ] {
            let (done, said) = own.call(key, &[&address.to_string()], call).await;
            // What Fleet says to an empty session is its business.
            let inside = done || !said.contains("Unauthenticated");
            assert_eq!(inside, lets, "{call:?} at {address} with {key:?}: {said}");
        }
    }
}

/// `POST /tools {"tool": "exec_shell_command"}` went through to the engine (issue 10, holes, 1).
#[tokio::test]
async fn an_engines_tools_are_passed_on_to_nobody() {
    let stack = Stack::with(Engine::LlamaServer.model("m", 1, "")).start().await;
    stack.http().chat("m", json!({"max_tokens": 1})).await.ok();
    for (method, path, passes) in [
        ("POST", "/tools", false),
        ("GET", "/", false),
        ("GET", "/slots/../tools", false),
        ("GET", "/props", true),
    ] {
        let call = EngineHttpCall {
            model: "m".to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            ..EngineHttpCall::default()
        };
        match stack.inference(0).engine_http(call).await {
            Ok(_) => assert!(passes, "{method} {path}"),
            Err(status) => {
                let error = Error::from_status(&status);
                assert!(
                    !passes && error.code == Code::UnsupportedByRuntime,
                    "{method} {path}: {error}"
                );
            }
        }
    }
}
