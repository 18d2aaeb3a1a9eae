//! What the loop shows to the other threads: gauges for Describe, ticks and signs of life. Written by the loop alone, read by anyone, never waited for.
//! What requests ask for is noted beside the loop, by who prepares them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use crate::{adapters::Scales, busy::Busy, totals::Totals};
use muster_proto::v1::{Alive, GenerateRequest, SequencePhase, SequenceState};

/// Gauges of one sequence.
#[derive(Debug, Default)]
pub(crate) struct SlotGauge {
    phase: AtomicU8,
    cached: AtomicU32,
    prompt: AtomicU32,
    generated: AtomicU32,
    handle: AtomicU64,
}

/// Values of one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotView {
    pub(crate) phase: SequencePhase,
    pub(crate) cached: usize,
    pub(crate) prompt: usize,
    pub(crate) generated: u32,
    pub(crate) handle: u64,
}

/// What a request asks for, and whose it is.
type Asked = (Arc<str>, Weak<GenerateRequest>);

/// The loop's public face.
#[derive(Debug)]
pub(crate) struct Shared {
    started: Instant,
    iterations: AtomicU64,
    /// Microseconds from `started` to the beginning of the current iteration; 0 = idle.
    busy_since: AtomicU64,
    running: AtomicU32,
    free_sequences: AtomicU32,
    free_cells: AtomicU32,
    threads: AtomicU32,
    parked: AtomicBool,
    /// How many times memory is still to be given back to the system.
    to_give_back: AtomicU8,
    busy: Busy,
    totals: Totals,
    /// How much of each adapter is applied for requests that do not say.
    scales: Scales,
    slots: Vec<SlotGauge>,
    /// Who asked what, by handle; it lives as long as its request does. Locked once per request and for a description, never by the loop.
    asked: Mutex<HashMap<u64, Asked>>,
}

