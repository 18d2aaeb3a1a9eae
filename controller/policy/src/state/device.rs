//! A device of a host, shared by all workers that list it (DESIGN idea 6).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::{Bytes, DeviceFacts, DeviceKind, DeviceSample, Exclusivity, InstanceId, Moment, WorkerId};

/// A device, its newest sample and who uses it.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) kind: DeviceKind,
    pub(crate) capacity: Bytes,
    pub(crate) exclusivity: Exclusivity,
    /// Workers that list it.
    pub(crate) workers: BTreeSet<WorkerId>,
    /// Instances with a reservation on it, ghosts included.
    pub(crate) instances: BTreeSet<InstanceId>,
    sample: Option<Sample>,
    /// Last engine start or exit that no sample shows yet.
    unseen_change: Option<Moment>,
}

#[derive(Debug)]
struct Sample {
    from: WorkerId,
    lifecycle_seq: u64,
    taken_at: Moment,
    free: Bytes,
}

/// What is known of a device's free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Free {
    /// A sample newer than the last start or exit.
    Known(Bytes),
    /// The newest sample is older than the last start or exit; a newer one is worth waiting for until then.
    Stale { until: Moment },
    /// No sample, or none came in time: reservations alone decide.
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
        }
    }

    /// A worker describes it anew.
    pub(crate) fn describe(&mut self, facts: &DeviceFacts) {
        self.kind = facts.kind;
        self.capacity = facts.capacity;
        self.exclusivity = facts.exclusivity;
    }

    /// An engine started or ended on it.
    pub(crate) fn changed(&mut self, now: Moment) {
        self.unseen_change = Some(now);
    }

    /// Takes a sample unless it is old news. `with_change`: it came in the same report as an instance's end or readiness, and so
    /// was taken after that (PROTOCOL 13).
    pub(crate) fn sampled(&mut self, from: &WorkerId, sample: &DeviceSample, now: Moment, with_change: bool) {
        let taken_at = now.ago(sample.age);
        let old_news = self.sample.as_ref().is_some_and(|known| {
            (known.from == *from && sample.lifecycle_seq < known.lifecycle_seq)
                || (known.from != *from && taken_at < known.taken_at)
        });
        if old_news {
            return;
        }
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
    }

    /// A new boot counts lifecycle changes from zero again.
    pub(crate) fn forget_sample_of(&mut self, worker: &WorkerId) {
        if self.sample.as_ref().is_some_and(|sample| sample.from == *worker) {
            self.sample = None;
        }
    }

    /// Free memory, as far as it may be relied on now.
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

    /// Free memory by the newest sample, for people.
    pub(crate) fn newest_free(&self) -> Option<Bytes> {
        self.sample.as_ref().map(|sample| sample.free)
    }
}
