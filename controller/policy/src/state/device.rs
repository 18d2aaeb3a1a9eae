//! A device of a host, shared by all workers that list it (proto/README.md, idea 6).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::{DeviceFacts, DeviceSample, Exclusivity, Moment};
use muster_core::{Bytes, DeviceKind, InstanceId, WorkerId};

/// A device, its newest sample and who uses it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) kind: DeviceKind,
    pub(crate) capacity: Bytes,
    pub(crate) exclusivity: Exclusivity,
    /// Workers that list it.
    pub(crate) workers: BTreeSet<WorkerId>,
    /// Instances with a reservation on the device, ghosts included.
    pub(crate) instances: BTreeSet<InstanceId>,
    sample: Option<Sample>,
    /// The last engine start or exit that no sample shows yet.
    unseen_change: Option<Moment>,
    /// The free memory that was known when the last load began here; `invariants` checks that decision.
    pub(crate) judged_by: Option<Free>,
}

#[derive(Debug)]
struct Sample {
    from: WorkerId,
    lifecycle_seq: u64,
    taken_at: Moment,
    free: Bytes,
}

/// What is known about a device's free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Free {
    /// A sample newer than the last start or exit.
    Known(Bytes),
    /// The newest sample is older than the last start or exit. It pays to wait for a newer one until this moment.
    Stale { until: Moment },
    /// There is no sample, or none came in time: only reservations decide.
    Unknown,
}

impl Device {
    pub(crate) fn new(facts: &DeviceFacts) -> Self {
        Self {
            kind: facts.kind,
            capacity: facts.capacity,
            exclusivity: facts.exclusivity,
            workers: BTreeSet::new(),
            instances: BTreeSet::new(),
            sample: None,
            unseen_change: None,
            judged_by: None,
        }
    }

    /// Takes over a worker's new description of the device.
    pub(crate) fn describe(&mut self, facts: &DeviceFacts) {
        self.kind = facts.kind;
        self.capacity = facts.capacity;
        self.exclusivity = facts.exclusivity;
    }

    /// Records that an engine started or ended on the device.
    pub(crate) fn changed(&mut self, now: Moment) {
        self.unseen_change = Some(now);
    }

    /// Records that a load begins on the device.
    pub(crate) fn load_begins(&mut self, now: Moment, sample_wait: Duration) {
        self.judged_by = Some(self.free(now, sample_wait));
        self.changed(now);
    }

    /// Records that the newest sample shows every start and exit on the device.
    pub(crate) fn is_current(&mut self) {
        self.unseen_change = None;
    }

    /// Takes a sample unless a newer one is known. `with_change`: the sample came in the same report as an instance's end or readiness and
    /// was therefore taken after it (PROTOCOL 13). Returns whether the sample changed anything.
    pub(crate) fn sampled(
        &mut self,
        from: &WorkerId,
        sample: &DeviceSample,
        now: Moment,
        with_change: bool,
    ) -> bool {
        let taken_at = now.ago(sample.age);
        let old_news = self.sample.as_ref().is_some_and(|known| {
            (known.from == *from && sample.lifecycle_seq < known.lifecycle_seq)
                || (known.from != *from && taken_at < known.taken_at)
        });
        if old_news {
            return false;
        }
        let known = (self.capacity, self.newest_free(), self.unseen_change);
        self.capacity = sample.capacity;
        if with_change || self.unseen_change.is_none_or(|change| change <= taken_at) {
            self.unseen_change = None;
        }
        self.sample = Some(Sample {
            from: from.clone(),
            lifecycle_seq: sample.lifecycle_seq,
            taken_at,
            free: sample.free,
        });
        known != (self.capacity, self.newest_free(), self.unseen_change)
    }

    /// Drops the worker's sample: a new boot counts starts and exits from zero again.
    pub(crate) fn forget_sample_of(&mut self, worker: &WorkerId) {
        if self.sample.as_ref().is_some_and(|sample| sample.from == *worker) {
            self.sample = None;
        }
    }

    /// Free memory, as far as it can be relied on now.
    pub(crate) fn free(&self, now: Moment, sample_wait: Duration) -> Free {
        match (&self.sample, self.unseen_change) {
            (None, _) => Free::Unknown,
            (Some(sample), None) => Free::Known(sample.free),
            (Some(_), Some(change)) => {
                let until = change + sample_wait;
                if now < until {
                    Free::Stale { until }
                } else {
                    Free::Unknown
                }
            }
        }
    }

    /// Free memory by the newest sample, however old.
    pub(crate) fn newest_free(&self) -> Option<Bytes> {
        self.sample.as_ref().map(|sample| sample.free)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::after_start(Duration::from_millis(ms))
    }

    fn device() -> Device {
        Device::new(&DeviceFacts {
            id: "g".into(),
            kind: DeviceKind::Gpu,
            capacity: Bytes::new(100),
            exclusivity: Exclusivity::Shared,
        })
    }

    fn sample(free: u64, age_ms: u64, lifecycle_seq: u64) -> DeviceSample {
        DeviceSample {
            device: "g".into(),
            capacity: Bytes::new(100),
            free: Bytes::new(free),
            age: Duration::from_millis(age_ms),
            lifecycle_seq,
        }
    }

    const WAIT: Duration = Duration::from_millis(1000);

    #[test]
    fn a_sample_taken_before_a_change_does_not_show_it() {
        let mut device = device();
        device.changed(at(50));
        device.sampled(&"w".into(), &sample(40, 30, 1), at(60), false);
        assert_eq!(device.free(at(60), WAIT), Free::Stale { until: at(1050) });
        assert_eq!(device.free(at(1050), WAIT), Free::Unknown);
        device.sampled(&"w".into(), &sample(70, 0, 1), at(70), false);
        assert_eq!(device.free(at(70), WAIT), Free::Known(Bytes::new(70)));
    }

    #[test]
    fn a_sample_beside_a_change_shows_it_whatever_its_age() {
        let mut device = device();
        device.changed(at(50));
        device.sampled(&"w".into(), &sample(70, 5, 2), at(50), true);
        assert_eq!(device.free(at(50), WAIT), Free::Known(Bytes::new(70)));
    }

    #[test]
    fn old_news_is_dropped() {
        let mut device = device();
        device.sampled(&"w".into(), &sample(70, 0, 5), at(50), false);
        assert!(!device.sampled(&"w".into(), &sample(10, 0, 4), at(60), false));
        assert!(
            !device.sampled(&"x".into(), &sample(10, 30, 9), at(60), false),
            "an older look of another worker"
        );
        assert_eq!(device.newest_free(), Some(Bytes::new(70)));
    }
}
