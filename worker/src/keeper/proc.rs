//! Reads processes and their families from `/proc`. `procfs-core` parses `stat`; `status` is parsed here, because the crate wants lines of it that some
//! kernels do not write.

use std::{fs, os::fd::OwnedFd, path::Path};

use muster_proto::v1::ProcessId;
use procfs_core::{FromRead as _, process::Stat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process, as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// Process id.
    pub(super) pid: u32,
    pub(super) parent: u32,
    /// Process group.
    pub(super) group: u32,
    /// Start time in clock ticks since boot.
    pub(super) start_time: u64,
    /// It has ended, but its parent has not reaped it yet.
    pub(super) zombie: bool,
}

impl Process {
    /// Its identity even after its pid was used again.
    pub(super) fn id(self) -> ProcessId {
        ProcessId {
            pid: self.pid,
            start_time: self.start_time,
        }
    }
}

/// Reads a process; `None` if there is none.
pub(super) fn read_process(pid: u32) -> Option<Process> {
    let stat = Stat::from_file(format!("/proc/{pid}/stat")).ok()?;
    Some(Process {
        pid,
        parent: stat.ppid.try_into().ok()?,
        group: stat.pgrp.try_into().ok()?,
        start_time: stat.starttime,
        zombie: matches!(stat.state, 'Z' | 'X'),
    })
}

/// The effective user of a process.
pub(super) fn user(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// All visible processes of this host.
pub(super) fn all() -> Vec<Process> {
    numbers(Path::new("/proc"))
        .into_iter()
        .filter_map(read_process)
        .collect()
}

/// The living descendants of `root`, without `root`, parents before children. Not read from `/proc/PID/task/TID/children`, which many
/// kernels lack.
pub(super) fn descendants(root: u32) -> Vec<Process> {
    let all = all();
    let mut found: Vec<Process> = Vec::new();
    let mut next = 0;
    let mut parent = root;
    loop {
        found.extend(all.iter().filter(|process| process.parent == parent));
        let Some(process) = found.get(next) else { break };
        parent = process.pid;
        next += 1;
    }
    found.retain(|process| !process.zombie);
    found
}

/// The value of an environment variable with which a process was started.
pub(super) fn environment(pid: u32, name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    bytes.split(|byte| *byte == 0).find_map(|entry| {
        let (key, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        (key == name).then(|| value.to_owned())
    })
}

/// Opens a process for signals and waiting; `None` if the pid belongs to another process now.
pub(super) fn open(process: Process) -> Option<OwnedFd> {
    let fd = pidfd_open(
        Pid::from_raw(i32::try_from(process.pid).ok()?)?,
        PidfdFlags::empty(),
    )
    .ok()?;
    (read_process(process.pid)?.start_time == process.start_time).then_some(fd)
}

/// Sends a signal, unless the process has ended or the pid belongs to another one.
pub(super) fn signal(process: Process, signal: Signal) {
    if let Some(fd) = open(process)
        && let Err(error) = pidfd_send_signal(fd, signal)
    {
        // Usually the process has ended meanwhile, which is fine.
        tracing::trace!(pid = process.pid, %error, "no signal was sent");
    }
}

fn numbers(dir: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        ffi::OsStr,
        os::unix::{ffi::OsStrExt as _, fs::symlink},
        process::{Command, Stdio},
    };

    use super::*;

    /// Regression: a process whose name is not UTF-8 was invisible, so whoever ended its tree left it running.
    #[test]
    fn no_name_hides_a_process() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join(OsStr::from_bytes(b"a) S 1 \xff (b"));
        symlink("/bin/sh", &name).unwrap();
        let mut command = Command::new(name);
        command.args(["-c", "read line"]).stdin(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let seen = read_process(child.id()).unwrap();
        assert_eq!(seen.parent, std::process::id());
        assert!(descendants(std::process::id()).contains(&seen));
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(read_process(child.id()), None);
    }

    #[test]
    fn this_process_sees_itself() {
        let me = read_process(std::process::id()).unwrap();
        assert!(open(me).is_some());
        assert!(open(Process { start_time: 1, ..me }).is_none());
        assert!(all().contains(&me));
    }
}
