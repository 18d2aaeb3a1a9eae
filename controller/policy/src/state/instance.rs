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
//! A busy victim of a load that waited too long is quiesced patiently: it finishes what it has, and then goes.
//!
//! Invariants: reservations never change; one command is outstanding at most (`pending`); a ghost is never sent a command.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::load::{Load, LoadId};
use super::usage::Usage;
use crate::api::{
    Bytes, CommandId, DeviceId, HoldId, HostId, InstanceId, InstanceSpec, Moment, Progress, RouteState,
    UnloadMode, WorkerId,
};

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
    /// Its load is being cancelled; if that comes too late, an operator may want it unloaded all the same.
    Cancelling { sent: bool, unload: Option<UnloadMode> },
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

/// Why and how far an instance is on its way out.
#[derive(Debug)]
pub(crate) enum Exit {
    /// An operator's unload waits for an outstanding command.
    ToSend(UnloadMode),
    /// An operator's unload was sent.
    Operator,
    /// Policy's unload, or a cancellation, is being done.
    Wanted,
    /// The worker ends it, and has not said why: its engine failed, or somebody at its host wants it gone.
    Worker(Before),
}

/// What an instance was when its worker began to end it.
#[derive(Debug)]
pub(crate) enum Before {
    /// It was loading, for this load.
    Loading(Box<Load>),
    /// It was loaded.
    Serving,
}

/// What a lost instance was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Was {
    /// Gateways may still reach it.
    Routable,
    /// It took no requests.
    NotRoutable,
    /// An operator unloaded it meanwhile: it is unloaded as soon as its worker is back.
    Condemned,
}

/// A command without an outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    pub(crate) id: CommandId,
    pub(crate) asked: Asked,
}

/// What a command asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    Load,
    CancelLoad,
    Quiesce,
    Resume,
    Evict,
    OperatorUnload,
    SetAttributes,
    PlaceHold(HoldId),
    ReleaseHold(HoldId),
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

    /// Whether it served, and whether it did so idly.
    pub(crate) fn at_work(&self) -> (bool, bool) {
        let serving = matches!(
            self.state,
            InstanceState::Ready | InstanceState::Evicting { .. } | InstanceState::Quiesced { .. }
        );
        (serving, !self.works())
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

    /// What it may still come to use beyond what a sample shows. Where an engine cannot be observed, a ready one is taken to use
    /// what it reserved and a loading one nothing yet.
    pub(crate) fn unrealised_on(&self, device: &DeviceId) -> Bytes {
        self.charge_on(device).saturating_sub(self.in_use_on(device))
    }

    /// What a sample may get back once it has ended. How much of it a loading one uses already is not known, and must not make a load
    /// that waits for its end look hopeless.
    pub(crate) fn returned_by_end(&self, device: &DeviceId) -> Bytes {
        match &self.state {
            InstanceState::Loading { .. } | InstanceState::Cancelling { .. } => self.charge_on(device),
            InstanceState::Ready
            | InstanceState::Evicting { .. }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Leaving(_)
            | InstanceState::Lost(_)
            | InstanceState::Opaque => self.in_use_on(device),
        }
    }

    /// What a sample shows of it.
    fn in_use_on(&self, device: &DeviceId) -> Bytes {
        match (self.observed_on(device), &self.state) {
            (Some(bytes), _) => bytes,
            (None, InstanceState::Loading { .. } | InstanceState::Cancelling { .. }) => Bytes::ZERO,
            (None, _) => self.reserved_on(device),
        }
    }

    /// It will be gone without anything more being decided.
    pub(crate) fn going(&self) -> bool {
        match &self.state {
            InstanceState::Cancelling { .. } | InstanceState::Evicting { .. } | InstanceState::Leaving(_) => {
                true
            }
            InstanceState::Loading { .. }
            | InstanceState::Ready
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Lost(_)
            | InstanceState::Opaque => false,
        }
    }

    /// The load that depends on it.
    pub(crate) fn load_mut(&mut self) -> Option<&mut Load> {
        match &mut self.state {
            InstanceState::Loading { load, .. }
            | InstanceState::Leaving(Exit::Worker(Before::Loading(load))) => Some(load),
            InstanceState::Leaving(
                Exit::ToSend(_) | Exit::Operator | Exit::Wanted | Exit::Worker(Before::Serving),
            )
            | InstanceState::Cancelling { .. }
            | InstanceState::Ready
            | InstanceState::Evicting { .. }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Lost(_)
            | InstanceState::Opaque => None,
        }
    }

    /// A load depends on it.
    pub(crate) fn carries_load(&self) -> bool {
        matches!(
            self.state,
            InstanceState::Loading { .. } | InstanceState::Leaving(Exit::Worker(Before::Loading(_)))
        )
    }

    /// It is a ghost.
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
        self.takes_load_slot() || self.going()
    }

    /// The route that gateways should have.
    pub(crate) fn wanted_route(&self) -> Option<RouteState> {
        if !self.published {
            return None;
        }
        match &self.state {
            // An eviction may be refused; until the worker has accepted it, requests may come.
            InstanceState::Ready | InstanceState::Evicting { quiesced: false } => Some(RouteState::Ready),
            InstanceState::Evicting { quiesced: true }
            | InstanceState::Quiesced { .. }
            | InstanceState::Resuming
            | InstanceState::Leaving(_) => Some(RouteState::Draining),
            InstanceState::Lost(Was::Routable) => Some(RouteState::Suspect),
            InstanceState::Lost(Was::NotRoutable | Was::Condemned)
            | InstanceState::Loading { .. }
            | InstanceState::Cancelling { .. }
            | InstanceState::Opaque => None,
        }
    }
}
