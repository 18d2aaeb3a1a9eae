//! One load attempt, from its Load command until it is gone.
//!
//! ```text
//!              Load sent                 PlaceHold, touches, reports
//!                 │                               ⟲
//!           ┌─────▼────┐  reported ready    ┌─────┴─────┐  Unload{IF_IDLE} sent  ┌──────────┐
//!           │ Loading  ├───────────────────►│   Ready   ├───────────────────────►│ Evicting │
//!           └──┬────┬──┘   NOT_LOADING      └─▲─┬───┬──▲┘◄───────────────────────┤          │
//!   CancelLoad │    │          ┌──────────────┘ │   │  │  BUSY HELD TOUCHED      └────┬─────┘
//!          ┌───▼────┴───┐      │        Quiesce │   │  │ Resume done                  │ done
//!          │ Cancelling ├──────┘         ┌──────▼─┐ │ ┌┴─────────┐                    │
//!          └───┬────────┘                │Quiesced├─┼►│ Resuming │                    │
//!              │                         └───┬────┘ │ └──────────┘                    │
//!              │           operator's Unload │      │ operator's Unload               │
//!              │                          ┌──▼──────▼──┐                              │
//!              └──────────► gone ◄────────┤  Leaving   │◄─────────────────────────────┘
//!                                         └────────────┘
//!   any ── worker lost ──► Lost (a ghost: reservations and slot stay) ── rejoined ──► as reported, or gone
//!   any ── reported failed ──► gone, with a failure        any ── unknown state reported ──► Opaque
//!   Loading, Ready … ── reported unloading, unasked ──► Leaving, with what it was ──► gone, as from there
//! ```
//!
//! `condemned` (an operator wants the instance gone) is not a state: it applies in every state until the instance ends.
//!
//! A busy instance may be quiesced for a load that has waited too long: it finishes its requests and is then evicted.
//!
//! Invariants: reservations never change; at most one command is outstanding (`pending`); no command is sent to a ghost.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::command::{Given, Pending};
use super::load::{Load, LoadId};
use super::usage::Usage;
use crate::api::{InstanceSpec, Moment, Progress, RouteState, UnloadMode};
use muster_core::{Bytes, DeviceId, HoldId, HostId, InstanceId, WorkerId};

/// An instance: one load attempt at a worker.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) id: InstanceId,
    pub(crate) worker: WorkerId,
    pub(crate) host: HostId,
    pub(crate) spec: Arc<InstanceSpec>,
    pub(crate) state: InstanceState,
    /// The command that has no outcome yet.
    pub(crate) pending: Option<Pending>,
    /// Commands sent lately, to space repetitions.
    pub(crate) given: Given,
    pub(crate) condemned: Option<Condemned>,
    /// Highest revision in a report.
    pub(crate) revision: u64,
    pub(crate) running: u32,
    pub(crate) queued: u32,
    /// Holds that the worker has in place, as far as known.
    pub(crate) holds: BTreeSet<HoldId>,
    /// Holds of streams that have ended. They are released as soon as no command is outstanding.
    pub(crate) to_release: BTreeSet<HoldId>,
    /// Since when the instance carries holds of streams that this controller does not know because it restarted. They are released after a
    /// while.
    pub(crate) strangers_since: Option<Moment>,
    pub(crate) usage: Usage,
    /// When it became ready. For one that was already loaded when it was first reported: its last use before that.
    pub(crate) ready_since: Option<Moment>,
    pub(crate) observed: Vec<(DeviceId, Bytes)>,
    /// Free memory of its devices when its worker was lost, plus what our other instances freed there since.
    pub(crate) free_at_loss: Vec<(DeviceId, Bytes)>,
    /// Since when the outcome of a command is unknown and no report has told the state.
    pub(crate) doubtful_since: Option<Moment>,
    /// Takes requests as soon as it is ready. False while its replica group is incomplete.
    pub(crate) published: bool,
    /// The route that was announced last.
    pub(crate) route: Option<RouteState>,
}

/// What an instance does, as far as policy knows.
#[derive(Debug)]
pub(crate) enum InstanceState {
    /// The engine starts and reads the model.
    Loading {
        /// The load that started the instance; it goes back to the queue if the worker is lost.
        load: Box<Load>,
        progress: Progress,
        /// Since when nobody waits for the load; none while somebody does.
        unwanted_since: Option<Moment>,
    },
    /// Its load is being cancelled. The cancellation may come too late.
    Cancelling { sent: bool },
    /// Takes requests.
    Ready,
    /// An unload was sent that the worker may refuse; after a refusal the instance is ready, or quiesced, as before.
    Evicting { quiesced: bool },
    /// Takes no new requests because a plan needs several instances gone. Without a plan it has to be resumed.
    Quiesced {
        plan: Option<LoadId>,
        /// The worker has reported this state, so its request counts are those after the quiesce.
        confirmed: bool,
        /// It was busy when it was quiesced and may finish its requests. If false, the plan is dropped when it turns out busy.
        patient: bool,
        since: Moment,
    },
    /// `Resume` was sent, its outcome is not known yet.
    Resuming,
    /// It ends; nothing can stop that.
    Leaving(Exit),
    /// Its worker is lost; its engine may still run.
    Lost(Was),
    /// The worker reported a state that this controller does not know. It counts as busy, keeps its reservations and has no route.
    Opaque,
}

