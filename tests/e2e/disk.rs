//! A disk that is full: everything serves on, says what it could not keep, and keeps it when there is room (issue "firm", 3.9).

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use muster_tests::{Engine, Http, Running, eventually, processes};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(30);

/// A small disk of its own, unmounted at the end.
struct Disk(PathBuf);

impl Disk {
    /// None where this user may not mount.
    fn mount(path: &Path) -> Option<Self> {
        fs::create_dir_all(path).unwrap();
        let mut command = Command::new("mount");
        command
            .args(["-t", "tmpfs", "-o", "size=128k,mode=0700", "tmpfs"])
            .arg(path);
        let mounted = command.output().is_ok_and(|output| output.status.success());
        if !mounted {
            println!("not run: mounting a small disk takes root");
        }
        mounted.then(|| Self(path.to_owned()))
    }

    fn fill(&self) {
        let error = fs::write(self.0.join("filler"), vec![0; 1 << 20]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }

    fn clear(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: what still runs there ends with the test.
        drop(Command::new("umount").arg("--lazy").arg(&self.0).status());
    }
}

fn up(state: &Path, directory: &Path) -> Running {
    let config = directory.join("muster.toml");
    let models: String = ["one", "two", "three"]
        .map(|id| Engine::Stub.model(id, 1, ""))
        .concat();
    fs::write(&config, models).unwrap();
    Running::start("up", super::up::command(state, &config, &[]), directory)
}

async fn chat(http: &Http, model: &str) {
    let answer = async || {
        let reply = http.chat(model, json!({"max_tokens": 2})).await;
        if reply.status == 200 {
            Ok(())
        } else {
            Err(reply.text)
        }
    };
    eventually(&format!("{model} answers"), LIMIT, answer).await;
}

async fn troubles(http: &Http, some: bool) -> Value {
    let probe = async || {
        let health = http.get("/health").await.ok();
        let found = health["troubles"]
            .as_array()
            .is_some_and(|troubles| !troubles.is_empty());
        if found == some { Ok(health) } else { Err(health) }
    };
    eventually(&format!("health tells of troubles: {some}"), LIMIT, probe)
        .await
        .0
}

/// No model could be loaded, a killed controller could not start again, and chat answered 503.
#[tokio::test]
async fn a_full_state_directory_stops_no_load_and_no_start_and_is_told() {
    let directory = tempfile::Builder::new().prefix("md").tempdir().unwrap();
    let state = directory.path().join("s");
    let Some(disk) = Disk::mount(&state) else { return };
    let mut up = up(&state, directory.path());
    let http = Http::new(&up.ready().await);
    disk.fill();
    chat(&http, "one").await;

    let controller = processes::descendants(up.pid())
        .into_iter()
        .find(|pid| processes::command_line(*pid).contains("muster-controller"))
        .expect("a controller runs");
    processes::kill(controller);
    chat(&http, "two").await;
    let health = troubles(&http, true).await;
    assert!(
        health["troubles"][0].as_str().unwrap().contains("memory only"),
        "{health}"
    );
    let metrics = http.get("/metrics").await.text;
    assert!(metrics.contains("muster_controller_troubles 1"), "{metrics}");

    disk.clear();
    troubles(&http, false).await;
    let epoch: u64 = fs::read_to_string(state.join("epoch.json"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    assert!(epoch > 1_000_000_000, "the time stood in for it: {epoch}");
    chat(&http, "three").await;
    up.terminate();
    assert!(up.ended(LIMIT).await.success());
}

#[tokio::test]
async fn everything_starts_on_a_full_disk() {
    let directory = tempfile::Builder::new().prefix("md").tempdir().unwrap();
    let state = directory.path().join("s");
    let Some(disk) = Disk::mount(&state) else { return };
    disk.fill();
    let mut up = up(&state, directory.path());
    let http = Http::new(&up.ready().await);
    chat(&http, "one").await;
    troubles(&http, true).await;
    up.terminate();
    assert!(up.ended(LIMIT).await.success());
}
