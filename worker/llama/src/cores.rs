//! Decides how many threads this engine may use now, from what the host's other engines want and how busy other programs keep the cores.
//!
//! All engines of a host share one file, whichever worker started them. An engine with work locks a range of the file as long as the number
//! of threads it wants; an idle engine holds no lock. So every engine sees which others are busy, and no one has to assign cores. When an
//! engine dies, the kernel releases its lock. Nothing is ever written to the file. [`crate::budget`] computes the thread count.
#![expect(unsafe_code, reason = "locks on ranges of a file are calls into the shim")]

use std::{
    fs::{self, File},
    os::fd::AsRawFd as _,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    budget::{Allotment, Ticks, left, share, ticks},
    ffi,
};

/// Time between two checks of the other engines.
const LOOK: Duration = Duration::from_millis(20);
/// Minimum time between two measurements of other programs, and the longest time over which an average is meaningful.
const MEASURE: Duration = Duration::from_millis(500);
const STALE: Duration = Duration::from_secs(10);
/// Bytes of the file for each engine; more than an engine can have threads.
const WIDTH: i64 = 1024;
/// Number of engines that fit into the file. Further engines use as many threads as they want.
const PLACES: i64 = 256;

/// This engine's part of the host's cores.
#[derive(Debug)]
pub(crate) struct Cores {
    /// The shared file; `None` if this engine shares with no other.
    file: Option<File>,
    /// The place in the file that this engine holds while it has work.
    place: Option<i64>,
    /// Cores that this process may use at a time.
    cores: u32,
    /// Threads that this engine would use on an idle host.
    wanted: u32,
    /// Whether the operator fixed the number of threads.
    fixed: bool,
    allotment: Allotment,
    looked: Option<Instant>,
    measured: Option<(Instant, Ticks)>,
    /// Cores that other programs keep busy, other engines among them.
    foreign: f64,
    /// Cores on which this process may run; it uses at most `cores` of them at a time.
    allowed: u32,
}

impl Cores {
    /// An engine without work that wants `wanted` threads and shares `file` with the others.
    pub(crate) fn new(file: Option<&Path>, cores: u32, wanted: u32, fixed: bool) -> Self {
        let open = |path: &Path| {
            File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
        };
        let file = file.and_then(|path| {
            open(path)
                .inspect_err(|error| {
                    tracing::warn!(%error, path = %path.display(), "sharing no cores with the other engines");
                })
                .ok()
        });
        Self {
            file,
            place: None,
            cores,
            wanted,
            fixed,
            allotment: Allotment::new(wanted),
            looked: None,
            measured: None,
            foreign: 0.0,
            allowed: cores,
        }
    }