fn narrow(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

impl Shared {
    pub(crate) fn new(sequences: usize, cells: u32, scales: Scales) -> Self {
        Self {
            started: Instant::now(),
            iterations: AtomicU64::new(0),
            busy_since: AtomicU64::new(0),
            running: AtomicU32::new(0),
            free_sequences: AtomicU32::new(narrow(sequences)),
            free_cells: AtomicU32::new(cells),
            threads: AtomicU32::new(0),
            parked: AtomicBool::new(false),
            to_give_back: AtomicU8::new(0),
            busy: Busy::default(),
            totals: Totals::default(),
            scales,
            slots: (0..sequences).map(|_| SlotGauge::default()).collect(),
            asked: Mutex::default(),
        }
    }

    /// How much of each adapter is applied for requests that do not say.
    pub(crate) const fn scales(&self) -> &Scales {
        &self.scales
    }

    pub(crate) fn begin_iteration(&self) {
        let now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.busy_since.store(now.max(1), Relaxed);
        self.iterations.fetch_add(1, Relaxed);
    }

    pub(crate) fn idle(&self) {
        self.busy_since.store(0, Relaxed);
    }

    pub(crate) fn set_load(&self, running: usize, free_sequences: usize, free_cells: usize) {
        self.running.store(narrow(running), Relaxed);
        self.free_sequences.store(narrow(free_sequences), Relaxed);
        self.free_cells.store(narrow(free_cells), Relaxed);
    }

    pub(crate) fn set_slot(&self, index: usize, view: SlotView) {
        if let Some(slot) = self.slots.get(index) {
            slot.phase
                .store(u8::try_from(view.phase as i32).unwrap_or_default(), Relaxed);
            slot.cached.store(narrow(view.cached), Relaxed);
            slot.prompt.store(narrow(view.prompt), Relaxed);
            slot.generated.store(view.generated, Relaxed);
            slot.handle.store(view.handle, Relaxed);
        }
    }

    pub(crate) fn free_sequences(&self) -> u32 {
        self.free_sequences.load(Relaxed)
    }

    pub(crate) fn free_cells(&self) -> u32 {
        self.free_cells.load(Relaxed)
    }

    pub(crate) fn set_threads(&self, threads: u32) {
        self.threads.store(threads, Relaxed);
    }

    /// Threads of the largest graph runs; 0 before the first.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Relaxed)
    }

    /// What the loop did so far.
    pub(crate) const fn totals(&self) -> &Totals {
        &self.totals
    }

    pub(crate) fn iterations(&self) -> u64 {
        self.iterations.load(Relaxed)
    }

    /// The loop is about to sleep (true) or awake. It looks for work once more after saying so; who brings work looks here afterwards.
    pub(crate) fn set_parked(&self, parked: bool) {
        self.parked.store(parked, SeqCst);
    }

    /// Whether the loop needs a wake-up.
    pub(crate) fn is_parked(&self) -> bool {
        self.parked.load(SeqCst)
    }

    /// Something large is over: what it took is given back soon. Twice, since its last pieces may still be on their way out.
    pub(crate) fn had_large(&self) {
        self.to_give_back.store(2, Relaxed);
    }

    /// Whether to give memory back now.
    pub(crate) fn gives_back(&self) -> bool {
        let left = self
            .to_give_back
            .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        left.is_ok()
    }

    /// Work of the other threads.
    pub(crate) fn busy(&self) -> &Busy {
        &self.busy
    }

    pub(crate) fn alive(&self) -> Alive {
        let since = self.busy_since.load(Relaxed);
        let in_loop = (since > 0).then(|| {
            self.started
                .elapsed()
                .saturating_sub(Duration::from_micros(since))
        });
        let busy_for = in_loop
            .max(self.busy.longest())
            .map(|busy| prost_types::Duration::try_from(busy).unwrap_or_default());
        Alive {
            iterations: self.iterations(),
            busy_for,
            running: self.running.load(Relaxed),
        }
    }

    /// Notes what a request asks for, until it is dropped.
    pub(crate) fn asked(&self, handle: u64, owner: Arc<str>, request: &Arc<GenerateRequest>) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.retain(|_, (_, known)| known.strong_count() > 0);
        asked.insert(handle, (owner, Arc::downgrade(request)));
    }

    fn request(&self, handle: u64) -> Option<(String, GenerateRequest)> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let (owner, request) = asked.get(&handle)?;
        Some((owner.to_string(), GenerateRequest::clone(&*request.upgrade()?)))
    }

    pub(crate) fn sequences(&self) -> Vec<SequenceState> {
        let states = self.slots.iter().zip(0..).map(|(slot, id)| {
            let phase = i32::from(slot.phase.load(Relaxed));
            let handle = slot.handle.load(Relaxed);
            let asked = if handle == 0 { None } else { self.request(handle) };
            let (owner, request) = asked.unzip();
            SequenceState {
                id,
                phase: if phase == 0 {
                    SequencePhase::Idle as i32
                } else {
                    phase
                },
                cached_tokens: slot.cached.load(Relaxed),
                prompt_tokens: slot.prompt.load(Relaxed),
                generated: slot.generated.load(Relaxed),
                handle,
                request,
                owner: owner.unwrap_or_default(),
            }
        });
        states.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_is_told_as_long_as_the_request_lives() {
        let shared = Shared::new(1, 64, Vec::new().into());
        let request = Arc::new(GenerateRequest {
            max_tokens: Some(7),
            ..GenerateRequest::default()
        });
        shared.asked(5, "key".into(), &request);
        let shown = |handle| {
            let view = SlotView {
                phase: SequencePhase::Decode,
                cached: 0,
                prompt: 0,
                generated: 0,
                handle,
            };
            shared.set_slot(0, view);
            let state = shared.sequences().remove(0);
            assert_eq!(state.owner, if state.request.is_some() { "key" } else { "" });
            state.request
        };
        assert_eq!(shown(5).and_then(|request| request.max_tokens), Some(7));
        assert_eq!(shown(6), None);
        assert_eq!(shown(0), None);
        drop(request);
        assert_eq!(shown(5), None);
        // Nothing is kept of what has ended.
        shared.asked(6, "".into(), &Arc::default());
        shared.asked(7, "".into(), &Arc::default());
        let known = shared.asked.lock().unwrap_or_else(PoisonError::into_inner).len();
        assert_eq!(known, 1);
    }
}
