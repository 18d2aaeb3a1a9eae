//! The lines between worker and keeper.

use std::{fmt, str::FromStr, time::Duration};

use muster_proto::v1::ProcessId;

/// An order of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Send TERM, and KILL after this time.
    Stop(Duration),
    /// Send KILL at once.
    Kill,
}

/// A report of the keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The engine runs.
    Started(ProcessId),
    /// The engine could not be started: the operating system's error number (0 if there is none) and message.
    Failed(i32, String),
    /// The engine's first process ended.
    Exited(Exit),
    /// No process of the tree is left.
    Gone,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It exited with this status.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// A line that neither side writes.
#[derive(Debug, thiserror::Error)]
#[error("not a line of the keeper's protocol: `{0}`")]
pub(super) struct LineError(String);

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop(grace) => writeln!(f, "stop {}", grace.as_millis()),
            Self::Kill => writeln!(f, "kill"),
        }
    }
}

impl FromStr for Order {
    type Err = LineError;

    fn from_str(line: &str) -> Result<Self, LineError> {
        let wrong = || LineError(line.to_owned());
        match line.split_once(' ') {
            None if line == "kill" => Ok(Self::Kill),
            Some(("stop", grace)) => Ok(Self::Stop(Duration::from_millis(
                grace.parse().map_err(|_| wrong())?,
            ))),
            None | Some(_) => Err(wrong()),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started(id) => writeln!(f, "started {} {}", id.pid, id.start_time),
            Self::Failed(errno, message) => writeln!(f, "failed {errno} {}", message.replace('\n', " ")),
            Self::Exited(Exit::Code(code)) => writeln!(f, "exited {code}"),
            Self::Exited(Exit::Signal(signal)) => writeln!(f, "signalled {signal}"),
            Self::Gone => writeln!(f, "gone"),
        }
    }
}

impl FromStr for Report {
    type Err = LineError;

    fn from_str(line: &str) -> Result<Self, LineError> {
        let wrong = || LineError(line.to_owned());
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = |text: &str| text.parse::<i32>().map_err(|_| wrong());
        match word {
            "gone" => Ok(Self::Gone),
            "exited" => Ok(Self::Exited(Exit::Code(number(rest)?))),
            "signalled" => Ok(Self::Exited(Exit::Signal(number(rest)?))),
            "failed" => {
                let (errno, message) = rest.split_once(' ').ok_or_else(wrong)?;
                Ok(Self::Failed(number(errno)?, message.to_owned()))
            }
            "started" => {
                let (pid, start) = rest.split_once(' ').ok_or_else(wrong)?;
                let pid = pid.parse().map_err(|_| wrong())?;
                Ok(Self::Started(ProcessId {
                    pid,
                    start_time: start.parse().map_err(|_| wrong())?,
                }))
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let reports = [
            Report::Started(ProcessId {
                pid: 7,
                start_time: 99,
            }),
            Report::Failed(2, "no such file".into()),
            Report::Exited(Exit::Code(1)),
            Report::Exited(Exit::Signal(9)),
            Report::Gone,
        ];
        for report in reports {
            assert_eq!(report.to_string().trim_end().parse::<Report>().unwrap(), report);
        }
        for order in [Order::Kill, Order::Stop(Duration::from_millis(250))] {
            assert_eq!(order.to_string().trim_end().parse::<Order>().unwrap(), order);
        }
        assert!("stop soon".parse::<Order>().is_err());
        assert!("".parse::<Report>().is_err());
    }
}
