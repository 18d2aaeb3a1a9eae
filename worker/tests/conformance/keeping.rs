//! The keeper with real processes: whatever dies, the whole tree goes.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::timeout;

use crate::{
    engine::EngineProcess as _,
    harness::{Bench, PATIENCE, alive, eventually},
    keeper::{self, EngineCommand, EngineDir, Kept, StartError},
};

/// A tree of three: a shell, a child in it, and an orphan in a session of its own that ignores TERM.
const TREE: &str = r#"
    trap "" TERM
    sh -c 'setsid sh -c "trap \"\" TERM; echo orphan \$\$; sleep 1000 & wait; sleep 1000" & exit' &
    sleep 1001 &
    echo up
    wait; wait; sleep 1002
"#;

fn command(bench: &Bench, script: &str) -> EngineCommand {
    let instance = muster_core::id::fresh();
    EngineCommand {
        keeper: bench.config.worker.clone(),
        dir: EngineDir::create(&bench.config.run_dir, &instance).unwrap(),
        instance: instance.to_string(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        environment: Vec::new(),
        grace: Duration::from_millis(100),
    }
}

async fn tree_of_three(bench: &Bench) -> (std::sync::Arc<Kept>, Vec<u32>) {
    let kept = keeper::start(command(bench, TREE), |_| ()).await.unwrap();
    // Without the process between the first and the orphan, which ends at once.
    eventually("a whole tree", async || {
        let tree = kept.tree();
        kept.log().len() >= 2 && tree.len() == 4 && tree.iter().all(|process| alive(process.pid))
    })
    .await;
    let pids: Vec<u32> = kept.tree().iter().map(|process| process.pid).collect();
    (kept, pids)
}

async fn gone(kept: &Kept, pids: &[u32]) {
    timeout(PATIENCE, kept.gone())
        .await
        .expect("the tree does not go");
    assert_eq!(kept.tree(), []);
    assert!(!pids.iter().any(|pid| alive(*pid)));
}

async fn ending(kept: &Kept) -> String {
    kept.exited().await.unwrap().to_string()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal).unwrap();
}

#[tokio::test]
async fn a_stubborn_tree_is_killed_after_the_grace() {
    let bench = Bench::new();
    let (kept, pids) = tree_of_three(&bench).await;
    let begin = Instant::now();
    kept.stop();
    gone(&kept, &pids).await;
    assert!(begin.elapsed() >= Duration::from_millis(100));
    assert_eq!(
        fs::read_dir(&bench.config.run_dir).unwrap().count(),
        0,
        "the private directory is left"
    );
}

#[tokio::test]
async fn an_obedient_engine_ends_within_the_grace() {
    let bench = Bench::new();
    let mut command = command(
        &bench,
        "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done",
    );
    command.grace = PATIENCE;
    let kept = keeper::start(command, |_| ()).await.unwrap();
    eventually("up", async || kept.log() == ["up"]).await;
    kept.stop();
    timeout(PATIENCE / 2, kept.gone()).await.unwrap();
    assert_eq!(ending(&kept).await, "exit status 3");
    assert_eq!(kept.log().last().map(String::as_str), Some("bye"));
}

#[tokio::test]
async fn the_end_of_the_first_process_ends_the_rest() {
    let bench = Bench::new();
    let (kept, pids) = tree_of_three(&bench).await;
    signal(pids[0], Signal::KILL);
    gone(&kept, &pids).await;
    assert_eq!(ending(&kept).await, "signal 9");
}

#[tokio::test]
async fn a_dropped_handle_kills_the_tree() {
    let bench = Bench::new();
    let (kept, pids) = tree_of_three(&bench).await;
    let gone = kept.gone();
    drop(kept);
    timeout(PATIENCE, gone).await.unwrap();
    assert!(!pids.iter().any(|pid| alive(*pid)));
}

