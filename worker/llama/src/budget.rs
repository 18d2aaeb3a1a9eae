//! Computes how many threads this engine may use. Pure: no clock, no files.
//!
//! The engines of a host share its cores. Every engine with work gets the same part; an engine that wants less leaves the rest to the
//! others, and an idle engine leaves everything. Other programs cannot be limited. Threads that wait for a core delay all threads that wait
//! for them, so fewer threads are faster than too many (on two busy cores, two threads took 8 to 75 ms per token where one took 3).

use std::time::{Duration, Instant};

/// Cores must be free for this long before more threads use them: starting threads costs time, and another engine's short pause does not
/// justify it.
const MORE_AFTER: Duration = Duration::from_millis(100);

/// The number of cores for an engine that wants `wanted` threads beside `others`. No engine gets more than it wants or less than one, and
/// engines that want the same get the same.
pub(crate) fn share(cores: u32, wanted: u32, others: &[u32]) -> u32 {
    let mut all: Vec<u32> = others.iter().copied().chain([wanted]).collect();
    all.sort_unstable();
    let mut left = cores;
    let mut engines = u32::try_from(all.len()).unwrap_or(u32::MAX);
    for want in all {
        let each = left / engines;
        if want > each {
            return each.min(wanted).max(1);
        }
        if want == wanted {
            return wanted.max(1);
        }
        left -= want;
        engines -= 1;
    }
    wanted.max(1)
}

/// Cores left to the engines of this host if other programs keep `foreign` cores busy. The process may run on `allowed` cores, but use only
/// `cores` of them at a time (a quota).
pub(crate) fn left(cores: u32, allowed: u32, foreign: f64) -> u32 {
    let free = (f64::from(allowed) - foreign).round().max(1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float cast saturates"
    )]
    let free = free as u32;
    free.min(cores).max(1)
}

/// One engine's thread count over time: it falls at once and rises only after a delay.
#[derive(Debug)]
pub(crate) struct Allotment {
    threads: u32,
    more_since: Option<Instant>,
}

impl Allotment {
    pub(crate) const fn new(threads: u32) -> Self {
        Self {
            threads,
            more_since: None,
        }
    }

    pub(crate) const fn threads(&self) -> u32 {
        self.threads
    }

    /// Notes that the engine may use `threads` threads now.
    pub(crate) fn set(&mut self, now: Instant, threads: u32) {
        if threads > self.threads {
            let since = *self.more_since.get_or_insert(now);
            if now.saturating_duration_since(since) < MORE_AFTER {
                return;
            }
        }
        self.more_since = None;
        self.threads = threads;
    }
}

/// Processor time in clock ticks since the system or the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Busy time of everything on the cores that this process may use.
    pub(crate) all: u64,
    /// Busy time of this process.
    pub(crate) own: u64,
    /// Elapsed time of one core.
    pub(crate) core: u64,
}

impl Ticks {
    /// Cores that other programs kept busy since `before`.
    pub(crate) fn foreign_since(self, before: Self) -> f64 {
        let core = self.core.saturating_sub(before.core).max(1);
        let all = self.all.saturating_sub(before.all);
        let foreign = all.saturating_sub(self.own.saturating_sub(before.own));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let cores = foreign as f64 / core as f64;
        cores
    }
}

