//! The real binary: readiness, signals, complaints.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::{
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

const BINARY: &str = env!("CARGO_BIN_EXE_muster-controller");
const LIMIT: Duration = Duration::from_secs(10);

fn start(dir: &Path, config: &str, more: &[&str]) -> (Child, UnixDatagram) {
    start_at(&dir.join("controller.sock"), dir, config, more)
}

fn start_at(at: &Path, dir: &Path, config: &str, more: &[&str]) -> (Child, UnixDatagram) {
    let path = dir.join("config.toml");
    std::fs::write(&path, config).unwrap();
    let socket = dir.join("notify");
    drop(std::fs::remove_file(&socket));
    let notify = UnixDatagram::bind(&socket).unwrap();
    notify.set_read_timeout(Some(LIMIT)).unwrap();
    let child = Command::new(BINARY)
        .arg("--config")
        .arg(path)
        .arg("--state-dir")
        .arg(dir.join("state"))
        .arg("--listen")
        .arg(format!("unix:{}", at.display()))
        .args(["--operators", "127.0.0.1:0"])
        .args(more)
        .env("NOTIFY_SOCKET", socket)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, notify)
}

fn hear(notify: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    let length = notify.recv(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..length]).into_owned()
}

#[test]
fn it_says_where_it_listens_and_ends_on_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let (mut child, notify) = start(dir.path(), "", &["--max-loaded-models", "2", "-1"]);
    let ready = hear(&notify);
    assert!(ready.contains("READY=1"), "{ready}");
    let address = ready
        .lines()
        .find_map(|line| line.strip_prefix("MUSTER_ADDRESS="))
        .unwrap();
    std::net::TcpStream::connect(address).unwrap();
    std::os::unix::net::UnixStream::connect(dir.path().join("controller.sock")).unwrap();
    // The same state directory is taken.
    let (second, _) = start_at(&dir.path().join("second.sock"), dir.path(), "", &[]);
    let output = second.wait_with_output().unwrap();
    assert!(!output.status.success());
    let first = format!("in use by another controller (pid {})", child.id());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains(&first),
        "{output:?}"
    );
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    assert!(child.wait().unwrap().success());
}

#[test]
fn all_problems_of_the_configuration_are_told_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (child, _notify) = start(
        dir.path(),
        "[models.a]\nruntime = 'nothing'\n[policy]\nmargin = 1\n",
        &[],
    );
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("2 problems"), "{text}");
    assert!(text.contains("config.toml: policy.margin: unknown key"), "{text}");
    assert!(
        text.contains("config.toml: models.a.runtime: want one of"),
        "{text}"
    );
}

#[test]
fn a_limit_that_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (child, _notify) = start(dir.path(), "", &["--max-loaded-models", "0"]);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("--max-loaded-models: 0 is no limit"),
        "{output:?}"
    );
}

/// Whoever goes back to an older version loses nothing by trying: it says what to do, and has written nothing.
#[test]
fn state_of_a_newer_version_stops_the_start_and_is_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (mut child, notify) = start(dir.path(), "", &[]);
    assert!(hear(&notify).contains("READY=1"));
    child.kill().unwrap();
    child.wait().unwrap();
    let read = |name: &str| std::fs::read_to_string(state.join(name)).unwrap();
    let epoch = read("epoch.json");
    let newer = r#"{"version": 9, "models": "in another form"}"#;
    std::fs::write(state.join("user_models.json"), newer).unwrap();
    let (child, _) = start(dir.path(), "", &[]);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for part in [
        "user_models.json is of version 9",
        "up to 1",
        "user_models.json.newer",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(
        (read("user_models.json").as_str(), read("epoch.json")),
        (newer, epoch)
    );
    // What it says helps.
    std::fs::rename(
        state.join("user_models.json"),
        state.join("user_models.json.newer"),
    )
    .unwrap();
    let (mut child, notify) = start(dir.path(), "", &[]);
    assert!(hear(&notify).contains("READY=1"));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Killed, so that nothing is tidied up: the lock is free, and what people saved has its backup.
#[test]
fn after_a_kill_the_state_is_taken_up_and_a_damaged_file_is_replaced_by_its_backup() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let (mut child, notify) = start(dir.path(), "", &[]);
    assert!(hear(&notify).contains("READY=1"));
    child.kill().unwrap();
    child.wait().unwrap();

    std::fs::write(state.join("pins.json"), r#"{"a": tr"#).unwrap();
    let (child, _) = start(dir.path(), "", &[]);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("pins.json"), "{said}");

    std::fs::write(state.join("pins.json.backup"), r#"{"a": true}"#).unwrap();
    let (mut child, notify) = start(dir.path(), "", &[]);
    assert!(hear(&notify).contains("READY=1"));
    child.kill().unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("replaced by its backup"), "{said}");
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(state.join(name)).unwrap()).unwrap()
    };
    assert_eq!(
        json("pins.json"),
        serde_json::json!({"version": 1, "pins": {"a": true}})
    );
    assert_eq!(
        std::fs::read_to_string(state.join("pins.json.damaged")).unwrap(),
        r#"{"a": tr"#
    );
}