/// The parent of a process.
fn parent(pid: u32) -> u32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    fields.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_worker_ends_the_tree_of_a_killed_keeper() {
    let bench = Bench::new();
    let (kept, pids) = tree_of_three(&bench).await;
    signal(parent(pids[0]), Signal::KILL);
    gone(&kept, &pids).await;
}

#[tokio::test]
async fn the_worker_ends_the_tree_of_a_keeper_that_does_not_obey() {
    let bench = Bench::new();
    let (kept, pids) = tree_of_three(&bench).await;
    let keeper = parent(pids[0]);
    signal(keeper, Signal::STOP);
    kept.stop();
    gone(&kept, &pids).await;
    assert!(!alive(keeper));
}

#[tokio::test]
async fn an_engine_is_known_with_its_command_line_but_not_its_secrets() {
    let bench = Bench::new();
    let mut command = command(&bench, "sleep 1000 & wait");
    command
        .args
        .extend(["engine", "--api-key", "s3cret"].map(Into::into));
    let kept = keeper::start(command, |_| ()).await.unwrap();
    let shown = kept.command();
    let words = ["/bin/sh", "-c", "sleep 1000 & wait", "engine", "--api-key", "***"];
    assert_eq!(shown, words);
    kept.kill();
    timeout(PATIENCE, kept.gone())
        .await
        .expect("the tree does not go");
}

