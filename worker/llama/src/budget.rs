//! How many threads this engine may use. Pure: no clock, no files.
//!
//! The engines of a host share its cores: each that has something to do gets the same part, one that wants less leaves the rest to the others, one
//! that is idle leaves everything. What other programs use is out of reach: threads that wait for a core make all that wait for them wait, so fewer
//! threads are quicker than more (on two busy cores, two threads took 8 to 75 ms for a token where one took 3).

use std::time::{Duration, Instant};

/// More threads are taken only after they were free for so long: threads are started for them, and a pause of another engine is no reason.
const MORE_AFTER: Duration = Duration::from_millis(100);

/// The part of `cores` for an engine that wants `wanted` threads beside others: nobody gets more than wanted, nobody less than one, and who wants as
/// much as another gets as much.
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

/// Cores that are left to the engines of this host where `foreign` cores are busy with something else. `allowed` cores may be used at all,
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

/// The threads of one engine over time: fewer at once, more after a while.
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

    /// It could be `threads` now.
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

/// Processor time, in clock ticks since some beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ticks {
    /// Of all that runs on the cores this process may use.
    pub(crate) all: u64,
    /// Of this process.
    pub(crate) own: u64,
    /// That one core had.
    pub(crate) core: u64,
}

impl Ticks {
    /// Cores that were busy with something other than this process since `before`.
    pub(crate) fn foreign_since(self, before: Self) -> f64 {
        let core = self.core.saturating_sub(before.core).max(1);
        let all = self.all.saturating_sub(before.all);
        let foreign = all.saturating_sub(self.own.saturating_sub(before.own));
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let cores = foreign as f64 / core as f64;
        cores
    }
}

/// Reads `/proc/stat`, `/proc/self/stat` and the `Cpus_allowed_list` of `/proc/self/status`; also how many cores that list has. `None` if a system writes
/// them in another way.
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
