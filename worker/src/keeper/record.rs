//! A keeper's record in its engine's private directory, by which the next boot of the worker finds leftovers.

use std::io;

use muster_proto::{private::PrivateDir, v1::ProcessId};

/// File name of the record.
pub(super) const FILE: &str = "keeper";

/// The processes of an engine and the instance with which they are marked ([`super::MARK`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) instance: String,
    /// The keeper first, then the engine once it runs. Both lead a process group.
    pub(super) leaders: Vec<ProcessId>,
}

impl Record {
    /// Writes the record. A reader sees either the old or the new one.
    ///
    /// # Errors
    /// The directory is not writable.
    pub(super) fn write(&self, dir: &PrivateDir) -> io::Result<()> {
        let mut text = format!("{}\n", self.instance);
        for leader in &self.leaders {
            text.push_str(&format!("{} {}\n", leader.pid, leader.start_time));
        }
        dir.write(FILE, &text)
    }

    /// Reads the record in a directory; `None` if there is none, or if it cannot be parsed.
    pub(super) fn read(dir: &PrivateDir) -> Option<Self> {
        let text = dir.read(FILE).ok()?;
        let (instance, rest) = text.split_once('\n')?;
        let leaders = rest.lines().filter_map(|line| {
            let (pid, start) = line.split_once(' ')?;
            Some(ProcessId {
                pid: pid.parse().ok()?,
                start_time: start.parse().ok()?,
            })
        });
        Some(Self {
            instance: instance.to_owned(),
            leaders: leaders.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let dir = PrivateDir::open(dir.path(), FILE).unwrap();
        assert_eq!(Record::read(&dir), None);
        let record = Record {
            instance: "x".into(),
            leaders: vec![
                ProcessId {
                    pid: 1,
                    start_time: 2,
                },
                ProcessId {
                    pid: 3,
                    start_time: 4,
                },
            ],
        };
        record.write(&dir).unwrap();
        assert_eq!(Record::read(&dir), Some(record));
    }
}
