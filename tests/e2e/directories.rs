//! Attacks on the directories of a process that is started alone: what another user put in their place is neither used nor touched.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use muster_tests::{Stack, binaries, eventually, processes};

const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(30);

/// Runs a process that must not start; what it says.
async fn refused(mut command: Command, log: &Path) -> String {
    let file = fs::File::create(log).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let mut child = command.spawn().unwrap();
    let ended = async || child.try_wait().unwrap().ok_or("it runs");
    let status = eventually("it refuses to start", LIMIT, ended).await.0;
    assert!(!status.success(), "{status}");
    fs::read_to_string(log).unwrap()
}

fn worker(run_dir: &Path) -> Command {
    let mut command = Command::new(binaries::find("muster-worker"));
    command.args([
        "--name",
        "w0",
        "--controller",
        "127.0.0.1:1",
        "--listen",
        "127.0.0.1:0",
    ]);
    command.arg("--run-dir").arg(run_dir);
    command
}

#[tokio::test]
async fn directories_of_another_user_are_not_taken() {
    if !rustix::process::geteuid().is_root() {
        println!("not attacked as another user: only root can become one");
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let shared = base.path().join("tmp");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let home = base.path().join("home");
    fs::create_dir_all(home.join("w0/letters")).unwrap();
    // A process of ours that the forged record wants to be killed, under the mark that it would bear.
    let mut victim = Command::new("sleep")
        .arg("600")
        .env("MUSTER_INSTANCE", "x")
        .spawn()
        .unwrap();
    let record = format!("x\n{} {}\n", victim.id(), start_time(victim.id()));
    let (made, inside, planted) = (shared.join("made"), shared.join("inside"), shared.join("planted"));
    for dir in [made.join("w0/x"), inside.join("w0/x")] {
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("keeper"), &record).unwrap();
    }
    chown(&made, Some(NOBODY), Some(NOBODY)).unwrap();
    chown(inside.join("w0"), Some(NOBODY), Some(NOBODY)).unwrap();
    symlink(&home, &planted).unwrap();
    lchown(&planted, Some(NOBODY), Some(NOBODY)).unwrap();
    for run_dir in [&made, &inside, &planted] {
        let said = refused(worker(run_dir), &base.path().join("log")).await;
        assert!(said.contains(&format!("uid {NOBODY}")), "{said}");
    }
    // Nobody's link, but not a run directory either.
    let said = refused(worker(&home), &base.path().join("log")).await;
    assert!(said.contains("no worker left there"), "{said}");
    assert!(home.join("w0/letters").exists() && made.join("w0/x/keeper").exists());
    assert!(processes::alive(victim.id()), "a forged record was believed");
    victim.kill().unwrap();
    victim.wait().unwrap();
}

fn start_time(pid: u32) -> String {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat.rsplit_once(')').unwrap().1;
    fields.split_ascii_whitespace().nth(19).unwrap().to_owned()
}

#[tokio::test]
async fn nobody_else_looks_into_run_and_state_directories() {
    let stack = Stack::with("").start().await;
    for name in ["run/w0", "state"] {
        let mode = fs::metadata(stack.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
    for file in fs::read_dir(stack.path("state")).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{:?}", file.path());
    }
}
