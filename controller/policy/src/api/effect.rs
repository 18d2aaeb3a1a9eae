//! What policy asks the executor to do. The executor carries effects out in order and decides nothing.

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
        /// The outcome carries the same id.
        id: CommandId,
        /// The worker that receives the command.
        worker: WorkerId,
        /// The instance that the command is about.
        instance: InstanceId,
        command: Command,
    },
    /// Tell an `EnsureLoaded` stream how its load stands. After `Ready` or `Failed` only another `Ready` or `Queued` may follow, if the
    /// instance is lost while the stream is still open.
    Notify {
        /// The hold that stands for the caller's stream.
        hold: HoldId,
        stage: Stage,
    },
    /// Tell an operator's call how its load or unload proceeds; only calls that wait get these.
    Progress {
        /// The operator's call.
        request: RequestId,
        stage: Stage,
    },
    /// Answer an operator's call. No further effect for this call follows.
    Reply {
        /// The operator's call.
        request: RequestId,
        /// The model's state afterwards, or the reason of the refusal.
        result: Result<ModelState, LoadError>,
    },
    /// Tell gateways that a route is new or changed.
    PublishRoute {
        instance: InstanceId,
        /// The worker that runs the instance.
        worker: WorkerId,
        model: ModelId,
        state: RouteState,
    },
    /// Tell gateways that a route is gone.
    RetractRoute { instance: InstanceId },
    /// A model's state, as users see it, changed.
    ModelChanged { model: ModelId, state: ModelState },
    /// Settling ended: a model or route that was not mentioned until now does not exist (PROTOCOL 2).
    Settled,
    /// Keep this worker in the roster, with these facts.
    RosterPut { facts: WorkerFacts },
    /// Drop this worker from the roster.
    RosterRemove { worker: WorkerId },
    /// End this worker's session so that it joins again with a full report: the outcome of a command stayed unknown while the worker was
    /// connected.
    Resync { worker: WorkerId },
    /// Send [`Event::Tick`](crate::Event::Tick) at this moment. It replaces the moment asked for before.
    WakeAt {
        /// When policy has something to do next.
        at: Moment,
    },
    /// A decision to show in `WatchEvents` and the log.
    Decided(Decision),
}

/// A command to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Start an engine and load a model into it.
    Load {
        /// The instance to make: model, settings, reservations.
        spec: Arc<InstanceSpec>,
        /// Holds that the worker puts on the instance from the start.
        holds: Vec<HoldId>,
    },
    /// Stop a load that is under way.
    CancelLoad,
    /// Take no new requests; `Resume` undoes it.
    Quiesce,
    /// Take requests again after `Quiesce`.
    Resume,
    /// Unload the model and end its engine.
    Unload {
        /// What the worker may interrupt to do so.
        mode: UnloadMode,
    },
    /// Put a hold on the instance: it may not be evicted until the hold is released.
    PlaceHold { hold: HoldId },
    /// Release a hold.
    ReleaseHold { hold: HoldId },
    /// Store these attributes of the model. The worker shows them, and reports them when it joins.
    SetAttributes {
        /// Policy never evicts a pinned model (I6).
        pinned: bool,
        /// Idle time after which the model is unloaded; none = never.
        idle_ttl: Option<Duration>,
    },
    /// Forget an instance that has ended: the controller has recorded its end.
    AckTombstone,
}

/// What an unload may interrupt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnloadMode {
    /// Unload only if the instance is idle, has no hold, and was not used since policy looked (PROTOCOL 8).
    IfIdle {
        /// The instance's `touch_seq` when policy looked.
        if_touch_seq: u64,
    },
    /// Cancel queued requests, let running ones finish.
    Drain {
        /// The longest time for running requests to finish; past it the instance takes requests again. None = no limit.
        within: Option<Duration>,
    },
    /// Cancel queued and running requests.
    Force,
}

impl UnloadMode {
    /// A drain without a time limit.
    pub const DRAIN: Self = Self::Drain { within: None };
}

/// How far a caller's or operator's wish for a model has got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The load waits in the queue.
    Queued {
        /// Place in the load queue; 1 is next.
        position: u32,
        reason: WaitReason,
        /// Models that must finish, load or go first.
        blocked_by: Vec<ModelId>,
    },
    /// Other models are being unloaded to make room.
    Evicting {
        /// The models that are unloaded.
        models: Vec<ModelId>,
    },
    /// The engine starts and reads the model.
    Loading {
        instance: InstanceId,
        /// The worker that loads the model.
        worker: WorkerId,
        progress: Progress,
    },
    /// The model is loaded, and the worker has the caller's hold in place.
    Ready {
        instance: InstanceId,
        /// The worker that runs the instance.
        worker: WorkerId,
    },
    /// The load failed or was refused.
    Failed(LoadError),
}

/// Why a load waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitReason {
    /// The controller has just started and has not yet heard from all known workers.
    Settling,
    /// Another load runs on the host, another load or unload runs on the device, or policy waits for a fresh memory sample.
    LoadSlot,
    /// Room is claimed for this load but not free yet: busy models, lost workers' instances or earlier claims hold it.
    Claim,
    /// No connected worker can host the model.
    NoWorker,
}

/// Whether gateways may send requests to an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteState {
    /// Takes requests.
    Ready,
    /// Its worker's session is lost. Use the route only if the model has no ready one.
    Suspect,
    /// Finishes the requests it has; send no new ones.
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
