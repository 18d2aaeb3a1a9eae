//! The board: the newest status of every instance and the newest sample of every device, and which of them the controller does not know
//! yet.
//!
//! ```text
//!   instances, devices ──update──► board ──changes──► session with the controller (coalesced: the newest state wins)
//!                                    └────snapshot──► Hello, Host.Describe
//! ```
//!
//! Invariants: nothing queues here, so a slow controller costs no memory. Ended instances stay as tombstones until acknowledged
//! (PROTOCOL.md 3). A status and device samples added together are reported together. Requests that came and went since the last report
//! cost a touch, not a whole status.
//!
//! A std Mutex is enough: every critical section is a few assignments, and none awaits.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
    time::Instant,
};

use muster_core::InstanceId;
use muster_proto::v1::{DeviceSample, InstanceState, InstanceStatus, Reservation, Touch, WorkerReport};
use tokio::sync::Notify;

use crate::{convert, devices::Sample};

/// How soon a change should be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Nothing to report.
    None,
    /// A touch or a count: within 100 ms (PROTOCOL.md 19).
    Lazy,
    /// An instance became idle, which a waiting load may need to know: within a few milliseconds.
    Soon,
    /// A state changed: immediately.
    Now,
}

/// The newest status of everything. Shared by reference.
#[derive(Debug)]
pub(crate) struct Board {
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug)]
struct Inner {
    instances: BTreeMap<InstanceId, Entry>,
    samples: HashMap<String, Sampled>,
    urgency: Urgency,
    /// The worker takes no loads any more, and this was not reported yet.
    draining: Option<bool>,
}

#[derive(Debug)]
struct Entry {
    status: InstanceStatus,
    touched: Instant,
    untold: Untold,
    /// Numbers of running and queued requests in the last report.
    told_counts: (u32, u32),
}

/// What about an instance was not reported yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Untold {
    #[default]
    Nothing,
    /// A touch, perhaps with changed counts.
    Touch,
    /// The whole status.
    Status,
}

#[derive(Debug)]
struct Sampled {
    sample: DeviceSample,
    taken: Instant,
    told: bool,
}