    /// Notes that the engine has work, and returns how many threads it may use.
    pub(crate) fn busy(&mut self, now: Instant) -> u32 {
        let woken = self.place.is_none() && self.take();
        let due = self
            .looked
            .is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK);
        if self.fixed || !(woken || due) {
            return self.allotment.threads();
        }
        self.looked = Some(now);
        self.measure(now);
        let others = self.others();
        // what the other engines use is theirs: with it they would be counted twice
        let theirs = others
            .iter()
            .sum::<u32>()
            .min(self.cores.saturating_sub(self.allotment.threads()));
        let cores = left(
            self.cores,
            self.allowed,
            (self.foreign - f64::from(theirs)).max(0.0),
        );
        let threads = share(cores, self.wanted, &others);
        if woken {
            self.allotment = Allotment::new(threads);
        } else {
            self.allotment.set(now, threads);
        }
        self.allotment.threads()
    }

    /// Notes that the engine has no work: the others may use all cores.
    pub(crate) fn idle(&mut self) {
        if let (Some(file), Some(place)) = (&self.file, self.place.take()) {
            // SAFETY: the descriptor is open as long as `file` lives.
            unsafe { ffi::ms_range_lock(file.as_raw_fd(), place * WIDTH, WIDTH, 0) };
        }
    }

    /// Takes a place in the file. False if all are taken.
    fn take(&mut self) -> bool {
        let Some(file) = &self.file else { return false };
        let first = i64::from(std::process::id()) % PLACES;
        let len = i64::from(self.wanted).clamp(1, WIDTH);
        self.place = (first..PLACES).chain(0..first).find(|place| {
            // SAFETY: the descriptor is open as long as `file` lives.
            unsafe { ffi::ms_range_lock(file.as_raw_fd(), place * WIDTH, len, 1) != 0 }
        });
        self.place.is_some()
    }

    /// The numbers of threads that the other engines with work want.
    fn others(&self) -> Vec<u32> {
        let mut others = Vec::new();
        let Some(file) = &self.file else { return others };
        let mut ranges = vec![(0, PLACES * WIDTH)];
        while let Some((start, end)) = ranges.pop() {
            let (mut found, mut len) = (0, 0);
            // a length of 0 would mean: to the end of the file and beyond
            if end <= start {
                continue;
            }
            // SAFETY: the descriptor is open as long as `file` lives; the others live during the call.
            let locked = unsafe {
                ffi::ms_range_locked(file.as_raw_fd(), start, end - start, &raw mut found, &raw mut len)
            };
            // whoever locks something else, or more than that, is no engine
            if locked == 0 || found < start || len <= 0 || found + len > end {
                continue;
            }
            others.push(u32::try_from(len).unwrap_or(1));
            ranges.extend([(start, found), (found + len, end)]);
        }
        others
    }

    fn measure(&mut self, now: Instant) {
        let since = self.measured.map(|(at, _)| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < MEASURE) {
            return;
        }
        let read = |path| fs::read_to_string(path).ok();
        let found = read("/proc/self/status").and_then(|status| {
            let allowed = status
                .lines()
                .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            ticks(&read("/proc/stat")?, &read("/proc/self/stat")?, allowed)
        });
        let Some((ticks, allowed)) = found else { return };
        self.allowed = allowed;
        self.foreign = match self.measured {
            Some((_, before)) if since.is_some_and(|since| since < STALE) => ticks.foreign_since(before),
            Some(_) | None => 0.0,
        };
        self.measured = Some((now, ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several engines in one process: the locks belong to open files, not to processes.
    fn engines<const N: usize>(dir: &Path, wanted: u32) -> [Cores; N] {
        std::array::from_fn(|_| {
            let mut cores = Cores::new(Some(&dir.join("cores")), 8, wanted, false);
            // this machine's own business is no part of the test
            cores.measured = Some((Instant::now() + Duration::from_secs(3600), Ticks::default()));
            cores.allowed = 8;
            cores
        })
    }

    #[test]
    fn engines_share_the_cores_and_idle_ones_give_theirs_up() {
        let dir = tempfile::tempdir().unwrap();
        let [mut one, mut two, mut three] = engines(dir.path(), 8);
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        assert_eq!(one.busy(at(0)), 8);
        assert_eq!(two.busy(at(0)), 4);
        assert_eq!(one.busy(at(30)), 4, "fewer as soon as it looks");
        assert_eq!(three.busy(at(30)), 2);
        assert_eq!(three.others().len(), 2);
        two.idle();
        // one that dies gives up its part as one that is idle does
        drop(three);
        assert!(one.others().is_empty());
        assert_eq!(one.busy(at(60)), 4, "more only after a while");
        assert_eq!(one.busy(at(200)), 8);
        assert_eq!(two.busy(at(230)), 4);
    }

    #[test]
    fn what_the_operator_said_is_used_and_counts_for_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let [mut free] = engines(dir.path(), 8);
        let mut fixed = Cores::new(Some(&dir.path().join("cores")), 8, 2, true);
        let now = Instant::now();
        assert_eq!(fixed.busy(now), 2);
        assert_eq!(free.busy(now), 6);
        assert_eq!(fixed.busy(now + Duration::from_secs(1)), 2);
    }

    #[test]
    fn without_a_file_it_is_on_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("none/cores");
        let mut cores = Cores::new(Some(&missing), 4, 4, false);
        cores.measured = Some((Instant::now() + Duration::from_secs(3600), Ticks::default()));
        cores.allowed = 4;
        assert_eq!(cores.busy(Instant::now()), 4);
        assert!(cores.others().is_empty());
        cores.idle();
    }

    #[test]
    fn this_system_says_how_busy_it_is() {
        let mut cores = Cores::new(None, 4, 4, false);
        let now = Instant::now();
        cores.measure(now);
        assert!(cores.measured.is_some() && cores.allowed > 0);
        cores.measure(now + MEASURE);
        assert!(
            (0.0..=f64::from(cores.allowed)).contains(&cores.foreign),
            "{}",
            cores.foreign
        );
    }
}