/// Why an instance is ending.
#[derive(Debug)]
pub(crate) enum Exit {
    /// The controller sent an unload.
    Asked,
    /// The worker ends it and has not said why: the engine failed, or somebody on the host stopped it.
    Worker(Before),
}

/// What an instance did before its worker began to end it.
#[derive(Debug)]
pub(crate) enum Before {
    /// It loaded, for this load.
    Loading(Box<Load>),
    /// It had been ready.
    Serving,
}

/// What an instance did when its worker was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Was {
    /// It was loaded; gateways may still reach it.
    Serving,
    /// It was loaded, and an unload if idle had been sent.
    Evicting,
    /// It was loading, perhaps with a cancellation on the way.
    Loading,
    /// Its engine was ending.
    Leaving,
    /// Its state was unknown.
    Opaque,
}

/// An operator wants the instance gone. This outlives sessions and does not depend on reports. It ends only if the worker gives up because
/// running requests did not finish in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Condemned {
    pub(crate) mode: UnloadMode,
    /// The unload has not been sent in this session yet.
    pub(crate) due: bool,
    /// The worker has accepted the unload in this session.
    pub(crate) accepted: bool,
}

impl Instance {
    /// An instance of which only the spec and the state are known.
    pub(crate) fn new(
        id: InstanceId,
        (worker, host): (WorkerId, HostId),
        spec: Arc<InstanceSpec>,
        state: InstanceState,
        last_used: Moment,
    ) -> Self {
        Self {
            id,
            worker,
            host,
            spec,
            state,
            pending: None,
            given: Given::default(),
            condemned: None,
            revision: 0,
            running: 0,
            queued: 0,
            holds: BTreeSet::new(),
            to_release: BTreeSet::new(),
            strangers_since: None,
            usage: Usage::new(last_used),
            ready_since: None,
            observed: Vec::new(),
            free_at_loss: Vec::new(),
            doubtful_since: None,
            published: true,
            route: None,
        }
    }

    /// Whether requests run or wait there or a hold is in place, as far as policy knows (I1, I10).
    pub(crate) fn busy(&self) -> bool {
        self.works() || !self.holds.is_empty()
    }