impl Board {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            instances: BTreeMap::new(),
            samples: HashMap::new(),
            urgency: Urgency::None,
            draining: None,
        };
        Self {
            inner: Mutex::new(inner),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self, inner: &mut Inner, urgency: Urgency) {
        if urgency > inner.urgency {
            inner.urgency = urgency;
            self.changed.notify_one();
        }
    }

    /// Adds an instance. `touched` is its first touch, the start of the load.
    pub(crate) fn add(&self, id: &InstanceId, status: InstanceStatus, touched: Instant) {
        let mut inner = self.lock();
        inner.instances.insert(
            id.clone(),
            Entry {
                told_counts: (status.running, status.queued),
                status,
                touched,
                untold: Untold::Status,
            },
        );
        self.raise(&mut inner, Urgency::Now);
    }

    /// Changes the status of an instance.
    pub(crate) fn update(&self, id: &InstanceId, urgency: Urgency, change: impl FnOnce(&mut InstanceStatus)) {
        self.update_with(id, urgency, Vec::new(), change);
    }

    /// Changes the status of an instance, with device samples to be reported together.
    pub(crate) fn update_with(
        &self,
        id: &InstanceId,
        urgency: Urgency,
        samples: Vec<Sample>,
        change: impl FnOnce(&mut InstanceStatus),
    ) {
        let mut inner = self.lock();
        if let Some(entry) = inner.instances.get_mut(id) {
            change(&mut entry.status);
            entry.untold = Untold::Status;
        }
        inner.put_samples(samples);
        self.raise(&mut inner, urgency);
    }

    /// Records a touch and the counts that go with it (I9).
    pub(crate) fn touch(
        &self,
        id: &InstanceId,
        urgency: Urgency,
        touch: u64,
        at: Instant,
        counts: (u32, u32),
    ) {
        let mut inner = self.lock();
        if let Some(entry) = inner.instances.get_mut(id) {
            entry.touched = at;
            entry.untold = entry.untold.max(Untold::Touch);
            entry.status.touch.get_or_insert_default().touch_seq = touch;
            (entry.status.running, entry.status.queued) = counts;
        }
        self.raise(&mut inner, urgency);
    }

    /// Records memory figures that were measured together. Small changes wait for other ones.
    pub(crate) fn observed(&self, samples: Vec<Sample>, seen: Vec<(InstanceId, Vec<Reservation>)>) {
        let mut inner = self.lock();
        let mut news = samples.iter().any(|(sample, _)| inner.is_news(sample));
        for (id, observed) in seen {
            if let Some(entry) = inner.instances.get_mut(&id)
                && !is_terminal(&entry.status)
                && entry.status.observed != observed
            {
                news |= differ(&entry.status.observed, &observed);
                entry.status.observed = observed;
                entry.untold = Untold::Status;
            }
        }
        inner.put_samples(samples);
        if news {
            self.raise(&mut inner, Urgency::Lazy);
        }
    }

    /// Records that the worker takes no loads any more.
    pub(crate) fn draining(&self) {
        let mut inner = self.lock();
        inner.draining = Some(true);
        self.raise(&mut inner, Urgency::Now);
    }

    /// Removes an ended instance; any other stays. Returns whether it is not on the board any more.
    pub(crate) fn acknowledge(&self, id: &InstanceId) -> bool {
        let mut inner = self.lock();
        let terminal = inner
            .instances
            .get(id)
            .is_some_and(|entry| is_terminal(&entry.status));
        if terminal {
            inner.instances.remove(id);
        }
        !inner.instances.contains_key(id)
    }

    /// The status of one instance.
    pub(crate) fn get(&self, id: &InstanceId) -> Option<InstanceStatus> {
        let now = Instant::now();
        self.lock().instances.get(id).map(|entry| entry.status_at(now))
    }

    /// All statuses. They count as reported if `told`.
    pub(crate) fn snapshot(&self, now: Instant, told: bool) -> WorkerReport {
        let mut inner = self.lock();
        if told {
            inner.urgency = Urgency::None;
            // Hello has its own field for this.
            inner.draining = None;
        }
        let mut report = WorkerReport::default();
        for entry in inner.instances.values_mut() {
            if told {
                entry.tell();
            }
            report.instances.push(entry.status_at(now));
        }
        for sampled in inner.samples.values_mut() {
            sampled.told |= told;
            report.devices.push(sampled.told_at(now));
        }
        report
    }

    /// What was not reported yet. It then counts as reported.
    pub(crate) fn changes(&self, now: Instant) -> WorkerReport {
        let mut inner = self.lock();
        inner.urgency = Urgency::None;
        let mut report = WorkerReport {
            draining: inner.draining.take(),
            ..WorkerReport::default()
        };
        for entry in inner.instances.values_mut() {
            match entry.tell() {
                Untold::Nothing => {}
                Untold::Touch => report.touches.push(entry.touch_at(now)),
                Untold::Status => report.instances.push(entry.status_at(now)),
            }
        }
        for sampled in inner.samples.values_mut().filter(|sampled| !sampled.told) {
            sampled.told = true;
            report.devices.push(sampled.told_at(now));
        }
        report
    }

    /// How soon [`Self::changes`] should be called.
    pub(crate) fn urgency(&self) -> Urgency {
        self.lock().urgency
    }

    /// Resolves when [`Self::urgency`] has risen.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// A smaller change of memory, in bytes, causes no report by itself.
const NEWS: u64 = 8 << 20;

fn differ(old: &[Reservation], new: &[Reservation]) -> bool {
    old.len() != new.len()
        || old
            .iter()
            .zip(new)
            .any(|(old, new)| old.bytes.abs_diff(new.bytes) >= NEWS)
}

impl Inner {
    fn is_news(&self, sample: &DeviceSample) -> bool {
        self.samples.get(sample.device_id.as_str()).is_none_or(|old| {
            old.sample.lifecycle_seq != sample.lifecycle_seq
                || old.sample.free_bytes.abs_diff(sample.free_bytes) >= NEWS
        })
    }

    fn put_samples(&mut self, samples: Vec<Sample>) {
        for (sample, taken) in samples {
            let told = false;
            self.samples
                .insert(sample.device_id.clone(), Sampled { sample, taken, told });
        }
    }
}

impl Entry {
    /// What must be reported now. It then counts as reported.
    fn tell(&mut self) -> Untold {
        let counts = (self.status.running, self.status.queued);
        let mut untold = std::mem::take(&mut self.untold);
        if counts != std::mem::replace(&mut self.told_counts, counts) {
            untold = Untold::Status;
        }
        untold
    }

    fn touch_at(&self, now: Instant) -> Touch {
        Touch {
            instance_id: self.status.instance_id.clone(),
            touch_seq: self.status.touch.as_ref().map_or(0, |touch| touch.touch_seq),
            age: Some(convert::span(now.saturating_duration_since(self.touched))),
        }
    }

