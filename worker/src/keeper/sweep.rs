//! Ends what an earlier boot of the worker left behind, before this boot joins.

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
/// The lock of a run directory, and the mark of one.
pub(super) const LOCK: &str = "lock";

/// A run directory that is this worker's alone for as long as this value lives.
#[derive(Debug)]
#[must_use = "the lock ends with the value"]
pub(crate) struct RunDir {
    _lock: File,
}

/// Takes a run directory (made with mode 0700 if missing), kills every process an earlier boot left, waits until they are gone, and removes
/// their files. Blocks, normally for a few milliseconds.
///
/// # Errors
/// Another worker uses the directory, it is not ours alone, it holds what no worker left there, it cannot be read or written, or something
/// cannot be killed within 10 s.
pub(crate) fn sweep(run_dir: &Path) -> io::Result<RunDir> {
    let (Some(base), Some(name)) = (
        run_dir.parent(),
        run_dir.file_name().and_then(|name| name.to_str()),
    ) else {
        return Err(io::ErrorKind::InvalidFilename.into());
    };
    let run_dir = PrivateDir::open_in(base, name)?;
    let entries = run_dir.entries()?;
    // Directories in here are removed: it must be one of ours.
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

/// Kills the processes of one record and waits for them.
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

/// Members of the groups, and whoever carries the mark, as far as they are of this user. A group's number is not given away while the group
/// has members; the recorded start time tells a number that was given to somebody else after all had left.
fn leftovers(record: &Record) -> Vec<Process> {
    let ours = |pid| proc::user(pid) == Some(geteuid().as_raw());
    let marked = |pid| proc::environment(pid, MARK).is_some_and(|mark| mark == record.instance);
    // A record alone is not believed: what it names must lead a group, and bear the mark as far as it still has an environment.
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