#[tokio::test]
async fn what_cannot_be_started_is_told_apart() {
    let bench = Bench::new();
    let command = EngineCommand {
        program: "/no/such/engine".into(),
        ..command(&bench, "")
    };
    let error = keeper::start(command, |_| ()).await.unwrap_err();
    assert!(
        matches!(
            error,
            StartError::Engine {
                kind: std::io::ErrorKind::NotFound,
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test]
async fn who_gives_up_on_a_start_can_wait_for_its_end() {
    let bench = Bench::new();
    let mut known = None;
    // Polled once: the keeper is spawned and has reported nothing.
    let start = keeper::start(command(&bench, TREE), |kept| {
        known = Some(std::sync::Arc::clone(kept))
    });
    assert!(
        timeout(Duration::ZERO, start).await.is_err(),
        "it has not started yet"
    );
    let kept = known.expect("announced before anything runs");
    kept.kill();
    timeout(PATIENCE, kept.gone()).await.expect("it does not go");
    assert_eq!(kept.tree(), []);
    assert_eq!(
        fs::read_dir(&bench.config.run_dir).unwrap().count(),
        0,
        "gone only when the keeper has cleaned up"
    );
}

/// A keeper whose worker is gone: started by a shell that is killed, its life line with it.
#[test]
fn leftovers_of_a_killed_worker_are_gone_in_two_seconds_or_swept_at_once() {
    for sweep in [false, true] {
        let bench = Bench::new();
        let run_dir = &bench.config.run_dir;
        // As a worker leaves it.
        drop(keeper::sweep(run_dir).unwrap());
        let dir = run_dir.join("x");
        fs::create_dir(&dir).unwrap();
        let instance = format!("sweep-test-{sweep}");
        let (worker_end, keeper_end) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut child = Command::new(&bench.config.worker)
            .args(["keeper", "--instance", &instance, "--dir"])
            .arg(&dir)
            .args(["--", "/bin/sh", "-c", TREE])
            .env(keeper::MARK, &instance)
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(keeper_end)))
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let marked = || processes_of(&format!("{}={instance}", keeper::MARK));
        wait("a whole tree", || marked().len() >= 5);
        if sweep {
            let lock = keeper::sweep(run_dir).unwrap();
            assert!(marked().is_empty());
            assert!(!dir.exists());
            assert!(
                keeper::sweep(run_dir).is_err(),
                "two workers in one run directory"
            );
            drop(lock);
        } else {
            let begin = Instant::now();
            drop(worker_end);
            wait("an empty tree", || marked().is_empty());
            assert!(begin.elapsed() < Duration::from_secs(2));
        }
        child.wait().unwrap();
    }
}

/// A directory of a worker with the record of a dead keeper, as somebody else would forge it.
fn forged(run_dir: &Path, instance: &str, leader: &std::process::Child) -> std::path::PathBuf {
    let dir = run_dir.join("forged");
    fs::create_dir(&dir).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", leader.id())).unwrap();
    let start = stat
        .rsplit_once(')')
        .unwrap()
        .1
        .split_ascii_whitespace()
        .nth(19)
        .unwrap();
    fs::write(
        dir.join("keeper"),
        format!("{instance}\n{} {start}\n", leader.id()),
    )
    .unwrap();
    dir
}

#[test]
fn a_record_is_believed_only_of_processes_that_bear_its_mark_and_are_ours() {
    let bench = Bench::new();
    let run_dir = bench.config.run_dir.join("w");
    drop(keeper::sweep(&run_dir).unwrap());
    let sleeper = |mark: &str, user: Option<u32>| {
        let mut command = Command::new("sleep");
        command.arg("60").env(keeper::MARK, mark).process_group(0);
        if let Some(user) = user {
            command.uid(user);
        }
        command.spawn().unwrap()
    };
    // Whose number a record names, but whose tree it is not; and, where only root can make one, a stranger's that bears the mark.
    let mut victims = vec![sleeper("another", None)];
    if rustix::process::geteuid().is_root() {
        victims.push(sleeper("forged", Some(65534)));
    }
    let mut ours = sleeper("forged", None);
    for victim in &mut victims {
        let dir = forged(&run_dir, "forged", victim);
        drop(keeper::sweep(&run_dir).unwrap());
        assert!(!dir.exists());
        assert_eq!(victim.try_wait().unwrap(), None, "it was killed");
    }
    assert!(
        ours.wait().unwrap().code().is_none(),
        "what bears the mark was ended"
    );
    for mut victim in victims {
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
}

#[test]
fn a_run_directory_that_is_not_ours_is_refused_and_left_as_it_is() {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
    let bench = Bench::new();
    let base = bench.config.run_dir.join("tmp");
    fs::create_dir(&base).unwrap();
    fs::set_permissions(&base, fs::Permissions::from_mode(0o1777)).unwrap();
    // Somebody's home, for example.
    let home = bench.config.run_dir.join("home");
    fs::create_dir_all(home.join("letters")).unwrap();
    let refused = keeper::sweep(&home).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::DirectoryNotEmpty);
    // A link inside is removed, what it names is not.
    let run_dir = base.join("w");
    drop(keeper::sweep(&run_dir).unwrap());
    symlink(&home, run_dir.join("link")).unwrap();
    drop(keeper::sweep(&run_dir).unwrap());
    if rustix::process::geteuid().is_root() {
        symlink(&home, base.join("planted")).unwrap();
        std::os::unix::fs::lchown(base.join("planted"), Some(65534), None).unwrap();
        let theirs = base.join("theirs");
        fs::create_dir_all(theirs.join("x")).unwrap();
        chown(&theirs, Some(65534), None).unwrap();
        for name in ["planted", "planted/letters", "theirs", "theirs/x"] {
            let refused = keeper::sweep(&base.join(name)).unwrap_err();
            assert!(refused.to_string().contains("65534"), "{name}: {refused}");
        }
        assert!(theirs.join("x").exists());
    }
    assert!(home.join("letters").exists());
}

fn processes_of(mark: &str) -> Vec<u32> {
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
    let marked = |pid: &u32| {
        let environ = fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).unwrap_or_default();
        alive(*pid)
            && environ
                .split(|byte| *byte == 0)
                .any(|entry| entry == mark.as_bytes())
    };
    pids.filter(marked).collect()
}

fn wait(what: &str, condition: impl Fn() -> bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(eventually(what, async || condition()));
}