    /// Whether it is ready and no operator wants it gone.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, InstanceState::Ready) && self.condemned.is_none()
    }

    /// Whether it is loaded, and whether it has no requests.
    pub(crate) fn at_work(&self) -> (bool, bool) {
        (self.loaded(), !self.works())
    }

    /// Whether the engine has loaded the model and no end of it is known.
    fn loaded(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Ready
                | InstanceState::Evicting { .. }
                | InstanceState::Quiesced { .. }
                | InstanceState::Resuming
        )
    }

    /// Whether requests run or wait there.
    pub(crate) fn works(&self) -> bool {
        self.running > 0 || self.queued > 0
    }

    /// Bytes that it has reserved on the device.
    pub(crate) fn reserved_on(&self, device: &DeviceId) -> Bytes {
        self.spec
            .reservations
            .iter()
            .filter(|r| r.device == *device)
            .map(|r| r.bytes)
            .sum()
    }

    fn observed_on(&self, device: &DeviceId) -> Option<Bytes> {
        self.observed
            .iter()
            .find(|(id, _)| id == device)
            .map(|(_, bytes)| *bytes)
    }

    /// Bytes that count for it on the device: the larger of its reservation and its measured use (I4).
    pub(crate) fn charge_on(&self, device: &DeviceId) -> Bytes {
        self.reserved_on(device)
            .max(self.observed_on(device).unwrap_or(Bytes::ZERO))
    }

    /// Bytes that it may still take beyond what a memory sample shows.
    pub(crate) fn unrealised_on(&self, device: &DeviceId) -> Bytes {
        self.charge_on(device).saturating_sub(self.in_use_on(device))
    }

    /// Bytes that a sample may show as free once it has ended. For an instance that is still growing this is the whole charge: its present
    /// use is unknown, and a load that waits for its end must not look hopeless.
    pub(crate) fn returned_by_end(&self, device: &DeviceId) -> Bytes {
        if self.grows() {
            self.charge_on(device)
        } else {
            self.in_use_on(device)
        }
    }

    /// Bytes that a sample shows as used by it. Without a measurement, a loaded engine counts with its reservation, and one that may still
    /// be loading with nothing (I4).
    fn in_use_on(&self, device: &DeviceId) -> Bytes {
        let unseen = if self.grows() {
            Bytes::ZERO
        } else {
            self.reserved_on(device)
        };
        self.observed_on(device).unwrap_or(unseen)
    }

    /// Whether a load runs or is being cancelled, even on a lost worker.
    pub(crate) fn loads(&self) -> bool {
        self.takes_load_slot() || matches!(self.state, InstanceState::Lost(Was::Loading))
    }

    /// Whether it may still be loading and take more memory.
    fn grows(&self) -> bool {
        self.takes_load_slot()
            || matches!(
                self.state,
                InstanceState::Opaque | InstanceState::Lost(Was::Loading | Was::Opaque)
            )
    }

    /// Whether it will end without any further decision.
    pub(crate) fn going(&self) -> bool {
        let asked = matches!(
            self.state,
            InstanceState::Cancelling { .. } | InstanceState::Evicting { .. } | InstanceState::Leaving(_)
        );
        asked || self.condemned.is_some() && !self.lost()
    }

    /// Whether an operator wants it gone and its worker can be told so.
    pub(crate) fn unloading(&self) -> bool {
        self.condemned.is_some() && !self.lost() && !self.takes_load_slot()
    }

    /// The load that waits for this instance.
    pub(crate) fn load_mut(&mut self) -> Option<&mut Load> {
        if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = &mut self.state
        {
            Some(load)
        } else {
            None
        }
    }

    /// The load that waited for this instance, and where it ran.
    pub(crate) fn into_load(self) -> Option<(Load, WorkerId, HostId)> {
        if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = self.state
        {
            Some((*load, self.worker, self.host))
        } else {
            None
        }
    }

    /// Whether it was loaded and the controller has not asked it to end. If it ends anyway, that is a failure.
    pub(crate) fn was_loaded(&self) -> bool {
        self.loaded()
            || matches!(
                self.state,
                InstanceState::Opaque
                    | InstanceState::Lost(Was::Serving | Was::Evicting)
                    | InstanceState::Leaving(Exit::Worker(Before::Serving))
            )
    }

    /// Whether a load waits for this instance.
    pub(crate) fn carries_load(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Loading { .. } | InstanceState::Leaving(Exit::Worker(Before::Loading(_)))
        )
    }

    /// Whether it is a ghost: its worker is lost, and it may still hold memory.
    pub(crate) fn lost(&self) -> bool {
        matches!(self.state, InstanceState::Lost(_))
    }

    /// Whether it takes one of its host's load slots (I5): it is loading, or its load is being cancelled.
    pub(crate) fn takes_load_slot(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Loading { .. } | InstanceState::Cancelling { .. }
        )
    }

    /// Whether its engine starts or ends. No load may begin on its devices then (I5, PROTOCOL 13).
    pub(crate) fn in_motion(&self) -> bool {
        self.takes_load_slot() || self.going() || self.moves_unseen()
    }

    /// Whether its engine may be starting or ending on a lost worker, where nobody sees when that is over.
    pub(crate) fn moves_unseen(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Lost(Was::Loading | Was::Evicting | Was::Leaving)
        )
    }

    /// The route that gateways should have; none if they should have none.
    pub(crate) fn wanted_route(&self) -> Option<RouteState> {
        if !self.published {
            return None;
        }
        match &self.state {
            InstanceState::Lost(Was::Serving | Was::Evicting) if self.condemned.is_none() => {
                Some(RouteState::Suspect)
            }
            InstanceState::Lost(_) | InstanceState::Loading { .. } | InstanceState::Cancelling { .. } => None,
            _ if self.condemned.is_some() => Some(RouteState::Draining),
            // The worker may refuse an eviction; until it accepts, requests may still come.
            InstanceState::Ready | InstanceState::Evicting { quiesced: false } => Some(RouteState::Ready),
            InstanceState::Evicting { quiesced: true }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Leaving(_) => Some(RouteState::Draining),
            InstanceState::Opaque => None,
        }
    }

    /// Turns it into a ghost. Returns the state that it had.
    pub(crate) fn lose(&mut self) -> InstanceState {
        let was = match &self.state {
            InstanceState::Ready | InstanceState::Quiesced { .. } | InstanceState::Resuming => Was::Serving,
            InstanceState::Evicting { .. } => Was::Evicting,
            InstanceState::Loading { .. } | InstanceState::Cancelling { .. } => Was::Loading,
            InstanceState::Leaving(_) => Was::Leaving,
            InstanceState::Opaque => Was::Opaque,
            InstanceState::Lost(was) => *was,
        };
        std::mem::replace(&mut self.state, InstanceState::Lost(was))
    }

    /// A session ended or began: commands of the old session may have to be sent again.
    pub(crate) fn session_over(&mut self) {
        self.given.forget();
        if let Some(condemned) = &mut self.condemned {
            (condemned.due, condemned.accepted) = (true, false);
        }
    }

    /// Applies an operator's unload to the reported state: a load is cancelled, a loaded instance is unloaded. An unload that the worker
    /// had accepted and then gave up is dropped.
    pub(crate) fn press(&mut self) {
        let Some(condemned) = &mut self.condemned else {
            return;
        };
        match &self.state {
            InstanceState::Loading { .. } => self.state = InstanceState::Cancelling { sent: false },
            InstanceState::Opaque if condemned.accepted => {}
            _ if self.pending.is_some() => {}
            InstanceState::Ready
            | InstanceState::Evicting { .. }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Opaque => {
                condemned.due = true;
                if condemned.accepted {
                    self.condemned = None;
                }
            }
            InstanceState::Cancelling { .. } | InstanceState::Leaving(_) | InstanceState::Lost(_) => {}
        }
    }
}
