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
//! An operator's wish that it goes (`condemned`) is no state: it holds whatever is reported, until it is gone.
//!
//! A busy victim of a load that waited too long is quiesced patiently: it finishes what it has, and then goes.
//!
//! Invariants: reservations never change; one command is outstanding at most (`pending`); a ghost is never sent a command.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::command::{Given, Pending};
use super::load::{Load, LoadId};
use super::usage::Usage;
use crate::api::{InstanceSpec, Moment, Progress, RouteState, UnloadMode};
use muster_core::{Bytes, DeviceId, HoldId, HostId, InstanceId, WorkerId};

/// One instance.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) id: InstanceId,
    pub(crate) worker: WorkerId,
    pub(crate) host: HostId,
    pub(crate) spec: Arc<InstanceSpec>,
    pub(crate) state: InstanceState,
    /// The command that has no outcome yet.
    pub(crate) pending: Option<Pending>,
    /// The last commands.
    pub(crate) given: Given,
    pub(crate) condemned: Option<Condemned>,
    /// Newest revision heard.
    pub(crate) revision: u64,
    pub(crate) running: u32,
    pub(crate) queued: u32,
    /// Holds in place at the worker, as far as known.
    pub(crate) holds: BTreeSet<HoldId>,
    /// Holds of streams that have ended; released as soon as no command is outstanding.
    pub(crate) to_release: BTreeSet<HoldId>,
    /// Since when it carries holds whose streams this controller never saw (it restarted): they are released after a while.
    pub(crate) strangers_since: Option<Moment>,
    pub(crate) usage: Usage,
    /// Since when it is loaded; for one that was found loaded, since its last use before.
    pub(crate) ready_since: Option<Moment>,
    pub(crate) observed: Vec<(DeviceId, Bytes)>,
    /// Free memory of its devices when its worker was lost, raised by what others of ours gave back since.
    pub(crate) free_at_loss: Vec<(DeviceId, Bytes)>,
    /// An outcome is unknown since then and no report has explained it.
    pub(crate) doubtful_since: Option<Moment>,
    /// It takes requests once it is ready; else its replica group is not complete yet.
    pub(crate) published: bool,
    /// Its route as last announced.
    pub(crate) route: Option<RouteState>,
}

/// Where an instance stands.
#[derive(Debug)]
pub(crate) enum InstanceState {
    /// The engine starts and reads the model.
    Loading {
        /// The load that it runs for, to put it back into the queue if need be.
        load: Box<Load>,
        progress: Progress,
        /// Since when nobody waits for it; none while somebody does.
        unwanted_since: Option<Moment>,
    },
    /// Its load is being cancelled; it may come too late.
    Cancelling { sent: bool },
    /// Takes requests.
    Ready,
    /// A policy unload was sent; the worker may still refuse it, and is then as before: ready, or quiesced.
    Evicting { quiesced: bool },
    /// Takes no new requests, for a plan with several victims; without a plan it is to be resumed.
    Quiesced {
        plan: Option<LoadId>,
        /// The worker has reported the state, so that its counts are those after the quiesce.
        confirmed: bool,
        /// It was busy, and may finish what it has; else the plan falls apart if it turns out busy.
        patient: bool,
        since: Moment,
    },
    /// Resume was sent.
    Resuming,
    /// On its way out, irrevocably.
    Leaving(Exit),
    /// Its worker is lost; it may still run.
    Lost(Was),
    /// In a state this controller does not know: busy, reserved, not routable.
    Opaque,
}

/// Why an instance is on its way out.
#[derive(Debug)]
pub(crate) enum Exit {
    /// It was told to go.
    Asked,
    /// The worker ends it, and has not said why: its engine failed, or somebody at its host wants it gone.
    Worker(Before),
}

/// What an instance was when its worker began to end it.
#[derive(Debug)]
pub(crate) enum Before {
    /// It was loading, for this load.
    Loading(Box<Load>),
    /// It was ready once.
    Serving,
}

/// What a lost instance was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Was {
    /// Loaded: gateways may still reach it.
    Serving,
    /// Loaded, and told to go if idle.
    Evicting,
    /// Its engine loads, cancelled or not.
    Loading,
    /// Its engine ends.
    Leaving,
    /// In a state that nobody knows.
    Opaque,
}

/// An operator wants it gone. That outlives sessions and whatever is reported meanwhile; only a worker that gives up to wait for its work
/// ends it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Condemned {
    pub(crate) mode: UnloadMode,
    /// The unload is still to be sent, in this session.
    pub(crate) due: bool,
    /// The worker has accepted it, in this session.
    pub(crate) accepted: bool,
}

impl Instance {
    /// An instance of which nothing is known yet but what it is to be.
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

    /// Whether work runs, queues or is held there, as far as policy knows (I1, I10).
    pub(crate) fn busy(&self) -> bool {
        self.works() || !self.holds.is_empty()
    }

