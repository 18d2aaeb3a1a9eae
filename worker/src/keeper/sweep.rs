//! Ends the processes that an earlier boot of the worker left, before this boot joins.

use std::{
    collections::HashSet,
    fs::File,
    io,
    os::fd::OwnedFd,
    path::Path,
    time::{Duration, Instant},
};

use muster_proto::private::{NotPrivate, PrivateDir};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Signal, geteuid},
};

use super::{
    MARK,
    proc::{self, Process},
    record::Record,
};

const PATIENCE: Duration = Duration::from_secs(10);
/// The lock file of a run directory, which also marks a directory as one.
pub(super) const LOCK: &str = "lock";

/// A run directory that only this worker uses while the value lives.
#[derive(Debug)]
#[must_use = "the lock ends with the value"]
pub(crate) struct RunDir {
    _lock: File,
}

/// Takes a run directory (made with mode 0700 if missing), kills every process that an earlier boot left, waits for their end, and removes
/// their files. Blocks, usually for a few milliseconds.
///
/// # Errors
/// Another worker uses the directory, other users could change it, it contains something that no worker left, it cannot be read or written,
/// or a process cannot be killed within 10 s.
pub(crate) fn sweep(run_dir: &Path) -> io::Result<RunDir> {
    let (Some(base), Some(name)) = (
        run_dir.parent(),
        run_dir.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let run_dir = PrivateDir::open_in(base, name)?;
    let entries = run_dir.entries()?;
    // Directories in it are removed, so it must be a run directory.
    if !entries.is_empty() && !entries.iter().any(|name| name == LOCK) {
        let message = "it holds things that no worker left there: name another place, or empty it";
        return Err(io::Error::new(io::ErrorKind::DirectoryNotEmpty, message));
    }
    let lock = run_dir
        .lock(LOCK)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::ResourceBusy, "another worker uses it"))?;
    for name in entries {
        let dir = match run_dir.enter(&name) {
            Ok(dir) => dir,
            Err(NotPrivate::Io { why, .. }) if why.kind() == io::ErrorKind::NotADirectory => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(record) = Record::read(&dir) {
            tracing::warn!(instance = record.instance, "ending what an earlier boot left");
            end(&record)?;
        }
        run_dir.remove(&name)?;
    }
    Ok(RunDir { _lock: lock })
}

/// Kills the processes of a record and waits for them.
///
/// # Errors
/// They cannot be killed within 10 s.
pub(super) fn end(record: &Record) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = leftovers(record);
        if left.is_empty() {
            return Ok(());
        }
        let fds: Vec<OwnedFd> = left.iter().filter_map(|process| proc::open(*process)).collect();
        for process in left {
            proc::signal(process, Signal::KILL);
        }
        wait_all(&fds, deadline)?;
    }
}

/// Members of the process groups and processes with the mark, as far as they belong to this user. The number of a group is not used again
/// while the group has members; after that the recorded start time shows whether the number belongs to another process.
fn leftovers(record: &Record) -> Vec<Process> {
    let ours = |pid| proc::user(pid) == Some(geteuid().as_raw());
    let marked = |pid| proc::environment(pid, MARK).is_some_and(|mark| mark == record.instance);
    // The record alone is not trusted: the process that it names must lead a group, and have the mark if it still has an environment.
    let leads = |process: &Process| process.group == process.pid && (process.zombie || marked(process.pid));
    let groups: HashSet<u32> = record
        .leaders
        .iter()
        .filter(|leader| {
            proc::read_process(leader.pid)
                .is_some_and(|process| process.start_time == leader.start_time && leads(&process))
        })
        .map(|leader| leader.pid)
        .collect();
    proc::all()
        .into_iter()
        .filter(|process| !process.zombie && ours(process.pid))
        .filter(|process| groups.contains(&process.group) || marked(process.pid))
        .collect()
}

fn wait_all(fds: &[OwnedFd], deadline: Instant) -> io::Result<()> {
    for fd in fds {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "a process of an earlier boot does not die",
            ));
        }
    }
    Ok(())
}
