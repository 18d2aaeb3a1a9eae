//! Everything policy can want done. An executor carries effects out in order and decides nothing.

use std::sync::Arc;
use std::time::Duration;

use super::decision::Decision;
use super::facts::{Progress, WorkerFacts};
use super::failure::LoadError;
use super::ids::CommandId;
use super::spec::InstanceSpec;
use super::units::Moment;
use muster_core::{HoldId, InstanceId, ModelId, RequestId, WorkerId};

/// An output of [`Fleet::step`](crate::Fleet::step).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Send a command to a worker and answer with exactly one [`Event::Outcome`](crate::Event::Outcome).
    Command {
        /// Names it in the outcome.
        id: CommandId,
        /// The worker that gets it.
        worker: WorkerId,
        /// About which instance.
        instance: InstanceId,
        /// What the worker is to do.
        command: Command,
    },
    /// Tell an `EnsureLoaded` stream how it stands; after `Ready` or `Failed` nothing more follows but another `Ready` or `Queued`
    /// if the instance is lost while the stream is still open.
    Notify {
        /// The hold of the caller's stream.
        hold: HoldId,
        /// How it stands.
        stage: Stage,
    },
    /// Tell an operator's call how its load or unload proceeds; only calls that wait get these.
    Progress {
        /// The operator's call.
        request: RequestId,
        /// How it stands.
        stage: Stage,
    },
    /// Answer an operator's call; the last word on it.
    Reply {
        /// The operator's call.
        request: RequestId,
        /// The model's state afterwards, or why not.
        result: Result<ModelState, LoadError>,
    },
    /// A route is new or changed.
    PublishRoute {
        /// The instance.
        instance: InstanceId,
        /// Where it runs.
        worker: WorkerId,
        /// The model.
        model: ModelId,
        /// How good it is.
        state: RouteState,
    },
    /// A route is gone.
    RetractRoute {
        /// The instance.
        instance: InstanceId,
    },
    /// A model's state, as users see it, changed.
    ModelChanged {
        /// The model.
        model: ModelId,
        /// Its state.
        state: ModelState,
    },
    /// Settling ended: everything not mentioned by now is not there (PROTOCOL 2).
    Settled,
    /// Keep this worker in the roster, with these facts.
    RosterPut {
        /// The worker.
        facts: WorkerFacts,
    },
    /// Drop this worker from the roster.
    RosterRemove {
        /// The worker.
        worker: WorkerId,
    },
    /// End this worker's session, so that it joins again with a full report: an outcome stayed unknown while it was connected.
    Resync {
        /// The worker.
        worker: WorkerId,
    },
    /// Send [`Event::Tick`](crate::Event::Tick) at this moment; replaces an earlier one.
    WakeAt {
        /// When something is due next.
        at: Moment,
    },
    /// Something was decided; for `WatchEvents` and the log.
    Decided(Decision),
}

/// A command to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Begin a load attempt.
    Load {
        /// What to load.
        spec: Arc<InstanceSpec>,
        /// Holds in place from the start.
        holds: Vec<HoldId>,
    },
    /// Stop loading.
    CancelLoad,
    /// Take no new work, reversibly.
    Quiesce,
    /// Take work again.
    Resume,
    /// End the instance.
    Unload {
        /// What may be disturbed.
        mode: UnloadMode,
    },
    /// Put a hold on it.
    PlaceHold {
        /// The hold.
        hold: HoldId,
    },
    /// Remove a hold.
    ReleaseHold {
        /// The hold.
        hold: HoldId,
    },
    /// Show these attributes of the model from now on, and echo them when joining.
    SetAttributes {
        /// Never evicted by policy.
        pinned: bool,
        /// Idle time after which it is unloaded; none = never.
        idle_ttl: Option<Duration>,
    },
    /// Forget a terminal instance.
    AckTombstone,
}

/// What an unload may disturb.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadMode {
    /// Nothing: only if idle, unheld and not touched since (PROTOCOL 8).
    IfIdle {
        /// The `touch_seq` that policy saw.
        if_touch_seq: u64,
    },
    /// What is queued.
    Drain {
        /// The longest drain; the instance is ready again after it. None = no limit.
        within: Option<Duration>,
    },
    /// Everything.
    Force,
}

impl UnloadMode {
    /// A drain without a limit.
    pub const DRAIN: Self = Self::Drain { within: None };
}

/// How a wish for a model stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Its load waits in the queue.
    Queued {
        /// Place in the load queue, from 1.
        position: u32,
        /// What it waits for.
        reason: WaitReason,
        /// Models it waits for.
        blocked_by: Vec<ModelId>,
    },
    /// Room is being made.
    Evicting {
        /// Models that go.
        models: Vec<ModelId>,
    },
    /// An engine starts.
    Loading {
        /// The instance.
        instance: InstanceId,
        /// The worker that hosts it.
        worker: WorkerId,
        /// How far the load is.
        progress: Progress,
    },
    /// Loaded, with a hold in place at the worker.
    Ready {
        /// The instance.
        instance: InstanceId,
        /// The worker that hosts it.
        worker: WorkerId,
    },
    /// Not to be had.
    Failed(LoadError),
}

/// Why a load waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// The controller has not heard from all its workers.
    Settling,
    /// Another load runs on that host, or another load or unload on that device; or a fresh memory sample is awaited.
    LoadSlot,
    /// Room is claimed but not yet free: busy models, ghosts, earlier claims.
    Claim,
    /// No worker that could host it is here.
    NoWorker,
}

/// How good a route is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteState {
    /// Requests may go there.
    Ready,
    /// Its worker is lost; use it only if nothing else is there.
    Suspect,
    /// Finishes what it has; send nothing new.
    Draining,
}

/// A model's state as users see it (the seed's five).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelState {
    /// Not loaded.
    Unloaded,
    /// Waiting for a load, or loading.
    Loading,
    /// At least one instance takes requests.
    Loaded,
    /// Draining or being ended.
    Unloading,
    /// The last load failed, or the last instance was lost.
    Failed(LoadError),
}