    /// It takes requests once it is published, and nobody wants it gone.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.state, InstanceState::Ready) && self.condemned.is_none()
    }

    /// Whether it served, and whether it did so idly.
    pub(crate) fn at_work(&self) -> (bool, bool) {
        (self.loaded(), !self.works())
    }

    /// Its engine has loaded the model, and nobody has begun to end it as far as is known.
    fn loaded(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Ready
                | InstanceState::Evicting { .. }
                | InstanceState::Quiesced { .. }
                | InstanceState::Resuming
        )
    }

    /// Work runs or queues there.
    pub(crate) fn works(&self) -> bool {
        self.running > 0 || self.queued > 0
    }

    /// Its reservation on a device.
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

    /// What it counts for on a device: the larger of what it reserved and what it was seen to use (I4).
    pub(crate) fn charge_on(&self, device: &DeviceId) -> Bytes {
        self.reserved_on(device)
            .max(self.observed_on(device).unwrap_or(Bytes::ZERO))
    }

    /// What it may still come to use beyond what a sample shows.
    pub(crate) fn unrealised_on(&self, device: &DeviceId) -> Bytes {
        self.charge_on(device).saturating_sub(self.in_use_on(device))
    }

    /// What a sample may get back once it has ended. How much of it one that grows uses already is not known, and must not make a load
    /// that waits for its end look hopeless.
    pub(crate) fn returned_by_end(&self, device: &DeviceId) -> Bytes {
        if self.grows() {
            self.charge_on(device)
        } else {
            self.in_use_on(device)
        }
    }

    /// What a sample shows of it. Where an engine cannot be observed, one that is loaded is taken to use what it reserved, and one that may
    /// still be loading nothing yet (I4).
    fn in_use_on(&self, device: &DeviceId) -> Bytes {
        let unseen = if self.grows() {
            Bytes::ZERO
        } else {
            self.reserved_on(device)
        };
        self.observed_on(device).unwrap_or(unseen)
    }

    /// A load runs, or is being cancelled, whether its worker can be reached or not.
    pub(crate) fn loads(&self) -> bool {
        self.takes_load_slot() || matches!(self.state, InstanceState::Lost(Was::Loading))
    }

    /// It may be loading, and come to use more than it does.
    fn grows(&self) -> bool {
        self.takes_load_slot()
            || matches!(
                self.state,
                InstanceState::Opaque | InstanceState::Lost(Was::Loading | Was::Opaque)
            )
    }

    /// It will be gone without anything more being decided.
    pub(crate) fn going(&self) -> bool {
        let asked = matches!(
            self.state,
            InstanceState::Cancelling { .. } | InstanceState::Evicting { .. } | InstanceState::Leaving(_)
        );
        asked || self.condemned.is_some() && !self.lost()
    }

    /// An operator wants it gone, and its worker can be told so.
    pub(crate) fn unloading(&self) -> bool {
        self.condemned.is_some() && !self.lost() && !self.takes_load_slot()
    }

    /// The load that depends on it.
    pub(crate) fn load_mut(&mut self) -> Option<&mut Load> {
        if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = &mut self.state
        {
            Some(load)
        } else {
            None
        }
    }

    /// The load that depended on it, and where it ran.
    pub(crate) fn into_load(self) -> Option<(Load, WorkerId, HostId)> {
        if let InstanceState::Loading { load, .. }
        | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) = self.state
        {
            Some((*load, self.worker, self.host))
        } else {
            None
        }
    }

    /// It was loaded, and nobody of ours had it end: if it ends all the same, that is a failure.
    pub(crate) fn was_loaded(&self) -> bool {
        self.loaded()
            || matches!(
                self.state,
                InstanceState::Opaque
                    | InstanceState::Lost(Was::Serving | Was::Evicting)
                    | InstanceState::Leaving(Exit::Worker(Before::Serving))
            )
    }

    /// A load depends on it.
    pub(crate) fn carries_load(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Loading { .. } | InstanceState::Leaving(Exit::Worker(Before::Loading(_)))
        )
    }

    /// Whether it is a ghost: its worker is lost, and its memory may still be taken.
    pub(crate) fn lost(&self) -> bool {
        matches!(self.state, InstanceState::Lost(_))
    }

    /// It is being loaded, or its load is being cancelled: it takes a load slot of its host (I5).
    pub(crate) fn takes_load_slot(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Loading { .. } | InstanceState::Cancelling { .. }
        )
    }

    /// An engine starts or ends: no load may begin on its devices (I5, PROTOCOL 13).
    pub(crate) fn in_motion(&self) -> bool {
        self.takes_load_slot() || self.going() || self.moves_unseen()
    }

    /// Its engine may start or end, and nobody sees when that is over.
    pub(crate) fn moves_unseen(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Lost(Was::Loading | Was::Evicting | Was::Leaving)
        )
    }

    /// The route that gateways should have.
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
            // An eviction may be refused; until the worker has accepted it, requests may come.
            InstanceState::Ready | InstanceState::Evicting { quiesced: false } => Some(RouteState::Ready),
            InstanceState::Evicting { quiesced: true }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Leaving(_) => Some(RouteState::Draining),
            InstanceState::Opaque => None,
        }
    }

    /// What becomes of its state when its worker is lost; the state it had.
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

    /// A session is over, or a new one has begun: what was sent in it may have to be sent again.
    pub(crate) fn session_over(&mut self) {
        self.given.forget();
        if let Some(condemned) = &mut self.condemned {
            (condemned.due, condemned.accepted) = (true, false);
        }
    }

    /// An operator's wish holds whatever was reported: a load is cancelled, and what is loaded is unloaded, unless the worker had accepted
    /// to do so and has given it up.
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
