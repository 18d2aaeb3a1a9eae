//! Ends what an earlier boot of the worker left behind, before this boot joins.

use std::{
    collections::HashSet,
    fs::{self, File},
    io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt as _},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{FlockOperation, flock},
    process::Signal,
};

use super::{
    MARK,
    proc::{self, Process},
    record::Record,
};

const PATIENCE: Duration = Duration::from_secs(10);

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
/// Another worker uses the directory, it cannot be read or written, or something cannot be killed within 10 s.
pub(crate) fn sweep(run_dir: &Path) -> io::Result<RunDir> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(run_dir)?;
    let lock = File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(run_dir.join("lock"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    for entry in fs::read_dir(run_dir)? {
        let dir = entry?.path();
        if let Some(record) = Record::read(&dir) {
            tracing::warn!(instance = record.instance, "ending what an earlier boot left");
            end(&record)?;
        }
        if dir.is_dir() {
            fs::remove_dir_all(&dir)?;
        }
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

/// Members of the groups, and whoever carries the mark. A group's number is not given away while the group has members; the recorded start
/// time tells a number that was given to somebody else after all had left.
fn leftovers(record: &Record) -> Vec<Process> {
    let groups: HashSet<u32> = record
        .leaders
        .iter()
        .filter(|leader| {
            proc::look(leader.pid).is_some_and(|process| process.start_time == leader.start_time)
        })
        .map(|leader| leader.pid)
        .collect();
    let marked = |pid| proc::environment(pid, MARK).is_some_and(|mark| mark == record.instance);
    proc::all()
        .into_iter()
        .filter(|process| !process.zombie && (groups.contains(&process.group) || marked(process.pid)))
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