/// Reads `/proc/stat`, `/proc/self/stat` and the `Cpus_allowed_list` of `/proc/self/status`. Also returns the number of cores in that list.
/// `None` if the system writes these files in another format.
pub(crate) fn ticks(stat: &str, own: &str, allowed: &str) -> Option<(Ticks, u32)> {
    let mut ticks = Ticks::default();
    let mut cores = 0_u64;
    for line in stat.lines() {
        let Some((number, fields)) = line.strip_prefix("cpu").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let Ok(number) = number.parse() else { continue };
        if !listed(allowed, number) {
            continue;
        }
        cores += 1;
        let fields: Vec<u64> = fields.split(' ').map_while(|field| field.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user
        let all: u64 = fields.iter().take(8).sum();
        let idle: u64 = fields.iter().skip(3).take(2).sum();
        ticks.all += all - idle;
        ticks.core += all;
    }
    ticks.core = ticks.core.checked_div(cores)?;
    // the name in parentheses may hold anything
    let mut own = own.rsplit_once(") ")?.1.split(' ').skip(11);
    ticks.own = own.next()?.parse::<u64>().ok()? + own.next()?.parse::<u64>().ok()?;
    Some((ticks, u32::try_from(cores).ok()?))
}

/// Whether a list such as `0-3,7` names a core.
fn listed(list: &str, core: u32) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse::<u32>(), last.parse::<u32>()), (Ok(first), Ok(last)) if (first..=last).contains(&core))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn who_is_busy_shares_the_cores() {
        assert_eq!(share(16, 16, &[]), 16);
        assert_eq!(share(16, 16, &[16]), 8);
        // who wants little leaves the rest
        assert_eq!(share(16, 16, &[1, 1]), 14);
        assert_eq!(share(16, 1, &[16, 16]), 1);
        // four engines on two cores
        assert_eq!(share(2, 2, &[2, 2, 2]), 1);
    }

    #[test]
    fn other_programs_have_their_cores() {
        assert_eq!(left(2, 2, 0.3), 2);
        assert_eq!(left(2, 2, 0.9), 1);
        assert_eq!(left(2, 2, 7.0), 1);
        // a quota of 4 on a machine of 64, 32 of them busy
        assert_eq!(left(4, 64, 32.0), 4);
    }

    #[test]
    fn fewer_at_once_more_after_a_while() {
        let begin = Instant::now();
        let after = |millis| begin + Duration::from_millis(millis);
        let mut allotment = Allotment::new(8);
        allotment.set(after(0), 4);
        assert_eq!(allotment.threads(), 4);
        allotment.set(after(10), 8);
        allotment.set(after(50), 8);
        assert_eq!(allotment.threads(), 4);
        allotment.set(after(60), 4);
        allotment.set(after(70), 8);
        allotment.set(after(120), 8);
        assert_eq!(allotment.threads(), 4);
        allotment.set(after(180), 8);
        assert_eq!(allotment.threads(), 8);
    }

    #[test]
    fn what_others_use_is_read_from_the_system() {
        let stat = |user: u64, idle: u64| {
            format!(
                "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 {user} 5 3 {idle} 1 1 1 2 0 0\ncpu1 {user} 0 0 {idle} 0 0 0 0 0 0\ncpu2 99999 0 0 0 0 0 0 0 0 0\nintr 5\n"
            )
        };
        let own = |ticks: u64| format!("1 (a (name) x) S 1 1 1 0 -1 4 1 0 0 0 {ticks} 10 0 0 20 0 1");
        let (before, cores) = ticks(&stat(100, 100), &own(50), " 0-1\n").unwrap();
        let (after, _) = ticks(&stat(200, 100), &own(100), " 0-1\n").unwrap();
        assert_eq!((before.all, before.own, cores), (212, 60, 2));
        // both cores were busy all the time, half a core of it with us
        assert!((after.foreign_since(before) - 1.5).abs() < 1e-9, "{after:?}");
        assert_eq!(ticks("", "", ""), None);
        assert_eq!(ticks(&stat(1, 1), "nonsense", "0-1"), None);
    }

    proptest! {
        #[test]
        fn all_cores_are_shared_and_none_twice(cores in 1_u32..64, wants in prop::collection::vec(1_u32..64, 1..8)) {
            let shares: Vec<u32> = (0..wants.len()).map(|index| {
                let mut others = wants.clone();
                let wanted = others.remove(index);
                share(cores, wanted, &others)
            }).collect();
            let engines = u32::try_from(wants.len()).unwrap();
            prop_assert!(shares.iter().sum::<u32>() <= cores.max(engines), "{shares:?}");
            for (share, wanted) in shares.iter().zip(&wants) {
                prop_assert!((1..=*wanted).contains(share));
                // nobody goes short while a core for each is free
                let short = share < wanted && *share < cores / engines;
                prop_assert!(!short, "{shares:?}");
            }
        }
    }
}
