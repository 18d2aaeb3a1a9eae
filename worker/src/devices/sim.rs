//! A declared device without hardware, for tests: one file-locked ledger that the workers of a host share (PROTOCOL.md 1).
//!
//! Each line of the ledger is `INSTANCE BYTES PID START_TIME`: an instance, its reservation and the worker that entered it. A line whose
//! worker is dead does not count and is removed by the next change.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    path::Path,
    process,
};

use muster_core::{Bytes, InstanceId};
use muster_proto::{
    private::PrivateDir,
    v1::{Device, DeviceKind, ProcessId},
};
use rustix::fs::{FlockOperation, flock};

use super::Driver;
use crate::procfs::{self, Memory};

#[derive(Debug)]
pub(super) struct Sim {
    name: String,
    capacity: Bytes,
    dir: PrivateDir,
    ledger: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Line {
    instance: String,
    bytes: u64,
    owner: ProcessId,
}

impl Sim {
    pub(super) fn new(dir: &Path, name: &str, capacity: Bytes) -> io::Result<Self> {
        let (Some(base), Some(own)) = (dir.parent(), dir.file_name().and_then(|name| name.to_str())) else {
            return Err(io::ErrorKind::InvalidFilename.into());
        };
        Ok(Self {
            dir: PrivateDir::open_in(base, own)?,
            name: name.to_owned(),
            capacity,
            ledger: format!("{name}.ledger"),
        })
    }

    /// Passes the lines of living workers to `change`, and writes them back if it returns true.
    fn with<T>(&self, change: impl FnOnce(&mut Vec<Line>) -> (T, bool)) -> io::Result<T> {
        let mut file = self.dir.file(&self.ledger)?;
        // Held for a few microseconds; closing the file releases it.
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut lines: Vec<Line> = text.lines().filter_map(parse).filter(is_alive).collect();
        let (answer, write) = change(&mut lines);
        if write {
            rewrite(&mut file, &lines)?;
        }
        Ok(answer)
    }
}

fn rewrite(file: &mut File, lines: &[Line]) -> io::Result<()> {
    let text: String = lines.iter().map(print).collect();
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(text.as_bytes())
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split(' ');
    Some(Line {
        instance: words.next()?.to_owned(),
        bytes: words.next()?.parse().ok()?,
        owner: ProcessId {
            pid: words.next()?.parse().ok()?,
            start_time: words.next()?.parse().ok()?,
        },
    })
}

fn print(line: &Line) -> String {
    let Line {
        instance,
        bytes,
        owner,
    } = line;
    format!("{instance} {bytes} {} {}\n", owner.pid, owner.start_time)
}

fn is_alive(line: &Line) -> bool {
    procfs::start_time(line.owner.pid) == Some(line.owner.start_time)
}

impl Driver for Sim {
    fn device(&self) -> Device {
        Device {
            device_id: format!("sim:{}", self.name),
            kind: DeviceKind::Sim.into(),
            name: format!("declared device {}", self.name),
            capacity_bytes: self.capacity.get(),
            exclusive: false,
            index: None,
            driver_version: String::new(),
            api: String::new(),
        }
    }

    fn sample(&self) -> io::Result<Memory> {
        let used: Bytes =
            self.with(|lines| (lines.iter().map(|line| Bytes::new(line.bytes)).sum(), false))?;
        Ok(Memory {
            capacity: self.capacity,
            free: self.capacity.saturating_sub(used),
        })
    }

    fn used_by(&self, _tree: &[ProcessId], instance: &InstanceId) -> Option<Bytes> {
        let own = |line: &&Line| line.instance == instance.as_str();
        self.with(|lines| (lines.iter().find(own).map(|line| Bytes::new(line.bytes)), false))
            .ok()
            .flatten()
    }

    fn enter(&self, instance: &InstanceId, bytes: Bytes) -> io::Result<()> {
        let pid = process::id();
        let start_time = procfs::start_time(pid).unwrap_or(0);
        self.with(|lines| {
            lines.retain(|line| line.instance != instance.as_str());
            lines.push(Line {
                instance: instance.into(),
                bytes: bytes.get(),
                owner: ProcessId { pid, start_time },
            });
            ((), true)
        })
    }

    fn leave(&self, instance: &InstanceId) -> io::Result<()> {
        self.with(|lines| {
            lines.retain(|line| line.instance != instance.as_str());
            ((), true)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_see_one_ledger_and_the_dead_count_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let one = Sim::new(dir.path(), "gpu0", Bytes::new(100)).unwrap();
        let other = Sim::new(dir.path(), "gpu0", Bytes::new(100)).unwrap();
        let (a, b) = (InstanceId::from("a"), InstanceId::from("b"));
        one.enter(&a, Bytes::new(30)).unwrap();
        other.enter(&b, Bytes::new(50)).unwrap();
        assert_eq!(one.sample().unwrap().free, Bytes::new(20));
        assert_eq!(one.used_by(&[], &b), Some(Bytes::new(50)));
        other.leave(&b).unwrap();
        assert_eq!(one.sample().unwrap().free, Bytes::new(70));
        // A dead worker: this pid with another start time.
        let mut file = one.dir.file(&one.ledger).unwrap();
        file.seek(io::SeekFrom::End(0)).unwrap();
        writeln!(file, "ghost 60 {} 1", process::id()).unwrap();
        assert_eq!(one.sample().unwrap().free, Bytes::new(70));
        one.leave(&a).unwrap();
        assert_eq!(one.dir.read(&one.ledger).unwrap(), "");
    }
}
