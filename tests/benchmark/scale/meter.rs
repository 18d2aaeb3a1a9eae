//! What a process uses, as the kernel counts it.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use muster_tests::processes;

/// Looks at a process.
pub(super) struct Meter(u32);

/// CPU time so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Used {
    cpu: Duration,
    at: Instant,
    wall: Duration,
}

impl Used {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(before.cpu),
            at: self.at,
            wall: self.at.duration_since(before.at),
        }
    }

    /// CPU time in percent of one core.
    pub(super) fn percent(&self) -> f64 {
        100.0 * self.cpu.as_secs_f64() / self.wall.as_secs_f64()
    }
}

impl Meter {
    pub(super) fn of(pid: u32) -> Self {
        Self(pid)
    }

    /// CPU time since its start.
    pub(super) fn cpu(&self) -> Duration {
        processes::cpu(self.0)
    }

    pub(super) fn used(&self) -> Used {
        Used {
            cpu: self.cpu(),
            at: Instant::now(),
            wall: Duration::ZERO,
        }
    }

    /// Memory of its own in RAM, in KiB.
    pub(super) fn rss_kib(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.split_ascii_whitespace().next());
        Ok(number.context("a process has an RSS")?.parse()?)
    }
}
