//! One real process: started with a readiness socket and a log file, ended with its handle.

use std::{
    fs::{self, File},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use muster_proto::net::Address;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixDatagram;

use crate::wait::{eventually, within};

/// Longest wait for readiness; generous, because test machines are busy.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Lines of a log that a failed test shows.
const SHOWN_LINES: usize = 120;

/// A started process. Dropping it kills it, and shows its log if the test failed.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    notify: UnixDatagram,
    log: PathBuf,
    ended: Option<ExitStatus>,
}

impl Running {
    /// Starts `command`; its output goes to `DIRECTORY/NAME.log`, which later starts of the same name continue.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start(name: &str, mut command: Command, directory: &Path) -> Self {
        let log = directory.join(format!("{name}.log"));
        let file = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .expect("a log file can be made");
        let socket = directory.join(format!("{name}.notify"));
        drop(fs::remove_file(&socket));
        let notify = UnixDatagram::bind(&socket).expect("a readiness socket can be bound");
        command
            .env("NOTIFY_SOCKET", &socket)
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("a file can be cloned"))
            .stderr(file)
            .process_group(0);
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self {
            name: name.to_owned(),
            child,
            notify,
            log,
            ended: None,
        }
    }

    /// Waits until it says that it is ready; where it listens.
    ///
    /// # Panics
    /// It ends or stays silent instead.
    pub async fn ready(&mut self) -> Address {
        let what = format!("{} is ready", self.name);
        within(&what, READY_LIMIT, async {
            let mut address = None;
            let mut buffer = [0; 4096];
            loop {
                let length = tokio::select! {
                    length = self.notify.recv(&mut buffer) => length.expect("a datagram can be read"),
                    status = exit_of(&mut self.child) => panic!("{} ended before it was ready: {status}", self.name),
                };
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                for line in text.lines() {
                    match line.split_once('=') {
                        Some(("MUSTER_ADDRESS", text)) => address = text.parse().ok(),
                        Some(("READY", "1")) => return address.take().expect("a ready process says where it listens"),
                        _ => {}
                    }
                }
            }
        })
        .await
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// `kill -9`, and waits for the end.
    ///
    /// # Panics
    /// It cannot be waited for.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            // It may have ended by itself.
            drop(self.child.kill());
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    /// SIGTERM.
    pub fn terminate(&self) {
        signal(self.pid(), Signal::TERM);
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// It does not within `limit`.
    pub async fn ended(&mut self, limit: Duration) -> ExitStatus {
        if let Some(status) = self.ended {
            return status;
        }
        let what = format!("{} ends", self.name);
        let status = within(&what, limit, exit_of(&mut self.child)).await;
        self.ended = Some(status);
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            let skipped = lines.len().saturating_sub(SHOWN_LINES);
            eprintln!(
                "---- log of {} ({skipped} lines skipped) ----\n{}",
                self.name,
                lines[skipped..].join("\n")
            );
        }
    }
}

async fn exit_of(child: &mut Child) -> ExitStatus {
    let probe = async || {
        child
            .try_wait()
            .expect("a child can be waited for")
            .ok_or("it runs")
    };
    eventually("a process ends", Duration::from_secs(3600), probe)
        .await
        .0
}

/// Sends a signal; a process that is gone is no failure.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _gone = kill_process(pid, signal).is_err();
    }
}

/// `kill -9` by process id.
pub fn kill(pid: u32) {
    signal(pid, Signal::KILL);
}

/// A process is there and not a zombie.
#[must_use]
pub fn alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z' && state != 'X')
}

/// All live descendants of a process, children before grandchildren.
#[must_use]
pub fn descendants(of: u32) -> Vec<u32> {
    let mut found = vec![of];
    let mut next = 0;
    let all: Vec<(u32, u32)> = fs::read_dir("/proc")
        .map(|entries| {
            entries
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .filter_map(|pid| {
                    stat(pid)
                        .filter(|(state, _)| *state != 'Z')
                        .map(|(_, parent)| (pid, parent))
                })
                .collect()
        })
        .unwrap_or_default();
    while let Some(&parent) = found.get(next) {
        found.extend(all.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    found.remove(0);
    found
}

/// The command line of a process, words joined by blanks; empty if it is gone.
#[must_use]
pub fn command_line(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/cmdline"))
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " "))
        .unwrap_or_default()
}

/// CPU time that a process has used so far, all its living threads together: `schedstat` counts nanoseconds, `stat` hundredths of seconds.
#[must_use]
pub fn cpu(pid: u32) -> Duration {
    let of = |thread: fs::DirEntry| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let times = threads
        .into_iter()
        .flatten()
        .filter_map(|thread| of(thread.ok()?));
    Duration::from_nanos(times.sum())
}

/// State letter and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command's name stands in parentheses and may hold anything.
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
