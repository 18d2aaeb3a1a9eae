//! How far a download is, and how fast.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use muster_proto::v1::FetchProgress;
use tokio::{sync::watch, time::Instant};

/// Least time between two looks at the speed.
const SPAN: Duration = Duration::from_millis(500);

/// Counts what comes.
#[derive(Debug, Default)]
pub(super) struct Meter {
    told: watch::Sender<FetchProgress>,
    /// Bytes that came; not those that were there.
    received: AtomicU64,
}

/// Bytes per second, from looks now and then.
#[derive(Debug, Default)]
pub(super) struct Speed {
    last: Option<(Instant, u64)>,
    bytes_per_second: u64,
}

impl Meter {
    /// So many files of so many bytes in all.
    pub(super) fn begin(&self, total_files: usize, all_total: u64) {
        self.told.send_modify(|told| {
            told.total_files = u32::try_from(total_files).unwrap_or(u32::MAX);
            told.all_total = all_total;
        });
    }

    /// The next file.
    pub(super) fn file(&self, path: &str, size: u64) {
        self.told.send_modify(|told| {
            told.file_index += 1;
            path.clone_into(&mut told.file);
            told.bytes_total = size;
            told.bytes_downloaded = 0;
        });
    }

    /// So much of the file is there.
    pub(super) fn there(&self, bytes: u64) {
        self.told.send_modify(|told| {
            told.all_downloaded = told.all_downloaded - told.bytes_downloaded + bytes;
            told.bytes_downloaded = bytes;
        });
    }

    /// So much more of it came.
    pub(super) fn came(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.told.send_modify(|told| {
            told.bytes_downloaded += bytes;
            told.all_downloaded += bytes;
        });
    }

    /// Who wants to know.
    pub(super) fn subscribe(&self) -> watch::Receiver<FetchProgress> {
        self.told.subscribe()
    }

    /// Bytes that came so far.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Speed {
    /// The speed, after `received` bytes in all: half of it is that of the last span.
    pub(super) fn look(&mut self, now: Instant, received: u64) -> u64 {
        let Some((at, before)) = self.last else {
            self.last = Some((now, received));
            return 0;
        };
        let span = now.saturating_duration_since(at);
        if span >= SPAN {
            let fresh = u128::from(received.saturating_sub(before)) * 1000 / span.as_millis().max(1);
            let fresh = u64::try_from(fresh).unwrap_or(u64::MAX);
            self.bytes_per_second = match self.bytes_per_second {
                0 => fresh,
                speed => speed / 2 + fresh / 2,
            };
            self.last = Some((now, received));
        }
        self.bytes_per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_of_what_came_lately() {
        let mut speed = Speed::default();
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        assert_eq!(speed.look(start, 0), 0);
        assert_eq!(speed.look(after(1000), 2000), 2000);
        assert_eq!(speed.look(after(1100), 9000), 2000, "too early to say");
        assert_eq!(speed.look(after(2000), 6000), 3000);
        assert_eq!(speed.look(after(3000), 6000), 1500);
    }

    #[test]
    fn what_was_there_counts_but_did_not_come() {
        let meter = Meter::default();
        meter.begin(2, 300);
        meter.file("a", 100);
        meter.there(100);
        meter.file("b", 200);
        meter.there(50);
        meter.came(10);
        let told = meter.subscribe().borrow().clone();
        assert_eq!(
            (told.bytes_downloaded, told.all_downloaded, told.file_index),
            (60, 160, 2)
        );
        assert_eq!(meter.received(), 10);
        meter.there(0);
        assert_eq!(meter.subscribe().borrow().all_downloaded, 100);
    }
}
