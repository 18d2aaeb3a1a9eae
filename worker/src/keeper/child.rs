//! The keeper process: starts an engine, watches the engine and the worker, and ends the whole process tree.
//!
//! One thread waits for children (`waitpid` has no file descriptor) and reports them through a socket, so that the main thread can wait for
//! everything at once. The engine's parent death signal is tied to the *thread* that starts it: the main thread, which never ends before
//! the process.

use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::AsFd as _,
        unix::{net::UnixStream, process::CommandExt as _},
    },
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use muster_proto::{private::PrivateDir, v1::ProcessId};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Signal, WaitOptions, getpid, getppid, set_child_subreaper, set_parent_process_death_signal, wait,
    },
};

use super::{
    cgroup::Cgroup,
    proc,
    protocol::{Exit, Order, Report},
    record::{self, Record},
};

/// Time between TERM and KILL when the worker has died or the engine's first process has ended: what is left must be gone within 2 s.
const ORPHAN_GRACE: Duration = Duration::from_millis(500);

/// Arguments of the hidden subcommand `keeper`. Standard input is the control socket.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct KeeperArgs {
    /// The engine's private directory
    #[arg(long)]
    dir: PathBuf,
    /// The instance id, for the record
    #[arg(long)]
    instance: String,
    /// The engine's command
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs the keeper until no process of the tree is left. Must be called on the main thread, before any runtime exists.
pub(crate) fn run(args: &KeeperArgs) -> ExitCode {
    match keep(args) {
        Ok(()) => ExitCode::SUCCESS,
        // Standard error is the engine's log, which the worker reads.
        Err(error) => {
            drop(writeln!(io::stderr(), "keeper: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn keep(args: &KeeperArgs) -> io::Result<()> {
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    control.set_nonblocking(false)?;
    let me = itself()?;
    set_child_subreaper(Some(getpid()))?;
    let mut record = Record {
        instance: args.instance.clone(),
        leaders: vec![me],
    };
    let dir = PrivateDir::open(&args.dir, record::FILE)?;
    record.write(&dir)?;
    let cgroup = Cgroup::create(&args.instance);
    let engine = match spawn(args, cgroup.as_ref()) {
        Ok(engine) => engine,
        Err(error) => {
            let report = Report::Failed(error.raw_os_error().unwrap_or(0), error.to_string());
            return (&control).write_all(report.to_string().as_bytes());
        }
    };
    record.leaders.push(engine);
    record.write(&dir)?;
    let (seen, reaper) = UnixStream::pair()?;
    std::thread::Builder::new()
        .name("reaper".into())
        .spawn(move || reap(&reaper))?;
    let mut keeper = Keeper {
        control,
        engine,
        cgroup,
        state: State::Running,
    };
    keeper.report(&Report::Started(engine));
    keeper.watch(&seen)
}

fn itself() -> io::Result<ProcessId> {
    proc::read_process(std::process::id())
        .map(proc::Process::id)
        .ok_or_else(|| io::Error::other("/proc does not show this process"))
}

fn spawn(args: &KeeperArgs, cgroup: Option<&Cgroup>) -> io::Result<ProcessId> {
    let (program, arguments) = args.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    let entrance = cgroup.map(Cgroup::entrance).transpose()?;
    let keeper = getpid();
    #[expect(
        unsafe_code,
        reason = "the parent death signal can only be set between fork and exec"
    )]
    // SAFETY: between fork and exec of a process that may have threads only async-signal-safe calls are allowed. The closure makes the plain
    // system calls write, prctl and getppid, touches memory it owns, and allocates nothing (an `Errno` is a number).
    unsafe {
        command.pre_exec(move || {
            if let Some(file) = &entrance {
                // If this fails the cgroup stays empty, and the walk through the tree does the work.
                rustix::io::write(file, b"0").unwrap_or_default();
            }
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The keeper may have been killed before the signal was set.
            if getppid() == Some(keeper) {
                Ok(())
            } else {
                Err(Errno::SRCH.into())
            }
        });
    }
    let child = command.spawn()?;
    let pid = child.id();
    // It cannot be reaped before the reaper runs, so its entry in /proc exists even if it has ended.
    proc::read_process(pid)
        .map(proc::Process::id)
        .ok_or_else(|| io::Error::other("/proc does not show the engine"))
}

/// Reaps every child, including orphans of the tree, until none is left.
fn reap(seen: &UnixStream) {
    loop {
        let (pid, status) = match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) => (pid.as_raw_nonzero().get(), status.as_raw()),
            Ok(None) | Err(Errno::INTR) => continue,
            // No child is left.
            Err(_) => return,
        };
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&pid.to_ne_bytes());
        bytes[4..].copy_from_slice(&status.to_ne_bytes());
        let mut writer = seen;
        if writer.write_all(&bytes).is_err() {
            return;
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Running,
    /// TERM was sent; KILL follows at this time.
    Ending(Instant),
    /// KILL was sent, and will be sent to every process found later.
    Killing,
}

struct Keeper {
    control: UnixStream,
    engine: ProcessId,
    cgroup: Option<Cgroup>,
    state: State,
}

impl Keeper {
    /// Waits for orders, for children's ends and for the time of KILL. Returns when no child is left.
    fn watch(&mut self, seen: &UnixStream) -> io::Result<()> {
        let mut orders = Lines::default();
        let mut listening = true;
        loop {
            let mut fds = [
                PollFd::new(seen, PollFlags::IN),
                PollFd::new(&self.control, PollFlags::IN),
            ];
            // A closed socket is always ready.
            let watched = if listening { 2 } else { 1 };
            match poll(&mut fds[..watched], self.timeout().as_ref()) {
                Err(Errno::INTR) => continue,
                other => other?,
            };
            let (deaths, control) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
            if deaths && !self.one_death(seen)? {
                self.report(&Report::Gone);
                return Ok(());
            }
            if control {
                listening = self.orders(&mut orders);
            }
            if let State::Ending(at) = self.state
                && at <= Instant::now()
            {
                self.kill();
            }
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        match self.state {
            State::Running | State::Killing => None,
            State::Ending(at) => Timespec::try_from(at.saturating_duration_since(Instant::now())).ok(),
        }
    }

    /// Handles one record of the reaper; `false` at the end.
    fn one_death(&mut self, mut seen: &UnixStream) -> io::Result<bool> {
        let mut bytes = [0; 8];
        match seen.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            other => other?,
        }
        let [a, b, c, d, status @ ..] = bytes;
        if u32::from_ne_bytes([a, b, c, d]) == self.engine.pid {
            self.report(&Report::Exited(exit(i32::from_ne_bytes(status))));
            self.stop(ORPHAN_GRACE);
        }
        // An orphan may have appeared since the last look.
        if let State::Killing = self.state {
            self.kill();
        }
        Ok(true)
    }

    /// Carries out the worker's orders; `false` once the worker is gone.
    fn orders(&mut self, lines: &mut Lines) -> bool {
        let Ok(true) = lines.read(&self.control) else {
            self.stop(ORPHAN_GRACE);
            return false;
        };
        while let Some(line) = lines.next() {
            match line.parse() {
                Ok(Order::Stop(grace)) => self.stop(grace),
                // A line that cannot be parsed does not come from our worker.
                Ok(Order::Kill) | Err(_) => self.kill(),
            }
        }
        true
    }

    /// Sends TERM to all. If KILL is due already, its time can only become earlier.
    fn stop(&mut self, grace: Duration) {
        let until = Instant::now() + grace;
        match self.state {
            State::Running => {
                self.state = State::Ending(until);
                for process in proc::descendants(std::process::id()) {
                    proc::signal(process, Signal::TERM);
                }
            }
            State::Ending(at) => self.state = State::Ending(at.min(until)),
            State::Killing => {}
        }
    }

    fn kill(&mut self) {
        self.state = State::Killing;
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
        for process in proc::descendants(std::process::id()) {
            proc::signal(process, Signal::KILL);
        }
    }

    fn report(&self, report: &Report) {
        // Without a worker there is nobody to tell.
        drop((&self.control).write_all(report.to_string().as_bytes()));
    }
}

fn exit(status: i32) -> Exit {
    // Without options, `waitpid` reports only ends. wait(2) describes the number.
    match status & 0x7f {
        0 => Exit::Code((status >> 8) & 0xff),
        signal => Exit::Signal(signal),
    }
}

/// Splits a socket's bytes into lines.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
}

impl Lines {
    /// Reads what is there; `false` at the end.
    fn read(&mut self, mut socket: &UnixStream) -> io::Result<bool> {
        let mut chunk = [0; 256];
        let n = socket.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..n]);
        Ok(n > 0)
    }

    fn next(&mut self) -> Option<String> {
        let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line[..end]).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        assert_eq!(exit(0), Exit::Code(0));
        assert_eq!(exit(1 << 8), Exit::Code(1));
        assert_eq!(exit(9), Exit::Signal(9));
        assert_eq!(exit(0x80 | 6), Exit::Signal(6));
    }
}