    fn status_at(&self, now: Instant) -> InstanceStatus {
        InstanceStatus {
            touch: Some(self.touch_at(now)),
            ..self.status.clone()
        }
    }
}

impl Sampled {
    fn told_at(&self, now: Instant) -> DeviceSample {
        DeviceSample {
            age: Some(convert::span(now.saturating_duration_since(self.taken))),
            ..self.sample.clone()
        }
    }
}

/// Whether the instance has ended, so that only its tombstone is left.
pub(crate) fn is_terminal(status: &InstanceStatus) -> bool {
    matches!(status.state(), InstanceState::Gone | InstanceState::Failed)
}

/// The first status of an instance.
pub(crate) fn first_status(id: &InstanceId, state: InstanceState) -> InstanceStatus {
    InstanceStatus {
        instance_id: id.into(),
        state: state.into(),
        revision: 1,
        touch: Some(Touch {
            instance_id: id.into(),
            touch_seq: 1,
            age: None,
        }),
        ..InstanceStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn board() -> (Board, InstanceId, Instant) {
        let (board, id, now) = (Board::new(), InstanceId::from("i"), Instant::now());
        board.add(&id, first_status(&id, InstanceState::Loading), now);
        (board, id, now)
    }

    #[test]
    fn only_the_newest_state_is_told_and_only_once() {
        let (board, id, now) = board();
        for revision in 2..10 {
            board.update(&id, Urgency::Now, |status| status.revision = revision);
        }
        let report = board.changes(now);
        assert_eq!(report.instances.len(), 1);
        assert_eq!(report.instances[0].revision, 9);
        assert!(board.changes(now).instances.is_empty());
        assert_eq!(board.snapshot(now, true).instances.len(), 1);
    }

    #[test]
    fn touches_travel_as_ages_and_wait_for_company() {
        let (board, id, now) = board();
        board.changes(now);
        board.touch(&id, Urgency::Lazy, 7, now, (1, 2));
        assert_eq!(board.urgency(), Urgency::Lazy);
        board.touch(&id, Urgency::Soon, 8, now, (0, 0));
        assert_eq!(board.urgency(), Urgency::Soon);
        let report = board.changes(now + Duration::from_millis(30));
        // Both came and went between two reports, so the counts have not changed.
        assert!(report.instances.is_empty());
        let [touch] = report.touches.as_slice() else {
            panic!("{report:?}")
        };
        assert_eq!((touch.instance_id.as_str(), touch.touch_seq), ("i", 8));
        assert_eq!(touch.age, Some(convert::span(Duration::from_millis(30))));
        assert_eq!(board.urgency(), Urgency::None);
        assert_eq!(board.changes(now), WorkerReport::default());
    }

    #[test]
    fn a_touch_with_other_news_comes_in_the_status() {
        let (board, id, now) = board();
        board.changes(now);
        board.touch(&id, Urgency::Lazy, 2, now, (1, 0));
        let report = board.changes(now);
        assert!(report.touches.is_empty());
        assert_eq!(report.instances[0].running, 1);
        board.touch(&id, Urgency::Lazy, 3, now, (1, 0));
        board.update(&id, Urgency::Now, |status| status.revision = 9);
        let report = board.changes(now);
        assert!(report.touches.is_empty());
        let touch = report.instances[0].touch.as_ref().unwrap();
        assert_eq!((report.instances[0].revision, touch.touch_seq), (9, 3));
    }

    #[test]
    fn a_tombstone_stays_until_acknowledged_and_the_living_cannot_be() {
        let (board, id, now) = board();
        assert!(!board.acknowledge(&id));
        board.update(&id, Urgency::Now, |status| status.set_state(InstanceState::Gone));
        board.changes(now);
        assert_eq!(board.snapshot(now, false).instances.len(), 1);
        assert!(board.acknowledge(&id));
        assert!(board.acknowledge(&id), "an unknown one is forgotten already");
        assert!(board.snapshot(now, false).instances.is_empty());
    }

    #[test]
    fn the_sample_after_an_end_travels_with_it() {
        let (board, id, now) = board();
        board.changes(now);
        let sample = DeviceSample {
            device_id: "cpu".into(),
            lifecycle_seq: 2,
            ..DeviceSample::default()
        };
        board.update_with(&id, Urgency::Now, vec![(sample, now)], |status| {
            status.set_state(InstanceState::Gone);
        });
        let report = board.changes(now);
        assert_eq!((report.instances.len(), report.devices.len()), (1, 1));
    }
}
